package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release is what its tag names, and nothing beside it.
func TestCheckTag(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=n", "-c", "user.email=e"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	want := func(text string) {
		t.Helper()
		err := checkTag(t.Context(), dir, "v1.2.3")
		if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "first")
	want("no tag v1.2.3")
	git("tag", "v1.2.4")
	want("no tag v1.2.3")
	git("tag", "v1.2.3")
	want("")
	if err := os.WriteFile(filepath.Join(dir, "more"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want("files differ from the commit")
}

// A release is in the changelog, under a heading of its own.
func TestCheckChangelog(t *testing.T) {
	for text, want := range map[string]bool{
		"# Changelog\n\n## v1.2.3\n":                        true,
		"# Changelog\n\n## Unreleased\n\n## v1.2.3, 2027\n": true,
		"# Changelog\n\n## Unreleased\n\nas v1.2.3\n":       false,
		"# Changelog\n\n## v1.2.30\n\n## v1.2\n":            false,
		"# Changelog\n\n### v1.2.3\n":                       false,
		"":                                                  false,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkChangelog(dir, "v1.2.3")
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), `no heading "## v1.2.3"`) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := checkChangelog(t.TempDir(), "v1.2.3"); err == nil {
		t.Error("a release needs no changelog")
	}
}
