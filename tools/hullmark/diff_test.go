package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/inspect"
	"github.com/hullmark/hullmark/internal/imagetest"
)

// diffImage writes an image whose root file system has some files, and its SBOM; a name that ends in @ is a link. It returns
// the image's path.
func diffImage(t *testing.T, files map[string]string, cmdline string, packages ...lock.Package) string {
	t.Helper()
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		t.Fatal("mkfs.erofs is missing: apt-get install erofs-utils")
	}
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	for name, content := range files {
		path := filepath.Join(tree, strings.TrimSuffix(name, "@"))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "@") {
			if err := os.Symlink(content, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, path, []byte(content))
	}
	// A root is more than one block.
	write(t, filepath.Join(tree, "large"), bytes.Repeat([]byte("large"), 2<<10))
	root := filepath.Join(dir, "root.erofs")
	if out, err := exec.Command("mkfs.erofs", "-T0", "-U8f5d4a38-0000-4000-8000-000000000000", root, tree).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v\n%s", err, out)
	}
	content, err := os.ReadFile(root)
	if err != nil {
		t.Fatal(err)
	}
	stub := imagetest.Stub(t, "257")
	disk := imagetest.Disk(t, image.Parts{
		Stub: stub, Kernel: stub, Initrd: []byte("initrd"), Cmdline: cmdline, Uname: "6.1",
		OSRelease: []byte("ID=test\nIMAGE_ID=node\nIMAGE_VERSION=1\n"), Root: bytes.NewReader(content), RootSize: int64(len(content)), Time: time.Unix(1767225600, 0),
	})
	path := filepath.Join(dir, "node.raw")
	write(t, path, disk)
	opened, err := image.Open(bytes.NewReader(disk), int64(len(disk)))
	if err != nil {
		t.Fatal(err)
	}
	l := lock.Lock{Time: 1767225600, Go: "go1.26.8", Packages: packages}
	sbom, err := l.SPDX(lock.Contents{ID: "node", Version: "1", RootHash: fmt.Sprintf("%x", opened.RootHash[:])})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "node.spdx.json"), sbom)
	return path
}

func bash(version string) lock.Package {
	return lock.Package{Set: lock.Root, Name: "bash", Version: version, Arch: "amd64"}
}

// TestDiffNamesEverythingThatDiffers has the machine's own tools for a tools tree.
func TestDiffNamesEverythingThatDiffers(t *testing.T) {
	a := diffImage(t, map[string]string{
		"etc/same": "same", "etc/changed": "one", "etc/gone": "", "etc/link@": "here", "usr/lib/systemd/system/a.service": "[Unit]",
		"usr/lib/modules/6.1/config": "# Linux\nCONFIG_SAME=y\nCONFIG_ON=y\nCONFIG_TEXT=\"x\"\n# CONFIG_OFF is not set\n",
	}, "quiet console=ttyS0 console=tty0", bash("1"), lock.Package{Set: lock.Root, Name: "tar", Version: "3", Arch: "all"})
	b := diffImage(t, map[string]string{
		"etc/same": "same", "etc/changed": "two", "etc/new\x1b[2J": "", "etc/link@": "there", "etc/systemd/system/b.service": "[Unit]",
		"usr/lib/modules/6.1/config": "CONFIG_SAME=y\n# CONFIG_ON is not set\nCONFIG_TEXT=\"y\"\nCONFIG_OFF=m\n",
	}, "quiet console=ttyS0 panic=1 debug", bash("2"))
	code, out := hullmarkCLI(t, "diff", a, b, "--tools", "/", "-o", "json")
	var r inspect.Comparison
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil || code != exitMismatch || r.Equal || len(r.NotCompared) != 0 {
		t.Fatalf("exit %d, %v\n%s", code, err, out)
	}
	got := map[inspect.Kind][]string{}
	for _, d := range r.Differences {
		if _, a, ok := strings.Cut(d.A, "-rw-------"); ok {
			d.A = a[:9]
		}
		if _, b, ok := strings.Cut(d.B, "-rw-------"); ok {
			d.B = b[:9]
		}
		got[d.Kind] = append(got[d.Kind], d.Name+": "+d.A+" | "+d.B)
	}
	for kind, want := range map[inspect.Kind][]string{
		inspect.KindConfig:  {"CONFIG_OFF: n | m", "CONFIG_ON: y | n", `CONFIG_TEXT: "x" | "y"`},
		inspect.KindPackage: {"bash:amd64: 1 | 2", "tar:all: 3 | "},
		inspect.KindUnit:    {"/etc/systemd/system/b.service:  |  6 bytes,", "/usr/lib/systemd/system/a.service:  6 bytes, | "},
		inspect.KindFile: {
			"/etc/changed:  3 bytes, |  3 bytes,", "/etc/gone:  0 bytes, | ", "/etc/link: -> here | -> there", "/etc/new\x1b[2J:  |  0 bytes,",
			"/etc/systemd:  | drwxr-xr-x", "/etc/systemd/system:  | drwxr-xr-x", "/usr/lib/modules/6.1/config:  74 bytes |  66 bytes",
			"/usr/lib/systemd: drwxr-xr-x | ", "/usr/lib/systemd/system: drwxr-xr-x | ",
		},
	} {
		if !slices.Equal(got[kind], want) {
			t.Errorf("%s:\n%q, want\n%q", kind, got[kind], want)
		}
	}
	if c := got[inspect.KindCmdline]; len(c) != 4 || c[0] != "console: console=ttyS0 console=tty0 | console=ttyS0" || c[1] != "debug:  | debug" || c[2] != "panic:  | panic=1" || !strings.HasPrefix(c[3], "roothash: roothash=") {
		t.Errorf("command line: %q", c)
	}
	if len(got[inspect.KindSection]) != 0 || len(got[inspect.KindImage]) != 3 {
		t.Errorf("kernel image %q, image %q", got[inspect.KindSection], got[inspect.KindImage])
	}
	var changed []string
	for _, line := range got[inspect.KindRegister] {
		name, _, _ := strings.Cut(line, ": ")
		changed = append(changed, name)
	}
	for _, want := range []string{"PCR  4", "PCR  9", "PCR 11"} {
		if !slices.Contains(changed, want) {
			t.Errorf("%s is not among %q", want, changed)
		}
	}
	for _, same := range []string{"PCR  5", "PCR  7"} {
		if slices.Contains(changed, same) {
			t.Errorf("%s does not hang on the release, and differs: %q", same, changed)
		}
	}
	code, text := hullmarkCLI(t, "diff", a, b, "--tools", "/")
	wantExit(t, code, exitMismatch, text, "kernel configuration\n", "  ~ CONFIG_ON", "  - tar:all", "  + /etc/new[2J", "the images differ")
}

func TestDiffOfEqualImages(t *testing.T) {
	a := diffImage(t, map[string]string{"etc/same": "same"}, "quiet")
	b := filepath.Join(t.TempDir(), "copy.raw")
	content, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	write(t, b, content)
	code, out := hullmarkCLI(t, "diff", a, b, "--tools", "/")
	wantExit(t, code, 0, out, "byte-equal")
	code, out = hullmarkCLI(t, "diff", a, b, "--tools", "/", "-o", "json")
	wantExit(t, code, 0, out, `"equal": true`, `"kind": "package"`, "copy.spdx.json is not there")
	content[len(content)-2<<20-1] = 1 // the padding of the hash tree: in no register
	write(t, b, content)
	code, out = hullmarkCLI(t, "diff", a, b, "--tools", "/")
	wantExit(t, code, exitMismatch, out, "sha256 of the disk")
	if strings.Contains(out, "register") {
		t.Errorf("a register differs:\n%s", out)
	}
}

// What an image holds writes no lines of its own, and what differs only in what is not shown is told all the same.
func TestDiffIsPrinted(t *testing.T) {
	var out strings.Builder
	r := inspect.Comparison{Differences: []inspect.Difference{{Kind: "file", Name: "/etc/a\n  + /etc/b", A: "quiet", B: "quiet \u3164"}, {Kind: "file", Name: "/etc/c", A: "one", B: "two"}}}
	if err := writeComparison(&out, "text", r, "a", "b"); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 3 || !strings.Contains(lines[1], `"quiet"`) || !strings.Contains(lines[1], `"quiet \u3164"`) || !strings.Contains(lines[2], "-> two") {
		t.Errorf("it prints\n%s", out.String())
	}
}

func TestDiffRefuses(t *testing.T) {
	a := diffImage(t, map[string]string{"etc/a": "a"}, "quiet")
	b := diffImage(t, map[string]string{"etc/b": "b"}, "quiet")
	sbom := strings.Replace(b, ".raw", ".spdx.json", 1)
	good, err := os.ReadFile(sbom)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(strings.Replace(a, ".raw", ".spdx.json", 1))
	if err != nil {
		t.Fatal(err)
	}
	noErofs := filepath.Join(t.TempDir(), "node.raw")
	write(t, noErofs, smallDisk(t))
	code, out := hullmarkCLI(t, "diff", a)
	wantExit(t, code, exitUsage, out, "name two images")
	code, out = hullmarkCLI(t, "diff", a, b)
	wantExit(t, code, exitUsage, out, "name one with --tools")
	code, out = hullmarkCLI(t, "diff", a, noErofs, "--tools", "/")
	wantExit(t, code, exitFailed, out, noErofs+": unpack the root file system: fsck.erofs")
	code, out = hullmarkCLI(t, "diff", a, "/etc/passwd", "--tools", "/")
	wantExit(t, code, exitFailed, out, "/etc/passwd: open image")
	write(t, sbom, other)
	code, out = hullmarkCLI(t, "diff", a, b, "--tools", "/")
	wantExit(t, code, exitFailed, out, sbom+" is about another image")
	write(t, sbom, good[:len(good)/2])
	code, out = hullmarkCLI(t, "diff", a, b, "--tools", "/")
	wantExit(t, code, exitFailed, out, sbom+": read SBOM")
}
