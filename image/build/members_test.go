package build

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// writeTestTar writes files in the given order, as mkosi's tar would: with a leading ./, dates and names of owners.
func writeTestTar(t *testing.T, headers []tar.Header, content map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Size = int64(len(content[h.Name]))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content[h.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "in.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func testTree(t *testing.T, order func([]tar.Header)) members {
	t.Helper()
	headers := []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "./usr/bin/z", Typeflag: tar.TypeReg, Mode: 0o4755, Uname: "root", Uid: 0, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x", "SCHILY.xattr.user.a": "y"}},
		{Name: "./usr/bin/a", Typeflag: tar.TypeLink, Linkname: "./usr/bin/z"},
		{Name: "./etc/shadow", Typeflag: tar.TypeReg, Mode: 0o640, Gid: 42, Gname: "shadow"},
		{Name: "./bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"},
	}
	if order != nil {
		order(headers)
	}
	m := members{}
	if err := m.addTar(writeTestTar(t, headers, map[string]string{"./usr/bin/z": "program", "./etc/shadow": "root:!*:\n"})); err != nil {
		t.Fatal(err)
	}
	return m
}

func written(t *testing.T, m members) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := m.write(&b, 1000); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTreeIsCanonicalWhateverOrderItCameIn(t *testing.T) {
	plain := written(t, testTree(t, nil))
	moved := written(t, testTree(t, func(h []tar.Header) { h[3], h[4] = h[4], h[3]; h[1].Uname = "someone" }))
	if !bytes.Equal(plain, moved) {
		t.Fatal("the same tree in another order gives other bytes")
	}
	in := tar.NewReader(bytes.NewReader(plain))
	var names []string
	for h, err := in.Next(); err == nil; h, err = in.Next() {
		names = append(names, h.Name)
		if h.ModTime.Unix() != 1000 || h.Uname != "" {
			t.Errorf("%s: time %v, owner %q", h.Name, h.ModTime, h.Uname)
		}
		switch h.Name {
		case "usr/bin/a":
			if h.Typeflag != tar.TypeReg || h.Mode != 0o4755 || len(h.PAXRecords) < 2 {
				t.Errorf("first name of a linked file: %+v", h)
			}
		case "usr/bin/z":
			if h.Typeflag != tar.TypeLink || h.Linkname != "usr/bin/a" {
				t.Errorf("second name of a linked file: %+v", h)
			}
		}
	}
	if want := []string{"./", "bin", "etc/", "etc/shadow", "usr/", "usr/bin/", "usr/bin/a", "usr/bin/z"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
}

func TestRemovedOriginalLeavesItsLinksWhole(t *testing.T) {
	m := testTree(t, nil)
	m.remove("usr/bin/z", false)
	content, err := m.read("usr/bin/a")
	if err != nil || string(content) != "program" {
		t.Fatalf("got %q, %v", content, err)
	}
	if !bytes.Contains(written(t, m), []byte("program")) {
		t.Error("the content is lost")
	}
}

func TestFolderFilesBelongToRootWithPlainModes(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"bin/run": 0o700, "data": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("run", filepath.Join(dir, "bin", "link")); err != nil {
		t.Fatal(err)
	}
	m := members{}
	if err := m.addFolder(dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]int64{"bin": 0o755, "bin/run": 0o755, "data": 0o644, "bin/link": 0o777} {
		if got := m[name].header; got.Mode != mode || got.Uid != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
