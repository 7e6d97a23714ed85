package image

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/gpt"
)

// target is a disk in memory whose power is cut at its write number fail.
type target struct {
	content []byte
	writes  int
	fail    int
}

var errCut = errors.New("cut")

func (t *target) WriteAt(b []byte, at int64) (int, error) {
	if t.writes++; t.writes == t.fail {
		return copy(t.content[at:], b[:len(b)/2]), errCut
	}
	return copy(t.content[at:], b), nil
}

func (t *target) ReadAt(b []byte, at int64) (int, error) { return copy(b, t.content[at:]), nil }

func (t *target) Sync() error { return nil }

func TestInstall(t *testing.T) {
	l, disk := plan(t, parts(t))
	before := bytes.Repeat([]byte("other"), len(disk)/5+1<<20)
	i := Installation{Digest: sha256.Sum256(disk), Size: l.Size(), Room: int64(len(before))}
	told := int64(0)
	i.Progress = func(done int64) { told = done }
	to := &target{content: bytes.Clone(before)}
	if err := i.Install(t.Context(), to, bytes.NewReader(disk)); err != nil || !bytes.Equal(to.content[:len(disk)], disk) || told != 2*i.Size {
		t.Fatalf("%v, %d of %d bytes told", err, told, 2*i.Size)
	}
	if len(bytes.Trim(to.content[len(before)-piece:], "\x00")) != 0 {
		t.Error("the end of a larger disk still has what was there")
	}
	writes := to.writes

	// Cut at each write: there is no table until all is right.
	for fail := 1; fail <= writes; fail++ {
		// What is on the target is a node, so there is a table to be lost.
		cut := &target{content: append(bytes.Clone(disk), make([]byte, len(before)-len(disk))...), fail: fail}
		if err := i.Install(t.Context(), cut, bytes.NewReader(disk)); !errors.Is(err, errCut) {
			t.Fatalf("cut at write %d: %v", fail, err)
		}
		_, err := gpt.Read(bytes.NewReader(cut.content), i.Size)
		switch {
		case err == nil && fail == 1: // The first half of a table that was there.
		case fail == writes && (err == nil) != bytes.Equal(cut.content[:len(disk)], disk):
			t.Errorf("cut at the last write: the table is read, %v, of another disk", err)
		case err == nil && fail < writes:
			t.Errorf("cut at write %d of %d: the target has a table", fail, writes)
		}
	}
}

func TestInstallRefuses(t *testing.T) {
	l, disk := plan(t, parts(t))
	good := Installation{Digest: sha256.Sum256(disk), Size: l.Size(), Room: l.Size()}
	for want, c := range map[string]struct {
		change func(i *Installation, to *target)
		read   []byte
	}{
		"on 100":            {func(i *Installation, _ *target) { i.Room = 100 }, disk},
		"it changed":        {func(i *Installation, _ *target) { i.Digest[0]++ }, disk},
		"unexpected EOF":    {func(*Installation, *target) {}, disk[:len(disk)-1]},
		"does not hold":     {func(i *Installation, to *target) { i.Reread = func() error { to.content[5<<20] ^= 1; return nil } }, disk},
		"cannot be dropped": {func(i *Installation, _ *target) { i.Reread = func() error { return errors.New("cannot be dropped") } }, disk},
	} {
		i, to := good, &target{content: make([]byte, l.Size())}
		c.change(&i, to)
		if err := i.Install(t.Context(), to, bytes.NewReader(c.read)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := gpt.Read(bytes.NewReader(to.content), l.Size()); err == nil {
			t.Errorf("%s: the target has a table", want)
		}
	}
}
