//go:build builds

package build

import (
	"testing"

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
	alone := t.TempDir()
	if err := m.rootTar(t.Context(), tools, offer(repository, o.Store), base{}, alone); err != nil {
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
	compareTrees(t, l, files, alone, folder)
}
