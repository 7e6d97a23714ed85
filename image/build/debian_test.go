package build

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// smallRelease is a release in a folder of its own, whose program only says what it is.
func smallRelease(t *testing.T) (r released, manual []string) {
	t.Helper()
	r = released{
		ReleaseOptions: ReleaseOptions{
			Source: t.TempDir(), Version: "v1.2.3",
			Relations: func(string) (recommends, suggests []string) { return []string{"git", "ovmf"}, []string{"locales"} },
		},
		lock: lock.Lock{Time: 1700000000}, work: t.TempDir(),
	}
	for name, text := range map[string]string{changelogFile: "# Changelog\n", monitoringFolder + "/alerts.yaml": "groups: []\n"} {
		file := filepath.Join(r.Source, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	manual = []string{"completions/hullmark.bash", "completions/hullmark.fish", "completions/hullmark.zsh", "man/hullmark.1", "man/hullmark-build.1"}
	for _, name := range manual {
		file := filepath.Join(r.work, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("this is "+name), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	source := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"github.com/hullmark/hullmark@v1.2.3\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(r.work, r.program(runtime.GOARCH)), source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return r, manual
}

// readBack has dpkg-deb read a package, and returns what it says; nothing may be complained of.
func readBack(t *testing.T, args ...string) string {
	t.Helper()
	var said, complaints bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "dpkg-deb", args...)
	cmd.Stdout, cmd.Stderr = &said, &complaints
	if err := cmd.Run(); err != nil || complaints.Len() > 0 {
		t.Fatalf("dpkg-deb %q: %v (apt-get install dpkg)\n%s", args, err, complaints.Bytes())
	}
	return said.String()
}

// A package has its files where Debian's programs look for them, and the same release gives the same bytes.
func TestPackage(t *testing.T) {
	r, manual := smallRelease(t)
	name, err := r.makePackage(runtime.GOARCH, manual)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.work, name)
	if want := "hullmark_1.2.3_" + runtime.GOARCH + ".deb"; name != want {
		t.Errorf("it is called %s, want %s", name, want)
	}
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.makePackage(runtime.GOARCH, manual); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(file); err != nil || !bytes.Equal(first, second) {
		t.Errorf("made twice it differs, %v", err)
	}
	control := readBack(t, "--field", file)
	for _, want := range []string{"Package: hullmark\n", "Version: 1.2.3\n", "Architecture: " + runtime.GOARCH + "\n", "Recommends: git, ovmf\n", "Suggests: locales\n"} {
		if !strings.Contains(control, want) {
			t.Errorf("no %q in\n%s", want, control)
		}
	}
	to := t.TempDir()
	readBack(t, "--extract", file, to)
	for path, want := range map[string]string{
		"usr/share/bash-completion/completions/hullmark":    "this is completions/hullmark.bash",
		"usr/share/zsh/vendor-completions/_hullmark":        "this is completions/hullmark.zsh",
		"usr/share/fish/vendor_completions.d/hullmark.fish": "this is completions/hullmark.fish",
		"usr/share/doc/hullmark/copyright":                  copyright,
		"usr/share/doc/hullmark/changelog.gz":               "# Changelog\n",
		"usr/share/man/man1/hullmark-build.1.gz":            "this is man/hullmark-build.1",
	} {
		content, err := os.ReadFile(filepath.Join(to, path))
		if err == nil && strings.HasSuffix(path, ".gz") {
			content, err = unzipped(content)
		}
		if err != nil || string(content) != want {
			t.Errorf("%s: %q, %v", path, content, err)
		}
	}
	if _, err := r.makePackage(runtime.GOARCH, append(manual, "completions/hullmark.tcsh")); err == nil {
		t.Error("a file was packed that nobody knows a place for")
	}
}

// The changelog and what watches a cluster are released as the checkout has them.
func TestReleaseCopiesFiles(t *testing.T) {
	r, _ := smallRelease(t)
	names, err := r.copyFiles()
	if want := []string{changelogFile, "monitoring/alerts.yaml"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("copied %q, %v, want %q", names, err, want)
	}
	if text, err := os.ReadFile(filepath.Join(r.work, "monitoring/alerts.yaml")); err != nil || string(text) != "groups: []\n" {
		t.Errorf("it is %q, %v", text, err)
	}
	if err := os.Remove(filepath.Join(r.Source, changelogFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.copyFiles(); err == nil {
		t.Error("a release was made without a changelog")
	}
}

func unzipped(content []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// installInto is a script that installs the package $1 by the machine's dpkg into the root tree $2, where nothing else is, runs
// what was installed there, and removes it. It runs as root of a namespace, which an ordinary user may make.
const installInto = `
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$2/var/lib/dpkg/info" "$2/var/lib/dpkg/updates" "$2/var/log" && : > "$2/var/lib/dpkg/status"
dpkg="dpkg --root=$2 --log=/dev/null"
$dpkg --install "$1"
$dpkg --verify hullmark
$dpkg --status hullmark | grep '^Status: install ok installed'
chroot "$2" /usr/bin/hullmark --version
$dpkg --purge hullmark
find "$2" -path "$2/var/lib/dpkg" -prune -o -type f -print -o -name '*hullmark*' -print
`

// asRootOfANamespace runs a script as an ordinary user can, and returns what it says.
func asRootOfANamespace(t *testing.T, script string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--map-root-user", "--mount", "sh", "-ec", script, "sh"}, args...)...)
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v (apt-get install util-linux; docs/ci.md says what a container has to allow)\n%s", err, said)
	}
	return string(said)
}

// dpkg installs the package into an empty root tree, where its program runs, and takes every file of it away.
func TestPackageIsInstalledAndRemoved(t *testing.T) {
	r, manual := smallRelease(t)
	name, err := r.makePackage(runtime.GOARCH, manual)
	if err != nil {
		t.Fatal(err)
	}
	installed(t, asRootOfANamespace(t, installInto, filepath.Join(r.work, name), t.TempDir()))
}

// installed checks what a script said: that the program ran, and that nothing was left.
func installed(t *testing.T, said string) {
	t.Helper()
	ran, left, _ := strings.Cut(said, "Removing hullmark")
	if !strings.Contains(ran, "Status: install ok installed") || !strings.Contains(ran, "github.com/hullmark/hullmark@v1.2.3") || strings.Contains(ran, "missing") {
		t.Errorf("it was not installed as it should be:\n%s", said)
	}
	for line := range strings.Lines(left) {
		if strings.HasPrefix(line, "/") {
			t.Errorf("removed, it left %s", line)
		}
	}
}
