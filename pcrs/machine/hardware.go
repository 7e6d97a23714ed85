// Package machine describes a virtual machine to whoever predicts its registers and to whoever starts it: the machine file, what a
// machine is where that says nothing, and where its firmware lies.
//
// It opens no file itself: the caller says which exist, and reads them.
package machine

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/pcrs"
)

// TPM is how the guest sees its TPM.
type TPM string

// The TPM interfaces. NoTPM is a machine without a TPM, to see what an image makes of that.
const (
	CRB   TPM = "crb"
	TIS   TPM = "tis"
	NoTPM TPM = "none"
)

// What a machine has by default.
const (
	DefaultCPUs      = 2
	DefaultMemoryMiB = 3072
	// DefaultStateDisk is the size of a state disk in bytes; its file is sparse.
	DefaultStateDisk = 10 << 30
)

// ImageSlot is the PCI device number, on the first bus, of the disk with the image or, but for SATA, of its controller.
const ImageSlot = 1

// Bus is how a machine's disks are attached.
type Bus string

// The buses.
const (
	VirtIO Bus = "virtio"
	NVMe   Bus = "nvme"
	SATA   Bus = "sata"
	SCSI   Bus = "scsi"
)

// sataSlot is where q35 has its SATA controller.
const sataSlot = 31

// MaxCards is how many network cards a machine can have.
const MaxCards = 8

// Firmware names OVMF's two files: the code, which is never written, and the variables that a machine starts from.
type Firmware struct {
	Code string
	Vars string
}

// Hardware is what a machine is made of, as far as a register or the guest can tell.
type Hardware struct {
	// Tools is the root of a tools tree with QEMU, swtpm and firmware. Empty: the host's.
	Tools string
	// Firmware is by default that of Tools or of the host. With SecureBoot, Vars has no default, because it decides whose keys
	// are enrolled.
	Firmware Firmware
	// SecureBoot asks for SMM and for flash that only SMM can write, as OVMF's secure builds need.
	SecureBoot bool
	// TPM is CRB by default.
	TPM TPM
	// CPUs is the number of virtual CPUs, DefaultCPUs by default.
	CPUs int
	// MemoryMiB is the memory in MiB, DefaultMemoryMiB by default.
	MemoryMiB int
	// Bus is that of all disks, VirtIO by default.
	Bus Bus
	// StateDisk is the size in bytes of the second disk. Zero: no such disk.
	StateDisk int64
	// SMBIOS are OEM strings (SMBIOS 3.6 §7.12, type 11), each of at most maxSMBIOS printable bytes. The boot stub reads some.
	SMBIOS []string
	// Cards is the number of network cards, 1 by default. Only the first can have a boot ROM.
	Cards int
	// NICROM leaves the first network card's boot ROM in place. It is measured into PCR 2; without it there is nothing to measure.
	NICROM bool
}

// maxSMBIOS is the longest OEM string: firmware does not have to take more in one table.
const maxSMBIOS = 4096

// Complete fills in what is left out, but for the files.
func (h *Hardware) Complete() {
	h.TPM = cmp.Or(h.TPM, CRB)
	h.Bus = cmp.Or(h.Bus, VirtIO)
	h.CPUs = cmp.Or(h.CPUs, DefaultCPUs)
	h.MemoryMiB = cmp.Or(h.MemoryMiB, DefaultMemoryMiB)
	h.Cards = cmp.Or(h.Cards, 1)
}

// Check refuses what no machine can be.
func (h Hardware) Check() error {
	switch {
	case h.CPUs < 1 || h.CPUs > 64:
		return fmt.Errorf("%d CPUs: between 1 and 64 are possible", h.CPUs)
	case h.MemoryMiB < 128 || h.MemoryMiB > 1<<20:
		return fmt.Errorf("%d MiB of memory: between 128 and %d are possible", h.MemoryMiB, 1<<20)
	case h.Cards < 1 || h.Cards > MaxCards:
		return fmt.Errorf("%d network cards: between 1 and %d are possible", h.Cards, MaxCards)
	case h.StateDisk < 0 || h.StateDisk%512 != 0:
		return fmt.Errorf("state disk of %d bytes: a positive multiple of 512 is needed", h.StateDisk)
	case h.TPM != CRB && h.TPM != TIS && h.TPM != NoTPM:
		return fmt.Errorf("TPM interface %q: crb, tis and none exist", h.TPM)
	case !slices.Contains([]Bus{VirtIO, NVMe, SATA, SCSI}, h.Bus):
		return fmt.Errorf("bus %q: virtio, nvme, sata and scsi exist", h.Bus)
	case h.SecureBoot && h.Firmware.Vars == "":
		return errors.New("secure boot: no variables file: name one with your keys enrolled, such as hullmark keys create makes (--vars, or variables in a machine file)")
	case slices.ContainsFunc(h.SMBIOS, func(s string) bool { return s == "" || len(s) > maxSMBIOS || strings.ContainsFunc(s, notPrintable) }):
		return fmt.Errorf("SMBIOS string: 1 to %d printable bytes are possible", maxSMBIOS)
	}
	return nil
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

// Shape is what learned data depends on.
func (h Hardware) Shape() pcrs.Shape {
	s := pcrs.Shape{CPUs: h.CPUs, MemoryMiB: h.MemoryMiB, TPM: string(h.TPM), Disks: 1, BootSlot: ImageSlot, SMM: h.SecureBoot}
	if h.Bus != VirtIO {
		s.Bus = string(h.Bus)
	}
	if h.Bus == SATA {
		s.BootSlot = sataSlot
	}
	if h.StateDisk > 0 {
		s.Disks++
	}
	if h.Cards > 1 {
		s.Cards = h.Cards
	}
	return s
}

// commandLine begins the OEM string that the stub appends to the command line (systemd-stub(7)).
const commandLine = "io.systemd.stub.kernel-cmdline-extra="

// smbiosExtra are the command lines among the OEM strings.
func (h Hardware) smbiosExtra() (out []string) {
	for _, text := range h.SMBIOS {
		if extra, ok := strings.CutPrefix(text, commandLine); ok {
			out = append(out, extra)
		}
	}
	return out
}

// Files are what the firmware of a machine consists of, and the option ROMs that it runs, in the order of their devices.
type Files struct {
	Firmware
	ROMs []string
}

// Files finds the files of h: those that it names, and for the others those of its tools tree or of the host. It fails for one
// that it has to find and that does not exist.
func (h Hardware) Files(exists func(file string) bool) (f Files, err error) {
	f.Firmware = h.Firmware
	if f.Code == "" {
		if f.Code, err = h.find(exists, "ovmf", codeFiles(h.SecureBoot)...); err != nil {
			return f, err
		}
	}
	if f.Vars == "" {
		if f.Vars, err = h.find(exists, "ovmf", "/usr/share/OVMF/OVMF_VARS_4M.fd", "/usr/share/OVMF/OVMF_VARS.fd"); err != nil {
			return f, err
		}
	}
	if h.NICROM {
		rom, err := h.find(exists, "ipxe-qemu", "/usr/lib/ipxe/qemu/efi-virtio.rom", "/usr/share/qemu/efi-virtio.rom")
		if err != nil {
			return f, err
		}
		f.ROMs = []string{rom} // that which QEMU gives to a virtio network card
	}
	return f, nil
}

// codeFiles are where Debian has OVMF's code for a machine with or without Secure Boot.
func codeFiles(secure bool) []string {
	if secure {
		return []string{"/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"}
	}
	return []string{"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_CODE.fd"}
}

// find returns the first of the candidates that exists.
func (h Hardware) find(exists func(string) bool, debianPackage string, candidates ...string) (string, error) {
	for _, candidate := range candidates {
		if file := filepath.Join(h.Tools, candidate); exists(file) {
			return file, nil
		}
	}
	if h.Tools != "" {
		return "", fmt.Errorf("tools tree %s: %s is missing: the tree needs package %s", h.Tools, candidates[0], debianPackage)
	}
	return "", fmt.Errorf("%s is missing: apt-get install %s", candidates[0], debianPackage)
}
