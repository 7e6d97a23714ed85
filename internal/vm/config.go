// Package vm runs an image in a virtual machine that has a TPM of its own: QEMU, OVMF and swtpm, started together, stopped
// together, with everything that has to outlive a run in one state folder.
//
// The image file is never written. The state folder holds the machine's TPM, its endorsement key certificate and the CA that
// signed it, the firmware's variables, the state disk and the console log.
package vm

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// TPMInterface is how the guest sees its TPM.
type TPMInterface string

// The TPM interfaces. TPMNone is a machine without a TPM, to see what an image makes of that.
const (
	TPMCRB  TPMInterface = "crb"
	TPMTIS  TPMInterface = "tis"
	TPMNone TPMInterface = "none"
)

// Accel is what executes the guest's instructions.
type Accel string

// The accelerators. AccelAuto takes KVM where a trial run of the firmware shows that it works, and TCG otherwise.
const (
	AccelAuto Accel = "auto"
	AccelKVM  Accel = "kvm"
	AccelTCG  Accel = "tcg"
)

// Firmware names OVMF's two files: the code, which is never written, and the template of the variables, which is copied into
// the state folder.
type Firmware struct {
	Code string
	Vars string
}

// Config describes a machine. Dir is required; what else is left zero has the default that its comment names.
type Config struct {
	// Dir is the state folder. It is made if absent. Two machines cannot run on one folder.
	Dir string
	// Image is the raw disk to boot, attached read-only with serial ImageSerial. Empty: no disk, the firmware alone runs.
	Image string
	// Firmware is OVMF's code and variables; by default the ones of Tools or of the host. With SecureBoot, Vars has no
	// default, because it decides whose keys are enrolled.
	Firmware Firmware
	// SecureBoot asks for SMM and for flash that only SMM can write, as OVMF's secure builds need.
	SecureBoot bool
	// TPM is TPMCRB by default.
	TPM TPMInterface
	// Accel is AccelAuto by default.
	Accel Accel
	// CPUs is the number of virtual CPUs, 2 by default.
	CPUs int
	// MemoryMiB is the machine's memory in MiB, 3072 by default.
	MemoryMiB int
	// StateDisk is the size in bytes of the state disk, a sparse raw file made at the first start and attached with serial
	// StateSerial. Zero: no such disk. An existing disk of another size is an error: nothing here resizes one.
	StateDisk int64
	// StateNBD is the socket of a server that has the state disk, by the protocol of network block devices, in place of StateDisk's file.
	StateNBD string
	// Forwards are the TCP ports of the guest that can be reached from this host.
	Forwards []Forward
	// Network is the folder of a running network (StartNetwork) to be plugged into, which then has the forwards. Empty: the machine is
	// alone with a router of its own. No register depends on it.
	Network string
	// NodeConfig, if not nil, is given to the guest under the fw_cfg name NodeConfigName.
	NodeConfig []byte
	// FwCfg are further texts of QEMU's firmware configuration device, by name: what else a host may hand to its guest there.
	FwCfg map[string]string
	// SMBIOS are OEM strings (SMBIOS 3.6 §7.12, type 11), each of at most maxSMBIOS printable bytes. The boot stub reads some.
	SMBIOS []string
	// NICROM leaves the network card's boot ROM in place. It is measured into PCR 2; without it there is nothing to measure.
	NICROM bool
	// ExitOnReboot ends the machine where the guest reboots, so that a panic does not become a loop.
	ExitOnReboot bool
	// Tools is the root of a tools tree to run QEMU and swtpm from. Empty: the host's, found in PATH.
	Tools string
	// Output, if not nil, gets a copy of the console as it is written. A slow Output slows the guest.
	Output io.Writer
}

// What a guest finds its parts by.
const (
	ImageSerial    = "hullmark-image"
	StateSerial    = "hullmark-state"
	NodeConfigName = "opt/hullmark/config"
	// ImageSlot is the image's PCI device number on the first bus.
	ImageSlot = 1
)

// Shape is what the machine brings to a boot beside the image: the input for predicting its registers.
type Shape struct {
	// Firmware is the code file that runs.
	Firmware string `json:"firmware"`
	// VarsTemplate is the file that the variables started from; Vars is the machine's own copy, which the firmware writes.
	VarsTemplate string `json:"vars_template"`
	Vars         string `json:"vars"`
	// OptionROMs are the files of the ROMs that the firmware runs, in the order of their devices. Never nil.
	OptionROMs []string     `json:"option_roms"`
	CPUs       int          `json:"cpus"`
	MemoryMiB  int          `json:"memory_mib"`
	TPM        TPMInterface `json:"tpm"`
	SecureBoot bool         `json:"secure_boot"`
}

// Shape says which files and figures a machine of this configuration boots with, without starting it. It fails where a file
// that it has to name does not exist.
func (c Config) Shape() (Shape, error) {
	c, err := c.complete()
	if err != nil {
		return Shape{}, err
	}
	return c.shape()
}

// shape is Shape for a completed configuration.
func (c Config) shape() (Shape, error) {
	vars, err := varsCopy(c.Dir, c.Firmware.Vars)
	if err != nil {
		return Shape{}, err
	}
	s := Shape{
		Firmware: c.Firmware.Code, VarsTemplate: c.Firmware.Vars, Vars: vars, OptionROMs: []string{},
		CPUs: c.CPUs, MemoryMiB: c.MemoryMiB, TPM: c.TPM, SecureBoot: c.SecureBoot,
	}
	if c.NICROM {
		rom, err := toolset{c.Tools}.nicROM()
		if err != nil {
			return Shape{}, err
		}
		s.OptionROMs = append(s.OptionROMs, rom)
	}
	return s, nil
}

// complete fills in the defaults, makes the paths absolute and refuses what cannot work.
func (c Config) complete() (Config, error) {
	setDefault(&c.TPM, TPMCRB)
	setDefault(&c.Accel, AccelAuto)
	setDefault(&c.CPUs, 2)
	setDefault(&c.MemoryMiB, 3072)
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("vm: configuration: %w", err)
	}
	if err := c.findFirmware(); err != nil {
		return c, err
	}
	return c, c.makeAbsolute()
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// Check refuses what no machine can be.
func (c Config) Check() error {
	switch {
	case c.Dir == "":
		return errors.New("a machine needs a state folder")
	case c.CPUs < 1 || c.CPUs > 64:
		return fmt.Errorf("%d CPUs: between 1 and 64 are possible", c.CPUs)
	case c.MemoryMiB < 128 || c.MemoryMiB > 1<<20:
		return fmt.Errorf("%d MiB of memory: between 128 and %d are possible", c.MemoryMiB, 1<<20)
	case c.StateDisk < 0 || c.StateDisk%512 != 0:
		return fmt.Errorf("state disk of %d bytes: a positive multiple of 512 is needed", c.StateDisk)
	case c.StateDisk != 0 && c.StateNBD != "":
		return errors.New("a state disk's size, and a socket that serves one: name one of them")
	case c.TPM != TPMCRB && c.TPM != TPMTIS && c.TPM != TPMNone:
		return fmt.Errorf("TPM interface %q: crb, tis and none exist", c.TPM)
	case c.Accel != AccelAuto && c.Accel != AccelKVM && c.Accel != AccelTCG:
		return fmt.Errorf("accelerator %q: auto, kvm and tcg exist", c.Accel)
	case c.SecureBoot && c.Firmware.Vars == "":
		return errors.New("secure boot: no variables file: name one with your keys enrolled, such as hullmark keys create makes (--vars, or variables in a machine file)")
	case slices.ContainsFunc(c.SMBIOS, func(s string) bool { return s == "" || len(s) > maxSMBIOS || strings.ContainsFunc(s, notPrintable) }):
		return fmt.Errorf("SMBIOS string: 1 to %d printable bytes are possible", maxSMBIOS)
	case strings.ContainsFunc(strings.Join(slices.Concat(slices.Collect(maps.Keys(c.FwCfg)), slices.Collect(maps.Values(c.FwCfg))), ""), notPrintable):
		return errors.New("fw_cfg: names and texts of printable bytes are possible")
	case c.Network != "" && len(c.Forwards) > 0:
		return fmt.Errorf("forward %s: a machine in a network has no forwards of its own; give it to hullmark vm network, as HOST:ADDRESS:GUEST", c.Forwards[0])
	case slices.ContainsFunc(c.Forwards, func(f Forward) bool { return f.Address.IsValid() }):
		return errors.New("a machine's own forward is HOST:GUEST; an address is for hullmark vm network")
	case len(c.NodeConfig) > maxNodeConfig:
		return fmt.Errorf("node config of %d bytes: at most %d are possible", len(c.NodeConfig), maxNodeConfig)
	}
	return nil
}

// maxNodeConfig keeps a file that was named by mistake from being handed to the guest.
const maxNodeConfig = 1 << 20

// maxSMBIOS is the longest OEM string: firmware does not have to take more in one table.
const maxSMBIOS = 4096

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

func (c *Config) findFirmware() error {
	t := toolset{c.Tools}
	if c.Firmware.Code == "" {
		code, err := t.firmwareCode(c.SecureBoot)
		if err != nil {
			return err
		}
		c.Firmware.Code = code
	}
	if c.Firmware.Vars == "" {
		vars, err := t.firmwareVars()
		if err != nil {
			return err
		}
		c.Firmware.Vars = vars
	}
	return nil
}

func (c *Config) makeAbsolute() error {
	for _, path := range []*string{&c.Dir, &c.Image, &c.Firmware.Code, &c.Firmware.Vars, &c.StateNBD, &c.Network, &c.Tools} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("vm: %s: %w", *path, err)
		}
		*path = abs
	}
	if c.TPM != TPMNone && strings.Contains(c.Dir, ",") {
		return fmt.Errorf("vm: state folder %s: swtpm takes no path with a comma: use another folder", c.Dir)
	}
	for what, path := range map[string]string{"image": c.Image, "firmware": c.Firmware.Code, "variables": c.Firmware.Vars} {
		if path == "" {
			continue
		}
		if err := regularFile(path); err != nil {
			return fmt.Errorf("vm: %s: %w", what, err)
		}
	}
	return nil
}

func regularFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	return nil
}
