package firstboot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark/kubeadm"
)

// TestReadStateStaysOnTheDisk: what root left in the place of a file that the agent reads neither holds it up nor leads it off the disk.
func TestReadStateStaysOnTheDisk(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		make func(file string) error
		want string
	}{
		"a file": {func(file string) error { return os.WriteFile(file, []byte("own"), 0o600) }, "own"},
		"a link by its path": {func(file string) error {
			return errors.Join(os.WriteFile(file+".1", []byte("own"), 0o600), os.Symlink(kubeadm.FlagsFile+".1", file))
		}, "own"},
		"a link beside it": {func(file string) error {
			return errors.Join(os.WriteFile(file+".1", []byte("own"), 0o600), os.Symlink(filepath.Base(file)+".1", file))
		}, "own"},
		"a pipe": {func(file string) error { return syscall.Mkfifo(file, 0o600) }, ""},
		"a link to a pipe": {func(file string) error {
			return errors.Join(syscall.Mkfifo(file+".1", 0o600), os.Symlink(kubeadm.FlagsFile+".1", file))
		}, ""},
		"a link that leaves": {func(file string) error { return os.Symlink(outside, file) }, ""},
		"a second that does": {func(file string) error {
			return errors.Join(os.Symlink(outside, file+".1"), os.Symlink(kubeadm.FlagsFile+".1", file))
		}, ""},
		"a link to itself": {func(file string) error { return os.Symlink(filepath.Base(file), file) }, ""},
		"a folder":         {func(file string) error { return os.Mkdir(file, 0o700) }, ""},
		"a file without end": {func(file string) error {
			return errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, maxStateFile+1))
		}, ""},
		"a file of that size": {func(file string) error {
			return errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, maxStateFile))
		}, string(make([]byte, maxStateFile))},
	} {
		a := &Agent{StateDir: t.TempDir()}
		file := filepath.Join(a.StateDir, kubeadm.FlagsFile)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), c.make(file)); err != nil {
			t.Fatal(err)
		}
		got, err := a.readState(kubeadm.FlagsFile)
		if (err == nil) != (c.want != "") || string(got) != c.want || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %.20q, %v", name, got, err)
		}
	}
}
