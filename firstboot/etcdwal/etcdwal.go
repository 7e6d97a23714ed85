// Package etcdwal reads what a member of etcd has stored for good out of its
// write-ahead log, as far as Raft's promises depend on it. It neither needs nor
// runs etcd, whose own reader brings a server and ends the process where a file is odd.
//
// A log is a folder of segments SEQUENCE-INDEX.wal, each number 16 hexadecimal digits: INDEX is that of the segment's first
// entry (go.etcd.io/etcd/server/v3/storage/wal, WAL.cut). A segment is a row of frames: 8 bytes, little-endian, of which the
// lower 56 bits are the record's length and, if the highest is set, the three lowest of the last byte the padding after it;
// then the record, walpb.Record. A segment begins with the checksum so far, the metadata and the state, and ends, if it is the
// last, in zeros.
package etcdwal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strconv"

	"github.com/hullmark/hullmark"
)

// ErrNone says that there is no log.
var ErrNone = errors.New("etcd's write-ahead log: none")

// Limits of what is read. etcd takes requests of 1.5 MiB unless it is told otherwise, and begins another segment after 64 MB.
const (
	maxRecord   = 16 << 20
	maxSegment  = 64<<20 + maxRecord + 1<<20
	maxSegments = 1024
)

// looked is how many segments are read, from the end: a segment is begun only once the one before is full of entries, and says
// again all else that counts.
const looked = 2

var segmentName = regexp.MustCompile(`^([0-9a-f]{16})-([0-9a-f]{16})\.wal$`)

// Segments returns the names of the segments in dir that Read reads, in their order. There may be other files.
func Segments(dir fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(dir, ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("etcd's write-ahead log: %w", err)
	}
	var names []string
	for _, e := range entries {
		if segmentName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 || len(names) > maxSegments {
		return nil, fmt.Errorf("%w: %d segments", ErrNone, len(names))
	}
	slices.Sort(names) // Numbers of one length sort as text does.
	return names[max(0, len(names)-looked):], nil
}

// Read reads the state out of the folder of the log. A record that is not whole
// ends it: so ends a log whose power was cut while it was written, and one that is written
// meanwhile. What comes before was, or is about to be, stored; whoever relies on it has to sync the segments first.
func Read(dir fs.FS) (hullmark.EtcdState, error) {
	names, err := Segments(dir)
	if err != nil {
		return hullmark.EtcdState{}, err
	}
	var l log
	for i, name := range names {
		if err := l.begin(name, i == 0); err != nil {
			return hullmark.EtcdState{}, err
		}
		if err := l.readFile(dir, name); err != nil {
			return hullmark.EtcdState{}, fmt.Errorf("etcd's write-ahead log: %s: %w", name, err)
		}
	}
	if l.state.Member == 0 {
		return hullmark.EtcdState{}, fmt.Errorf("%w: no member is named", ErrNone)
	}
	l.state.Commit = min(l.state.Commit, l.state.Last)
	return l.state, nil
}

// log is what was read so far.
type log struct {
	state hullmark.EtcdState
	crc   uint32
	// summed is set once crc is known.
	summed   bool
	sequence uint64
}

// begin refuses a segment that does not follow the one before.
func (l *log) begin(name string, first bool) error {
	parts := segmentName.FindStringSubmatch(name)
	sequence, err := strconv.ParseUint(parts[1], 16, 64)
	if err != nil {
		return err
	}
	if !first && sequence != l.sequence+1 {
		return fmt.Errorf("etcd's write-ahead log: %s: the segment before it is missing", name)
	}
	l.sequence = sequence
	return nil
}

func (l *log) readFile(dir fs.FS, name string) error {
	file, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(io.LimitReader(file, maxSegment), 64<<10)
	var buffer []byte
	for {
		record, whole, err := readFrame(in, &buffer)
		if err != nil {
			return err
		}
		if !whole {
			return nil
		}
		if whole, err = l.take(record); err != nil || !whole {
			return err
		}
	}
}

// readFrame reads a frame. That it is not whole, or zero, is no error.
func readFrame(in io.Reader, buffer *[]byte) (content []byte, whole bool, err error) {
	var head [8]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, false, notWhole(err)
	}
	length, padding := binary.LittleEndian.Uint64(head[:])&(1<<56-1), uint64(0)
	if head[7]&0x80 != 0 {
		padding = uint64(head[7] & 7)
	}
	if length == 0 || length > maxRecord {
		return nil, false, nil
	}
	// The buffer grows as content comes: a length alone costs nothing.
	*buffer = (*buffer)[:0]
	for want := int(length + padding); len(*buffer) < want; {
		at := len(*buffer)
		*buffer = slices.Grow(*buffer, min(want-at, 1<<20))[:at+min(want-at, 1<<20)]
		if _, err := io.ReadFull(in, (*buffer)[at:]); err != nil {
			return nil, false, notWhole(err)
		}
	}
	return (*buffer)[:length], true, nil
}

// notWhole is no error where a file ends, and the error of the disk otherwise.
func notWhole(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// The types of records (storage/wal, MetadataType and its fellows).
const (
	metadataType = iota + 1
	entryType
	stateType
	crcType
	snapshotType
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// take adds a record. One whose checksum is wrong is not whole; one that has the right checksum is as etcd wrote it, and has to
// be one that is known.
func (l *log) take(content []byte) (whole bool, err error) {
	record, data, err := fields(content, 3)
	if err != nil {
		return false, nil
	}
	kind, sum := record[1], uint32(record[2])
	if kind == crcType {
		if l.summed && sum != l.crc {
			return false, errors.New("it does not follow the one before")
		}
		l.crc, l.summed = sum, true
		return true, nil
	}
	if l.crc = crc32.Update(l.crc, castagnoli, data); !l.summed || l.crc != sum {
		return false, nil
	}
	return true, l.note(kind, data)
}

// note notes what a record says.
func (l *log) note(kind uint64, data []byte) error {
	said, _, err := fields(data, 0)
	if err != nil {
		return fmt.Errorf("record of type %d: %w", kind, err)
	}
	s := &l.state
	switch kind {
	case metadataType: // etcdserverpb.Metadata
		if s.Member != 0 && (s.Member != said[1] || s.Cluster != said[2]) {
			return errors.New("it names another member than the one before")
		}
		s.Member, s.Cluster = said[1], said[2]
	case entryType: // raftpb.Entry
		s.LastTerm, s.Last = said[2], said[3]
	case stateType: // raftpb.HardState
		s.Term, s.Vote, s.Commit = said[1], said[2], said[3]
	case snapshotType: // walpb.Snapshot: a member that was far behind goes on from a leader's.
		if said[1] > s.Last {
			s.Last, s.LastTerm = said[1], said[2]
		}
	default:
		return fmt.Errorf("record of unknown type %d", kind)
	}
	return nil
}
