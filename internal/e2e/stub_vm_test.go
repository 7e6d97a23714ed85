//go:build vm

package e2e

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/cpio"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
	machines "github.com/hullmark/hullmark/pcrs/machine"
)

// Folders that the stub reads.
const (
	beside    = "EFI/BOOT/BOOTX64.EFI.extra.d/"
	addons    = "loader/addons/"
	credsDir  = "loader/credentials/"
	smbiosKey = "io.systemd.stub.kernel-cmdline-extra="
)

// stubBoot is a probe that boots with companions: by itself it is the image alone, with the stub that images are built with.
type stubBoot struct {
	name string
	// old names a stub in testdata.
	old    string
	esp    map[string][]byte
	smbios string
	// uki are sections to add to the kernel image.
	uki []pe.NewSection
	// secure turns Secure Boot on, with a signed kernel image.
	secure bool
}

// TestVMStub holds predictions against boots: every generation of the stub that is at hand, and everything that may lie beside an image.
func TestVMStub(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	keys := probe.NewKeys(t)
	plain := b.addon(t, section(".cmdline", []byte("hullmark.addon=local")))
	wide := b.addon(t, section(".cmdline", []byte("hullmark.addon=global hullmark.more=1")))
	initrd := b.addon(t, section(".initrd", append(archive(t, "from-addon"), 0)), section(".ucode", archive(t, "kernel/x86/microcode/first")))
	again := b.addon(t, section(".ucode", archive(t, "kernel/x86/microcode/second")), section(".cmdline", []byte("hullmark.again")))
	addon := map[string][]byte{beside + "one.addon.efi": plain, addons + "Two.addon.efi": wide}
	credential := map[string][]byte{beside + "b.cred": []byte("b"), beside + "A.cred": []byte("capital a")}
	global := map[string][]byte{credsDir + "global.cred": []byte("everyone's")}
	sysext := map[string][]byte{beside + "tool.sysext.raw": bytes.Repeat([]byte("s"), 10001), beside + "old.raw": []byte("x")}
	confext := map[string][]byte{beside + "etc.confext.raw": bytes.Repeat([]byte("c"), 4097)}
	ignored := map[string][]byte{beside + "notes.txt": []byte("x"), "loader/loader.conf": []byte("timeout 1\n"), beside + ".hidden.cred": []byte("x")}
	parts := map[string][]byte{beside + "a.addon.efi": initrd, beside + "b.addon.efi": again}
	useless := map[string][]byte{beside + "empty.addon.efi": b.addon(t, section(".osrel", []byte("ID=x\n")))}
	all := union(addon, credential, global, sysext, confext, ignored, parts, useless)
	extras := []pe.NewSection{section(".pcrsig", []byte("{}")), section(".pcrpkey", []byte("a key\n"))}
	signed := union(map[string][]byte{beside + "one.addon.efi": keys.Sign(t)(plain), beside + "two.addon.efi": wide}, credential, confext)
	for _, c := range []stubBoot{
		{name: "257 all", esp: all, smbios: "hullmark.host=1 hullmark.host=2"},
		{name: "254 all", old: "254", esp: all, smbios: "hullmark.host=1"},
		{name: "252 all", old: "252", esp: all, smbios: "hullmark.host=1"},
		{name: "257 Secure Boot", secure: true, esp: signed, smbios: "hullmark.host=1"},
		{name: "254 Secure Boot", old: "254", secure: true, esp: signed},
		{name: "252 Secure Boot", old: "252", secure: true, esp: signed},
		{name: "257 sections", uki: append(extras, section(".ucode", archive(t, "kernel/x86/microcode/none")))},
		{name: "252 sections", old: "252", uki: extras},
		{name: "252 alone", old: "252"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b.compareStub(t, keys, c)
		})
	}
}

func union(all ...map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

// compareStub predicts a boot, boots, and compares all registers that stub and kernel touch.
func (b bench) compareStub(t *testing.T, keys probe.Keys, c stubBoot) {
	parts, config := b.probeParts(t), vm.Config{}
	config.Tools, config.CPUs, config.MemoryMiB = b.tools(), 1, 512
	parts.ESP = c.esp
	if c.old != "" {
		parts.Stub = oldStub(t, c.old)
	}
	if c.old == "252" {
		parts.Uname = ""
	}
	if c.secure {
		config.SecureBoot, config.Firmware.Code, config.Firmware.Vars = true, b.ovmf("OVMF_CODE_4M.secboot.fd"), b.ownKeys(t, keys)
		parts.Sign = keys.Sign(t)
	} else {
		config.Firmware.Code, config.Firmware.Vars = b.ovmf("OVMF_CODE_4M.fd"), b.ovmf("OVMF_VARS_4M.fd")
	}
	if c.uki != nil {
		parts.Sign = func(image []byte) []byte { return appended(t, image, c.uki...) }
	}
	if c.smbios != "" {
		config.SMBIOS = []string{smbiosKey + c.smbios}
	}
	disk := probe.New(t, parts)
	predicted := predictStub(t, disk, c, config.Firmware)
	result := disk.Boot(t, config)
	t.Logf("%s: the kernel ran with %q", disk.Disk.UKI.Stub.Version, result.Cmdline)
	for _, bank := range pcrs.PredictedBanks() {
		compareRegisters(t, predicted, bank, result)
	}
}

// predictStub predicts without having seen the boot.
func predictStub(t *testing.T, disk probe.Image, c stubBoot, files machines.Firmware) pcrs.Prediction {
	t.Helper()
	code, err := pcrs.OpenFirmware(contentOf(t, files.Code))
	if err != nil {
		t.Fatal(err)
	}
	vars, err := firmware.OpenVars(contentOf(t, files.Vars))
	if err != nil {
		t.Fatal(err)
	}
	boot := pcrs.Boot{
		Machine: pcrs.Machine{Firmware: code, Vars: vars}, UKI: disk.Disk.UKI, Table: disk.Disk.Table, ESP: c.esp,
	}
	if c.smbios != "" {
		boot.SMBIOSExtra = []string{c.smbios}
	}
	predicted, err := pcrs.Predict(boot)
	if err != nil {
		t.Fatal(err)
	}
	return predicted
}

func compareRegisters(t *testing.T, predicted pcrs.Prediction, bank pcrs.Bank, result probe.Result) {
	t.Helper()
	log, err := pcrs.ParseLog(result.Log)
	if err != nil {
		t.Fatal(err)
	}
	differences, err := pcrs.Explain(predicted, bank, result.Registers[bank], &log)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
	for _, register := range []pcrs.Register{2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14} {
		if !slices.Contains(predicted.Registers, register) {
			t.Errorf("%v is not predicted", register)
		}
	}
}

// oldStub unpacks a stub of testdata.
func oldStub(t *testing.T, version string) []byte {
	t.Helper()
	packed, err := gzip.NewReader(bytes.NewReader(contentOf(t, filepath.Join("testdata", "stub-"+version+".gz"))))
	if err != nil {
		t.Fatal(err)
	}
	stub, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	return stub
}

func contentOf(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// addon is an addon of systemd's addon stub and the sections.
func (b bench) addon(t *testing.T, sections ...pe.NewSection) []byte {
	t.Helper()
	return appended(t, contentOf(t, filepath.Join(b.tools(), "usr/lib/systemd/boot/efi/addonx64.efi.stub")), sections...)
}

func appended(t *testing.T, image []byte, sections ...pe.NewSection) []byte {
	t.Helper()
	out, err := pe.Append(image, sections)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func section(name string, data []byte) pe.NewSection {
	return pe.NewSection{Name: name, Data: data, Flags: pe.FlagInitializedData | pe.FlagRead}
}

// archive is an initrd of one file, which the kernel unpacks without complaint.
func archive(t *testing.T, name string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := cpio.Write(&out, []cpio.Entry{{Name: name, Mode: 0o644, Data: []byte(strings.Repeat(name, 3))}}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
