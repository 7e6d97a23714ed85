package launch_test

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/gce-tcb-verifier/sev"
	"github.com/google/gce-tcb-verifier/tdx"
	sevsnp "github.com/google/go-sev-guest/proto/sevsnp"

	"github.com/hullmark/hullmark/internal/romtest"
	"github.com/hullmark/hullmark/launch"
	"github.com/hullmark/hullmark/pcrs"
)

// debianOVMF is where Debian's package ovmf has the whole image.
const debianOVMF = "/usr/share/ovmf/OVMF.fd"

// images are firmware of each kind: a synthetic one, and Debian's where it is installed, which the tests' own packages see to.
func images(t *testing.T) map[string][]byte {
	t.Helper()
	file, err := os.ReadFile(debianOVMF)
	if err != nil {
		t.Fatalf("%v; apt-get install ovmf", err)
	}
	plain := romtest.Good() // Google's program knows no page for kernel hashes, and adds memory that the guest accepts.
	plain.Hashes, plain.SEV, plain.TDX = 0, plain.SEV[:4], plain.TDX[:4]
	return map[string][]byte{"Debian's": file, "synthetic": plain.Image()}
}

func sha384(t *testing.T, e pcrs.Event, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return e.Digests[pcrs.SHA384]
}

// TestGoogleAgrees compares with what Google's own program computes for its machines.
func TestGoogleAgrees(t *testing.T) {
	for name, image := range images(t) {
		for _, vcpus := range []int{1, 2, 4, 96} {
			for bits, product := range map[int]sevsnp.SevProduct_SevProductName{48: sevsnp.SevProduct_SEV_PRODUCT_MILAN, 52: sevsnp.SevProduct_SEV_PRODUCT_GENOA} {
				want, err := sev.LaunchDigest(&sev.LaunchOptions{Vcpus: vcpus, Product: product}, image)
				if err != nil {
					t.Fatal(err)
				}
				e, err := launch.SNP{Firmware: image, VMM: launch.GCE, VCPUs: vcpus, AddressBits: bits}.Event()
				if got := sha384(t, e, err); hex.EncodeToString(got) != hex.EncodeToString(want) {
					t.Errorf("%s, %d processors, %v: %x, want %x", name, vcpus, product, got, want)
				}
			}
		}
		want, err := tdx.MRTD(tdx.LaunchOptionsDefault(""), image)
		if err != nil {
			t.Fatal(err)
		}
		e, err := launch.MRTD(image, launch.Interleaved)
		if got := sha384(t, e, err); hex.EncodeToString(got) != hex.EncodeToString(want[:]) {
			t.Errorf("%s: MRTD %x, want %x", name, got, want)
		}
	}
}

// TestEveryInputCounts changes one input after the other, each of which moves the digest.
func TestEveryInputCounts(t *testing.T) {
	image := romtest.Good().Image()
	good := launch.SNP{Firmware: image, VMM: launch.QEMU, VCPUs: 2, CPU: 0x800f12, Kernel: &launch.Kernel{Image: []byte("kernel"), Initrd: []byte("initrd"), CommandLine: "a"}}
	seen := map[string]string{}
	for name, change := range map[string]func(*launch.SNP){
		"as it is":          func(*launch.SNP) {},
		"another firmware":  func(s *launch.SNP) { s.Firmware = append([]byte{1}, image[1:]...) },
		"a third processor": func(s *launch.SNP) { s.VCPUs = 3 },
		"another model":     func(s *launch.SNP) { s.CPU = 0xa00f11 },
		"debug swap":        func(s *launch.SNP) { s.Features = 0x21 },
		"another monitor":   func(s *launch.SNP) { s.VMM = launch.EC2 },
		"an older host":     func(s *launch.SNP) { s.ZeroFPU = true },
		"wider addresses":   func(s *launch.SNP) { s.AddressBits = 52 },
		"no kernel":         func(s *launch.SNP) { s.Kernel = nil },
		"another kernel": func(s *launch.SNP) {
			s.Kernel = &launch.Kernel{Image: []byte("Kernel"), Initrd: []byte("initrd"), CommandLine: "a"}
		},
		"another initrd": func(s *launch.SNP) {
			s.Kernel = &launch.Kernel{Image: []byte("kernel"), Initrd: []byte("Initrd"), CommandLine: "a"}
		},
		"another command": func(s *launch.SNP) {
			s.Kernel = &launch.Kernel{Image: []byte("kernel"), Initrd: []byte("initrd"), CommandLine: "b"}
		},
		"an SVSM":                  func(s *launch.SNP) { s.Kernel, s.SVSM = nil, romtest.SVSM(0x100).Image() },
		"an SVSM that begins at 0": func(s *launch.SNP) { s.Kernel, s.SVSM = nil, romtest.SVSM(0).Image() },
		"an SVSM lower down":       func(s *launch.SNP) { s.Kernel, s.SVSM, s.VariablesSize = nil, romtest.SVSM(0x100).Image(), 4096 },
	} {
		changed := good
		change(&changed)
		e, err := changed.Event()
		digest := hex.EncodeToString(sha384(t, e, err))
		if other, twice := seen[digest]; twice {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[digest] = name
		if e.Register != pcrs.LaunchDigest || e.Origin != pcrs.Derived || len(e.Source.Parts) < 3 || e.Source.Check() != nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// TestFind names the one input that is another.
func TestFind(t *testing.T) {
	guest := launch.SNP{Firmware: romtest.Good().Image(), VMM: launch.QEMU, VCPUs: 2, CPU: 0x800f12}
	for want, change := range map[string]func(*launch.SNP){
		"none":                              func(*launch.SNP) {},
		"the number of processors: 17":      func(s *launch.SNP) { s.VCPUs = 17 },
		"the processors' model: EPYC-Milan": func(s *launch.SNP) { s.CPU = 0xa00f11 },
		"the features: 0x21":                func(s *launch.SNP) { s.Features = 0x21 },
		"what starts the machine: ec2":      func(s *launch.SNP) { s.VMM = launch.EC2 },
		"the host's Linux: older":           func(s *launch.SNP) { s.ZeroFPU = true },
		"":                                  func(s *launch.SNP) { s.ZeroFPU, s.VCPUs = true, 3 },
	} {
		changed := guest
		change(&changed)
		e, err := changed.Event()
		got, wrong := guest.Find(sha384(t, e, err))
		if wrong != nil || want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%q, %v, want %q", got, wrong, want)
		}
	}
}

func TestSNPThatCannotBe(t *testing.T) {
	image := romtest.Good().Image()
	good := launch.SNP{Firmware: image, VMM: launch.QEMU, VCPUs: 1, CPU: 1}
	for want, change := range map[string]func(*launch.SNP){
		"monitor":       func(s *launch.SNP) { s.VMM = "xen" },
		"0 processors":  func(s *launch.SNP) { s.VCPUs = 0 },
		"model":         func(s *launch.SNP) { s.CPU = 0 },
		"QEMU alone":    func(s *launch.SNP) { s.VMM, s.SVSM = launch.GCE, romtest.SVSM(0x100).Image() },
		"whole pages":   func(s *launch.SNP) { s.VariablesSize = 4096 },
		"want 36 to 52": func(s *launch.SNP) { s.AddressBits = 64 },
		"kernel hashes": func(s *launch.SNP) {
			r := romtest.Good()
			r.Hashes = 0
			r.SEV = r.SEV[:4]
			s.Firmware, s.Kernel = r.Image(), &launch.Kernel{}
		},
		"outside of": func(s *launch.SNP) {
			r := romtest.Good()
			r.Hashes = 0x1234
			s.Firmware, s.Kernel = r.Image(), &launch.Kernel{}
		},
		"processors begin":          func(s *launch.SNP) { r := romtest.Good(); r.Reset = 0; s.Firmware, s.VCPUs = r.Image(), 2 },
		"say where processors":      func(s *launch.SNP) { r := romtest.SVSM(0); r.SVSM = nil; s.SVSM = r.Image() },
		"no table of GUIDs":         func(s *launch.SNP) { s.Firmware = make([]byte, 8192) },
		"SVSM: the firmware has no": func(s *launch.SNP) { s.SVSM = make([]byte, 8192) },
	} {
		changed := good
		change(&changed)
		if _, err := changed.Event(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOrders has two values for one image, which tell the hosts apart.
func TestOrders(t *testing.T) {
	image := romtest.Good().Image()
	a, err := launch.MRTD(image, launch.Interleaved)
	b, wrong := launch.MRTD(image, launch.AddedFirst)
	if string(sha384(t, a, err)) == string(sha384(t, b, wrong)) {
		t.Error("both orders have one value")
	}
	if _, err := launch.MRTD(image, ""); err == nil {
		t.Error("no order: measured")
	}
}

// TestTD predicts a guest's registers from those of a TPM.
func TestTD(t *testing.T) {
	boot := diskBoot()
	source := pcrs.Source{Kind: pcrs.FromACPI}
	td := launch.TD{Firmware: romtest.Good().Image(), Order: launch.Interleaved, MemoryMiB: 4096, Machine: pcrs.Machine{Shape: pcrs.Shape{BootSlot: 4}}}
	open, err := td.Predict(boot)
	if err != nil || len(open.Unpredicted) != 1 || open.Unpredicted[0].Register != pcrs.RTMR(0) {
		t.Fatalf("%+v, %v", open.Unpredicted, err)
	}
	td.Platform = []pcrs.Event{{Register: pcrs.RTMR(0), Type: pcrs.EvPlatformConfigFlags, Digests: pcrs.DigestsOf([]byte("acpi"), pcrs.SHA384), Source: &source, Origin: pcrs.Learned}}
	p, err := td.Predict(boot)
	if err != nil || len(p.Unpredicted) != 0 {
		t.Fatal(p.Unpredicted, err)
	}
	for register, want := range map[pcrs.Register]int{pcrs.MRTD: 1, pcrs.RTMR(0): 2 + 2 + 1 + 2 + 1, pcrs.RTMR(1): 5, pcrs.RTMR(2): 1, pcrs.RTMR(3): 0} {
		if got := len(p.Log.Of(register)); got != want {
			t.Errorf("%v: %d events, want %d", register, got, want)
		}
	}
	values, err := p.Values(pcrs.SHA256)
	if err != nil || len(values) != 5 || len(values[pcrs.RTMR(3)]) != 48 {
		t.Errorf("%v, %v", values, err)
	}
	if order := p.Log.Of(pcrs.RTMR(0)); order[4].Origin != pcrs.Learned || order[7].Type != pcrs.EvVariableAuthority {
		t.Errorf("RTMR 0 in another order: %+v", order)
	}
	// More memory is another list of it, above 4 GiB, too.
	for _, mib := range []int{2048, 2815, 2816, 8192} {
		td.MemoryMiB = mib
		q, err := td.Predict(boot)
		if err != nil || q.Log.Of(pcrs.RTMR(0))[0].Digests[pcrs.SHA384].Equal(p.Log.Of(pcrs.RTMR(0))[0].Digests[pcrs.SHA384]) {
			t.Errorf("%d MiB: %v", mib, err)
		}
	}
	td.MemoryMiB = 4
	if _, err := td.Predict(boot); err == nil {
		t.Error("less memory than the firmware wants: predicted")
	}
}

func TestParseCPU(t *testing.T) {
	for name, want := range map[string]uint32{"EPYC": 0x800f12, "EPYC-v4": 0x800f12, "EPYC-Milan-v2": 0xa00f11, "EPYC-Genoa": 0xa10f10, "EPYC-Turin": 0xb00f00, "0x830f10": 0x830f10} {
		if got, err := launch.ParseCPU(name); err != nil || got != want {
			t.Errorf("%s: %#x, %v, want %#x", name, got, err, want)
		}
	}
	for _, name := range []string{"", "max", "0x0", "0x100000000", "EPYC-v", "EPYC-v0", "-v1"} {
		if got, err := launch.ParseCPU(name); err == nil {
			t.Errorf("%q: %#x", name, got)
		}
	}
}

// FuzzFirmware reads images whose ends are anything.
func FuzzFirmware(f *testing.F) {
	good := romtest.Good().Image()
	f.Add(good[len(good)-4096:])
	f.Add(romtest.SVSM(0x100).Image())
	f.Fuzz(func(t *testing.T, end []byte) {
		image := make([]byte, (len(end)+4095)/4096*4096)
		copy(image[len(image)-len(end):], end)
		e, err := launch.SNP{Firmware: image, VMM: launch.QEMU, VCPUs: 2, CPU: 1, Kernel: &launch.Kernel{}}.Event()
		if err == nil && len(e.Digests[pcrs.SHA384]) != 48 {
			t.Error("no digest, and no error")
		}
		if e, err := launch.MRTD(image, launch.AddedFirst); err == nil && binary.LittleEndian.Uint64(e.Digests[pcrs.SHA384]) == 0 {
			t.Error("no digest, and no error")
		}
	})
}

// TestRealLogs compares what is predicted of a guest with the log of a real one, on GCP: the kinds of events, in their order.
func TestRealLogs(t *testing.T) {
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/google/go-tdx-guest").Output()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(folder)), "testing", "testdata", "ccel", "ccel_data.dat"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := pcrs.ParseCCEL(raw)
	if err != nil {
		t.Fatal(err)
	}
	td := launch.TD{Firmware: romtest.Good().Image(), Order: launch.Interleaved, MemoryMiB: 4096, Machine: pcrs.Machine{Shape: pcrs.Shape{BootSlot: 4}}}
	if td.Platform, err = launch.LearnTD(log); err != nil || len(td.Platform) != 3 {
		t.Fatalf("%d learned, %v", len(td.Platform), err)
	}
	p, err := td.Predict(diskBoot())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if got, want := kinds(p.Log.Of(pcrs.RTMR(n))), kinds(log.Of(pcrs.RTMR(n))); !slices.Equal(got, want) {
			t.Errorf("RTMR %d: %v, want %v", n, got, want)
		}
	}
	separator := p.Log.Of(pcrs.RTMR(1))[1].Digests[pcrs.SHA384]
	if !separator.Equal(log.Of(pcrs.RTMR(1))[1].Digests[pcrs.SHA384]) {
		t.Error("another separator")
	}
	if _, err := launch.LearnTD(pcrs.Log{Format: pcrs.FormatCCEL}); err == nil {
		t.Error("an empty log was learned from")
	}
	log.Format = pcrs.FormatAgile
	if _, err := launch.LearnTD(log); err == nil {
		t.Error("the log of a TPM was learned from")
	}
}

// kinds are the types of events, each run of one as one.
func kinds(events []pcrs.Event) (types []pcrs.EventType) {
	for _, e := range events {
		types = append(types, e.Type)
	}
	return slices.Compact(types)
}

// diskBoot is the boot of a disk, as a TPM has it.
func diskBoot() pcrs.Prediction {
	event := func(r pcrs.Register, t pcrs.EventType, what string) pcrs.Event {
		return pcrs.Event{Register: r, Type: t, Digests: pcrs.DigestsOf([]byte(what), pcrs.SHA256, pcrs.SHA384)}
	}
	const end = "\x00\x00\x00\x00"
	return pcrs.Prediction{Log: pcrs.Log{Events: []pcrs.Event{
		event(0, pcrs.EvSeparator, end), event(7, pcrs.EvVariableDriverConfig, "secure boot"), event(7, pcrs.EvSeparator, end),
		event(4, pcrs.EvEFIAction, "call"), event(2, pcrs.EvSeparator, end), event(4, pcrs.EvSeparator, end), event(5, pcrs.EvSeparator, end),
		event(5, pcrs.EvGPT, "table"), event(4, pcrs.EvBootServicesApplication, "image"), event(7, pcrs.EvVariableAuthority, "by"),
		event(11, pcrs.EvIPL, "section"), event(5, pcrs.EvEFIAction, "exit"), event(10, pcrs.EvIPL, "ima"), event(8, pcrs.EvUserSpace, "config"),
	}}}
}
