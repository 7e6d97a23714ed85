//go:build builds

package build

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// TestTreeWhereAScriptReads has a package's script read a program of another package, by a link and by what it prints, and changes
// that program: the tree is made from nothing again.
func TestTreeWhereAScriptReads(t *testing.T) {
	o, l, tools := settled(t)
	l = l.For()
	o.Store = storeBeside(t, o.Store)
	change := func(name string, edit func(files string)) {
		t.Helper()
		i := slices.IndexFunc(l.Packages, func(p lock.Package) bool { return p.Set == lock.Root && p.Name == name })
		l.Packages = slices.Clone(l.Packages)
		l.Packages[i] = changePackage(t, o.Store, l.Packages[i], l.Packages[i].Version+"+changed", edit)
	}
	tree := func(o Options) string {
		t.Helper()
		folder, _, err := Tree(t.Context(), o, l, tools)
		if err != nil {
			t.Fatal(err)
		}
		return folder
	}
	const script = "#!/bin/sh\nset -e\nln -s /usr/sbin/ethtool /run/it\ncksum </run/it >/usr/share/seen\n"
	change("netbase", func(files string) {
		if err := os.WriteFile(filepath.Join(files, "DEBIAN/postinst"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	})
	before := tree(o)
	change("ethtool", func(files string) {
		f, err := os.OpenFile(filepath.Join(files, "usr/sbin/ethtool"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("more"); errors.Join(err, f.Close()) != nil {
			t.Fatal(err)
		}
	})
	after := tree(o)
	if sameFile(t, filepath.Join(before, treeTar), filepath.Join(after, treeTar)) {
		t.Error("the tree was made of the one before, in which a script had read another program")
	}
	clean := o
	clean.Store = storeBeside(t, o.Store)
	compareTrees(t, l, nil, after, tree(clean))
}
