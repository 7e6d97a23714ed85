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
		"CHANGELOG.md", "site/index.html", "site/changelog.html", "site/search-index.js", "monitoring/alerts.yaml", "monitoring/dashboard.json",
	} {
		if !strings.Contains(checked, name+": OK\n") {
			return false
		}
	}
	return strings.Count(checked, ": OK\n") == 7+strings.Count(checked, "man/")+strings.Count(checked, "site/")+strings.Count(checked, "monitoring/")
}

// inTheTree is a script that installs the package $1 into Debian as the tools tree $2 has it, over which a file system in memory
// lies at $3, by that Debian's dpkg, runs and reads what was installed there, and removes it. That Debian's bash, which reads /dev/fd,
// runs the script $4 with what the machine's package bash-completion has.
const inTheTree = `
mount -t tmpfs tmpfs "$3" && mkdir "$3/upper" "$3/work" "$3/root"
mount -t overlay -o "userxattr,lowerdir=$2,upperdir=$3/upper,workdir=$3/work" overlay "$3/root"
cd "$3/root"
mkdir -p var/lib/dpkg/info var/lib/dpkg/updates var/log tmp && : > var/lib/dpkg/status
cp "$1" tmp/package.deb
cp /usr/share/bash-completion/bash_completion tmp || { echo 'apt-get install bash-completion'; exit 1; }
mount --rbind /dev dev
mount --rbind /proc proc
export PATH=/usr/sbin:/usr/bin LC_ALL=C.UTF-8
chroot . dpkg --install /tmp/package.deb
chroot . dpkg --verify hullmark
chroot . dpkg --status hullmark | grep '^Status: install ok installed'
chroot . hullmark --version
chroot . hullmark doctor eventlog
chroot . bash --norc -c "$4"
chroot . zcat /usr/share/man/man1/hullmark-build.1.gz | grep '^\.TH "HULLMARK-BUILD"'
chroot . zcat /usr/share/doc/hullmark/changelog.gz | grep '^# Changelog'
chroot . dpkg --purge hullmark
find "$3/root/usr" "$3/root/etc" -name '*hullmark*'
`

// completes has bash complete as a tab does, by what was installed.
const completes = `
. /tmp/bash_completion
. /usr/share/bash-completion/completions/hullmark
complete -p hullmark
COMP_WORDS=(hullmark log wit) COMP_CWORD=2 COMP_LINE="hullmark log wit" COMP_POINT=16 COMP_TYPE=9
__start_hullmark
printf 'completed: %s\n' "${COMPREPLY[@]}"
`

// checkPackage installs a package into Debian as the locked tools tree has it, uses it, and removes it.
func checkPackage(t *testing.T, file string) {
	t.Helper()
	_, _, tree := settled(t)
	said := asRootOfANamespace(t, inTheTree, file, tree, t.TempDir(), completes)
	for _, want := range []string{"nothing but this program\n", "completed: witness\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("what was installed does not work, there is no %q:\n%s", want, said)
		}
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
