package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	cryptsetup "github.com/martinjungblut/go-cryptsetup"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/devmapper"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

const (
	// Name is the open disk's name in the device mapper.
	Name = "hullmark-state"
	// integrityName is the name that libcryptsetup gives the dm-integrity device below it.
	integrityName = Name + "_dif"
)

// Workspace is where a Volume keeps its copy of the LUKS header and mounts the
// disk for a moment. Both are gone when the helper ends.
type Workspace struct {
	// Dir is a folder on a RAM disk that only root can read.
	Dir string
}

func (w Workspace) header() string { return filepath.Join(w.Dir, "header") }
func (w Workspace) mount() string  { return filepath.Join(w.Dir, "mnt") }

// newHeader makes an empty header file. It is sparse and as long as the space
// before the data, which libcryptsetup expects.
func (w Workspace) newHeader() error {
	if err := os.MkdirAll(w.mount(), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(w.header(), nil, 0o600); err != nil {
		return err
	}
	return os.Truncate(w.header(), luks2.DataOffset)
}

func (w Workspace) clean() { _ = os.Remove(w.header()) }

// Probe says what the device holds.
func Probe(path string) (hullmark.DiskClaim, error) {
	f, err := os.Open(path)
	if err != nil {
		return hullmark.DiskClaim{}, fmt.Errorf("probe state disk: %w", err)
	}
	defer f.Close()
	size, err := f.Seek(0, 2)
	if err != nil {
		return hullmark.DiskClaim{}, fmt.Errorf("probe state disk: %w", err)
	}
	return statedisk.Probe(f, size)
}

// Open opens the disk at path as /dev/mapper/hullmark-state with the grant,
// formats it before if it is blank and the grant allows it, checks and
// advances its epoch. On failure the disk is closed again, and a disk that was
// neither blank nor ours is as it was.
func (w Workspace) Open(path string, g hullmark.DiskGrant) (statedisk.Opened, error) {
	keys, err := statedisk.DeriveKeys(g.Key)
	if err != nil {
		return statedisk.Opened{}, fmt.Errorf("open state disk: %w", err)
	}
	defer keys.Wipe()
	defer w.clean()
	if err := closeVolume(); err != nil {
		return statedisk.Opened{}, fmt.Errorf("open state disk: close what an earlier attempt left open: %w", err)
	}
	formatted, err := w.prepare(path, g, keys)
	if err != nil {
		return statedisk.Opened{}, err
	}
	if err := w.activateChecked(path, g, keys); err != nil {
		return statedisk.Opened{}, errors.Join(err, closeVolume())
	}
	opened, err := w.advance(g, keys)
	if err != nil {
		return statedisk.Opened{}, errors.Join(err, closeVolume())
	}
	opened.Formatted = formatted
	return opened, nil
}

// prepare leaves the disk ready, or says why it cannot be.
func (w Workspace) prepare(path string, g hullmark.DiskGrant, keys statedisk.Keys) (formatted bool, err error) {
	claim, err := Probe(path)
	if err != nil {
		return false, err
	}
	switch claim.State {
	case hullmark.DiskReady:
		if g.FormatAllowed {
			// The node claimed a disk without data, and the ticket was decided on that.
			return false, &hullmark.Condition{
				Code: "disk-changed", Step: step, Title: "the state disk holds data, and did not when the ticket was asked for", Retry: true,
				Expected: "a disk without data", Got: "a ready disk", Next: "run the command again; if this repeats, do not trust this machine's host",
			}
		}
		return false, nil
	case hullmark.DiskBlank, hullmark.DiskFormatting:
		if !g.FormatAllowed {
			return false, &hullmark.Condition{
				Code: "format-refused", Step: step, Title: "the state disk is " + claim.State.String() + ", and the ticket does not allow formatting it",
				Next: "attach the node's own disk, or sign a reset for this node",
			}
		}
		return true, w.format(path, claim, g, keys)
	}
	return false, &hullmark.Condition{
		Code: "disk-foreign", Step: step, Title: "the state disk is neither blank nor a Hullmark state disk; it was not touched",
		Next: "attach another disk, or zero this one's first and last 16 MiB if its content may go",
	}
}

// activate opens the device with the header in the workspace.
func (w Workspace) activate(path string, keys statedisk.Keys, flags int) error {
	device, err := cryptsetup.InitDataDevice(w.header(), path)
	if err != nil {
		return err
	}
	defer device.Free()
	if err := device.Load(cryptsetup.LUKS2{}); err != nil {
		return err
	}
	return device.ActivateByPassphrase(Name, 0, string(keys.LUKS.Expose()), flags|cryptsetup.CRYPT_ACTIVATE_IGNORE_PERSISTENT)
}

// closeVolume removes the device stack if it is there. An earlier attempt of
// the same boot can have left it open; it is never in use then, because it is
// mounted for others only after the last step here.
func closeVolume() error {
	if _, err := os.Stat("/dev/mapper/" + Name); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	device, err := cryptsetup.InitByName(Name)
	if err != nil {
		return err
	}
	defer device.Free()
	return device.Deactivate(Name)
}

// liveGeometry reads the layout of the open disk from the kernel.
func liveGeometry(path string) (statedisk.Geometry, error) {
	control, err := devmapper.Open()
	if err != nil {
		return statedisk.Geometry{}, err
	}
	defer control.Close()
	var s statedisk.Stack
	if s.Crypt, err = control.Table(Name); err != nil {
		return statedisk.Geometry{}, err
	}
	if s.Integrity, err = control.Table(integrityName); err != nil {
		return statedisk.Geometry{}, err
	}
	if s.Status, err = control.Status(integrityName); err != nil {
		return statedisk.Geometry{}, err
	}
	if s.Disk, err = deviceNumber(path); err != nil {
		return statedisk.Geometry{}, err
	}
	if s.IntegrityDevice, err = control.Number(integrityName); err != nil {
		return statedisk.Geometry{}, err
	}
	return statedisk.ReadGeometry(s)
}
