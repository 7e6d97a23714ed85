// Command release makes a release of Hullmark's own program: binaries, their SBOMs, Debian packages, man pages, shells' completions,
// the changelog, the site of the pages, alerts and a dashboard, and checksums. `make release` runs and signs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/build"
	"github.com/hullmark/hullmark/internal/needs"
)

func main() {
	version := flag.String("version", "", "version of the release, vMAJOR.MINOR.PATCH")
	out := flag.String("out", "out/release", "folder for the release")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if !build.IsRelease(*version) {
		fmt.Fprintf(os.Stderr, "release: version %q: want vMAJOR.MINOR.PATCH, as the tag has it\n", *version)
		os.Exit(2)
	}
	if err := release(ctx, *version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Println("released in", *out)
}

func release(ctx context.Context, version, out string) error {
	if err := checkChangelog(".", version); err != nil {
		return err
	}
	if err := checkTag(ctx, ".", version); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	return build.Release(ctx, build.ReleaseOptions{
		Source: ".", Out: out, Version: version, Architectures: build.ReleaseArchitectures, Relations: needs.Relations,
	})
}

// checkChangelog is an error unless the changelog of the checkout in dir has a heading for the version. What is no release calls itself
// devel, whatever stands there, and is not made here.
func checkChangelog(dir, version string) error {
	text, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "##" && strings.TrimRight(words[1], ",:") == version {
			return nil
		}
	}
	return fmt.Errorf("CHANGELOG.md has no heading \"## %s\": put it over what is under Unreleased, commit that, and tag the commit", version)
}

// checkTag is an error unless the checkout in dir is what a tag names: others have to get the same from it.
func checkTag(ctx context.Context, dir, version string) error {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		return string(out), err
	}
	changed, err := git("status", "--porcelain")
	if err != nil {
		return fmt.Errorf("git status: %w", err)
	}
	if changed != "" {
		return fmt.Errorf("files differ from the commit, and would be in the release: commit or remove them\n%s", strings.TrimRight(changed, "\n"))
	}
	tags, err := git("tag", "--points-at", "HEAD")
	if err != nil {
		return fmt.Errorf("git tag: %w", err)
	}
	if !slices.Contains(strings.Fields(tags), version) {
		return fmt.Errorf("the commit has no tag %s: git tag %s", version, version)
	}
	return nil
}
