// Package volume formats and opens the state disk. It is the only package of
// the node that links a C library, libcryptsetup, and it runs only in the
// short-lived helper: the library copies keys to places that nobody wipes.
package volume

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/disks"
)

// step is the agent's state that every condition from here belongs to.
const step = "DISK"

// Find returns the block device that holds a node's state.
func Find(s hullmark.DiskSelector) (string, error) {
	path, err := disks.Host.Find(disks.Wanted{DiskSelector: s, Field: "stateDisk", Step: step})
	if err != nil {
		return "", err
	}
	return disks.Host.Behind(path)
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
