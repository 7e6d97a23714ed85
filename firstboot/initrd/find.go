package initrd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hullmark/hullmark/firstboot/devmapper"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
)

const sector = 512

// partitions are the device paths of the root file system and its hash tree.
type partitions struct{ data, tree string }

// scanner finds block devices below a sysfs and a devtmpfs.
type scanner struct {
	sys, dev string
	// started is the partition from which firmware started the kernel image, if that is known: only its disk is looked at then. Of a disk
	// and of the medium that installed it, which hold the same release, so the right one is taken.
	started *gpt.GUID
}

// waitForPartitions looks for the root's partitions until both are there.
// Drivers probe disks in their own time, so their absence is no error at first.
func waitForPartitions(s scanner, root verity.Root, timeout time.Duration) (partitions, error) {
	deadline := time.Now().Add(timeout)
	for {
		p, err := s.find(root)
		if err == nil {
			return p, nil
		}
		if time.Now().After(deadline) {
			return partitions{}, fmt.Errorf("find the root's partitions for %v: %w", timeout, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// find looks at every disk's two slots for the hash tree whose top block has the root hash. A tree that only begins so does no harm
// beyond a failed boot: what is below it does not hash to the root.
func (s scanner) find(root verity.Root) (partitions, error) {
	disks, err := os.ReadDir(filepath.Join(s.sys, "class/block"))
	if err != nil {
		return partitions{}, err
	}
	problems := []error{errors.New("no disk has a slot with the hash tree of this root hash")}
	for _, d := range disks {
		dir := filepath.Join(s.sys, "class/block", d.Name())
		if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
			continue
		}
		p, ok, err := s.findOn(dir, d.Name(), root)
		if ok {
			return p, nil
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", d.Name(), err))
		}
	}
	return partitions{}, errors.Join(problems...)
}

func (s scanner) findOn(dir, name string, root verity.Root) (partitions, bool, error) {
	size, err := readNumber(filepath.Join(dir, "size"))
	if err != nil || size == 0 {
		return partitions{}, false, err
	}
	table, err := s.readTable(name, size*sector)
	if err != nil {
		return partitions{}, false, err
	}
	names, releases, err := releasesOf(table)
	if err != nil {
		return partitions{}, false, err
	}
	if s.started != nil && !slices.ContainsFunc(table.Partitions, func(p gpt.Partition) bool { return p.GUID == *s.started }) {
		return partitions{}, false, errors.New("firmware did not start it")
	}
	var problems []error
	for n, release := range releases {
		p := partitions{data: s.partition(dir, release.Root), tree: s.partition(dir, release.Tree)}
		if p.data == "" || p.tree == "" {
			continue // The kernel has not made them yet.
		}
		top, err := topOf(p.tree)
		if err == nil && top == root {
			return p, true, nil
		}
		if err == nil {
			err = fmt.Errorf("its root hash is %x", top)
		}
		problems = append(problems, fmt.Errorf("%s: %w", names[n], err))
	}
	return partitions{}, false, errors.Join(problems...)
}

// releasesOf returns the partitions of each release on a disk with slots, or on an installation medium, and names them.
func releasesOf(table *gpt.Table) (names []string, releases []slot.Partitions, err error) {
	if medium, _, err := slot.FindMedium(table); err == nil {
		return []string{"medium"}, []slot.Partitions{medium}, nil
	}
	slots, err := slot.Find(table)
	return []string{"slot a", "slot b"}, slots[:], err
}

// topOf returns the root hash of the hash tree on a device, by its top block alone.
func topOf(device string) (verity.Root, error) {
	f, err := os.Open(device)
	if err != nil {
		return verity.Root{}, err
	}
	defer f.Close()
	return verity.Top(f)
}

func (s scanner) readTable(name string, size int64) (*gpt.Table, error) {
	f, err := os.Open(filepath.Join(s.dev, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return gpt.Read(f, gpt.SizeWithin(f, size))
}

// partition returns the device of a partition, or "". The kernel's partitions are matched by where they start, because the table
// that is read here does not number them.
func (s scanner) partition(dir string, p gpt.Partition) string {
	children, _ := filepath.Glob(filepath.Join(dir, "*", "partition"))
	for _, c := range children {
		child := filepath.Dir(c)
		if start, err := readNumber(filepath.Join(child, "start")); err == nil && start == int64(p.FirstLBA) {
			return filepath.Join(s.dev, filepath.Base(child))
		}
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

// verityTarget returns the device-mapper target (Linux,
// Documentation/admin-guide/device-mapper/verity.rst): corruption stops the
// machine, because a node that runs on with unreadable files looks merely broken.
func verityTarget(p partitions, s verity.Superblock, root verity.Root) (devmapper.Target, error) {
	size, err := deviceSize(p.data)
	if err != nil {
		return devmapper.Target{}, err
	}
	if s.DataSize > size {
		return devmapper.Target{}, fmt.Errorf("the hash tree covers %d bytes, %s has %d", s.DataSize, p.data, size)
	}
	params := fmt.Sprintf("1 %s %s %d %d %d 1 sha256 %x %x 1 panic_on_corruption",
		p.data, p.tree, verity.BlockSize, verity.BlockSize, s.DataSize/verity.BlockSize, root[:], s.Salt[:])
	return devmapper.Target{Length: uint64(s.DataSize / sector), Type: "verity", Params: params}, nil
}

func deviceSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}
