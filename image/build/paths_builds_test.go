//go:build builds

package build

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// An image is the same whether everything was made for it, everything was at hand, or only a file of the tree was new; and
// whether mkosi unpacked the essential packages itself or found them unpacked.
func TestPathsMakeOneImage(t *testing.T) {
	o, whole, tools := settled(t)
	l := whole.For()
	o.Config = t.TempDir()
	image := func(o Options, content string) string {
		t.Helper()
		put(t, o.Config, map[string]string{"mkosi.extra/etc/probe": content})
		r, err := Build(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		sum, err := cache.HashFile(r.Image)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	before, after := image(o, "1"), image(o, "2")
	if before == after {
		t.Fatal("a file of the tree makes no difference")
	}
	cold := o
	cold.Store = storeIn(t, t.TempDir(), o.Store, "sha256", "tools", "mkosi", "go-build") // make reproduce compiles anew, too
	if image(cold, "2") != after {
		t.Error("made from nothing it is another image than after a change")
	}
	if image(cold, "2") != after {
		t.Error("with everything at hand it is another image than before")
	}
	if image(o, "1") != before {
		t.Error("back again it is another image than before")
	}

	m, err := openMkosi(t.Context(), o, l)
	if err != nil {
		t.Fatal(err)
	}
	repository, err := makeRepository(t.Context(), o.Store, l, treePackages(l))
	if err != nil {
		t.Fatal(err)
	}
	url, stop, err := serveRepository(repository, o.Store)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	alone := t.TempDir()
	if err := m.rootTar(t.Context(), tools, url, base{}, l.Time, alone); err != nil {
		t.Fatal(err)
	}
	folder, _, err := Tree(t.Context(), o, l, tools)
	if err != nil {
		t.Fatal(err)
	}
	files, err := verbatim(o)
	if err != nil {
		t.Fatal(err)
	}
	compareTrees(t, l, files, filepath.Join(alone, treeTar), filepath.Join(folder, treeTar))
}

// compareTrees compares what images have of two trees.
func compareTrees(t *testing.T, l lock.Lock, files map[string]string, a, b string) {
	t.Helper()
	var sums [2]map[string]string
	for i, file := range []string{a, b} {
		j := &job{lock: l, members: members{}}
		if err := j.members.addTar(file); err != nil {
			t.Fatal(err)
		}
		if err := j.members.update(files); err != nil {
			t.Fatal(err)
		}
		var err error
		if j.version, err = kernelVersion(j.members); err != nil {
			t.Fatal(err)
		}
		j.trim()
		sums[i] = map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(j.members)) {
			f := j.members[name]
			content, _ := j.members.read(name)
			sums[i][name] = cache.Key(string(f.header.Typeflag), string(rune(f.header.Mode)), f.header.Linkname, f.same, string(content))
		}
	}
	if len(sums[0]) < 1000 {
		t.Fatalf("a tree of %d files", len(sums[0]))
	}
	for name := range maps.Keys(sums[0]) {
		if sums[0][name] != sums[1][name] {
			t.Errorf("%s differs, or is missing", name)
		}
		delete(sums[1], name)
	}
	if len(sums[1]) > 0 {
		t.Errorf("only with the base: %v", slices.Sorted(maps.Keys(sums[1])))
	}
}
