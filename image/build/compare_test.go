package build

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var fixedTime = time.Unix(1000, 0)

func TestFirstDifference(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	for _, c := range []struct {
		a, b string
		want int64
	}{{"", "", -1}, {"abc", "abc", -1}, {"abc", "abd", 2}, {"abc", "ab", 2}, {long, long, -1}, {long, long[:2<<20] + "y" + long[2<<20+1:], 2 << 20}} {
		if got, err := firstDifference(strings.NewReader(c.a), strings.NewReader(c.b)); err != nil || got != c.want {
			t.Errorf("%.5q… and %.5q…: %d, %v; want %d", c.a, c.b, got, err, c.want)
		}
	}
}

// Each build of a reproduction has the checkout and the user's folder for itself, without what was built there.
func TestReproduceCopiesInputs(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	put(t, dir, map[string]string{"source/go.mod": "", "source/out/a.raw": "", "mine/mkosi.conf": "", "mine/image/.reproduce-1/a/source/go.mod": ""})
	o := Options{Source: filepath.Join(dir, "source"), Config: filepath.Join(dir, "mine"), Out: filepath.Join(dir, "mine", "image")}
	if err := o.copyInputs(to, circumstance{umask: 0o077}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"source/go.mod": true, "source/out": false, "definitions/mkosi.conf": true, "definitions/image": false} {
		info, err := os.Stat(filepath.Join(to, name))
		if (err == nil) != want || want && info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestCompareDocuments(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "node"), filepath.Join(t.TempDir(), "node")
	for _, name := range []string{a, b} {
		for _, ending := range []string{".json", ".spdx.json", ".cdx.json", ".provenance.json"} {
			if err := os.WriteFile(name+ending, []byte(ending), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := compareDocuments(a+".raw", b+".raw"); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(b+".json", []byte(".jsoN"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := compareDocuments(a+".raw", b+".raw"); !errors.Is(err, ErrDocumentsDiffer) || !strings.Contains(err.Error(), "node.json, offset 4") {
		t.Errorf("got %v", err)
	}
	if err := compareDocuments(a+".raw", "other.raw"); err == nil {
		t.Error("documents that are not there are equal")
	}
}

func TestCompareFoldersNamesTheFirstFile(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	write := func(dir, name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{a, b} {
		write(dir, "same", "x")
		if err := os.Chtimes(filepath.Join(dir, "same"), fixedTime, fixedTime); err != nil {
			t.Fatal(err)
		}
	}
	write(a, "zed", "one two")
	write(b, "zed", "one too")
	for _, dir := range []string{a, b} {
		for _, name := range []string{"zed", "."} {
			if err := os.Chtimes(filepath.Join(dir, name), fixedTime, fixedTime); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := compareFolders(a, b); err == nil || err.Error() != "file /zed, offset 5" {
		t.Errorf("got %v", err)
	}
	write(b, "extra", "")
	if err := compareNames(b, a); err == nil || !strings.Contains(err.Error(), "/extra") {
		t.Errorf("got %v", err)
	}
}
