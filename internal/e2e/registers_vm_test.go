//go:build vm

package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/probe"
	"github.com/hullmark/hullmark/internal/vm"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
	machines "github.com/hullmark/hullmark/pcrs/machine"
)

// probeParts are a probe of the built image's stub and kernel.
func (b bench) probeParts(t *testing.T) probe.Parts {
	t.Helper()
	stub, err := os.ReadFile(filepath.Join(b.tools(), uki.DebianStub))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.Open(b.image())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	info, err := raw.Stat()
	if err != nil {
		t.Fatal(err)
	}
	disk, err := image.Open(raw, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	kernel, _ := disk.UKI.Section(".linux")
	uname, _ := disk.UKI.Section(".uname")
	return probe.Parts{Stub: stub, Kernel: kernel, Uname: string(uname), Cmdline: "console=ttyS0 quiet panic=-1"}
}

var every = flag.Bool("every", false, "boot each machine that TestVMRegisters knows, not only those that differ most")

// registersCase is a boot whose registers are predicted before it.
type registersCase struct {
	name string
	// machine is the machine file, without its schema and tools.
	machine map[string]any
	// edit changes the probe.
	edit func(p *probe.Parts)
	// prepare makes the file of variables that the machine file names, for a disk.
	prepare func(disk *image.Disk, file string)
	// esp is what lies beside the kernel image.
	esp map[string][]byte
	// grow is how large the disk becomes, in bytes, as a cloud's are larger than the image; 0 leaves it as it is.
	grow int64
	// convert is the format of the file that the machine's disk is, as hullmark convert and QEMU call it; none leaves the raw one.
	convert, format string
	// open are registers that stay open.
	open []pcrs.Register
	// seldom leaves the machine to make test-machines.
	seldom bool
	// network boots the machine in a shared network: neither that nor the network card's address may be measured.
	network bool
}

// TestVMRegisters learns machines from their firmware alone, predicts PCR 0 to 15 of an image that they have never booted, and boots it.
func TestVMRegisters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	keys, others := probe.NewKeys(t), probe.NewKeys(t)
	vars := b.ownKeys(t, keys)
	esp := b.firstESP(t)
	gone := esp
	gone.GUID[0]++
	bootEntries := map[uint16][]byte{
		0: efi.LoadOption(efi.OptionActive, "debian", efi.FilePath(gone, "EFI/debian/shimx64.efi"), nil),
		1: efi.LoadOption(efi.OptionActive, "Linux Boot Manager", efi.FilePath(esp, "EFI/systemd/systemd-bootx64.efi"), nil),
		3: efi.LoadOption(0, "not active", efi.FilePath(esp, uki.Path), nil),
		4: efi.LoadOption(efi.OptionActive, "a disk", efi.PCIPath(machines.ImageSlot), nil),
		5: efi.LoadOption(efi.OptionActive, "a network card", efi.PCIPath(2), nil),
	}
	for _, c := range []registersCase{
		{name: "default", seldom: true, machine: map[string]any{}},
		{name: "two processors", seldom: true, machine: map[string]any{"cpus": 2}},
		{name: "more memory", seldom: true, machine: map[string]any{"memoryMiB": 3072}},
		{name: "second disk", seldom: true, machine: map[string]any{"stateDisk": "1G"}},
		{name: "option ROM", seldom: true, machine: map[string]any{"nicROM": true}},
		{name: "TPM by TIS", seldom: true, machine: map[string]any{"tpm": "tis"}},
		{name: "the host's firmware", machine: map[string]any{"firmware": "/usr/share/OVMF/OVMF_CODE_4M.fd", "variables": "/usr/share/OVMF/OVMF_VARS_4M.fd"}},
		{
			name: "Secure Boot with own keys", seldom: true, machine: map[string]any{"secureBoot": true, "variables": vars},
			edit: func(p *probe.Parts) { p.Sign = keys.Sign(t) },
		},
		{
			name: "Secure Boot and an option ROM", seldom: true, machine: map[string]any{"secureBoot": true, "variables": vars, "nicROM": true},
			edit: func(p *probe.Parts) { p.Sign = keys.Sign(t) },
		},
		{
			name: "Microsoft's keys and an own one", seldom: true, machine: map[string]any{"secureBoot": true, "variables": b.microsoft(t, keys)},
			edit: func(p *probe.Parts) { p.Sign = keys.Sign(t) },
		},
		{
			name: "Microsoft's keys and two signatures and an option ROM", seldom: true, machine: map[string]any{"secureBoot": true, "variables": b.microsoft(t, keys), "nicROM": true},
			edit: func(p *probe.Parts) {
				p.Sign = func(uki []byte) []byte { return keys.Sign(t)(probe.NewKeys(t).Sign(t)(uki)) }
			},
		},
		{
			name: "a signed option ROM", machine: map[string]any{
				"secureBoot": true, "variables": b.microsoft(t, others, keys), "nicROM": true, "tools": b.toolsWithSignedROM(t, others),
			},
			edit: func(p *probe.Parts) { p.Sign = keys.Sign(t) },
		},
		{
			name: "snakeoil", seldom: true, machine: map[string]any{"secureBoot": true, "variables": "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"},
			edit: func(p *probe.Parts) { p.Sign = probe.Snakeoil(t).Sign(t) },
		},
		{
			name: "Debian 12's firmware with snakeoil", seldom: true, machine: map[string]any{
				"secureBoot": true, "firmware": "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "variables": "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd",
			},
			edit: func(p *probe.Parts) { p.Sign = probe.Snakeoil(t).Sign(t) },
		},
		{
			name: "the image's hash in db and a large dbx", machine: map[string]any{"secureBoot": true, "variables": filepath.Join(t.TempDir(), "hash.fd")},
			prepare: func(disk *image.Disk, file string) { b.allowHash(t, keys, disk, file) },
		},
		{
			name: "addons signed by two", machine: map[string]any{"secureBoot": true, "variables": b.microsoft(t, keys, others)},
			edit: func(p *probe.Parts) { p.Sign = keys.Sign(t) }, esp: map[string][]byte{
				beside + "1.addon.efi": others.Sign(t)(b.addon(t, section(".cmdline", []byte("hullmark.addon=1")))),
				beside + "2.addon.efi": keys.Sign(t)(b.addon(t, section(".cmdline", []byte("hullmark.addon=2")))),
				beside + "3.addon.efi": probe.NewKeys(t).Sign(t)(b.addon(t, section(".cmdline", []byte("hullmark.addon=3")))),
				beside + "4.addon.efi": others.Sign(t)(b.addon(t, section(".cmdline", []byte("hullmark.addon=4")))),
			},
		},
		{name: "earlier boot entries", seldom: true, machine: map[string]any{"variables": b.bootEntries(t, bootEntries)}},
		{name: "earlier boot entries on Debian 12's firmware", machine: map[string]any{
			"firmware": "/usr/share/OVMF/OVMF_CODE_4M.fd", "variables": b.bootEntries(t, bootEntries),
		}},
		{name: "an entry of the image's own", seldom: true, machine: map[string]any{"variables": b.bootEntries(t, map[uint16][]byte{
			7: efi.LoadOption(efi.OptionActive, "Linux Boot Manager", efi.FilePath(esp, uki.Path), nil),
		})}},
		{
			name: "another program first", seldom: true, machine: map[string]any{"variables": b.bootEntries(t, map[uint16][]byte{
				7: efi.LoadOption(efi.OptionActive, "debian", efi.FilePath(esp, "EFI/debian/shimx64.efi"), nil),
			})},
			esp: map[string][]byte{"EFI/debian/shimx64.efi": b.addon(t, section(".osrel", []byte("ID=x\n")))}, open: []pcrs.Register{4, 5, 9, 10, 12, 14},
		},
		{
			name: "an entry of what is no program", seldom: true, machine: map[string]any{"variables": b.bootEntries(t, map[uint16][]byte{
				7: efi.LoadOption(efi.OptionActive, "debian", efi.FilePath(esp, "EFI/debian/shimx64.efi"), nil),
			})},
			esp: map[string][]byte{"EFI/debian/shimx64.efi": []byte("no program at all")},
		},
		{
			name: "addon and credential and system extension on the ESP", machine: map[string]any{}, esp: map[string][]byte{
				beside + "more.addon.efi": b.addon(t, section(".cmdline", []byte("hullmark.addon=1"))),
				beside + "secret.cred":    []byte("a credential"),
				beside + "tool.raw":       []byte("an extension"),
			},
		},
		{name: "a larger disk", seldom: true, machine: map[string]any{}, grow: 1 << 30},
		{name: "disks on NVMe from a qcow2", machine: map[string]any{"disks": "nvme", "stateDisk": "1G"}, convert: "qcow2", format: "qcow2"},
		{name: "disks on SATA from a VHD with Debian 12's firmware", seldom: true, machine: map[string]any{
			"disks": "sata", "stateDisk": "1G", "firmware": "/usr/share/OVMF/OVMF_CODE_4M.fd", "variables": "/usr/share/OVMF/OVMF_VARS_4M.fd",
		}, convert: "vhd", format: "vpc"},
		{name: "disks on SCSI", seldom: true, machine: map[string]any{"disks": "scsi", "stateDisk": "1G"}},
		{name: "in a shared network", seldom: true, machine: map[string]any{}, network: true},
		{name: "in a shared network with an option ROM", seldom: true, machine: map[string]any{"nicROM": true}, network: true},
		{name: "SMBIOS string", machine: map[string]any{"smbios": []string{smbiosKey + "hullmark.host=1"}}},
	} {
		if c.seldom && !*every {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b.predictAndBoot(t, c)
		})
	}
}

// ownKeys is a file of variables in which the keys are enrolled.
func (b bench) ownKeys(t *testing.T, keys probe.Keys) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "own-keys.fd")
	if err := os.WriteFile(file, keys.Enroll(t, contentOf(t, b.ovmf("OVMF_VARS_4M.fd"))), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// predictAndBoot lets the program say what the boot will measure, then boots.
func (b bench) predictAndBoot(t *testing.T, c registersCase) {
	t.Helper()
	described := map[string]any{"schema": "hullmark.machine/v1", "tools": b.tools(), "cpus": 1, "memoryMiB": 512, "stateDisk": "0"}
	maps.Copy(described, c.machine)
	if c.esp != nil {
		described["esp"] = files(t, c.esp)
	}
	file := writeMachine(t, described)
	parts := b.probeParts(t)
	if c.edit != nil {
		c.edit(&parts)
	}
	i := probe.New(t, parts)
	if c.prepare != nil {
		c.prepare(i.Disk, described["variables"].(string))
	}
	cli(t, 0, "learn", "--machine", file)
	document := b.measure(t, i.Path, file)
	i.Add(t, c.esp)
	if c.grow != 0 {
		if err := os.Truncate(i.Path, c.grow); err != nil {
			t.Fatal(err)
		}
	}
	shape := b.shaped(t, described)
	if c.convert != "" {
		dir := t.TempDir()
		cli(t, 0, "convert", i.Path, "--format", c.convert, "--out", dir)
		shape.ImageFormat, shape.Image = c.format, filepath.Join(dir, strings.TrimSuffix(filepath.Base(i.Path), ".raw")+"."+c.convert)
	}
	if c.network {
		shape.Networks = []string{b.network(t).Dir()}
	}
	b.compare(t, document, i.Boot(t, shape), c.open...)
}

// writeMachine writes a machine file into a folder of its own.
func writeMachine(t *testing.T, described map[string]any) string {
	t.Helper()
	text, err := json.Marshal(described)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// compare holds the registers of a boot to a document, and shows what departs; some stay open.
func (b bench) compare(t *testing.T, document measurements.Document, measured probe.Result, open ...pcrs.Register) {
	t.Helper()
	for _, d := range departures(document, measured, open...) {
		t.Error(d)
	}
	if t.Failed() {
		b.explain(t, document, measured)
	}
}

// departures are the registers of a boot that are not as in a document, in words.
func departures(document measurements.Document, measured probe.Result, open ...pcrs.Register) (found []string) {
	for _, bank := range pcrs.PredictedBanks() {
		expected := document.Values(bank)
		for r := range pcrs.Register(16) {
			if r == 8 { // nothing measures a node's configuration here
				continue
			}
			if slices.Contains(open, r) {
				if expected[r] != nil {
					found = append(found, fmt.Sprintf("%v (%v) is predicted", r, bank))
				}
				continue
			}
			if !expected[r].Equal(measured.Registers[bank][r]) {
				found = append(found, fmt.Sprintf("%v (%v): predicted %v, the TPM has %v", r, bank, expected[r], measured.Registers[bank][r]))
			}
		}
	}
	return found
}

// network is a network that ends with the test.
func (b bench) network(t *testing.T, forwards ...vm.Forward) *vm.Network {
	t.Helper()
	n, err := vm.StartNetwork(t.Context(), vm.NetworkConfig{Dir: filepath.Join(t.TempDir(), "network"), Forwards: forwards, Tools: b.tools()})
	if err != nil {
		t.Fatal(err)
	}
	// The test's context ends before its clean-up, and the network with it.
	t.Cleanup(func() { _ = n.Wait() })
	return n
}

// files writes what lies on an ESP to files, and returns their paths by those on the ESP.
func files(t *testing.T, esp map[string][]byte) map[string]string {
	t.Helper()
	paths := map[string]string{}
	for name, content := range esp {
		paths[name] = filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(paths[name], content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// measure lets the program predict.
func (b bench) measure(t *testing.T, image, machine string, flags ...string) measurements.Document {
	t.Helper()
	document, err := measurements.Parse([]byte(quiet(t, append([]string{"measure", image, "--machine", machine, "-o", "json"}, flags...)...)))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// quiet runs the program without showing its output, which it returns.
func quiet(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(source(t), "bin", "hullmark"), args...)
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("hullmark %v: %v: %s", args, err, problem.Bytes())
	}
	return string(out)
}

// shaped is the machine that a machine file describes.
func (b bench) shaped(t *testing.T, described map[string]any) vm.Config {
	t.Helper()
	c := vm.Config{}
	c.Tools, c.CPUs, c.MemoryMiB = described["tools"].(string), described["cpus"].(int), described["memoryMiB"].(int)
	text := func(name string) string { s, _ := described[name].(string); return s }
	c.Firmware.Code, c.Firmware.Vars = text("firmware"), text("variables")
	c.TPM, c.Bus = machines.TPM(text("tpm")), machines.Bus(text("disks"))
	c.NICROM, _ = described["nicROM"].(bool)
	c.SecureBoot, _ = described["secureBoot"].(bool)
	c.SMBIOS, _ = described["smbios"].([]string)
	if text("stateDisk") != "0" {
		c.StateDisk = 1 << 30
	}
	return c
}

// explain shows what departs, event by event.
func (b bench) explain(t *testing.T, document measurements.Document, measured probe.Result) {
	t.Helper()
	log, err := pcrs.ParseLog(measured.Log)
	if err != nil {
		t.Fatal(err)
	}
	differences, err := pcrs.Explain(document.Prediction(), pcrs.SHA256, measured.Registers[pcrs.SHA256], &log)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Log(d)
	}
}
