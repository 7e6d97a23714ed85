// Package volume formats and opens the state disk. It is the only package of
// the node that links a C library, libcryptsetup, and it runs only in the
// short-lived helper: the library copies keys to places that nobody wipes.
package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
)

// step is the agent's state that every condition from here belongs to.
const step = "DISK"

// Find returns the block device that a selector names. A serial number is
// looked up in sysfs; a device without one is never chosen by it.
func Find(s hullmark.DiskSelector) (string, error) {
	if s.Path != "" {
		return checkBlockDevice(s.Path)
	}
	disks, err := os.ReadDir("/sys/block")
	if err != nil {
		return "", fmt.Errorf("find state disk: %w", err)
	}
	var seen []string
	for _, d := range disks {
		serial := readSerial(filepath.Join("/sys/block", d.Name()))
		if serial == s.Serial {
			return checkBlockDevice("/dev/" + d.Name())
		}
		if serial != "" {
			seen = append(seen, serial)
		}
	}
	return "", &hullmark.Condition{
		Code: "disk-missing", Step: step, Title: "no disk has the serial number that the node config names",
		Expected: s.Serial, Got: strings.Join(seen, ", "), Next: "attach the disk, or correct stateDisk in the node config", Retry: true,
	}
}

func checkBlockDevice(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && info.Mode().Type() != os.ModeDevice {
		err = errors.New("not a block device")
	}
	if err != nil {
		return "", &hullmark.Condition{
			Code: "disk-missing", Step: step, Title: fmt.Sprintf("state disk %s: %v", path, err),
			Next: "attach the disk, or correct stateDisk in the node config", Retry: true,
		}
	}
	return path, nil
}

// readSerial returns the serial number of a virtio, NVMe or SCSI disk, or "".
func readSerial(dir string) string {
	for _, name := range []string{"serial", "device/serial"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	// SPC-5 §7.7.20, unit serial number page: a 4-byte header, then the number.
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); err == nil && len(page) > 4 {
		return strings.TrimSpace(string(page[4:]))
	}
	return ""
}

// openDisk opens a device for this process alone, so that a disk which is
// mounted or otherwise in use is never touched. It returns the device and its size.
func openDisk(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, 0, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

// deviceNumber returns a device's number as major:minor, the way tables name it.
func deviceNumber(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

// writeThrough writes b at offset and returns once the disk says it is stored.
func writeThrough(f *os.File, b []byte, offset int64) error {
	if _, err := f.WriteAt(b, offset); err != nil {
		return err
	}
	return f.Sync()
}
