package build

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/erofs"
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

// packed is the file system of a tree.
func packed(t *testing.T, m members) []byte {
	t.Helper()
	files, err := m.erofsFiles()
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.Pack(t.Context(), files, time.Unix(1000, 0))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := image.Write(&b, contentUUID(image.Digest())); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTreeIsCanonicalWhateverOrderItCameIn(t *testing.T) {
	m := testTree(t, nil)
	moved := testTree(t, func(h []tar.Header) { h[3], h[4] = h[4], h[3]; h[1].Uname = "someone" })
	if !bytes.Equal(packed(t, m), packed(t, moved)) {
		t.Fatal("the same tree in another order gives other bytes")
	}
	files, err := m.erofsFiles()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]erofs.File{}
	for _, f := range files {
		names[f.Name] = f
	}
	if want := []string{".", "bin", "etc", "etc/shadow", "usr", "usr/bin", "usr/bin/a", "usr/bin/z"}; !slices.Equal(slices.Sorted(maps.Keys(names)), want) {
		t.Errorf("names %q, want %q", slices.Sorted(maps.Keys(names)), want)
	}
	for _, name := range []string{"usr/bin/a", "usr/bin/z"} {
		if f := names[name]; f.Same == "" || f.Mode != 0o755|fs.ModeSetuid || f.Size != 7 || len(f.Xattrs) != 2 {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if f := names["bin"]; f.Mode.Type() != fs.ModeSymlink || f.Link != "usr/bin" {
		t.Errorf("bin: %+v", f)
	}
}

func TestRemovedOriginalLeavesItsLinksWhole(t *testing.T) {
	m := testTree(t, nil)
	m.remove("usr/bin/z", false)
	content, err := m.read("usr/bin/a")
	if err != nil || string(content) != "program" {
		t.Fatalf("got %q, %v", content, err)
	}
	if !bytes.Contains(packed(t, m), []byte("program")) {
		t.Error("the content is lost")
	}
}

func TestTreeOfDevicesIsRefused(t *testing.T) {
	for _, kind := range []byte{tar.TypeChar, tar.TypeBlock, tar.TypeFifo, tar.TypeCont} {
		m := members{}
		if err := m.addTar(writeTestTar(t, []tar.Header{{Name: "./dev/x", Typeflag: kind}}, nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.erofsFiles(); err == nil || !strings.Contains(err.Error(), "root tree: dev/x: ") {
			t.Errorf("type %c: %v", kind, err)
		}
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
