// Package install writes what an installation medium holds, from which the machine runs, to the disk that it is to boot from.
//
// What is written is the published disk with the node's configuration in its place. The medium is read against the root hash of the release
// that runs, the disk is read back, and the partition table is written last: a disk on which this was interrupted starts nowhere, and
// the next boot of the medium begins again. A disk that holds anything else is left alone, unless the configuration names it.
package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/disks"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/verity"
)

// Step is the agent's state that every condition from here belongs to.
const Step = "INSTALL"

// Medium is what the machine has booted from.
type Medium struct {
	// Device is the medium, of Size bytes; Name is the kernel's name of it.
	Device io.ReaderAt
	Size   int64
	Name   string
}

// Installed says how an installation ended.
type Installed struct {
	// Disk is the disk that holds the release now.
	Disk disks.Disk
	// ESP is that of its first slot.
	ESP gpt.Partition
	// Before is set if it did so before, with this configuration: nothing was written.
	Before bool
}

// Config returns the node configuration that is on the medium.
func (m Medium) Config() ([]byte, error) {
	_, config, err := image.OpenMedium(&medium{ReaderAt: m.Device}, m.Size)
	return config, lost(err)
}

// Install installs the disk that a configuration names, and puts the configuration on it. The medium is to hold the release that runs, of
// this root hash: it may have been exchanged since. tell hears what is done, and how much of it in percent. Where the medium cannot be
// read any more, the error is the condition medium-lost.
func (m Medium) Install(
	ctx context.Context, s disks.System, root verity.Root, config []byte, tell func(doing string, percent int),
) (done Installed, err error) {
	node, err := hullmark.ParseNodeConfig(config)
	if err != nil {
		return done, err
	}
	device := &medium{ReaderAt: m.Device}
	disk, _, err := image.OpenMedium(device, m.Size)
	if err != nil {
		return done, lost(err)
	}
	if disk.RootHash != root {
		return done, fmt.Errorf("the medium holds release %x, and %x runs", disk.RootHash[:8], root[:8])
	}
	layout, err := disk.Configured(config)
	if err != nil {
		return done, err
	}
	t, closer, err := m.target(s, node)
	if err != nil {
		return done, err
	}
	defer closer.Close()
	done.Disk, done.ESP = t.disk, layout.ESP()
	// All of it is read twice before anything is written: against the root hash, and for the digest of what will be written.
	device.watch(2*m.Size, func(percent int) { tell("checking the medium", percent) })
	done.Before, err = t.install(ctx, disk, layout, node.Install.Overwrite, func(doing string, percent int) {
		device.watch(0, nil)
		tell(doing, percent)
	})
	return done, err
}

// install installs the disk, if it may; before is set if that was done already.
func (t target) install(ctx context.Context, medium *image.Disk, l *image.Layout, overwrite string, tell func(string, int)) (before bool, err error) {
	if err := t.hasRoom(l.Size()); err != nil {
		return false, err
	}
	holds, err := probe(t, t.disk.Size, l)
	if err != nil {
		return false, lost(err)
	}
	switch {
	case holds == holdsThis:
		return true, nil
	case holds != holdsNothing && (overwrite == "" || overwrite != t.disk.Serial):
		return false, t.used()
	}
	if err := medium.Verify(); err != nil {
		return false, lost(err)
	}
	return false, t.write(ctx, l, holds, tell)
}

// target is the disk to install.
type target struct {
	image.Target
	disk disks.Disk
	// forget drops what the machine has in memory of it.
	forget func() error
	// behind is how much room the node's state needs behind the slots, in bytes.
	behind int64
}

// target finds the disk and opens it for this process alone.
func (m Medium) target(s disks.System, node hullmark.NodeConfig) (t target, f *os.File, err error) {
	all, err := m.others(s)
	if err != nil {
		return t, nil, err
	}
	if node.Install == nil {
		return t, nil, &hullmark.Condition{
			Code: "install-unnamed", Step: Step, Title: "the medium's node config does not say which disk to install", Got: disks.Names(all),
			Next: `name one of these disks in the node config ("install": {"disk": {"serial": "…"}}), and make the medium again`,
		}
	}
	path, err := s.Find(disks.Wanted{DiskSelector: node.Install.Disk, Field: "install", Step: Step})
	if err != nil {
		return t, nil, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return t, nil, err
	}
	i := slices.IndexFunc(all, func(d disks.Disk) bool { return d.Name == filepath.Base(path) })
	if i < 0 {
		return t, nil, inUse(path + " is the medium itself, or no whole disk that can be written")
	}
	t.disk = all[i]
	if state, err := s.Find(disks.Wanted{DiskSelector: node.StateDisk}); err == nil {
		if state, err = filepath.EvalSymlinks(state); err == nil && state == path {
			t.behind = statedisk.MinSize
		}
	}
	// O_EXCL refuses a device that is mounted, or has partitions that are (open(2)).
	f, err = os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return t, nil, inUse(t.disk.String() + " is in use")
	}
	t.Target, t.forget = f, func() error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }
	return t, f, err
}

// others are the machine's disks but the medium.
func (m Medium) others(s disks.System) (out []disks.Disk, err error) {
	all, err := s.List()
	for _, d := range all {
		if d.Name != m.Name {
			out = append(out, d)
		}
	}
	return out, err
}

func inUse(what string) error {
	return &hullmark.Condition{
		Code: "install-disk-in-use", Step: Step, Title: "the disk to install cannot be written: " + what, Next: "name another disk under install in the node config",
	}
}

func (t target) hasRoom(size int64) error {
	need := size + t.behind
	if t.disk.Size >= need {
		return nil
	}
	return &hullmark.Condition{
		Code: "install-disk-small", Step: Step, Title: "the disk to install is too small",
		Expected: fmt.Sprintf("at least %.1f GB", float64(need)/1e9), Got: t.disk.String(), Next: "name a larger disk under install in the node config",
	}
}

// used is the condition of a disk that holds something.
func (t target) used() error {
	next := "name another disk under install in the node config, or empty this one: zero its first and last 16 MiB"
	if t.disk.Serial != "" {
		next = fmt.Sprintf("name another disk under install in the node config; or, to lose all that is on this one, say there \"overwrite\": %q", t.disk.Serial)
	}
	return &hullmark.Condition{
		Code: "install-disk-used", Step: Step, Title: "the disk to install is not empty; it was not touched", Expected: "an empty disk",
		Got: t.disk.String() + ", " + describe(t), Next: next,
	}
}

// write writes the planned disk.
func (t target) write(ctx context.Context, l *image.Layout, holds content, tell func(string, int)) error {
	digest, err := l.Digest()
	if err != nil {
		return lost(err)
	}
	i := image.Installation{Digest: digest, Size: l.Size(), Room: t.disk.Size, Reread: t.forget}
	if holds == holdsRelease {
		i.Room = i.Size // The node's state, behind the slots, stays.
	}
	percent := -1
	i.Progress = func(done int64) {
		if p := int(50 * done / i.Size); p != percent {
			percent = p
			tell("writing to "+t.disk.String(), p)
		}
	}
	if i.Room > i.Size {
		if err := clearEdges(t, i.Size, i.Room); err != nil {
			return t.failed(err)
		}
	}
	if err := i.Install(ctx, t, io.NewSectionReader(l, 0, l.Size())); err != nil {
		return t.failed(err)
	}
	return nil
}

// failed tells what went wrong with the disk from what did with the medium.
func (t target) failed(err error) error {
	if _, ok := errors.AsType[mediumError](err); ok {
		return lost(err)
	}
	return &hullmark.Condition{
		Code: "install-failed", Step: Step, Title: fmt.Sprintf("%s could not be installed: %v; nothing on it starts", t.disk, err),
		Next: "exchange the disk, if this happens again", Retry: true,
	}
}

// medium counts what is read of it, and marks errors: nothing is read that it should not have, so its end is one, too.
type medium struct {
	io.ReaderAt
	mu   sync.Mutex
	tell func(percent int) // nil if nobody wants to know
	// read is how much has been read, of size, in bytes; told is the last percentage.
	read, size int64
	told       int
}

// watch has tell hear how much has been read from here on, in percent of a size in bytes.
func (m *medium) watch(size int64, tell func(percent int)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read, m.size, m.told, m.tell = 0, size, -1, tell
}

func (m *medium) count(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tell == nil {
		return
	}
	m.read += int64(n)
	if p := int(min(100*m.read/m.size, 99)); p != m.told {
		m.told = p
		m.tell(p)
	}
}

// mediumError is an error of reading the medium.
type mediumError struct{ error }

func (e mediumError) Unwrap() error { return e.error }

func (m *medium) ReadAt(b []byte, at int64) (int, error) {
	n, err := m.ReaderAt.ReadAt(b, at)
	m.count(n)
	if err != nil {
		err = mediumError{err}
	}
	return n, err
}

// lost makes an error of reading the medium a condition, and leaves others alone.
func lost(err error) error {
	medium, ok := errors.AsType[mediumError](err)
	if !ok {
		return err
	}
	return &hullmark.Condition{
		Code: "medium-lost", Step: Step, Title: "the medium cannot be read any more: " + medium.Error(),
		Next: "put the medium in again: the machine restarts, and begins anew", Retry: true,
	}
}
