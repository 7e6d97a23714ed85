// Package launch predicts what the hardware of a confidential machine measures before the machine runs, and what a TDX guest's
// firmware extends beside a TPM: SEV-SNP's launch digest, TDX's MRTD and RTMRs. It is the counterpart of package pcrs: pure, by the
// bytes that the caller hands over, and with an error wherever a rule is missing.
package launch

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// VMM is what starts a machine. Each has its own way to put firmware into memory and to set processors up.
type VMM string

// The known ones.
const (
	QEMU VMM = "qemu"
	EC2  VMM = "ec2"
	GCE  VMM = "gce"
)

// MaxVCPUs is how many processors a machine may have.
const MaxVCPUs = 4096

// SNP is how a host starts an SEV-SNP guest.
type SNP struct {
	// Firmware is the file with its code, as the host maps it right below 4 GiB; on QEMU with separate variables, the code alone.
	Firmware []byte
	// SVSM is the file of an SVSM that runs below the firmware, or nil. VariablesSize is how many bytes of variables are mapped
	// between the two. QEMU alone is known to start one.
	SVSM          []byte
	VariablesSize int
	VMM           VMM
	// VCPUs is how many processors the guest is started with.
	VCPUs int
	// CPU is the signature of the processor's model, as CPUID function 1 returns it in EAX (AMD 25481). On QEMU it is the model's that
	// -cpu names, whatever the host has; the other monitors measure none.
	CPU uint32
	// Features are SEV_FEATURES as they are at launch; 0 stands for 1, an SNP guest without more.
	Features uint64
	// Kernel is what QEMU was told to start by itself (-kernel with kernel-hashes=on), or nil.
	Kernel *Kernel
	// AddressBits is how wide the host's guest physical addresses are for a processor's state; 0 stands for 48. GCE hosts of Genoa have 52.
	AddressBits int
	// ZeroFPU is how KVM before Linux 6.10 starts processors: without the floating point unit's state of a reset.
	ZeroFPU bool
}

// Kernel is what a host hands over beside the firmware.
type Kernel struct {
	// Image and Initrd are the files as given; no initrd is an empty one.
	Image, Initrd []byte
	// CommandLine is without its NUL.
	CommandLine string
}

// check refuses what no host can start.
func (s SNP) check() error {
	switch {
	case s.VMM != QEMU && s.VMM != EC2 && s.VMM != GCE:
		return fmt.Errorf("virtual machine monitor %q: qemu, ec2 and gce are known", s.VMM)
	case s.VCPUs < 1 || s.VCPUs > MaxVCPUs:
		return fmt.Errorf("%d processors: want 1 to %d", s.VCPUs, MaxVCPUs)
	case s.VMM == QEMU && s.CPU == 0:
		return errors.New("QEMU measures the model of the processors, and none is named")
	case s.SVSM != nil && (s.VMM != QEMU || s.Kernel != nil):
		return errors.New("an SVSM is known to be started by QEMU alone, and without a kernel beside it")
	case s.SVSM != nil && s.Features > 1:
		return fmt.Errorf("features %#x: an SVSM runs with 1 alone", s.Features)
	case s.SVSM == nil && s.VariablesSize != 0 || s.VariablesSize < 0 || s.VariablesSize%firmware.PageSize != 0 || s.VariablesSize > firmware.MaxFile:
		return fmt.Errorf("%d bytes of variables: want whole pages, beside an SVSM", s.VariablesSize)
	case s.AddressBits != 0 && (s.AddressBits < 36 || s.AddressBits > 52):
		return fmt.Errorf("addresses of %d bits: want 36 to 52", s.AddressBits)
	}
	return nil
}

// Event returns the one event of the register pcrs.LaunchDigest, whose source has a part for each thing that is measured.
func (s SNP) Event() (pcrs.Event, error) {
	d, parts, err := s.measure()
	if err != nil {
		return pcrs.Event{}, fmt.Errorf("launch digest: %w", err)
	}
	return event(pcrs.LaunchDigest, d[:], pcrs.Derived, pcrs.Source{Kind: pcrs.FromLaunch, Name: "an SEV-SNP guest on " + string(s.VMM), Parts: parts}), nil
}

// maxFound is how many processors Find tries.
const maxFound = 512

// Find looks for the one input of a guest that has to be another for its digest to be the measured one, and says which: how many
// processors there are, their model, the features, the monitor or the host's kernel. It returns "" if there is none.
func (s SNP) Find(measured []byte) (string, error) {
	if e, err := s.Event(); err != nil || bytes.Equal(e.Digests[pcrs.SHA384], measured) {
		return "none: it is the predicted one", err
	}
	for _, c := range s.changes() {
		if e, err := c.guest.Event(); err == nil && bytes.Equal(e.Digests[pcrs.SHA384], measured) {
			return c.what, nil
		}
	}
	return s.findProcessors(measured)
}

// change is a guest of which one input is another.
type change struct {
	what  string
	guest SNP
}

func (s SNP) changes() (all []change) {
	add := func(what string, edit func(*SNP)) {
		c := change{what, s}
		edit(&c.guest)
		all = append(all, c)
	}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		add("the processors' model: "+name, func(g *SNP) { g.CPU = models[name].signature() })
	}
	for _, features := range []uint64{1, 0x21} {
		add(fmt.Sprintf("the features: %#x", features), func(g *SNP) { g.Features = features })
	}
	for _, vmm := range []VMM{QEMU, EC2, GCE} {
		add("what starts the machine: "+string(vmm), func(g *SNP) { g.VMM = vmm })
	}
	add("the host's Linux: older than 6.10", func(g *SNP) { g.ZeroFPU = true })
	add("the host's Linux: 6.10 or newer", func(g *SNP) { g.ZeroFPU = false })
	add("the width of addresses: 52 bits", func(g *SNP) { g.AddressBits = 52 })
	add("no kernel was handed over by the host", func(g *SNP) { g.Kernel = nil })
	return all
}

// findProcessors measures what is before the processors once.
func (s SNP) findProcessors(measured []byte) (string, error) {
	many := s
	many.VCPUs = maxFound
	d, err := many.memory()
	if err != nil {
		return "", err
	}
	described, base, err := many.described()
	if err != nil {
		return "", err
	}
	states, err := many.states(described, base)
	if err != nil {
		return "", err
	}
	for n, state := range states {
		d.page(pageVMSA, state, many.stateAddress())
		if bytes.Equal(d[:], measured) {
			return fmt.Sprintf("the number of processors: %d", n+1), nil
		}
	}
	return "", nil
}

// Predict adds the launch digest to the prediction of a TPM's registers.
func (s SNP) Predict(boot pcrs.Prediction) (pcrs.Prediction, error) {
	e, err := s.Event()
	if err != nil {
		return pcrs.Prediction{}, err
	}
	boot.Log.Events = append([]pcrs.Event{e}, boot.Log.Events...)
	boot.Registers = append(slices.Clone(boot.Registers), pcrs.LaunchDigest)
	return boot, nil
}

func event(r pcrs.Register, digest []byte, origin pcrs.Origin, source pcrs.Source) pcrs.Event {
	return pcrs.Event{Register: r, Type: pcrs.EvLaunch, Digests: pcrs.Digests{pcrs.SHA384: digest}, Source: &source, Origin: origin}
}

// part is one thing that is measured.
func part(name string, bytes int) pcrs.Source {
	return pcrs.Source{Kind: pcrs.FromLaunch, Name: name, Bytes: bytes}
}

// measure computes the digest in the order in which hosts build guests: the firmware, what its metadata names, and the processors.
func (s SNP) measure() (d digest, parts []pcrs.Source, err error) {
	if err := s.check(); err != nil {
		return d, nil, err
	}
	described, base, err := s.described()
	if err != nil {
		return d, nil, err
	}
	parts = append(parts, part("firmware", len(s.Firmware)))
	if s.SVSM != nil {
		parts = append(parts, part("SVSM", len(s.SVSM)))
	}
	if d, err = s.memory(); err != nil {
		return d, nil, err
	}
	parts = append(parts, part(fmt.Sprintf("%d parts of memory that the firmware names", len(described.Sections)), 0))
	if k := s.Kernel; k != nil {
		parts = append(parts, part("kernel", len(k.Image)), part("initrd", len(k.Initrd)), part("command line", len(k.CommandLine)))
	}
	states, err := s.states(described, base)
	if err != nil {
		return d, nil, err
	}
	for _, state := range states {
		d.page(pageVMSA, state, s.stateAddress())
	}
	return d, append(parts, part(fmt.Sprintf("%d processors, signature %#x, features %#x", s.VCPUs, s.signature(), s.features()), len(states)*firmware.PageSize)), nil
}

// described is the metadata by which the guest is built, the firmware's or the SVSM's, and where the SVSM begins.
func (s SNP) described() (m firmware.SEV, base uint64, err error) {
	if m, err = firmware.OpenSEV(s.Firmware); err != nil || s.SVSM == nil {
		return m, 0, err
	}
	if m, err = firmware.OpenSEV(s.SVSM); err != nil {
		return m, 0, fmt.Errorf("SVSM: %w", err)
	}
	return m, fourGiB - uint64(len(s.Firmware)) - uint64(s.VariablesSize) - uint64(len(s.SVSM)), nil
}

// memory measures all but the processors.
func (s SNP) memory() (d digest, err error) {
	described, base, err := s.described()
	if err != nil {
		return d, err
	}
	d.pages(s.Firmware, fourGiB-uint64(len(s.Firmware)))
	if s.SVSM != nil {
		d.pages(s.SVSM, base)
	}
	return d, s.sections(&d, described)
}

// stateAddress is where a processor's state is said to be: in the last page that the host can name.
func (s SNP) stateAddress() uint64 {
	bits := s.AddressBits
	if bits == 0 {
		bits = 48
	}
	return 1<<bits - firmware.PageSize
}

const fourGiB = uint64(1) << 32

// digest is the measurement while a guest is built (AMD 56860, SNP_LAUNCH_UPDATE, PAGE_INFO).
type digest [48]byte

// pageType says what a page is measured as.
type pageType byte

const (
	pageNormal     pageType = 1
	pageVMSA       pageType = 2
	pageZero       pageType = 3
	pageUnmeasured pageType = 4
	pageSecrets    pageType = 5
	pageCPUID      pageType = 6
)

// page measures one page; a nil content is one that is not measured.
func (d *digest) page(t pageType, content []byte, address uint64) {
	const length = 0x70
	var info [length]byte
	copy(info[:], d[:])
	if content != nil {
		sum := sha512.Sum384(content)
		copy(info[48:], sum[:])
	}
	binary.LittleEndian.PutUint16(info[96:], length)
	info[98] = byte(t)
	binary.LittleEndian.PutUint64(info[104:], address)
	*d = sha512.Sum384(info[:])
}

// pages measures content that lies in memory from an address on.
func (d *digest) pages(content []byte, address uint64) {
	for at := 0; at < len(content); at += firmware.PageSize {
		d.page(pageNormal, content[at:at+firmware.PageSize], address+uint64(at))
	}
}

// sections measures what the metadata names, in its order; EC2 leaves the pages for CPUID to the end.
func (s SNP) sections(d *digest, described firmware.SEV) error {
	hashed := false
	var last []firmware.SEVSection
	for _, section := range described.Sections {
		switch {
		case section.Kind == firmware.SEVCPUID && s.VMM == EC2:
			last = append(last, section)
		case section.Kind == firmware.SEVKernelHashes && s.Kernel != nil && !hashed:
			page, err := s.Kernel.page(section, described.Hashes)
			if err != nil {
				return err
			}
			d.page(pageNormal, page, section.Address)
			hashed = true
		case section.Kind == firmware.SEVKernelHashes && s.Kernel != nil:
			return errors.New("the firmware has two pages for kernel hashes")
		default:
			d.empty(s.kind(section.Kind), section)
		}
	}
	for _, section := range last {
		d.empty(pageCPUID, section)
	}
	if s.Kernel != nil && !hashed {
		return errors.New("the firmware has no page for kernel hashes: the host could start any kernel; use firmware that was built for it (edk2, AmdSevX64)")
	}
	return nil
}

// empty measures pages whose content is not.
func (d *digest) empty(t pageType, section firmware.SEVSection) {
	for at := uint64(0); at < section.Size; at += firmware.PageSize {
		d.page(t, nil, section.Address+at)
	}
}

// kind is what a section without content is measured as.
func (s SNP) kind(k firmware.SEVSectionKind) pageType {
	switch {
	case k == firmware.SEVSecrets:
		return pageSecrets
	case k == firmware.SEVCPUID:
		return pageCPUID
	case k == firmware.SEVMemory && s.VMM == GCE:
		return pageUnmeasured
	}
	return pageZero
}

// The entries of the table of hashes (QEMU, target/i386/sev.c: SevHashTable).
var (
	guidHashes      = efi.MustGUID("9438d606-4f22-4cc9-b479-a793d411fd21")
	guidKernel      = efi.MustGUID("4de79437-abd2-427f-b835-d5b172d2045b")
	guidInitrd      = efi.MustGUID("44baf731-3a2f-4bd7-9af1-41e29169781d")
	guidCommandLine = efi.MustGUID("97d02dd8-bd20-4c94-aa78-e7714d36ab2a")
)

// page returns the page with the table of hashes, as QEMU fills it.
func (k Kernel) page(section firmware.SEVSection, table uint32) ([]byte, error) {
	const head, entry, padded = 18, 50, 176
	at := uint64(table) - section.Address
	if section.Size != firmware.PageSize || uint64(table) < section.Address || at+padded > firmware.PageSize {
		return nil, fmt.Errorf("the firmware's table of kernel hashes, at %#x, is outside of the page for it, at %#x", table, section.Address)
	}
	hashes := append(guidHashes[:], byte(head+3*entry), 0)
	for _, e := range []struct {
		id      efi.GUID
		content []byte
	}{{guidCommandLine, append([]byte(k.CommandLine), 0)}, {guidInitrd, k.Initrd}, {guidKernel, k.Image}} {
		sum := sha256.Sum256(e.content)
		hashes = append(append(append(hashes, e.id[:]...), entry, 0), sum[:]...)
	}
	page := make([]byte, firmware.PageSize)
	copy(page[at:], hashes)
	return page, nil
}

// states returns the page that each processor begins with.
func (s SNP) states(described firmware.SEV, base uint64) ([][]byte, error) {
	const first = 0xfffffff0
	others := uint64(described.Reset)
	if !described.SaysReset && (s.VCPUs > 1 || s.SVSM != nil) {
		return nil, errors.New("the firmware does not say where processors begin")
	}
	var all [][]byte
	for n := range s.VCPUs {
		switch {
		case s.SVSM != nil:
			all = append(all, s.svsmState(base+others))
		case n == 0:
			all = append(all, s.state(first))
		default:
			all = append(all, s.state(uint32(others)))
		}
	}
	return all, nil
}

func (s SNP) features() uint64 {
	if s.Features == 0 {
		return 1
	}
	return s.Features
}

// signature is what a processor finds in RDX: GCE and EC2 hand over that of no model.
func (s SNP) signature() uint32 {
	const noModel = 0x600
	if s.VMM != QEMU {
		return noModel
	}
	return s.CPU
}

// state is a processor after a reset, as KVM saves it (AMD 24593, table 14-1 and table B-4).
func (s SNP) state(start uint32) []byte {
	code, stack, task := uint16(0x9b), uint16(0x93), uint16(0x8b)
	if s.VMM == EC2 {
		stack, task = 0x92, 0x83
		if start == 0xfffffff0 {
			code = 0x9a
		}
	}
	v := vmsa{page: make([]byte, firmware.PageSize)}
	for _, at := range []int{esAt, dsAt, fsAt, gsAt} {
		v.segment(at, 0, 0x93, 0xffff, 0)
	}
	v.segment(csAt, 0xf000, code, 0xffff, uint64(start)&^0xffff)
	v.segment(ssAt, 0, stack, 0xffff, 0)
	v.segment(trAt, 0, task, 0xffff, 0)
	v.word(cr0At, 0x10)
	v.word(ripAt, uint64(start)&0xffff)
	v.rest(s)
	return v.page
}

// svsmState is a processor as QEMU starts an SVSM: in flat 32-bit mode.
func (s SNP) svsmState(start uint64) []byte {
	v := vmsa{page: make([]byte, firmware.PageSize)}
	for _, at := range []int{esAt, ssAt, dsAt, fsAt} {
		v.segment(at, 0x10, 0xc93, 0xffffffff, 0)
	}
	v.segment(gsAt, 0, 0x93, 0xffff, 0)
	v.segment(csAt, 8, 0xc9b, 0xffffffff, 0)
	v.segment(trAt, 0, 0x8b, 0xffff, 0)
	v.word(cr0At, 0x11)
	v.word(ripAt, start)
	v.rest(s)
	return v.page
}

// Where a processor's state is (the same, table B-4).
const (
	esAt, csAt, ssAt, dsAt, fsAt, gsAt = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50
	gdtrAt, ldtrAt, idtrAt, trAt       = 0x60, 0x70, 0x80, 0x90
	eferAt, cr4At, cr0At, dr7At, dr6At = 0xd0, 0x148, 0x158, 0x160, 0x168
	flagsAt, ripAt, patAt, rdxAt       = 0x170, 0x178, 0x268, 0x310
	featuresAt, xcr0At                 = 0x3b0, 0x3e8
	mxcsrAt, fcwAt                     = 0x408, 0x410
)

// vmsa is the page with a processor's state.
type vmsa struct{ page []byte }

func (v vmsa) word(at int, value uint64) { binary.LittleEndian.PutUint64(v.page[at:], value) }

func (v vmsa) segment(at int, selector, attributes uint16, limit uint32, base uint64) {
	b := binary.LittleEndian.AppendUint16(nil, selector)
	b = binary.LittleEndian.AppendUint16(b, attributes)
	b = binary.LittleEndian.AppendUint32(b, limit)
	copy(v.page[at:], bytes.Join([][]byte{b, binary.LittleEndian.AppendUint64(nil, base)}, nil))
}

// rest is what all processors have alike.
func (v vmsa) rest(s SNP) {
	v.segment(gdtrAt, 0, 0, 0xffff, 0)
	v.segment(idtrAt, 0, 0, 0xffff, 0)
	v.segment(ldtrAt, 0, 0x82, 0xffff, 0)
	v.word(eferAt, 0x1000) // SVME
	v.word(cr4At, 0x40)    // MCE
	v.word(dr7At, 0x400)
	v.word(dr6At, 0xffff0ff0)
	v.word(flagsAt, 2)
	v.word(patAt, 0x7040600070406)
	if s.VMM == GCE {
		v.word(patAt, 0x70106)
	}
	v.word(rdxAt, uint64(s.signature()))
	v.word(featuresAt, s.features())
	v.word(xcr0At, 1)
	if s.VMM == QEMU && !s.ZeroFPU {
		binary.LittleEndian.PutUint32(v.page[mxcsrAt:], 0x1f80)
		binary.LittleEndian.PutUint16(v.page[fcwAt:], 0x37f)
	}
}
