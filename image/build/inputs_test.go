package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The digest of sources is what in-toto's one line of shell gives, results and the repository left out.
func TestSourcesDigest(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b c", "sub/d", ".git/HEAD", "out/image.raw", "bin/hullmark"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := dirHash(dir, notSources(Options{Source: dir, Out: filepath.Join(dir, "elsewhere")})...)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `rm -r .git out bin && find . -type f | cut -c3- | LC_ALL=C sort | xargs -r -d '\n' sha256sum | sha256sum | cut -f1 -d' '`)
	cmd.Dir = dir
	want, err := cmd.Output()
	if err != nil || got != strings.TrimSpace(string(want)) {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
}

func TestCommitOf(t *testing.T) {
	dir := t.TempDir()
	if commit, changed, err := commitOf(t.Context(), dir); commit != "" || changed || err != nil {
		t.Errorf("without a repository: %q %v %v", commit, changed, err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `git init -q . && echo one > file && git add file && git -c user.name=n -c user.email=e commit -qm first && git rev-parse HEAD`)
	cmd.Dir = dir
	head, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSpace(string(head))
	if commit, changed, err := commitOf(t.Context(), dir); commit != want || changed || err != nil {
		t.Errorf("committed: %q %v %v, want %q", commit, changed, err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if commit, changed, err := commitOf(t.Context(), dir); commit != want || !changed || err != nil {
		t.Errorf("changed: %q %v %v", commit, changed, err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".git", "HEAD"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := commitOf(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "git") {
		t.Errorf("a broken repository: %v", err)
	}
}
