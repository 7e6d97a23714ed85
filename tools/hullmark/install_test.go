package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image"
)

func TestInstallOnAFile(t *testing.T) {
	path := smallImage(t)
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "node1.raw")
	installed := func(args ...string) {
		t.Helper()
		if code, text := hullmarkCLI(t, append([]string{"install", path, to}, args...)...); code != 0 {
			t.Fatalf("exit %d: %s", code, text)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes that are not the image's, %v", len(got), err)
		}
	}
	installed()
	if err := os.WriteFile(to, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	installed("--overwrite")
}

func TestInstallRefuses(t *testing.T) {
	path := smallImage(t)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := image.Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	damaged, precious := path+".damaged", path+".precious"
	content[disk.Table.Partitions[1].Offset()] ^= 1
	write(t, damaged, content)
	write(t, precious, []byte("precious"))
	for name, c := range map[string]struct {
		code int
		args []string
		want string
	}{
		"no disk":         {exitUsage, []string{path}, "name an image and the disk"},
		"a damaged image": {exitFailed, []string{damaged, path + ".new"}, "verify image"},
		"one's own file":  {exitFailed, []string{path, precious}, "name another file, or give --overwrite"},
		"a damaged image in the place of something": {exitFailed, []string{damaged, precious, "--overwrite"}, "verify image"},
		"the image itself":                          {exitFailed, []string{path, path, "--overwrite"}, "that is the image itself"},
		"no disk at all":                            {exitFailed, []string{path, os.DevNull}, "neither a disk nor a file"},
		"a folder":                                  {exitFailed, []string{path, t.TempDir()}, "neither a disk nor a file"},
		"no image":                                  {exitFailed, []string{precious, path + ".new"}, "open image"},
	} {
		code, text := hullmarkCLI(t, append([]string{"install"}, c.args...)...)
		if code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit %d, want %d, and %q in: %s", name, code, c.code, c.want, text)
		}
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("a file is left of an image that was refused")
	}
	if kept, err := os.ReadFile(precious); err != nil || string(kept) != "precious" {
		t.Errorf("the file that was in the way now holds %.20q, %v", kept, err)
	}
}
