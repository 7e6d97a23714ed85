package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

func TestCheckModules(t *testing.T) {
	source := t.TempDir()
	dir := filepath.Join(source, "tools", "kubernetes")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "go.sum"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The SHA-256 of "abc", FIPS 180-4 appendix B.1.
	locked := lock.Kubernetes{Sums: []lock.GoSum{{
		Dir: "tools/kubernetes", SHA256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
	}}}
	write("abc")
	if err := checkModules(source, locked); err != nil {
		t.Error(err)
	}
	write("abd")
	if err := checkModules(source, locked); err == nil || !strings.Contains(err.Error(), "tools/kubernetes/go.sum") {
		t.Errorf("a changed go.sum gave %v", err)
	}
}
