package update

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hullmark/hullmark/image/slot"
)

// Variables are the firmware's, as the folder in which the kernel shows them (Linux, Documentation/filesystems/efivarfs.rst).
type Variables string

// FirmwareVariables is where they are in every image.
const FirmwareVariables Variables = "/sys/firmware/efi/efivars"

const (
	// globalVariable is the vendor of boot entries (UEFI 2.10 §3.3).
	globalVariable = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
	// kept are the attributes of one that outlives a reset, readable before and after the firmware's hand-over (UEFI 2.10 §8.2.1).
	kept = 0x1 | 0x2 | 0x4
)

func (v Variables) path(name string) string {
	return filepath.Join(string(v), name+"-"+globalVariable)
}

// set writes a variable, and reads it back: there is firmware that says that it stored one and did not.
func (v Variables) set(name string, data []byte) error {
	content := append(binary.LittleEndian.AppendUint32(nil, kept), data...)
	f, err := os.OpenFile(v.path(name), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("firmware variable %s: %w", name, err)
	}
	// The kernel takes a variable in one write.
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("firmware variable %s: %w", name, err)
	}
	if stored, err := os.ReadFile(v.path(name)); err != nil || !bytes.Equal(stored, content) {
		return errors.Join(fmt.Errorf("firmware variable %s: the firmware did not store it", name), err)
	}
	return nil
}

// Try has the firmware start a slot in the next boot, and only in that. It is refused for a slot on which nothing could start, and for
// the one that starts by itself.
func (d *Disk) Try(n slot.Slot, v Variables) error {
	c, err := d.Content(n)
	if err == nil && c.Default {
		err = fmt.Errorf("slot %v starts by itself", n)
	}
	if err != nil {
		return fmt.Errorf("try: %w", err)
	}
	name, number := slot.BootEntry(n)
	if err := v.set(name, slot.LoadOption(n, d.slots[n].ESP)); err != nil {
		return fmt.Errorf("try slot %v: %w", n, err)
	}
	// This comes last: the firmware finds the entry that it names.
	if err := v.set("BootNext", binary.LittleEndian.AppendUint16(nil, number)); err != nil {
		return fmt.Errorf("try slot %v: %w", n, err)
	}
	return nil
}
