package infrastructure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestOneControllerAtATime(t *testing.T) {
	root := t.TempDir()
	first, second := &folders{root: root}, &folders{root: root}
	for range 2 {
		if err := first.own(); err != nil {
			t.Fatal(err)
		}
		if err := second.own(); err == nil {
			t.Fatal("two controllers work in one folder")
		}
	}
	first.lock.Close() // as its process's end does
	if err := second.own(); err != nil {
		t.Error(err)
	}
}

func TestSlots(t *testing.T) {
	c := (&folders{root: t.TempDir()}).cluster("n", "c")
	taken := map[slot]bool{}
	for i := range slots {
		s, err := c.claim(owner{fmt.Sprintf("n/m%d", i), "u"})
		if err != nil || taken[s] {
			t.Fatalf("%s: %v", s, err)
		}
		taken[s] = true
	}
	if _, err := c.claim(owner{"n/more", "u"}); !errors.Is(err, errFull) {
		t.Errorf("one too many: %v", err)
	}
	s, o, err := c.find("n/m5")
	if err != nil || s != c.slot(5) || o != (owner{"n/m5", "u"}) {
		t.Fatalf("%s, %v, %v", s, o, err)
	}
	// A removal that was interrupted after the owner was gone.
	if err := os.Remove(s.ownerFile()); err != nil {
		t.Fatal(err)
	}
	rest := filepath.Join(s.machine(), "tpm")
	if err := os.MkdirAll(rest, 0o700); err != nil {
		t.Fatal(err)
	}
	if again, err := c.claim(owner{"n/next", "v"}); again != s || err != nil {
		t.Errorf("%s, %v; want %s", again, err, s)
	}
	if _, err := os.Stat(rest); err == nil {
		t.Error("the next machine got the one before's TPM")
	}
}

func TestRemoveTakesTheSockets(t *testing.T) {
	s := slot(filepath.Join(t.TempDir(), "slot-00"))
	ours, foreign := filepath.Join(t.TempDir(), runPrefix+"1"), t.TempDir()
	if err := errors.Join(os.Mkdir(ours, 0o700), os.MkdirAll(s.machine(), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{ours, foreign} {
		if err := errors.Join(os.MkdirAll(s.machine(), 0o700), os.Symlink(target, filepath.Join(s.machine(), runName))); err != nil {
			t.Fatal(err)
		}
		if err := s.remove(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(ours); err == nil {
		t.Error("the folder of sockets is left")
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error("a folder that is none of ours was removed")
	}
}
