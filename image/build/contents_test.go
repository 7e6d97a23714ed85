package build

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// TestGoModulesAreThoseOfThePrograms takes this very program as one.
func TestGoModulesAreThoseOfThePrograms(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, b := t.TempDir(), t.TempDir()
	for _, link := range []string{filepath.Join(a, "one"), filepath.Join(b, "two")} {
		content, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(link, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(b, "text"), []byte("#"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := goModules(a, b)
	if err != nil {
		t.Fatal(err)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || len(info.Deps) == 0 || len(got) != len(info.Deps) {
		t.Errorf("%d modules, the program has %d", len(got), len(info.Deps))
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if !slices.Contains(got, lock.Module{Path: m.Path, Version: m.Version, Sum: m.Sum}) {
			t.Errorf("%s %s is not listed", m.Path, m.Version)
		}
	}
	if err := os.WriteFile(filepath.Join(b, "other"), []byte("\x7fELF, but of C"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := goModules(a, b); err == nil || !strings.Contains(err.Error(), "other: no program of Go") {
		t.Errorf("a program of C: %v", err)
	}
}
