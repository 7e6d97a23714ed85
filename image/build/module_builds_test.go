//go:build builds

package build

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/lock"
)

// The example of docs/variants.md: a kernel module is compiled against the locked headers, twice to the same bytes, the second
// time with a signature that was made in between; nothing that compiled it is in the image, and its profile is what relaxes the
// command line.
func TestKernelModuleExample(t *testing.T) {
	o, _, tools := settled(t)
	dir := t.TempDir()
	o.Config = filepath.Join(dir, "config")
	if err := copyFolder(filepath.Join(o.Source, "docs/examples/kernel-module"), o.Config, plainMode); err != nil {
		t.Fatal(err)
	}
	whole, err := Lock(t.Context(), o, lock.Lock{})
	if err != nil {
		t.Fatal(err)
	}
	o.Profiles = []string{"unsigned-modules"}
	l := whole.For(o.Profiles...)
	build := func() (module []byte, cmdline string) {
		t.Helper()
		folder, _, err := Tree(t.Context(), o, l, tools)
		if err != nil {
			t.Fatal(err)
		}
		tree := members{}
		if err := tree.addTree(folder); err != nil {
			t.Fatal(err)
		}
		k, err := readKernelModules(tree)
		if err != nil {
			t.Fatal(err)
		}
		if file := k.path["hello"]; file != "extra/hello.ko" {
			t.Errorf("the index of modules has it at %q", file)
		}
		if module, err = tree.read(k.dir + "/extra/hello.ko"); err != nil {
			t.Fatal(err)
		}
		for name := range tree {
			if strings.HasPrefix(name, "usr/src/linux") || name == "usr/bin/make" || strings.HasPrefix(name, "usr/bin/x86_64-linux-gnu-gcc") {
				t.Errorf("%s is in the image", name)
			}
		}
		words, err := os.ReadFile(filepath.Join(folder, treeCmdline))
		if err != nil {
			t.Fatal(err)
		}
		return module, string(words)
	}
	module, cmdline := build()
	if strings.Contains(cmdline, "sig_enforce") || strings.Contains(cmdline, "lockdown=integrity") || !strings.Contains(cmdline, "panic=1") {
		t.Errorf("command line %s", cmdline)
	}
	unsigned := filepath.Join(dir, "hello.ko")
	if err := os.WriteFile(unsigned, module, 0o600); err != nil {
		t.Fatal(err)
	}
	sign := `openssl req -x509 -newkey rsa:2048 -nodes -keyout db.key -out db.crt -subj /CN=test -days 1 &&
		openssl cms -sign -binary -noattr -nosmimecap -nocerts -md sha256 -signer db.crt -inkey db.key -in hello.ko -outform DER -out config/hello/hello.ko.p7s`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", sign)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	signature, err := os.ReadFile(filepath.Join(o.Config, "hello/hello.ko.p7s"))
	if err != nil {
		t.Fatal(err)
	}
	signed, _ := build()
	// Documentation/admin-guide/module-signing.rst: the module, the signature, what describes it in 12 bytes, and a magic string.
	const magic = "~Module signature appended~\n"
	if want := len(module) + len(signature) + 12 + len(magic); len(signed) != want || !bytes.HasPrefix(signed, append(module, signature...)) || !bytes.HasSuffix(signed, []byte(magic)) {
		t.Errorf("signed it has %d bytes, want %d: the module of before, its signature, its end", len(signed), want)
	}
}
