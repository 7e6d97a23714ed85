package backup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sys/unix"
)

// Buckets of etcd's that are not copied as they are.
var (
	keyBucket, metaBucket    = []byte("key"), []byte("meta")
	leaseBucket, alarmBucket = []byte("lease"), []byte("alarm")
)

// compactions are the keys of the bucket meta that hold the revisions of the last compaction.
var compactions = [][]byte{[]byte("finishedCompactRev"), []byte("scheduledCompactRev")}

// Lengths of a key in the bucket key, in bytes: the main revision, an underscore and the sub revision, both
// big-endian, and the letter t after it if the entry is that of a deletion.
const revisionLength, tombstoneLength = 8 + 1 + 8, 8 + 1 + 8 + 1

// revision is where an object's entry lies in the bucket key.
type revision [revisionLength]byte

// makeRevision is for numbers that are not negative.
func makeRevision(major, minor int64) (r revision) {
	binary.BigEndian.PutUint64(r[:8], uint64(major))
	r[8] = '_'
	binary.BigEndian.PutUint64(r[9:], uint64(minor))
	return r
}

// parseRevision reads a key of the bucket key.
func parseRevision(k []byte) (r revision, tombstone bool, err error) {
	tombstone = len(k) == tombstoneLength && k[revisionLength] == 't'
	if len(k) != revisionLength && !tombstone || k[8] != '_' || k[0]&0x80 != 0 || k[9]&0x80 != 0 {
		return revision{}, false, fmt.Errorf("the snapshot's entry %.40x is none of etcd's; use another backup", k)
	}
	copy(r[:], k)
	return r, tombstone, nil
}

func (r revision) major() int64 { return int64(binary.BigEndian.Uint64(r[:8])) }
func (r revision) minor() int64 { return int64(binary.BigEndian.Uint64(r[9:])) }

// database is a snapshot that is read.
type database struct {
	tx *bbolt.Tx
	// size is the file's, in bytes.
	size int64
}

// options open f itself, whatever path it has or lacks: bbolt closes what it opened, so it gets a duplicate.
func options(f *os.File) *bbolt.Options {
	return &bbolt.Options{
		FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, NoSync: true,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) {
			fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("duplicate the file: %w", err)
			}
			return os.NewFile(uintptr(fd), f.Name()), nil
		},
	}
}

// read calls do with the snapshot in src. The bytes after its last page are not looked at.
func read(src *os.File, do func(*database) error) (err error) {
	info, err := src.Stat()
	if err != nil {
		return err
	}
	o := options(src)
	o.ReadOnly = true
	db, err := bbolt.Open(src.Name(), 0, o)
	if err != nil {
		return fmt.Errorf("open the snapshot: %w; use another backup", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error { return do(&database{tx: tx, size: info.Size()}) })
}

// write calls fill with a new database in dst and returns the file's size, in bytes.
func write(dst *os.File, fill func(*bbolt.DB) error) (size int64, err error) {
	db, err := bbolt.Open(dst.Name(), 0, options(dst))
	if err != nil {
		return 0, fmt.Errorf("make the new snapshot: %w", err)
	}
	defer func() {
		if err = errors.Join(err, db.Close()); err == nil {
			err = dst.Truncate(size) // bbolt grows files by more than it needs.
		}
	}()
	if err := fill(db); err != nil {
		return 0, err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		size = tx.Size()
		return nil
	})
	return size, err
}

// each calls do for all entries of a bucket, by their keys; none is there twice, so
// together they are smaller than the file.
func (d *database) each(name []byte, do func(k, v []byte) error) error {
	bucket := d.tx.Bucket(name)
	if bucket == nil {
		return fmt.Errorf("the snapshot has no bucket %s: it is none of etcd's; use another backup", name)
	}
	left := d.size
	return bucket.ForEach(func(k, v []byte) error {
		if left -= int64(len(k) + len(v)); v == nil || left < 0 {
			return fmt.Errorf("the snapshot's bucket %s is damaged; use another backup", name)
		}
		return do(k, v)
	})
}

// state is where each key's last value lies, as after a full compaction.
type state struct {
	bucket *bbolt.Bucket
	live   map[string]revision
	// revision is etcd's.
	revision int64
	// next is the first revision after all of the snapshot's.
	next revision
}

// index reads where each key's last value lies.
func (d *database) index() (*state, error) {
	s := &state{live: map[string]revision{}}
	var last revision
	var kv mvccpb.KeyValue
	err := d.each(keyBucket, func(k, v []byte) error {
		at, tombstone, err := parseRevision(k)
		if err == nil {
			err = decodeEntry(&kv, v)
		}
		if err != nil {
			return err
		}
		last = at
		if tombstone {
			delete(s.live, string(kv.Key))
		} else {
			s.live[string(kv.Key)] = at
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// An earlier restore left an entry without a key, which only raises the revision.
	delete(s.live, "")
	s.bucket, s.revision, s.next = d.tx.Bucket(keyBucket), last.major(), makeRevision(last.major(), last.minor()+1)
	return s, s.passCompactions(d.tx.Bucket(metaBucket))
}

// passCompactions raises the revision to that of the last compaction: what was stored at that one may be deleted.
func (s *state) passCompactions(meta *bbolt.Bucket) error {
	if meta == nil {
		return nil
	}
	for _, name := range compactions {
		v := meta.Get(name)
		if v == nil {
			continue
		}
		at, _, err := parseRevision(v)
		if err != nil {
			return err
		}
		if at.major() > s.revision {
			s.revision, s.next = at.major(), makeRevision(at.major(), 0)
		}
	}
	return nil
}

// get returns a key's last value, or nil.
func (s *state) get(key string) ([]byte, error) {
	at, ok := s.live[key]
	if !ok {
		return nil, nil
	}
	var kv mvccpb.KeyValue
	if err := decodeEntry(&kv, s.bucket.Get(at[:])); err != nil {
		return nil, err
	}
	return kv.Value, nil
}

// isLive reports whether an entry is its key's last.
func (s *state) isLive(k []byte, key string) bool {
	at, ok := s.live[key]
	return ok && bytes.Equal(k, at[:])
}

// decodeEntry reads an entry of the bucket key into kv, whose memory it uses again.
func decodeEntry(kv *mvccpb.KeyValue, v []byte) error {
	*kv = mvccpb.KeyValue{Key: kv.Key[:0], Value: kv.Value[:0]}
	if err := kv.Unmarshal(v); err != nil {
		return fmt.Errorf("an entry of the snapshot is damaged: %w; use another backup", err)
	}
	return nil
}
