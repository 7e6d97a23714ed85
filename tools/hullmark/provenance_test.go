package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/image/lock"
)

// An image without Kubernetes was not made of what pins it.
func TestDependenciesAreThoseOfTheImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hullmark.lock")
	if err := os.WriteFile(file, []byte("lock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := build.Result{LockFile: file}
	r.Lock.Go = "go1.26.0"
	r.Lock.Kubernetes.Sums = []lock.GoSum{{Dir: "tools/kubernetes", SHA256: strings.Repeat("ab", 32)}}
	for bundle, want := range map[string]int{"": 0, "/kubernetes": 1} {
		r.Bundle = bundle
		found, err := dependencies(r)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, d := range found {
			if d.Name == "tools/kubernetes/go.sum" {
				got++
			}
		}
		if got != want {
			t.Errorf("with the bundle %q, go.sum stands in it %d times, want %d", bundle, got, want)
		}
	}
}
