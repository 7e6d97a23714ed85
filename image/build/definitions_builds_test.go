//go:build builds

package build

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// The definition folder that docs/build.md makes becomes an image that has its package, its unit, its setting and its kernel module.
func TestUserDefinitions(t *testing.T) {
	o, _, tools := settled(t)
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(o.Source, "docs", "build.md"))
	if err != nil {
		t.Fatal(err)
	}
	script := regexp.MustCompile("(?ms)^```sh\n(mkdir -p out/mine.*?)^```$").FindSubmatch(text)
	if script == nil {
		t.Fatal("docs/build.md shows no definition folder")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", string(script[1]))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o.Config, o.Out = filepath.Join(dir, "out", "mine"), filepath.Join(dir, "image")
	if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "htop") {
		t.Fatalf("built with our lock, in which its package is not: %v", err)
	}
	l, err := Lock(t.Context(), o, lock.Lock{})
	if err != nil {
		t.Fatal(err)
	}
	o.LockFile = filepath.Join(dir, "mine.lock")
	if err := WriteLock(o.LockFile, l); err != nil {
		t.Fatal(err)
	}
	r, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	disk, done, err := openImage(r.Image)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	root := filepath.Join(dir, "root")
	if err := unpackErofs(t.Context(), tools, disk.disk.Root, root); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"/usr/bin/htop", "/usr/lib/systemd/system/hello.service", "/usr/lib/systemd/system/multi-user.target.wants/hello.service",
		"/usr/lib/sysctl.d/60-mine.conf", "/usr/lib/systemd/system/hullmark-firstboot.service",
	} {
		if _, err := os.Lstat(filepath.Join(root, want)); err != nil {
			t.Error(err)
		}
	}
	if initrd := measuredSection(t, r.Image, ".initrd"); !bytes.Contains(initrd, []byte("virtio_pmem.ko")) || !bytes.Contains(initrd, []byte("erofs.ko")) {
		t.Error("the initrd has not the modules of both lists")
	}
}
