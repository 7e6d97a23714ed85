package update

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot/initrd"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// BootDisk finds the disk that the machine has booted from, by the two partitions below the device mapper's "root" that the initrd made,
// and opens it. sys and dev are where sysfs and devtmpfs are mounted. The caller closes the file.
func BootDisk(sys, dev string) (*Disk, io.Closer, error) {
	name, start, err := rootPartition(sys)
	if err != nil {
		return nil, nil, fmt.Errorf("find the disk that was booted from: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dev, name), os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	d, err := openAt(f, start)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
	}
	return d, f, nil
}

// rootPartition returns the disk of the root's data partition, and where that starts, in sectors.
func rootPartition(sys string) (disk string, start uint64, err error) {
	names, err := filepath.Glob(filepath.Join(sys, "class/block/dm-*/dm/name"))
	if err != nil {
		return "", 0, err
	}
	for _, file := range names {
		if text, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(text)) != initrd.DeviceName {
			continue
		}
		return lowestSlave(filepath.Join(filepath.Dir(filepath.Dir(file)), "slaves"))
	}
	return "", 0, fmt.Errorf("the device mapper has no device %q: this machine did not boot an image of Hullmark", initrd.DeviceName)
}

// lowestSlave returns the partition that comes first of a device's two: the tree lies behind the root.
func lowestSlave(dir string) (disk string, start uint64, err error) {
	slaves, err := os.ReadDir(dir)
	if err != nil {
		return "", 0, err
	}
	for _, s := range slaves {
		path, err := filepath.EvalSymlinks(filepath.Join(dir, s.Name()))
		if err != nil {
			return "", 0, err
		}
		text, err := os.ReadFile(filepath.Join(path, "start"))
		if err != nil {
			return "", 0, fmt.Errorf("%s is no partition: %w", s.Name(), err)
		}
		at, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return "", 0, err
		}
		if disk == "" || at < start {
			disk, start = filepath.Base(filepath.Dir(path)), at
		}
	}
	if disk == "" {
		return "", 0, errors.New("the root has no partition")
	}
	return disk, start, nil
}

// openAt opens the disk of which a slot's root starts at a sector: that slot runs.
func openAt(f *os.File, start uint64) (*Disk, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	size = gpt.SizeWithin(f, size)
	table, err := gpt.Read(f, size)
	if err != nil {
		return nil, err
	}
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
