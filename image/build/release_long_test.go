//go:build long

package build

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Two releases from two folders, one a repository with changes that are in no commit, the other none, are byte-equal; sha256sum
// accepts them.
func TestReleasesAreByteEqual(t *testing.T) {
	var outs []string
	for _, folder := range []string{"a", "another/folder"} {
		dir := t.TempDir()
		source, out := filepath.Join(dir, folder), filepath.Join(dir, "out")
		if err := copyFolder("../..", source, plainMode, notSources(Options{Source: "../.."})...); err != nil {
			t.Fatal(err)
		}
		if folder == "a" {
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", "git init -q . && git -c user.name=n -c user.email=e commit -q --allow-empty -m first")
			cmd.Dir = source
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
		}
		if err := Release(t.Context(), source, "v1.2.3", out, []string{"amd64"}); err != nil {
			t.Fatal(err)
		}
		outs = append(outs, out)
	}
	if err := compareContent(sumsFile, filepath.Join(outs[0], sumsFile), filepath.Join(outs[1], sumsFile)); err != nil {
		t.Error(err)
	}
	for _, out := range outs {
		check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", sumsFile)
		check.Dir = out
		if said, err := check.CombinedOutput(); err != nil || strings.Count(string(said), ": OK") != 2 {
			t.Errorf("%v\n%s", err, said)
		}
	}
	program := filepath.Join(outs[0], "hullmark_1.2.3_linux_amd64")
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "vcs") {
			t.Errorf("the program tells of the checkout: %s=%s", s.Key, s.Value)
		}
	}
	sbom, err := os.ReadFile(program + ".spdx.json")
	if err != nil || !strings.Contains(string(sbom), "pkg:golang/github.com/spf13/cobra@") {
		t.Errorf("the SBOM lacks a module: %v", err)
	}
}
