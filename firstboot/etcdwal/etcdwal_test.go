package etcdwal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/waltest"
)

var whole = hullmark.EtcdState{Cluster: 1, Member: 2, Term: 3, Vote: 2, Commit: 8, Last: 10, LastTerm: 3}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		log  *waltest.Log
		want func(*hullmark.EtcdState)
	}{
		"one segment":               {waltest.New(), func(*hullmark.EtcdState) {}},
		"a segment without entries": {waltest.New().Cut(1, 11).State(3, 2, 8), func(*hullmark.EtcdState) {}},
		"more entries in another":   {waltest.New().Cut(1, 11).State(3, 2, 8).Entries(3, 11), func(s *hullmark.EtcdState) { s.Last = 11 }},
		"overwritten entries": {waltest.New().State(4, 0, 8).Entries(4, 9), func(s *hullmark.EtcdState) {
			s.Term, s.Vote, s.Last, s.LastTerm = 4, 0, 9, 4
		}},
	} {
		want := whole
		c.want(&want)
		// etcd fills segments with zeros beforehand.
		c.log.Files[c.log.Name].Data = append(c.log.Files[c.log.Name].Data, make([]byte, 4096)...)
		if got, err := Read(c.log.Files); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// A leader's snapshot, from which a member that was far behind goes on, ends the log; its own one does not.
func TestReadSnapshots(t *testing.T) {
	for index, last := range map[uint64]uint64{5: 10, 50: 50} {
		w := waltest.New()
		w.Record(waltest.Snapshot, waltest.Message(nil, index, 3))
		if got, err := Read(w.Files); err != nil || got.Last != last {
			t.Errorf("a snapshot at %d: got %+v, %v", index, got, err)
		}
	}
}

// Only the last two of many segments are read.
func TestReadTheEnd(t *testing.T) {
	w := waltest.New().Cut(1, 11).State(3, 2, 8).Entries(3, 11).Cut(2, 12).State(3, 2, 11)
	w.Files["0000000000000000-0000000000000000.wal"].Data = []byte("torn")
	if got, err := Read(w.Files); err != nil || got.Last != 11 || got.Commit != 11 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A power cut ends the log anywhere, with zeros or with half of a record: what was stored before is found, and never more than there is.
func TestReadTorn(t *testing.T) {
	w := waltest.New()
	content := w.Files[w.Name].Data
	for end := range content {
		for _, tail := range []int{0, len(content) - end} {
			w.Files[w.Name].Data = append(content[:end:end], make([]byte, tail)...)
			got, err := Read(w.Files)
			if err != nil && (!errors.Is(err, ErrNone) || end > 100) || got.Last > whole.Last || got.Commit > got.Last {
				t.Fatalf("cut at %d: %+v, %v", end, got, err)
			}
		}
	}
}

// Old sectors in the midst of a log, a segment of another log, or one that is missing are no log that ends earlier than etcd
// left it and goes on later.
func TestReadSpliced(t *testing.T) {
	w := waltest.New()
	data := w.Files[w.Name].Data
	data[len(data)/2] ^= 1
	if got, err := Read(w.Files); err != nil || got.Last >= 10 || got.Lacks(whole) == "" {
		t.Errorf("a changed bit: %+v, %v", got, err)
	}
	w = waltest.New()
	w.Entries(3, 11).Cut(1, 12).State(3, 2, 11)
	first := w.Files["0000000000000000-0000000000000000.wal"]
	first.Data = first.Data[:len(first.Data)/2]
	if got, err := Read(w.Files); err == nil {
		t.Errorf("half of a segment before the last: %+v", got)
	}
	w = waltest.New().Cut(1, 11).Cut(2, 11)
	delete(w.Files, "0000000000000001-000000000000000b.wal")
	if got, err := Read(w.Files); err == nil {
		t.Errorf("a missing segment: %+v", got)
	}
	w = waltest.New()
	w.Record(waltest.Metadata, waltest.Message(nil, 9, 1))
	if got, err := Read(w.Files); err == nil {
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
	w := waltest.New()
	if err := os.WriteFile(filepath.Join(log, w.Name), w.Files[w.Name].Data, 0o600); err != nil {
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
	for _, w := range []*waltest.Log{waltest.New(), waltest.New().Cut(1, 11).State(4, 0, 9).Entries(4, 9)} {
		f.Add(w.Files["0000000000000000-0000000000000000.wal"].Data, w.Files[w.Name].Data)
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
