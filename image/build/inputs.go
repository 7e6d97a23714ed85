package build

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/dirhash"

	"github.com/hullmark/hullmark/image/lock"
)

// Inputs are what an image was made of beside the locked packages.
type Inputs struct {
	// Commit is the checkout's commit, and Changed whether files differ from it; without a repository it is empty.
	Commit  string
	Changed bool
	// Sources and Config are digests of all files of the checkout and of the user's folder: Hash1 of
	// golang.org/x/mod/sumdb/dirhash, in hex. Config is empty if there is no such folder.
	Sources, Config string
	// Modules are the Go modules of every program in the image, as the programs themselves say, sorted.
	Modules []lock.Module
}

// kubernetesPrograms is where the bundle has its programs.
const kubernetesPrograms = "usr/lib/kubernetes/bin"

// readInputs looks at the sources, before anything is made of them.
func (j *job) readInputs(ctx context.Context) (note string, err error) {
	if j.inputs.Commit, j.inputs.Changed, err = commitOf(ctx, j.Source, notSources(j.Options)...); err != nil {
		return "", err
	}
	if j.inputs.Sources, err = dirHash(j.Source, notSources(j.Options)...); err != nil {
		return "", fmt.Errorf("hash sources: %w", err)
	}
	if j.Config != "" {
		if j.inputs.Config, err = dirHash(j.Config, notSources(j.Options)...); err != nil {
			return "", fmt.Errorf("hash definitions: %w", err)
		}
	}
	switch {
	case j.inputs.Commit == "":
		return "no repository", nil
	case j.inputs.Changed:
		return fmt.Sprintf("commit %.12s, changed", j.inputs.Commit), nil
	}
	return fmt.Sprintf("commit %.12s", j.inputs.Commit), nil
}

// notSources are what holds results, which may lie in the checkout or in the user's folder, and a repository's own.
func notSources(o Options) []string {
	return []string{".git", o.Out, filepath.Join(o.Source, "out"), filepath.Join(o.Source, "bin")}
}

// commitOf returns the commit of a checkout and whether its files differ from it, but for those below the paths in skip;
// without a repository the commit is empty. A worktree's .git is a file. A checkout may belong to somebody else, as it does in
// containers.
func commitOf(ctx context.Context, source string, skip ...string) (commit string, changed bool, err error) {
	if _, err := os.Lstat(filepath.Join(source, ".git")); err != nil {
		return "", false, nil
	}
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", source, "-c", "safe.directory=*", "--no-optional-locks"}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("ask git for the commit of %s: %w (git is needed where there is a .git: apt-get install git)", source, err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if commit, err = git("rev-parse", "HEAD"); err != nil {
		return "", false, err
	}
	looked := []string{"status", "--porcelain", "--", "."}
	for _, path := range skip {
		if name, err := filepath.Rel(source, path); err == nil && name != "." && filepath.IsLocal(name) {
			looked = append(looked, ":(exclude,literal)"+filepath.ToSlash(name))
		}
	}
	status, err := git(looked...)
	return commit, status != "", err
}

// dirHash digests the regular files below dir, by their names and content. What has its name or path in skip is left out.
func dirHash(dir string, skip ...string) (string, error) {
	var files []string
	err := walk(dir, without(dir, skip), func(name, _ string, e fs.DirEntry) error {
		if e.Type().IsRegular() {
			files = append(files, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	sum, err := dirhash.Hash1(files, func(name string) (io.ReadCloser, error) { return os.Open(filepath.Join(dir, name)) })
	if err != nil {
		return "", err
	}
	return lock.HexOfH1(sum)
}
