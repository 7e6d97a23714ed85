//go:build long || bench || builds

package build

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ulikunitz/xz"

	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// realOptions build from this checkout with the machine's own cache and mirrors.
func realOptions(t testing.TB) Options {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	store, err := cache.Open()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Source: source, LockFile: filepath.Join(source, "hullmark.lock"), Out: t.TempDir(), ID: "test", Store: store,
		WithoutKubernetes: true, Progress: NewProgress(os.Stderr, time.Now),
	}
}

// settled is realOptions with a lock whose packages can be had today.
func settled(t testing.TB) (Options, lock.Lock, string) {
	t.Helper()
	o, err := Settle(t.Context(), realOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ReadLock(o)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := Tools(t.Context(), o, l)
	if err != nil {
		t.Fatal(err)
	}
	return o, l, tools
}

// storeBeside is an empty store but for what was downloaded or unpacked.
func storeBeside(t testing.TB, s cache.Store) cache.Store {
	t.Helper()
	return storeIn(t, t.TempDir(), s, "sha256", "tools", "mkosi")
}

// storeIn is a store in a folder, empty but for some kinds of what another one holds.
func storeIn(t testing.TB, dir string, s cache.Store, kinds ...string) cache.Store {
	t.Helper()
	for _, kind := range kinds {
		if err := os.Symlink(filepath.Join(s.Root, kind), filepath.Join(dir, kind)); err != nil {
			t.Fatal(err)
		}
	}
	return cache.Store{Root: dir}
}

// measuredSection returns a section of an image's kernel image; an initrd unpacked.
func measuredSection(t *testing.T, file, name string) []byte {
	t.Helper()
	disk, done, err := openImage(file)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	content, ok := disk.disk.UKI.Section(name)
	if !ok {
		t.Fatalf("%s has no section %s", file, name)
	}
	if name != ".initrd" {
		return content
	}
	reader, err := xz.NewReader(bytes.NewReader(bytes.TrimRight(content, "\x00")))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return unpacked
}
