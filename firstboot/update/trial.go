package update

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image/gpt"
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
	// explanation is the variable of Explain, under a vendor's GUID of its own.
	explanation = "HullmarkTrial-3f6a1c58-9c5b-4d0e-8a53-6d0c2b7e41aa"
)

func (v Variables) path(name string) string {
	return filepath.Join(string(v), name+"-"+globalVariable)
}

// set writes a boot variable. See store.
func (v Variables) set(name string, data []byte) error { return v.store(v.path(name), data) }

// store writes a variable, and reads it back: there is firmware that says that it stored one and did not.
func (v Variables) store(path string, data []byte) error {
	name := filepath.Base(path)
	content := append(binary.LittleEndian.AppendUint32(nil, kept), data...)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("firmware variable %s: %w", name, err)
	}
	// The kernel takes a variable in one write.
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("firmware variable %s: %w", name, err)
	}
	if stored, err := os.ReadFile(path); err != nil || !bytes.Equal(stored, content) {
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

// StartNext has the firmware start an installed disk, whose first ESP is given, in the next boot, and only in that: what starts by itself
// is the firmware's choice, as ever.
func (v Variables) StartNext(esp gpt.Partition) error {
	name, number := slot.InstalledEntry()
	if err := v.set(name, slot.InstalledOption(esp)); err != nil {
		return err
	}
	return v.set("BootNext", binary.LittleEndian.AppendUint16(nil, number))
}

// Explain keeps a text for the boot after this one; an empty one takes it back. Whoever can write firmware variables can write another:
// it is for people to read, and nothing is decided by it.
func (v Variables) Explain(text string) error {
	path := filepath.Join(string(v), explanation)
	if err := mutable(path); err != nil {
		return fmt.Errorf("firmware variable %s: %w", explanation, err)
	}
	if text != "" {
		return v.store(path, []byte(text))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("firmware variable %s: %w", explanation, err)
	}
	return nil
}

// mutable lets a variable be changed that is there: the kernel protects those that it does not know (efivarfs, FS_IMMUTABLE_FL).
func mutable(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) { // A file system without such flags protects nothing.
		return nil
	}
	return err
}

// Explained returns what the last trial explained, with all that is not printable left out; empty if it said nothing.
func (v Variables) Explained() string {
	f, err := os.Open(filepath.Join(string(v), explanation))
	if err != nil {
		return ""
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, 4+MaxText))
	if err != nil || len(content) < 4 {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, string(content[4:]))
}
