//go:build builds

package build

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// A package whose script fails ends the build with an error that names the package and shows what the script said last; nothing
// is kept of the tree.
func TestPackageWithAFailingScript(t *testing.T) {
	o, l, tools := settled(t)
	dir := t.TempDir()
	p := failingPackage(t, o, dir)
	l.Packages = append(l.Packages, p)
	o.Config = filepath.Join(dir, "config")
	if err := os.MkdirAll(o.Config, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Config, "mkosi.conf"), []byte("[Content]\nPackages=unlucky\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	folder, _, err := Tree(t.Context(), o, l, tools)
	if err != nil && strings.Contains(err.Error(), "the lock has no package") {
		t.Errorf("the lock has it: %v", err)
	}
	if err == nil {
		t.Fatalf("it built %s", folder)
	}
	for _, want := range []string{"processing package unlucky", "no luck today"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
	if _, err := os.Stat(folder); err == nil {
		t.Errorf("%s was kept", folder)
	}
}

// failingPackage puts a package into the store whose script fails when it is configured.
func failingPackage(t *testing.T, o Options, dir string) lock.Package {
	t.Helper()
	script := `mkdir -p tree/DEBIAN && cd tree/DEBIAN &&
		printf 'Package: unlucky\nVersion: 1.0-1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: fails\n' > control &&
		printf '#!/bin/sh\necho no luck today >&2\nexit 7\n' > postinst && chmod 755 postinst && cd ../.. && dpkg-deb --root-owner-group --build tree unlucky.deb`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "unlucky.deb"))
	if err != nil {
		t.Fatal(err)
	}
	whole := sha256.Sum256(content)
	sum := hex.EncodeToString(whole[:])
	if _, err := o.Store.Blob(sum, func(w io.Writer) error { _, err := w.Write(content); return err }); err != nil {
		t.Fatal(err)
	}
	return lock.Package{
		Set: lock.Root, Name: "unlucky", Version: "1.0-1", Arch: "all", SHA256: sum, Size: int64(len(content)),
		Path: "debian/pool/main/u/unlucky/unlucky_1.0-1_all.deb",
	}
}
