// Package vm runs an image in a virtual machine that has a TPM of its own: QEMU, OVMF and swtpm, started together, stopped
// together, with everything that has to outlive a run in one state folder.
//
// The image file is never written: it is what a machine's own disk is installed from. The state folder holds that disk, the machine's
// TPM, its endorsement key certificate and the CA that signed it, the firmware's variables, the state disk and the console log.
package vm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/pcrs"
	"github.com/hullmark/hullmark/pcrs/machine"
)

// Accel is what executes the guest's instructions.
type Accel string

// The accelerators. AccelAuto takes KVM where a trial run of the firmware shows that it works, and TCG otherwise.
const (
	AccelAuto Accel = "auto"
	AccelKVM  Accel = "kvm"
	AccelTCG  Accel = "tcg"
)

// Config describes a machine. Dir is required; what else is left zero has the default that its comment names.
type Config struct {
	// Dir is the state folder. It is made if absent. Two machines cannot run on one folder.
	Dir string
	// Image is the raw disk that the machine's own is installed from, at its first start and whenever another image is named; it has the
	// serial ImageSerial. Empty: the disk that the machine has; where it has none, the firmware alone runs.
	Image string
	// Hardware is what the guest and its registers can tell. The state disk is a sparse raw file made at the first start and attached
	// with serial StateSerial. An existing disk of another size is an error: nothing here resizes one.
	machine.Hardware
	// Accel is AccelAuto by default.
	Accel Accel
	// StateNBD is the socket of a server that has the state disk, by the protocol of network block devices, in place of StateDisk's file.
	StateNBD string
	// ImageFormat is what QEMU knows the image file's format as, raw by default: a machine of another one has a copy of the file for a
	// disk.
	ImageFormat string
	// ImageNBD and VarsNBD are such sockets for the machine's own disk, in place of one that is installed from Image, and for the
	// firmware's variables, in place of the machine's own copy of them. What is served as variables has the size of Firmware.Vars.
	ImageNBD, VarsNBD string
	// Bare, if not nil, makes the machine one as people have them: see Bare. It has neither Image nor ImageNBD then.
	Bare *Bare
	// Forwards are the TCP ports of the guest that can be reached from this host.
	Forwards []Forward
	// Networks are folders of running networks (StartNetwork), one for each card to be plugged into, which then have the forwards. One may
	// be there for several cards. Empty: the machine is alone with a router of its own at each card. No register depends on it.
	Networks []string
	// SecureProcessor is the socket of what plays the hardware of a confidential machine, in tests: it is told what is started, and
	// has the machine's TPM before the machine does. Empty: the machine is an ordinary one.
	SecureProcessor string
	// NodeConfig, if not nil, is given to the guest under the fw_cfg name NodeConfigName.
	NodeConfig []byte
	// FwCfg are further texts of QEMU's firmware configuration device, by name: what else a host may hand to its guest there.
	FwCfg map[string]string
	// ExitOnReboot ends the machine where the guest reboots, so that a panic does not become a loop.
	ExitOnReboot bool
	// Output, if not nil, gets a copy of the console as it is written. A slow Output slows the guest.
	Output io.Writer
}

// What a guest finds its parts by.
const (
	ImageSerial    = pcrs.DiskSerial
	StateSerial    = "hullmark-state"
	NodeConfigName = "opt/hullmark/config"
)

// Files are the files that a machine runs with beside its image.
type Files struct {
	// Firmware is the code file.
	Firmware string
	// VarsTemplate is the file that the variables started from; Vars is the machine's own copy, which the firmware writes, or empty
	// where a server has them.
	VarsTemplate string
	Vars         string
	// OptionROMs are the files of the ROMs that the firmware runs, in the order of their devices.
	OptionROMs []string
}

// Files says which files a machine of this configuration boots with, without starting it. It fails where a file that it has to name
// does not exist.
func (c Config) Files() (Files, error) {
	c, err := c.complete()
	if err != nil {
		return Files{}, err
	}
	return c.files()
}

// files is Files for a completed configuration.
func (c Config) files() (Files, error) {
	found, err := c.find()
	if err != nil {
		return Files{}, err
	}
	vars := ""
	if c.VarsNBD == "" {
		vars, err = varsCopy(c.Dir, found.Vars)
	}
	return Files{Firmware: found.Code, VarsTemplate: found.Vars, Vars: vars, OptionROMs: found.ROMs}, err
}

// find finds the firmware and the option ROMs of the hardware.
func (c Config) find() (machine.Files, error) {
	found, err := c.Hardware.Files(func(file string) bool { _, err := os.Stat(file); return err == nil })
	if err != nil {
		return found, fmt.Errorf("vm: %w", err)
	}
	return found, nil
}

// complete fills in the defaults, makes the paths absolute and refuses what cannot work.
func (c Config) complete() (Config, error) {
	c.Cards = cmp.Or(c.Cards, len(c.Networks))
	c.Complete()
	c.Accel = cmp.Or(c.Accel, AccelAuto)
	if err := c.Check(); err != nil {
		return c, fmt.Errorf("vm: configuration: %w", err)
	}
	found, err := c.find()
	if err != nil {
		return c, err
	}
	c.Firmware = found.Firmware
	c.Networks = slices.Clone(c.Networks)
	return c, c.makeAbsolute()
}

// Check refuses what no machine can be.
func (c Config) Check() error {
	switch {
	case c.Dir == "":
		return errors.New("a machine needs a state folder")
	case c.StateDisk != 0 && c.StateNBD != "":
		return errors.New("a state disk's size, and a socket that serves one: name one of them")
	case c.Image != "" && c.ImageNBD != "":
		return errors.New("an image to install from, and a socket that serves the machine's disk: name one of them")
	case c.Bare != nil && (c.Image != "" || c.ImageNBD != "" || len(c.Networks) > 0):
		return errors.New("a bare machine's disk is blank at first, and its network its own")
	case c.Accel != AccelAuto && c.Accel != AccelKVM && c.Accel != AccelTCG:
		return fmt.Errorf("accelerator %q: auto, kvm and tcg exist", c.Accel)
	case strings.ContainsFunc(strings.Join(slices.Concat(slices.Collect(maps.Keys(c.FwCfg)), slices.Collect(maps.Values(c.FwCfg))), ""), notPrintable):
		return errors.New("fw_cfg: names and texts of printable bytes are possible")
	case c.SecureProcessor != "" && c.TPM == machine.NoTPM:
		return errors.New("a secure processor speaks through the machine's TPM, and it has none")
	case len(c.Networks) > 0 && c.Cards > 0 && len(c.Networks) != c.Cards:
		return fmt.Errorf("%d networks, and the machine has %d cards: name one for each", len(c.Networks), c.Cards)
	case len(c.Networks) > 0 && len(c.Forwards) > 0:
		return fmt.Errorf("forward %s: a machine in a network has no forwards of its own; give it to hullmark vm network, as HOST:ADDRESS:GUEST", c.Forwards[0])
	case slices.ContainsFunc(c.Forwards, func(f Forward) bool { return f.Address.IsValid() }):
		return errors.New("a machine's own forward is HOST:GUEST; an address is for hullmark vm network")
	case len(c.NodeConfig) > maxNodeConfig:
		return fmt.Errorf("node config of %d bytes: at most %d are possible", len(c.NodeConfig), maxNodeConfig)
	}
	return c.Hardware.Check()
}

// maxNodeConfig keeps a file that was named by mistake from being handed to the guest.
const maxNodeConfig = 1 << 20

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

func (c *Config) makeAbsolute() error {
	for _, path := range []*string{&c.Dir, &c.Image, &c.Firmware.Code, &c.Firmware.Vars, &c.StateNBD, &c.ImageNBD, &c.VarsNBD, &c.SecureProcessor, &c.Tools} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("vm: %s: %w", *path, err)
		}
		*path = abs
	}
	for i, dir := range c.Networks {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fmt.Errorf("vm: %s: %w", dir, err)
		}
		c.Networks[i] = abs
	}
	if c.TPM != machine.NoTPM && strings.Contains(c.Dir, ",") {
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
