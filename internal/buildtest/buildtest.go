// Package buildtest gives a test what the repository's own lock pins: the tools tree, and what it takes to build more.
package buildtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/internal/cache"
)

// lockFile is the repository's lock; it marks the root of the checkout.
const lockFile = "hullmark.lock"

// Options returns the options of a silent build from the checkout that the test is of, with the machine's own cache and
// mirrors, and the lock that they name. What is built goes to a folder that is gone when the test ends.
func Options(t testing.TB) (build.Options, lock.Lock) {
	t.Helper()
	store, err := cache.Open()
	if err != nil {
		t.Fatal(err)
	}
	source := checkout(t)
	o := build.Options{Source: source, LockFile: filepath.Join(source, lockFile), Out: t.TempDir(), ID: "test", Store: store, WithoutKubernetes: true}
	l, err := build.ReadLock(o)
	if err != nil {
		t.Fatal(err)
	}
	return o, l
}

// Tools returns the folder of the lock's tools tree. It comes from the machine's cache; if it is not there, its packages are
// fetched and unpacked.
func Tools(t testing.TB) string {
	t.Helper()
	o, l := Options(t)
	tree, err := build.Tools(t.Context(), o, l)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// checkout returns the root of the checkout, which a test runs in a folder of.
func checkout(t testing.TB) string {
	t.Helper()
	start, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, lockFile)); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no folder above %s has %s: run the test in a checkout", start, lockFile)
		}
	}
}
