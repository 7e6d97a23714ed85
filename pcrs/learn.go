package pcrs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// LearnedSchema names the format of LearnedData.
const LearnedSchema = "hullmark.learned/v1"

// Limits of learned data.
const (
	// MaxLearned is the largest encoding of LearnedData, in bytes.
	MaxLearned   = 64 << 10
	maxACPI      = 64
	maxOriginLen = 512
)

// Shape is what firmware and its virtual machine monitor build the machine's tables from.
type Shape struct {
	// CPUs is the number of processors, MemoryMiB the memory in MiB.
	CPUs      int `json:"cpus"`
	MemoryMiB int `json:"memoryMiB"`
	// TPM is the TPM's interface, "crb" or "tis".
	TPM string `json:"tpm"`
	// Disks is how many disks the machine has, with the one that it boots from.
	Disks int `json:"disks"`
	// Cards is how many network cards the machine has, left out if it is one.
	Cards int `json:"cards,omitempty"`
	// BootSlot is the PCI device number, on the first bus, of the disk that it boots from, or of that disk's controller.
	BootSlot int `json:"bootSlot"`
	// Bus is that of all its disks: VirtIO, NVMe, SATA or SCSI.
	Bus string `json:"bus,omitempty"`
	// SMM reports whether the machine has System Management Mode, as firmware with Secure Boot needs it.
	SMM bool `json:"smm"`
}

// Check refuses what no machine can be.
func (s Shape) Check() error {
	if s.CPUs < 1 || s.MemoryMiB < 1 || s.Disks < 1 || s.Cards < 0 || s.Cards == 1 || s.BootSlot < 1 || s.BootSlot > 31 || s.TPM != "crb" && s.TPM != "tis" {
		return fmt.Errorf("shape %+v: want processors, memory, disks, a TPM (crb or tis) and a PCI device number of 1 to 31", s)
	}
	return s.checkBus()
}

// LearnedData is what cannot be derived of a machine, taken from one of its boots: digests of the volume of early code, which
// firmware changes in memory before it measures it, and of the tables that the virtual machine monitor makes. Neither depends
// on the image that is booted.
type LearnedData struct {
	// Schema is LearnedSchema.
	Schema string `json:"schema"`
	// Origin says which boot it was, for people.
	Origin string `json:"origin"`
	// Firmware is the SHA-256 of the firmware's code file.
	Firmware Digest `json:"firmware"`
	Shape    Shape  `json:"shape"`
	// EarlyVolume are the digests of the volume of early code (PEI), per bank of PredictedBanks.
	EarlyVolume Digests `json:"earlyVolume"`
	// ACPI are the digests of the tables in the order in which firmware measures them; none if it does not.
	ACPI []Digests `json:"acpi"`
}

// Learn takes from the log of a boot what cannot be derived of its machine. Everything else in the log that belongs to PCR 0
// and 1 is held against what is derived, so a machine that was learned is one that can be predicted. It fails where they
// differ.
func Learn(origin string, m Machine, log Log) (LearnedData, error) {
	if log.Locality != 0 {
		return LearnedData{}, fmt.Errorf("learn machine: PCR 0 began with locality %d, which is not predicted", log.Locality)
	}
	l := LearnedData{Schema: LearnedSchema, Origin: origin, Firmware: m.Firmware.SHA256[:], Shape: m.Shape, ACPI: []Digests{}}
	if err := l.learnFirmware(log.Of(0)); err != nil {
		return LearnedData{}, fmt.Errorf("learn machine: PCR 0: %w", err)
	}
	for _, e := range log.Of(1) {
		if e.Type == EvPlatformConfigFlags {
			l.ACPI = append(l.ACPI, predictedOnly(e.Digests))
		}
	}
	if err := l.check(); err != nil {
		return LearnedData{}, fmt.Errorf("learn machine: %w", err)
	}
	m.Learned = &l
	entries, err := m.bootPlan(nil, nil)
	if err != nil {
		return LearnedData{}, fmt.Errorf("learn machine: PCR 1: %w", err)
	}
	for r, want := range [][]Event{m.firmwareEvents(), append(m.platformEvents(), entries.events()...)} {
		r := Register(r)
		if err := sameEvents(append(want, separator(r)), log.Of(r)); err != nil {
			return LearnedData{}, fmt.Errorf("learn machine: %v: %w", r, err)
		}
	}
	return l, nil
}

// learnFirmware finds the early volume: the only blob that is not the volume of drivers is checked by what Learn compares afterwards.
func (l *LearnedData) learnFirmware(events []Event) error {
	for _, e := range events {
		if e.Type == EvPlatformFirmwareBlob {
			l.EarlyVolume = predictedOnly(e.Digests)
			return nil
		}
	}
	return errors.New("the log has no firmware volume")
}

func predictedOnly(all Digests) Digests {
	out := Digests{}
	for _, bank := range PredictedBanks() {
		if digest, ok := all[bank]; ok {
			out[bank] = digest
		}
	}
	return out
}

func sameEvents(want, got []Event) error {
	for i, e := range want {
		if i >= len(got) {
			return fmt.Errorf("event %d is missing: %s", i+1, e.What())
		}
		for bank, digest := range e.Digests {
			if !digest.Equal(got[i].Digests[bank]) {
				return fmt.Errorf("event %d: want %s, the log has %v: %s", i+1, e.What(), got[i].Type, got[i].What())
			}
		}
	}
	if len(got) > len(want) {
		return fmt.Errorf("one event more than is known: %v: %s", got[len(want)].Type, got[len(want)].What())
	}
	return nil
}

// Encode returns the canonical JSON form, indented by two spaces, with a newline at the end.
func (l LearnedData) Encode() ([]byte, error) {
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("encode learned data: %w", err)
	}
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode learned data: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseLearned reads what Encode wrote, and nothing else.
func ParseLearned(encoded []byte) (LearnedData, error) {
	if len(encoded) > MaxLearned {
		return LearnedData{}, fmt.Errorf("read learned data: %d bytes, want at most %d", len(encoded), MaxLearned)
	}
	var l LearnedData
	if err := json.Unmarshal(encoded, &l); err != nil {
		return LearnedData{}, fmt.Errorf("read learned data: %w", err)
	}
	if err := l.check(); err != nil {
		return LearnedData{}, fmt.Errorf("read learned data: %w", err)
	}
	again, err := l.Encode()
	if err != nil {
		return LearnedData{}, err
	}
	if !bytes.Equal(again, encoded) {
		return LearnedData{}, errors.New("read learned data: it is not in the form that hullmark learn writes")
	}
	return l, nil
}

func (l LearnedData) check() error {
	if l.Schema != LearnedSchema {
		return fmt.Errorf("schema %q, want %q", l.Schema, LearnedSchema)
	}
	if l.Origin == "" || len(l.Origin) > maxOriginLen || strings.ContainsFunc(l.Origin, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Errorf("origin: want 1 to %d printable ASCII characters", maxOriginLen)
	}
	if len(l.Firmware) != SHA256.Size() || l.ACPI == nil || len(l.ACPI) > maxACPI {
		return errors.New("firmware or acpi are missing, or too long")
	}
	for _, digests := range append([]Digests{l.EarlyVolume}, l.ACPI...) {
		if len(digests) != len(PredictedBanks()) {
			return fmt.Errorf("digests of %d banks, want those of %v", len(digests), PredictedBanks())
		}
		for bank, digest := range digests {
			if len(digest) != bank.Size() {
				return fmt.Errorf("%v digest of %d bytes", bank, len(digest))
			}
		}
	}
	return l.Shape.Check()
}

// fits reports why the data does not belong to a machine.
func (l LearnedData) fits(m Machine) error {
	if err := l.check(); err != nil {
		return err
	}
	if !bytes.Equal(l.Firmware, m.Firmware.SHA256[:]) {
		return fmt.Errorf("it was learned with firmware %v, the machine has %x; learn this machine (hullmark learn)", l.Firmware, m.Firmware.SHA256)
	}
	if l.Shape != m.Shape {
		return fmt.Errorf("it was learned from a machine with %v, this one has %v; learn this machine (hullmark learn)", l.Shape, m.Shape)
	}
	return nil
}

// String names the shape in a few words.
func (s Shape) String() string {
	return fmt.Sprintf("processors: %d, MiB: %d, TPM: %s, disks: %d on %s, network cards: %d, boot disk: PCI device %d, SMM: %t",
		s.CPUs, s.MemoryMiB, s.TPM, s.Disks, cmp.Or(s.Bus, "virtio"), max(1, s.Cards), s.BootSlot, s.SMM)
}

// tpmLogSize is the length in bytes of QEMU's blob etc/tpm/log (hw/acpi/tpm.h, TPM_LOG_AREA_MINIMUM_SIZE).
const tpmLogSize = 64 << 10

// firmwareEvents is what PCR 0 holds before its separator: the version, the volume of early code, the volume of drivers. The
// version is from the program in the firmware file that measures it.
func (m Machine) firmwareEvents() []Event {
	return []Event{
		dataEvent(0, EvCRTMVersion, m.Firmware.version, Source{Kind: FromFirmwareVersion, Name: decodeUTF16(m.Firmware.version)}),
		m.learned(0, EvPlatformFirmwareBlob, m.Learned.EarlyVolume, Source{Kind: FromFirmwareVolume, Name: EarlyVolume}),
		{Register: 0, Type: EvPlatformFirmwareBlob, Digests: m.Firmware.drivers, Source: &Source{Kind: FromFirmwareVolume, Name: DriverVolume}, Origin: Derived},
	}
}

// platformEvents is what PCR 1 holds before the boot entries.
func (m Machine) platformEvents() []Event {
	var out []Event
	empty := derived(1, EvPlatformConfigFlags, make([]byte, tpmLogSize), Source{Kind: FromACPI, Name: TPMLogArea})
	for i, digests := range m.Learned.ACPI {
		if digests[SHA256].Equal(empty.Digests[SHA256]) {
			out = append(out, empty)
			continue
		}
		out = append(out, m.learned(1, EvPlatformConfigFlags, digests, Source{Kind: FromACPI, Number: i + 1, Count: len(m.Learned.ACPI)}))
	}
	return out
}

func (m Machine) learned(r Register, t EventType, digests Digests, source Source) Event {
	source.Boot = m.Learned.Origin
	return Event{Register: r, Type: t, Digests: digests, Source: &source, Origin: Learned}
}
