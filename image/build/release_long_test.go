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

// releasesAll tells whether sha256sum found files of each kind, and no others, to be what SHA256SUMS says.
func releasesAll(checked string) bool {
	for _, name := range []string{
		"hullmark_1.2.3_linux_amd64", "hullmark_1.2.3_linux_amd64.spdx.json", "hullmark_1.2.3_amd64.deb",
		"completions/hullmark.bash", "completions/hullmark.zsh", "completions/hullmark.fish", "man/hullmark.1", "man/hullmark-build.1", "man/hullmark-policy-show.1",
	} {
		if !strings.Contains(checked, name+": OK\n") {
			return false
		}
	}
	return strings.Count(checked, ": OK\n") == 6+strings.Count(checked, "man/")
}

// inTheTree is a script that installs the package $1 into Debian as the tools tree $2 has it, over which a file system in memory
// lies at $3, by that Debian's dpkg, runs what was installed there, and removes it.
const inTheTree = `
mount -t tmpfs tmpfs "$3" && mkdir "$3/upper" "$3/work" "$3/root"
mount -t overlay -o "userxattr,lowerdir=$2,upperdir=$3/upper,workdir=$3/work" overlay "$3/root"
cd "$3/root"
mkdir -p var/lib/dpkg/info var/lib/dpkg/updates var/log tmp && : > var/lib/dpkg/status
cp "$1" tmp/package.deb
export PATH=/usr/sbin:/usr/bin LC_ALL=C.UTF-8
chroot . dpkg --install /tmp/package.deb
chroot . dpkg --verify hullmark
chroot . dpkg --status hullmark | grep '^Status: install ok installed'
chroot . hullmark --version
chroot . hullmark doctor eventlog
chroot . bash -n /usr/share/bash-completion/completions/hullmark
chroot . dpkg --purge hullmark
find "$3/root/usr" "$3/root/etc" -name '*hullmark*'
`

// checkPackage installs a package into Debian as the locked tools tree has it, uses it, and removes it.
func checkPackage(t *testing.T, file string) {
	t.Helper()
	_, _, tree := settled(t)
	said := asRootOfANamespace(t, inTheTree, file, tree, t.TempDir())
	if !strings.Contains(said, "nothing but this program") {
		t.Errorf("the verbs of what was installed do not work:\n%s", said)
	}
	installed(t, said)
}

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
		o := ReleaseOptions{Source: source, Out: out, Version: "v1.2.3", Architectures: []string{"amd64"}, Relations: func(string) (recommends, suggests []string) { return nil, nil }}
		if err := Release(t.Context(), o); err != nil {
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
		if said, err := check.CombinedOutput(); err != nil || !releasesAll(string(said)) {
			t.Errorf("%v\n%s", err, said)
		}
	}
	t.Run("package", func(t *testing.T) { checkPackage(t, filepath.Join(outs[0], "hullmark_1.2.3_amd64.deb")) })
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
