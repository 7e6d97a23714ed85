// Package disks finds the machine's disks: those that a configuration names, and the one that the machine has booted from.
package disks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/gpt"
)

// System is where sysfs and devtmpfs are mounted.
type System struct{ Sys, Dev string }

// Host is the machine that this program runs on.
var Host = System{Sys: "/sys", Dev: "/dev"}

// Disk is a whole disk.
type Disk struct {
	// Name is the kernel's, such as sda.
	Name string
	// Serial is its serial number, or empty.
	Serial string
	// Size is in bytes.
	Size int64
}

// String says which disk it is, for people.
func (d Disk) String() string {
	if d.Serial == "" {
		return fmt.Sprintf("/dev/%s (%.1f GB, without a serial number)", d.Name, float64(d.Size)/1e9)
	}
	return fmt.Sprintf("/dev/%s (%.1f GB, serial %s)", d.Name, float64(d.Size)/1e9, d.Serial)
}

// List returns the disks that something could be written to, by their names.
func (s System) List() ([]Disk, error) {
	found, err := os.ReadDir(filepath.Join(s.Sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var out []Disk
	for _, d := range found {
		if d, ok := s.disk(d.Name()); ok {
			out = append(out, d)
		}
	}
	return out, nil
}

// virtual are block devices that no machine has for a disk: the device mapper's, loops, RAM disks, optical drives.
var virtual = []string{"dm-", "loop", "md", "nbd", "ram", "sr", "zram"}

func (s System) disk(name string) (d Disk, ok bool) {
	dir := filepath.Join(s.Sys, "block", name)
	if slices.ContainsFunc(virtual, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return d, false
	}
	sectors, err := readNumber(filepath.Join(dir, "size"))
	readOnly, _ := readNumber(filepath.Join(dir, "ro"))
	return Disk{Name: name, Serial: serial(dir), Size: sectors * gpt.SectorSize}, err == nil && sectors > 0 && readOnly == 0
}

// serial returns the serial number of a virtio, NVMe or SCSI disk, or "".
func serial(dir string) string {
	for _, name := range []string{"serial", "device/serial"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	// SPC-5 §7.7.20, unit serial number page: a 4-byte header, then the number.
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); err == nil && len(page) > 4 {
		return strings.Trim(string(page[4:]), " \x00")
	}
	return ""
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// Wanted is a disk that a node configuration names.
type Wanted struct {
	hullmark.DiskSelector
	// Field is where the configuration does so, and Step is the agent's state that its conditions belong to.
	Field, Step string
}

// Find returns the path of the block device that is wanted. A serial number is looked up in sysfs; a disk without one is never chosen by
// it, and of two with the same none is.
func (s System) Find(w Wanted) (string, error) {
	if w.Path != "" {
		return w.Path, w.checkBlockDevice(w.Path)
	}
	all, err := s.List()
	if err != nil {
		return "", err
	}
	var match []Disk
	for _, d := range all {
		if d.Serial == w.Serial {
			match = append(match, d)
		}
	}
	switch len(match) {
	case 0:
		return "", w.missing("no disk has the serial number that the node config names", w.Serial, Names(all))
	case 1:
		path := filepath.Join(s.Dev, match[0].Name)
		return path, w.checkBlockDevice(path)
	}
	return "", &hullmark.Condition{
		Code: "disk-ambiguous", Step: w.Step, Title: "several disks have the serial number that the node config names",
		Expected: w.Serial, Got: Names(match), Next: "name the disk by its path in " + w.Field + " of the node config",
	}
}

// Names lists disks for people.
func Names(all []Disk) string {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = d.String()
	}
	return strings.Join(names, ", ")
}

func (w Wanted) checkBlockDevice(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode().Type() != os.ModeDevice {
		err = errors.New("not a block device")
	}
	if err != nil {
		return w.missing(fmt.Sprintf("disk %s: %v", path, err), "", "")
	}
	return nil
}

func (w Wanted) missing(title, want, got string) error {
	return &hullmark.Condition{
		Code: "disk-missing", Step: w.Step, Title: title, Expected: want, Got: got,
		Next: "attach the disk, or correct " + w.Field + " in the node config", Retry: true,
	}
}
