//go:build vm

package e2e

import (
	"context"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// TestVMSecureBoot signs a disk with keys that the program made. Firmware that has them starts it, and measures what was
// predicted; firmware with others' keys refuses it, and a disk without a signature is refused by both.
func TestVMSecureBoot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	keys, others := b.newKeys(t, "keys"), b.newKeys(t, "others")
	disk := probe.New(t, b.probeParts(t))
	signed := b.sign(t, disk.Path, keys, "signed.raw")
	both := b.sign(t, signed, others, "both.raw", "--add")
	for name, c := range map[string]struct{ image, keys string }{
		"own keys": {signed, keys}, "a second signature": {both, others},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b.bootsSecurely(t, probe.Image{Path: c.image, Disk: disk.Disk}, c.keys)
		})
	}
	for name, c := range map[string]struct{ image, keys string }{
		"others' keys": {signed, others}, "not signed": {disk.Path, keys},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := b.secure(t, filepath.Join(c.keys, "OVMF_VARS_4M.fd"))
			machine.Image = c.image
			b.awaitConsole(t, machine, `failed to load Boot.*(Access Denied|Security Violation)`)
		})
	}
}

// bootsSecurely boots a probe on firmware that has the keys, and compares all that was predicted.
func (b bench) bootsSecurely(t *testing.T, disk probe.Image, keys string) {
	t.Helper()
	machine := b.secure(t, filepath.Join(keys, "OVMF_VARS_4M.fd"))
	predicted := b.predictSecure(t, disk.Path, machine.Firmware.Vars).Values(pcrs.SHA256)
	measured := disk.Boot(t, machine).Registers[pcrs.SHA256]
	for register, want := range predicted {
		if !want.Equal(measured[register]) {
			t.Errorf("%v: predicted %v, the TPM has %v", register, want, measured[register])
		}
	}
	for _, register := range []pcrs.Register{4, 5, 7, 9, 11} {
		if predicted[register] == nil {
			t.Errorf("%v is not predicted", register)
		}
	}
}

// TestVMEnrolsKeys lets systemd-boot give the signed updates to firmware that has no keys yet: it takes them, in the order db, KEK, PK.
func TestVMEnrolsKeys(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	keys := b.newKeys(t, "keys")
	disk := probe.New(t, b.probeParts(t))
	signed := b.sign(t, disk.Path, keys, "signed.raw")
	esp := map[string][]byte{
		uki.Path:             contentOf(t, filepath.Join(b.tools(), "usr/lib/systemd/boot/efi/systemd-bootx64.efi")),
		"loader/loader.conf": []byte("secure-boot-enroll force\n"),
	}
	for _, name := range []string{"PK", "KEK", "db"} {
		esp["loader/keys/auto/"+name+".auth"] = contentOf(t, filepath.Join(keys, name+".auth"))
	}
	disk.Add(t, esp)
	machine := b.secure(t, b.ovmf("OVMF_VARS_4M.fd"))
	machine.Image, machine.ExitOnReboot = disk.Path, true
	m := b.start(t, machine)
	if err := m.Wait(); err != nil {
		t.Fatal(err)
	}
	enrolled := b.predictSecure(t, signed, m.Files().Vars).Values(pcrs.SHA256)
	expected := b.predictSecure(t, signed, filepath.Join(keys, "OVMF_VARS_4M.fd")).Values(pcrs.SHA256)
	if !enrolled[7].Equal(expected[7]) {
		t.Errorf("PCR 7 is %v with the enrolled keys, %v with the file of variables; console:\n%s", enrolled[7], expected[7], contentOf(t, m.Console()))
	}
}

// secure is a machine with Secure Boot.
func (b bench) secure(t *testing.T, vars string) vm.Config {
	t.Helper()
	c := vm.Config{Dir: filepath.Join(t.TempDir(), "machine")}
	c.Tools, c.CPUs, c.MemoryMiB = b.tools(), 1, 512
	c.SecureBoot, c.Firmware.Code, c.Firmware.Vars = true, b.ovmf("OVMF_CODE_4M.secboot.fd"), vars
	return c
}

func (b bench) predictSecure(t *testing.T, image, vars string) measurements.Document {
	t.Helper()
	text := quiet(t, "measure", image, "--firmware", b.ovmf("OVMF_CODE_4M.secboot.fd"), "--vars", vars, "-o", "json")
	document, err := measurements.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// start starts a machine whose power is cut when the test ends, or takes too long.
func (b bench) start(t *testing.T, c vm.Config) *vm.Machine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTime)
	t.Cleanup(cancel)
	m, err := vm.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Kill)
	return m
}

// awaitConsole starts a machine and cuts its power when the console says it.
func (b bench) awaitConsole(t *testing.T, c vm.Config, pattern string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTime)
	defer cancel()
	m := b.start(t, c)
	line, err := m.WaitConsole(ctx, regexp.MustCompile(pattern))
	if err != nil {
		t.Fatalf("%v; console:\n%s", err, contentOf(t, m.Console()))
	}
	t.Log(line)
}
