//go:build long

package pcrs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/buildtest"
)

// systemdMeasure runs the tree's systemd-measure with the tree's own libraries.
func systemdMeasure(t *testing.T, tree string, args ...string) string {
	t.Helper()
	libraries := filepath.Join(tree, "usr/lib/x86_64-linux-gnu")
	args = append([]string{
		"--library-path", libraries + ":" + filepath.Join(libraries, "systemd"),
		filepath.Join(tree, "usr/lib/systemd/systemd-measure"),
	}, args...)
	out, err := exec.Command(filepath.Join(tree, "usr/lib64/ld-linux-x86-64.so.2"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-measure: %v\n%s", err, out)
	}
	return string(out)
}

// The tools tree holds the stub that images are built with, and the systemd-measure of the same version.
func TestLongPCR11EqualsSystemdMeasure(t *testing.T) {
	tree := buildtest.Tools(t)
	stub := readFile(t, filepath.Join(tree, uki.DebianStub))
	image, err := uki.Build(stub, []uki.Section{
		{Name: ".linux", Data: stub},
		{Name: ".osrel", Data: []byte("ID=test\nVERSION_ID=1\n")},
		{Name: ".cmdline", Data: []byte(cmdline)},
		{Name: ".initrd", Data: bytes.Repeat([]byte("initrd"), 1001)},
		{Name: ".uname", Data: []byte("6.12.1")},
		{Name: ".pcrpkey", Data: []byte("a public key")},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := testBoot(t)
	b.UKI = open(t, image)
	p, err := Predict(b)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"calculate", "--bank=sha256", "--bank=sha384", "--bank=sha512", "--phase="}
	for _, s := range b.UKI.Measured() {
		file := filepath.Join(t.TempDir(), "section")
		if err := os.WriteFile(file, s.Data, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--"+s.Name[1:]+"="+file)
	}
	out := systemdMeasure(t, tree, args...)
	for _, bank := range PredictedBanks() {
		values, err := p.Values(bank)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^11:` + bank.String() + `=([0-9a-f]+)$`).FindStringSubmatch(out)
		if found == nil || found[1] != values[11].String() {
			t.Errorf("PCR 11 (%v): predicted %v, systemd-measure says %s", bank, values[11], out)
		}
	}
}
