// Package snp verifies attestation reports of AMD SEV-SNP guests offline: the signature up to AMD's root, and the guest, its platform
// and the platform's firmware against what an operator demands.
package snp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ReportSize is the length of a report in bytes (AMD 56860 rev. 1.58, Table 23, ATTESTATION_REPORT).
const ReportSize = 0x4a0

// signedSize is how much of a report is signed.
const signedSize = 0x2a0

// hostRequested stands in the place of a VMPL in reports that the host asked for itself.
const hostRequested = 0xffffffff

// Key says which kind of key signed a report (the same, SIGNING_KEY).
type Key string

// The kinds of keys: of one chip, or of a provider's many.
const (
	VCEK Key = "vcek"
	VLEK Key = "vlek"
)

// TCB are the versions of a platform's firmware. FMC exists on Turin only.
type TCB struct {
	FMC        uint8 `json:"fmc,omitempty"`
	Bootloader uint8 `json:"bootloader"`
	TEE        uint8 `json:"tee"`
	SNP        uint8 `json:"snp"`
	Microcode  uint8 `json:"microcode"`
}

// String writes all versions, as "bootloader 4, tee 0, snp 24, microcode 219".
func (t TCB) String() string {
	text := fmt.Sprintf("bootloader %d, tee %d, snp %d, microcode %d", t.Bootloader, t.TEE, t.SNP, t.Microcode)
	if t.FMC > 0 {
		text = fmt.Sprintf("fmc %d, %s", t.FMC, text)
	}
	return text
}

// AtLeast reports whether no version is below the other's.
func (t TCB) AtLeast(o TCB) bool {
	return t.FMC >= o.FMC && t.Bootloader >= o.Bootloader && t.TEE >= o.TEE && t.SNP >= o.SNP && t.Microcode >= o.Microcode
}

// readTCB decodes a TCB_VERSION, whose layout is the product's (the same, Tables 3 and 4). Reserved bytes have to be zero.
func readTCB(product string, b []byte) (TCB, error) {
	reserved := b[2:6]
	t := TCB{Bootloader: b[0], TEE: b[1], SNP: b[6], Microcode: b[7]}
	if product == Turin {
		reserved = b[4:7]
		t = TCB{FMC: b[0], Bootloader: b[1], TEE: b[2], SNP: b[3], Microcode: b[7]}
	}
	if slices.ContainsFunc(reserved, func(b byte) bool { return b != 0 }) {
		return TCB{}, fmt.Errorf("TCB version %x: reserved bytes are set", b)
	}
	return t, nil
}

// Report is a decoded report, of versions 2 to 5. Nothing of it is verified.
type Report struct {
	Version  uint32
	GuestSVN uint32
	Policy   uint64
	FamilyID [16]byte
	ImageID  [16]byte
	VMPL     uint32
	// PlatformInfo are the platform's settings.
	PlatformInfo    uint64
	Key             Key
	AuthorKey       bool
	Masked          bool
	ReportData      [64]byte
	Measurement     [48]byte
	HostData        [32]byte
	IDKeyDigest     [48]byte
	AuthorKeyDigest [48]byte
	ReportID        [32]byte
	ChipID          [64]byte
	// Family, Model and Stepping are the processor's, from version 3 on.
	Family, Model, Stepping uint8
	// LaunchMitigations and CurrentMitigations are vectors of bits, from version 5 on.
	LaunchMitigations, CurrentMitigations uint64

	current, reported, committed, launch []byte
	signed, signature                    []byte
}

// Parse decodes a report. What has to be zero is checked, as far as its version says so.
func Parse(raw []byte) (Report, error) {
	if len(raw) != ReportSize {
		return Report{}, fmt.Errorf("report of %d bytes, want %d", len(raw), ReportSize)
	}
	le := binary.LittleEndian
	r := Report{
		Version: le.Uint32(raw), GuestSVN: le.Uint32(raw[4:]), Policy: le.Uint64(raw[8:]), VMPL: le.Uint32(raw[0x30:]), PlatformInfo: le.Uint64(raw[0x40:]),
		current: raw[0x38:0x40], reported: raw[0x180:0x188], committed: raw[0x1e0:0x1e8], launch: raw[0x1f0:0x1f8],
		signed: raw[:signedSize], signature: raw[signedSize:],
	}
	for _, field := range []struct {
		at int
		to []byte
	}{
		{0x10, r.FamilyID[:]},
		{0x20, r.ImageID[:]},
		{0x50, r.ReportData[:]},
		{0x90, r.Measurement[:]},
		{0xc0, r.HostData[:]},
		{0xe0, r.IDKeyDigest[:]},
		{0x110, r.AuthorKeyDigest[:]},
		{0x140, r.ReportID[:]},
		{0x1a0, r.ChipID[:]},
	} {
		copy(field.to, raw[field.at:])
	}
	if r.Version < 2 || r.Version > 5 {
		return Report{}, fmt.Errorf("report of version %d, want 2 to 5", r.Version)
	}
	if algorithm := le.Uint32(raw[0x34:]); algorithm != 1 {
		return Report{}, fmt.Errorf("signature algorithm %d, want 1 (ECDSA P-384 with SHA-384)", algorithm)
	}
	if err := r.readVersioned(raw); err != nil {
		return Report{}, err
	}
	return r, r.readFlags(le.Uint32(raw[0x48:]))
}

// readVersioned reads what not every version has, and wants zeros elsewhere.
func (r *Report) readVersioned(raw []byte) error {
	zero := [][2]int{{0x4c, 0x50}, {0x18b, 0x1a0}, {0x1eb, 0x1ec}, {0x1ef, 0x1f0}, {0x208, signedSize}, {signedSize + 144, ReportSize}}
	if r.Version >= 3 {
		r.Family, r.Model, r.Stepping = raw[0x188], raw[0x189], raw[0x18a]
	} else {
		zero = append(zero, [2]int{0x188, 0x18b})
	}
	if r.Version >= 5 {
		r.LaunchMitigations, r.CurrentMitigations = binary.LittleEndian.Uint64(raw[0x1f8:]), binary.LittleEndian.Uint64(raw[0x200:])
	} else {
		zero = append(zero, [2]int{0x1f8, 0x208})
	}
	for _, z := range zero {
		if slices.ContainsFunc(raw[z[0]:z[1]], func(b byte) bool { return b != 0 }) {
			return fmt.Errorf("report: bytes %#x to %#x, which are reserved in version %d, are not zero", z[0], z[1], r.Version)
		}
	}
	return nil
}

func (r *Report) readFlags(flags uint32) error {
	r.AuthorKey, r.Masked = flags&1 != 0, flags&2 != 0
	switch flags >> 2 {
	case 0:
		r.Key = VCEK
	case 1:
		r.Key = VLEK
	case 7:
		return errors.New("report: nobody signed it")
	default:
		return fmt.Errorf("report: key information %#x is unknown", flags)
	}
	return nil
}

// The bits of a guest's policy (the same, Table 9).
const (
	policySMT        = 1 << 16
	policyReserved   = 1 << 17
	policyMigrate    = 1 << 18
	policyDebug      = 1 << 19
	policyCXL        = 1 << 21
	policyHiding     = 1 << 24
	policyNoPageSwap = 1 << 25
	policyKnown      = 1<<26 - 1
)

// The bits of a platform's settings (the same, PLATFORM_INFO). Bit 6 is reserved; whoever sets it says what we do not know.
const (
	platformSMT   = 1 << 0
	platformAlias = 1 << 5
	platformKnown = 0x3f | 1<<7
)

// signatureParts returns both numbers of the signature, big-endian, 48 bytes each.
func (r *Report) signatureParts() (x, y []byte, err error) {
	x, y = slices.Clone(r.signature[:72]), slices.Clone(r.signature[72:144])
	slices.Reverse(x)
	slices.Reverse(y)
	for _, n := range [][]byte{x, y} {
		if slices.ContainsFunc(n[:24], func(b byte) bool { return b != 0 }) {
			return nil, nil, errors.New("signature: a number is too large")
		}
	}
	return x[24:], y[24:], nil
}
