package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// No package writes outside of the tree, even by a link that another one left there.
func TestUnpackStaysInTheTree(t *testing.T) {
	outside, tree, work := t.TempDir(), t.TempDir(), t.TempDir()
	for _, p := range []struct{ name, script string }{
		{"plain", "mkdir -p tree/usr/bin && echo 1 > tree/usr/bin/a && ln -s usr/bin tree/bin"},
		{"merged", "mkdir -p tree/bin && echo 2 > tree/bin/b"},
		{"link", `mkdir -p tree/usr/share && ln -s "$1" tree/usr/share/x`},
		{"through", "mkdir -p tree/usr/share/x && echo 3 > tree/usr/share/x/file"},
	} {
		const build = ` && mkdir tree/DEBIAN && printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: x\n' "$2" > tree/DEBIAN/control &&
			dpkg-deb --root-owner-group --build tree "$2.deb" && rm -r tree`
		cmd := exec.CommandContext(t.Context(), "sh", "-c", p.script+build, "sh", outside, p.name)
		cmd.Dir = work
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		if err := unpack(t.Context(), filepath.Join(work, p.name+".deb"), tree); err != nil && p.name != "through" {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		if _, err := os.Stat(filepath.Join(tree, "usr/bin", name)); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside is %v, %v", left, err)
	}
}
