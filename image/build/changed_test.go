//go:build long || bench || builds

package build

import (
	"bytes"
	"context"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// changePackage makes another version of a package that is in the store, edited in a folder of its files, and keeps it there.
func changePackage(t testing.TB, s cache.Store, p lock.Package, version string, edit func(files string)) lock.Package {
	t.Helper()
	dir := t.TempDir()
	run := func(args ...string) {
		cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
		cmd.Dir = dir
		if err := runQuiet(cmd, "change "+p.Name); err != nil {
			t.Fatal(err)
		}
	}
	run("dpkg-deb", "--raw-extract", s.BlobPath(p.SHA256), "files")
	run("sed", "-i", "s/^Version: .*/Version: "+version+"/", "files/DEBIAN/control")
	edit(filepath.Join(dir, "files"))
	run("dpkg-deb", "--build", "-Zgzip", "-z1", "files", "new.deb")
	content, err := os.ReadFile(filepath.Join(dir, "new.deb"))
	if err != nil {
		t.Fatal(err)
	}
	if p.SHA256, err = cache.HashFile(filepath.Join(dir, "new.deb")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.BlobPath(p.SHA256), content, 0o644); err != nil {
		t.Fatal(err)
	}
	p.Path, p.Version, p.Size = strings.Replace(p.Path, p.Version, version, 1), version, int64(len(content))
	return p
}

// editSome changes about half of a package's files, in a way that programs go on as before.
func editSome(t testing.TB, random *rand.Rand, files string) {
	t.Helper()
	err := filepath.WalkDir(files, func(file string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasPrefix(file, filepath.Join(files, "DEBIAN")) || random.IntN(2) == 0 {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		switch {
		case bytes.HasPrefix(content, []byte("\x7fELF")), utf8.Valid(content) && len(content) > 0:
			content = append(content, "\n# changed\n"...)
		default:
			return nil // a database, or something compressed
		}
		return os.WriteFile(file, content, 0o644) // keeps the mode
	})
	if err != nil {
		t.Fatal(err)
	}
}
