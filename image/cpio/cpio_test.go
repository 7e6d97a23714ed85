package cpio

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/tooltest"
)

func sample() []Entry {
	return []Entry{
		{Name: "init", Mode: 0o755, Data: []byte("#!ELF")},
		{Name: "lib/modules/01-erofs.ko", Mode: 0o644, Data: bytes.Repeat([]byte("m"), 1001)},
		{Name: "lib-a", Mode: 0o600},
		{Name: "sysroot", Mode: fs.ModeDir | 0o700},
		{Name: "bin", Mode: fs.ModeSymlink | 0o777, Data: []byte("lib/modules")},
	}
}

func write(t *testing.T, entries []Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, entries); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCpioUnpacksTheSame(t *testing.T) {
	program := tooltest.Path(t, "cpio", "cpio")
	dir := t.TempDir()
	unpack := exec.Command(program, "-i", "-m", "--quiet", "-H", "newc")
	unpack.Dir, unpack.Stdin = dir, bytes.NewReader(write(t, sample()))
	if out, err := unpack.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	for _, e := range sample() {
		info, err := os.Lstat(filepath.Join(dir, e.Name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != e.Mode || e.Mode.IsRegular() && info.ModTime().Unix() != 0 {
			t.Errorf("%s: mode %v time %v", e.Name, info.Mode(), info.ModTime())
		}
		if e.Mode.IsRegular() {
			if got, err := os.ReadFile(filepath.Join(dir, e.Name)); err != nil || !bytes.Equal(got, e.Data) {
				t.Errorf("%s: %d bytes, %v", e.Name, len(got), err)
			}
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "bin")); err != nil || target != "lib/modules" {
		t.Errorf("bin: %q, %v", target, err)
	}
}

func TestOrderDoesNotMatter(t *testing.T) {
	reversed := sample()
	slices.Reverse(reversed)
	first := write(t, sample())
	if !bytes.Equal(first, write(t, reversed)) {
		t.Error("two orders give two archives")
	}
	if len(first)%4 != 0 {
		t.Errorf("length %d is not a multiple of 4", len(first))
	}
	if dir, file := bytes.Index(first, []byte("lib/modules\x00")), bytes.Index(first, []byte("lib/modules/01")); dir < 0 || dir > file {
		t.Error("a directory comes after its file")
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, entries := range map[string][]Entry{
		"absolute path":  {{Name: "/init"}},
		"dots":           {{Name: "../init"}},
		"trailer":        {{Name: trailer}},
		"twice":          {{Name: "a"}, {Name: "a"}},
		"file as parent": {{Name: "a"}, {Name: "a/b"}},
		"device":         {{Name: "a", Mode: fs.ModeDevice}},
		"setuid":         {{Name: "a", Mode: fs.ModeSetuid}},
		"directory data": {{Name: "a", Mode: fs.ModeDir, Data: []byte("x")}},
	} {
		err := Write(&bytes.Buffer{}, entries)
		if err == nil || !strings.HasPrefix(err.Error(), "write cpio: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
