//go:build builds

package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hullmark/hullmark/internal/cache"
)

// fullDiskVariable is set where this program has mounts of its own.
const fullDiskVariable = "HULLMARK_TEST_FULL_DISK"

// A disk that fills up ends the build, wherever that happens; the image of an earlier build stays, and the next build with more
// room makes the right one.
func TestBuildOnAFullDisk(t *testing.T) {
	if os.Getenv(fullDiskVariable) == "" {
		withMounts(t)
		return
	}
	o, _, _ := settled(t)
	made, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	want, err := cache.HashFile(made.Image)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("output", func(t *testing.T) {
		o := o
		o.Out = smallDisk(t, "64m")
		earlier := filepath.Join(o.Out, o.ID+".raw")
		if err := os.WriteFile(earlier, []byte("earlier"), 0o600); err != nil {
			t.Fatal(err)
		}
		wantFull(t, o, o.Out)
		if content, err := os.ReadFile(earlier); err != nil || string(content) != "earlier" {
			t.Errorf("the earlier image became %.20q: %v", content, err)
		}
		if left, _ := filepath.Glob(filepath.Join(o.Out, ".*")); len(left) > 0 {
			t.Errorf("it left %q", left)
		}
		wantRight(t, o, o.Out, want)
	})
	t.Run("cache", func(t *testing.T) {
		o := o
		small := smallDisk(t, "64m")
		o.Store = storeIn(t, small, o.Store, "sha256", "tools", "mkosi", "programs")
		wantFull(t, o, small)
		wantRight(t, o, small, want)
	})
}

// withMounts runs the test that called it once more, where it may mount.
func withMounts(t *testing.T) {
	t.Helper()
	args := []string{"--mount", "--propagation", "private", os.Args[0], "-test.run", "^" + t.Name() + "$", "-test.v"}
	if os.Geteuid() != 0 {
		args = append([]string{"--user", "--map-root-user"}, args...)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), fullDiskVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+"/cache") {
		t.Errorf("%v (unshare: apt-get install util-linux)\n%s", err, out)
	}
}

func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("small", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func wantFull(t *testing.T, o Options, where string) {
	t.Helper()
	_, err := Build(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), syscall.ENOSPC.Error()) { // said by a program that was run, it is no syscall.Errno
		t.Fatalf("on a full disk it said %v", err)
	}
	if !strings.Contains(err.Error(), where) {
		t.Errorf("the error does not say where: %v", err)
	}
}

func wantRight(t *testing.T, o Options, disk, want string) {
	t.Helper()
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT, "size=4g"); err != nil {
		t.Fatal(err)
	}
	made, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cache.HashFile(made.Image); err != nil || got != want {
		t.Errorf("with more room the image became %s, want %s: %v", got, want, err)
	}
}
