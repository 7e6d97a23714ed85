//go:build builds

package build

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

var (
	changes     = flag.Int("changes", 30, "how many packages TestTreeAfterChanges changes")
	changesSeed = flag.Uint64("seed", 1, "chooses them")
)

// TestTreeAfterChanges changes one package after the other, at random, and holds each tree against one that is made from nothing: of the
// locked packages alone, in a store that has nothing but them.
func TestTreeAfterChanges(t *testing.T) {
	o, l, tools := settled(t)
	l = l.For()
	o.Store = storeBeside(t, o.Store)
	tree := func(o Options, l lock.Lock) string {
		t.Helper()
		folder, _, err := Tree(t.Context(), o, l, tools)
		if err != nil {
			t.Fatal(err)
		}
		return folder
	}
	before, wanted := tree(o, l), wantedExactly(t, o.Store, l.Of(lock.Root))
	random := rand.New(rand.NewPCG(*changesSeed, 0))
	reused := 0
	for n := range *changes {
		root := l.Of(lock.Root)
		p := root[random.IntN(len(root))]
		version := fmt.Sprintf("%s+changed%d", p.Version, n)
		if wanted[p.Name] {
			version = p.Version // Who wants this one alone would have to change, too.
		}
		changed := changePackage(t, o.Store, p, version, func(files string) { editSome(t, random, files) })
		l.Packages = slices.Clone(l.Packages)
		l.Packages[slices.Index(l.Packages, p)] = changed
		after := tree(o, l)
		if !sameFile(t, filepath.Join(before, treeTar), filepath.Join(after, treeTar)) {
			t.Logf("%s: made from nothing", changed.ID())
			before = after
			continue
		}
		reused++
		t.Logf("%s: made of the tree before", changed.ID())
		clean := o
		clean.Store = storeBeside(t, o.Store)
		compareTrees(t, l, nil, after, tree(clean, l))
		if before = after; t.Failed() {
			t.Fatalf("after another %s the tree is not as from nothing", p.Name)
		}
	}
	if reused < max(1, *changes/5) {
		t.Errorf("of %d trees %d were made of the one before", *changes, reused)
	}
}

// exactly is a dependency on one version of a package (deb-control(5)).
var exactly = regexp.MustCompile(`([a-z0-9][a-z0-9.+-]+)(?::[a-z0-9]+)? \(= `)

// wantedExactly names the packages of which another one wants just the version that there is.
func wantedExactly(t *testing.T, s cache.Store, packages []lock.Package) map[string]bool {
	t.Helper()
	wanted := map[string]bool{}
	for _, p := range packages {
		out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--field", s.BlobPath(p.SHA256), "Pre-Depends", "Depends", "Breaks", "Conflicts").Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range exactly.FindAllSubmatch(out, -1) {
			wanted[string(found[1])] = true
		}
	}
	if len(wanted) == 0 {
		t.Fatal("no package wants another one's version")
	}
	return wanted
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(x, y)
}

// compareTrees compares what images have of the trees in two folders.
func compareTrees(t *testing.T, l lock.Lock, files map[string]string, a, b string) {
	t.Helper()
	var sums [2]map[string]string
	for i, folder := range []string{a, b} {
		j := &job{lock: l, members: members{}}
		if err := j.members.addTree(folder); err != nil {
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
		t.Errorf("only in the second: %v", slices.Sorted(maps.Keys(sums[1])))
	}
}
