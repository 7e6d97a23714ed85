package update

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot/disks"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// BootDisk finds the disk that the machine has booted from, and opens it; of an installation medium, d is nil. The caller closes the file.
func BootDisk(s disks.System) (d *Disk, name string, f *os.File, err error) {
	name, start, err := s.Boot()
	if err != nil {
		return nil, "", nil, err
	}
	path := filepath.Join(s.Dev, name)
	table, size, err := readTable(path)
	if err != nil {
		return nil, "", nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, _, err := slot.FindMedium(table); err == nil {
		f, err = os.Open(path)
		return nil, name, f, err
	}
	if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, "", nil, err
	}
	if d, err = openAt(f, table, size, start); err != nil {
		return nil, "", nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return d, name, f, nil
}

// readTable reads a disk's table, and how long that says the disk is, in bytes.
func readTable(path string) (*gpt.Table, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, err
	}
	size = gpt.SizeWithin(f, size)
	table, err := gpt.Read(f, size)
	return table, size, err
}

// openAt opens the disk of which a slot's root starts at a sector: that slot runs.
func openAt(f *os.File, table *gpt.Table, size int64, start uint64) (*Disk, error) {
	slots, err := slot.Find(table)
	if err != nil {
		return nil, err
	}
	for _, n := range slot.Both() {
		if slots[n].Root.FirstLBA == start {
			return Open(blockDevice{f}, size, n)
		}
	}
	return nil, fmt.Errorf("the root that runs starts at sector %d, which is no slot's", start)
}

// blockDevice is a disk behind the kernel's page cache.
type blockDevice struct{ *os.File }

// Sync stores what was written for good, and forgets it: what is read next comes from the disk.
func (b blockDevice) Sync() error {
	if err := b.File.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(b.Fd()), 0, 0, unix.FADV_DONTNEED)
}
