package disks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hullmark/hullmark/firstboot/initrd"
)

// Boot returns the name of the disk that the machine has booted from, and the sector where its root starts, by the two partitions below
// the device mapper's "root" that the initrd made.
func (s System) Boot() (disk string, start uint64, err error) {
	disk, start, err = s.rootPartition()
	if err != nil {
		return "", 0, fmt.Errorf("find the disk that was booted from: %w", err)
	}
	return disk, start, nil
}

func (s System) rootPartition() (disk string, start uint64, err error) {
	names, err := filepath.Glob(filepath.Join(s.Sys, "class/block/dm-*/dm/name"))
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
		at, err := readNumber(filepath.Join(path, "start"))
		if err != nil {
			return "", 0, fmt.Errorf("%s is no partition: %w", s.Name(), err)
		}
		if disk == "" || uint64(at) < start {
			disk, start = filepath.Base(filepath.Dir(path)), uint64(at)
		}
	}
	if disk == "" {
		return "", 0, errors.New("the root has no partition")
	}
	return disk, start, nil
}
