//go:build long

package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/toolstree"
)

// A script that is legal finds its sources and the tree, and nothing else: no file of this machine beside /usr and /etc by any way
// that leads to a process's root, no other process, and no network. Debian's packages are left out, which would take a minute.
func TestScriptsAreHeld(t *testing.T) {
	o, l, tools := settled(t)
	m, err := openMkosi(t.Context(), o, l)
	if err != nil {
		t.Fatal(err)
	}
	dir, out := t.TempDir(), t.TempDir()
	key := filepath.Join(dir, "home", "key")
	put(t, dir, map[string]string{
		"home/key": "a secret", "systemd/a": "", "mkosi/mkosi.skeleton/usr/lib/os-release": "ID=test\n",
		"mkosi/mkosi.conf": "[Distribution]\nDistribution=custom\n[Output]\nFormat=tar\nCompressOutput=none\nManifestFormat=\n[Content]\nBootable=no\n",
		"mkosi/mkosi.finalize": `#!/bin/sh
cat /work/src/mkosi.conf >"$BUILDROOT/usr/lib/sources"
for root in '' /proc/[0-9]*/root /proc/[0-9]*/cwd; do
	cat "$root` + key + `" 2>/dev/null && echo "by $root"
done >"$BUILDROOT/usr/lib/seen"
cat /proc/[0-9]*/cmdline | tr '\0' ' ' >"$BUILDROOT/usr/lib/processes"
cat /proc/[0-9]*/net/dev >"$BUILDROOT/usr/lib/network"
touch "$HOME/x" /usr/x /etc/x 2>/dev/null || true
`,
	})
	mustBe(t, os.Chmod(filepath.Join(dir, "mkosi", "mkosi.finalize"), 0o755))
	m = mkosi{program: m.program, definitions: filepath.Join(dir, "mkosi")}
	if err := m.rootTar(t.Context(), tools, []toolstree.Bind{{Host: t.TempDir(), Tree: repositoryPlace}}, base{}, out); err != nil {
		t.Fatal(err)
	}
	tree := members{}
	if err := tree.addTar(filepath.Join(out, treeTar)); err != nil {
		t.Fatal(err)
	}
	text := func(name string) string {
		t.Helper()
		b, err := tree.read("usr/lib/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if !strings.Contains(text("sources"), "Distribution=custom") {
		t.Errorf("it does not find its sources: %q", text("sources"))
	}
	if seen := text("seen"); seen != "" {
		t.Errorf("it finds files of this machine: %s", seen)
	}
	if processes := text("processes"); !strings.Contains(processes, "mkosi") || strings.Contains(processes, "-test.run") {
		t.Errorf("it finds other processes than mkosi's: %s", processes)
	}
	for line := range strings.Lines(text("network")) {
		if card, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(card) != "lo" {
			t.Errorf("it finds the network card %s", card)
		}
	}
}
