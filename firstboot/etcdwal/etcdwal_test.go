package etcdwal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hullmark/hullmark"
)

// writer writes a log as etcd does.
type writer struct {
	files fstest.MapFS
	crc   uint32
	name  string
}

// message encodes numbers by field, from 1 on, and content as the last field.
func message(content []byte, numbers ...uint64) (b []byte) {
	for i, n := range numbers {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(i+1), protowire.VarintType), n)
	}
	if content != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, protowire.Number(len(numbers)+1), protowire.BytesType), content)
	}
	return b
}

func (w *writer) frame(record []byte) {
	head := make([]byte, 8)
	padding := (8 - len(record)%8) % 8
	binary.LittleEndian.PutUint64(head, uint64(len(record)))
	if padding > 0 {
		head[7] = 0x80 | byte(padding)
	}
	f := w.files[w.name]
	f.Data = append(append(append(f.Data, head...), record...), make([]byte, padding)...)
}

func (w *writer) record(kind uint64, data []byte) {
	w.crc = crc32.Update(w.crc, castagnoli, data)
	w.frame(message(data, kind, uint64(w.crc)))
}

// cut begins a segment.
func (w *writer) cut(sequence, index int) *writer {
	w.name = fmt.Sprintf("%016x-%016x.wal", sequence, index)
	w.files[w.name] = &fstest.MapFile{}
	w.frame(message(nil, crcType, uint64(w.crc)))
	w.record(metadataType, message(nil, 2, 1))
	return w
}

func (w *writer) state(term, vote, commit uint64) *writer {
	w.record(stateType, message(nil, term, vote, commit))
	return w
}

func (w *writer) entries(term uint64, indexes ...uint64) *writer {
	for _, index := range indexes {
		w.record(entryType, message([]byte(strings.Repeat("x", int(index)*100)), 0, term, index))
	}
	return w
}

// newLog is a log of one segment with ten entries, of which eight are committed.
func newLog() *writer {
	w := (&writer{files: fstest.MapFS{"0.tmp": &fstest.MapFile{}}}).cut(0, 0)
	w.record(snapshotType, message(nil, 0, 0))
	return w.state(3, 2, 0).entries(3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10).state(3, 2, 8)
}

var whole = hullmark.EtcdState{Cluster: 1, Member: 2, Term: 3, Vote: 2, Commit: 8, Last: 10, LastTerm: 3}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		log  *writer
		want func(*hullmark.EtcdState)
	}{
		"one segment":               {newLog(), func(*hullmark.EtcdState) {}},
		"a segment without entries": {newLog().cut(1, 11).state(3, 2, 8), func(*hullmark.EtcdState) {}},
		"more entries in another":   {newLog().cut(1, 11).state(3, 2, 8).entries(3, 11), func(s *hullmark.EtcdState) { s.Last = 11 }},
		"overwritten entries": {newLog().state(4, 0, 8).entries(4, 9), func(s *hullmark.EtcdState) {
			s.Term, s.Vote, s.Last, s.LastTerm = 4, 0, 9, 4
		}},
	} {
		want := whole
		c.want(&want)
		// etcd fills segments with zeros beforehand.
		c.log.files[c.log.name].Data = append(c.log.files[c.log.name].Data, make([]byte, 4096)...)
		if got, err := Read(c.log.files); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// A leader's snapshot, from which a member that was far behind goes on, ends the log; its own one does not.
func TestReadSnapshots(t *testing.T) {
	for index, last := range map[uint64]uint64{5: 10, 50: 50} {
		w := newLog()
		w.record(snapshotType, message(nil, index, 3))
		if got, err := Read(w.files); err != nil || got.Last != last {
			t.Errorf("a snapshot at %d: got %+v, %v", index, got, err)
		}
	}
}

// Only the last two of many segments are read.
func TestReadTheEnd(t *testing.T) {
	w := newLog().cut(1, 11).state(3, 2, 8).entries(3, 11).cut(2, 12).state(3, 2, 11)
	w.files["0000000000000000-0000000000000000.wal"].Data = []byte("torn")
	if got, err := Read(w.files); err != nil || got.Last != 11 || got.Commit != 11 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A power cut ends the log anywhere, with zeros or with half of a record: what was stored before is found, and never more than there is.
func TestReadTorn(t *testing.T) {
	w := newLog()
	content := w.files[w.name].Data
	for end := range content {
		for _, tail := range []int{0, len(content) - end} {
			w.files[w.name].Data = append(content[:end:end], make([]byte, tail)...)
			got, err := Read(w.files)
			if err != nil && (!errors.Is(err, ErrNone) || end > 100) || got.Last > whole.Last || got.Commit > got.Last {
				t.Fatalf("cut at %d: %+v, %v", end, got, err)
			}
		}
	}
}

// Old sectors in the midst of a log, a segment of another log, or one that is missing are no log that ends earlier than etcd
// left it and goes on later.
func TestReadSpliced(t *testing.T) {
	w := newLog()
	data := w.files[w.name].Data
	data[len(data)/2] ^= 1
	if got, err := Read(w.files); err != nil || got.Last >= 10 || got.Lacks(whole) == "" {
		t.Errorf("a changed bit: %+v, %v", got, err)
	}
	w = newLog()
	w.entries(3, 11).cut(1, 12).state(3, 2, 11)
	first := w.files["0000000000000000-0000000000000000.wal"]
	first.Data = first.Data[:len(first.Data)/2]
	if got, err := Read(w.files); err == nil {
		t.Errorf("half of a segment before the last: %+v", got)
	}
	w = newLog().cut(1, 11).cut(2, 11)
	delete(w.files, "0000000000000001-000000000000000b.wal")
	if got, err := Read(w.files); err == nil {
		t.Errorf("a missing segment: %+v", got)
	}
	w = newLog()
	w.record(metadataType, message(nil, 9, 1))
	if got, err := Read(w.files); err == nil {
		t.Errorf("two members in one log: %+v", got)
	}
}

func TestStoredIn(t *testing.T) {
	disk := t.TempDir()
	if _, err := StoredIn(disk); !errors.Is(err, ErrNone) {
		t.Errorf("no etcd: %v", err)
	}
	log := filepath.Join(disk, folder)
	if err := os.MkdirAll(log, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := StoredIn(disk); !errors.Is(err, ErrNone) {
		t.Errorf("an empty folder: %v", err)
	}
	w := newLog()
	if err := os.WriteFile(filepath.Join(log, w.name), w.files[w.name].Data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := StoredIn(disk); err != nil || got != whole {
		t.Errorf("got %+v, %v", got, err)
	}
	// A link that leads out of the disk is followed by nobody.
	outside := t.TempDir()
	if err := os.Rename(log, filepath.Join(outside, "wal")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "wal"), log); err != nil {
		t.Fatal(err)
	}
	if got, err := StoredIn(disk); err == nil {
		t.Errorf("through a link: %+v", got)
	}
}

// FuzzRead looks for a log that ends the program, or says what cannot be.
func FuzzRead(f *testing.F) {
	for _, w := range []*writer{newLog(), newLog().cut(1, 11).state(4, 0, 9).entries(4, 9)} {
		f.Add(w.files["0000000000000000-0000000000000000.wal"].Data, w.files[w.name].Data)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s, err := Read(fstest.MapFS{
			"0000000000000000-0000000000000000.wal": &fstest.MapFile{Data: first}, "0000000000000001-000000000000000b.wal": &fstest.MapFile{Data: second},
		})
		if err == nil && (s.Member == 0 || s.Commit > s.Last) || err != nil && s != (hullmark.EtcdState{}) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
