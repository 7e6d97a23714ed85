//go:build long || bench

package build

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
	beside := cache.Store{Root: t.TempDir()}
	for _, kind := range []string{"sha256", "tools", "mkosi"} {
		if err := os.Symlink(filepath.Join(s.Root, kind), filepath.Join(beside.Root, kind)); err != nil {
			t.Fatal(err)
		}
	}
	return beside
}
