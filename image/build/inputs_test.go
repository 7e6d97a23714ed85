package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image/lock"
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
	put(t, dir, map[string]string{"build *1/x.raw": ""})
	if _, changed, err := commitOf(t.Context(), dir, ".git", "", filepath.Join(dir, "build *1"), "/elsewhere"); changed || err != nil {
		t.Errorf("with a result: %v %v", changed, err)
	}
	if _, changed, err := commitOf(t.Context(), dir); !changed || err != nil {
		t.Errorf("with a new file: %v %v", changed, err)
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

// Every change of the checkout and of the user's folder is found, and no result that lies in them; either may be named by a link.
func TestInputsAreFoundAndResultsAreNot(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{
		"source/mkosi/mkosi.conf": "", "source/mkosi/mkosi.extra/opt/a": "", "source/systemd/system/a.service": "", "source/tools/initrd/main.go": "",
		"mine/mkosi.conf": "", "mine/mkosi.extra/opt/b": "", "mine/image/mine.raw": "", "mine.lock": "",
	})
	for link, folder := range map[string]string{"checkout": "source", "config": "mine"} {
		if err := os.Symlink(folder, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, folders := range [][2]string{{"source", "mine"}, {"checkout", "config"}} {
		o := Options{Source: filepath.Join(dir, folders[0]), Config: filepath.Join(dir, folders[1]), LockFile: filepath.Join(dir, "mine.lock")}
		o.Out = filepath.Join(o.Config, "image")
		sums := func() (sums [4]string) {
			t.Helper()
			j := job{Options: o}
			_, err := j.readInputs(t.Context())
			sums[0], sums[1] = j.inputs.Sources, j.inputs.Config
			for i, sum := range []func() (string, error){
				func() (string, error) { return Fingerprint(t.Context(), o) },
				func() (string, error) {
					return treeKey(o, lock.Lock{}, mkosi{definitions: filepath.Join(o.Source, "mkosi"), config: o.Config})
				},
			} {
				if err == nil {
					sums[2+i], err = sum()
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			return sums
		}
		empty := sums()
		if err := os.Mkdir(filepath.Join(dir, "mine/mkosi.extra/opt/new of "+folders[0]), 0o755); err != nil {
			t.Fatal(err)
		}
		before := sums()
		if before[2] == empty[2] || before[3] == empty[3] {
			t.Errorf("%s: a new folder of the tree goes unseen", folders)
		}
		if err := unix.Mkfifo(filepath.Join(dir, "source/pipe of "+folders[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		put(t, dir, map[string]string{"mine/image/mine.raw": folders[0], "source/out/x.raw": folders[0], "mine/.git/index": folders[0]})
		if after := sums(); after != before {
			t.Errorf("%s: results count: %v, %v", folders, before, after)
		}
		for file, want := range map[string][4]bool{
			"source/mkosi/mkosi.conf": {true, false, true, true}, "mine/mkosi.conf": {false, true, true, true}, "mine/mkosi.extra/opt/b": {false, true, true, false},
			"source/tools/initrd/main.go": {true, false, true, false},
		} {
			before := sums()
			put(t, dir, map[string]string{file: folders[0] + file})
			after := sums()
			for i, what := range []string{"digest of sources", "digest of the user's folder", "fingerprint", "tree's key"} {
				if (before[i] != after[i]) != want[i] {
					t.Errorf("%s: %s changed; %s: %s, %s", folders, file, what, before[i], after[i])
				}
			}
		}
	}
}
