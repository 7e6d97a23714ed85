// Package fulldisk has a test write whole files and folders where there is no room for them: on a full disk, on one without a
// free inode, and under a limit on a file's size.
package fulldisk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// variable is set where this program has mounts of its own.
const variable = "HULLMARK_TEST_FULL_DISK"

// Writer is one place of the program that writes whole files or folders.
type Writer struct {
	Name string
	// Before writes what is there before into the empty folder dir. It may be nil.
	Before func(dir string) error
	// Write writes into dir. It is called a second time when there is room.
	Write func(dir string) error
	// Part is the name of a file that may stay without room, and that Write goes on with; mostly there is none.
	Part string
}

// Check holds places to it that without room each returns one error, which says why and where, that what was there before is
// whole and nothing is beside it; and that with room it then writes. The test that calls it runs once more in a process of its
// own, which may mount, and does nothing else.
func Check(t *testing.T, places ...Writer) {
	t.Helper()
	if os.Getenv(variable) == "" {
		again(t, len(places))
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // The write fails with EFBIG all the same.
	for _, p := range places {
		t.Run(p.Name, func(t *testing.T) {
			for name, s := range map[string]shortage{"full": full, "no-inode": noInode, "limit": limit} {
				t.Run(name, func(t *testing.T) { p.check(t, s) })
			}
		})
	}
}

// again runs the test that called Check where it may mount.
func again(t *testing.T, places int) {
	t.Helper()
	args := []string{"--mount", "--propagation", "private", os.Args[0], "-test.run", "^" + t.Name() + "$", "-test.v"}
	if os.Geteuid() != 0 {
		args = append([]string{"--user", "--map-root-user"}, args...)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	if passed := strings.Count(string(out), "        --- PASS: "+t.Name()+"/"); err != nil || passed != 3*places {
		t.Errorf("%v, and %d of %d passed (unshare: apt-get install util-linux)\n%s", err, passed, 3*places, out)
	}
}

// shortage takes the room, and returns how it is given back.
type shortage func(t *testing.T, disk string) (lift func(), why error)

func (p Writer) check(t *testing.T, s shortage) {
	disk := t.TempDir()
	try(t, syscall.Mount("small", disk, "tmpfs", 0, "size=4m,nr_inodes=2048"))
	t.Cleanup(func() { try(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	dir := filepath.Join(disk, "dir")
	try(t, os.Mkdir(dir, 0o700))
	if p.Before != nil {
		try(t, p.Before(dir))
	}
	before := tree(t, dir)
	lift, why := s(t, disk)
	err := p.Write(dir)
	lift()
	switch {
	case err == nil || strings.Count(err.Error(), why.Error()) != 1: // Said by a program that was run, it is no syscall.Errno.
		t.Fatalf("it said %v, want once: %v", err, why)
	case !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n"):
		t.Errorf("the error is not one line that says where: %v", err)
	}
	after := tree(t, dir)
	if p.Part != "" {
		delete(after, filepath.Join(dir, p.Part))
	}
	if !maps.Equal(before, after) {
		t.Errorf("it left %q, where there was %q", after, before)
	}
	if err := p.Write(dir); err != nil {
		t.Errorf("with room: %v", err)
	}
	if after := tree(t, dir); maps.Equal(before, after) {
		t.Errorf("with room it left all as it was: %q", after)
	}
}

func full(t *testing.T, disk string) (func(), error) {
	name := filepath.Join(disk, "filler")
	f, err := os.Create(name)
	try(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() { try(t, errors.Join(f.Close(), os.Remove(name))) }, syscall.ENOSPC
}

func noInode(t *testing.T, disk string) (func(), error) {
	dir := filepath.Join(disk, "fillers")
	try(t, os.Mkdir(dir, 0o700))
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() { try(t, os.RemoveAll(dir)) }, syscall.ENOSPC
}

// limit lets the first byte of a file be written, and no other.
func limit(t *testing.T, _ string) (func(), error) {
	var earlier syscall.Rlimit
	try(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &earlier))
	try(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1, Max: earlier.Max}))
	return func() { try(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &earlier)) }, syscall.EFBIG
}

// tree is what is below dir: kind, mode and content by name.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	try(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var content []byte
		switch {
		case e.Type().IsRegular():
			content, err = os.ReadFile(name)
		case e.Type()&fs.ModeSymlink != 0:
			var target string
			target, err = os.Readlink(name)
			content = []byte(target)
		}
		if e.IsDir() {
			found[name] = info.Mode().String()
		} else {
			found[name] = fmt.Sprintf("%v %d %q", info.Mode(), info.Sys().(*syscall.Stat_t).Ino, content)
		}
		return err
	}))
	return found
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
