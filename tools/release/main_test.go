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
