// Package update puts a release into the slot of a node's disk that the node does not run from, has firmware try it, and makes it the
// one that starts by itself, or not.
//
// What is written is what a signed document names: the hash tree has its root hash, each block of the root hashes up to that, and the
// disk that all of it makes has the digest of the published image. Whoever serves the bytes is not trusted.
package update

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/image/verity"
)

// Device is the disk that a node runs from. A write is in place for good when Sync has returned, and a sector whole or not at all.
type Device interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// Disk is a node's disk with its two slots.
type Disk struct {
	dev     Device
	primary []byte // the first copy of the table, as it lies there
	backup  []byte
	slots   [2]slot.Partitions
	config  *gpt.Partition // nil if the node's configuration comes from elsewhere
	size    int64
	running slot.Slot
	pause   func(context.Context, time.Duration) error
	slow    time.Duration
}

// Open opens the disk that a node runs from. size is that of the image on it, in bytes, by the table's first copy; running is the slot.
func Open(dev Device, size int64, running slot.Slot) (*Disk, error) {
	table, err := gpt.Read(dev, size)
	if err != nil {
		return nil, fmt.Errorf("open slots: %w", err)
	}
	d := &Disk{dev: dev, size: size, running: running, pause: pause, slow: slow}
	if d.slots, err = slot.Find(table); err != nil {
		return nil, fmt.Errorf("open slots: %w", err)
	}
	if p, err := slot.FindConfig(table, d.slots); err == nil {
		d.config = &p
	}
	d.primary, d.backup = make([]byte, gpt.PrimarySize), make([]byte, gpt.BackupSize)
	for _, part := range []struct {
		b  []byte
		at int64
	}{{d.primary, 0}, {d.backup, size - gpt.BackupSize}} {
		if _, err := dev.ReadAt(part.b, part.at); err != nil {
			return nil, fmt.Errorf("open slots: %w", err)
		}
	}
	return d, nil
}

// Content is what a slot holds.
type Content struct {
	// Root is the root hash of its release.
	Root verity.Root
	// Default is set if its kernel image has the name that firmware starts by itself.
	Default bool
}

// trialName is the last element of uki.TrialPath, defaultName of uki.Path, whose folder is the same.
var trialName, defaultName = path.Base(uki.TrialPath), path.Base(uki.Path)

// errEmpty is a slot on which nothing starts.
var errEmpty = errors.New("there is no kernel image in it")

// Content reads what is in a slot. It fails for one on which nothing could start: an ESP that is torn or foreign, or a hash tree that is
// not of the kernel image's root hash. Blocks of the root are not read.
func (d *Disk) Content(n slot.Slot) (Content, error) {
	c, err := d.content(d.slots[n])
	if err != nil {
		return c, fmt.Errorf("slot %v: %w", n, err)
	}
	return c, nil
}

func (d *Disk) content(p slot.Partitions) (c Content, err error) {
	esp, err := fat.Open(d.section(p.ESP), p.ESP.Size())
	if err != nil {
		return c, fmt.Errorf("%w: %w", errEmpty, err)
	}
	image, err := esp.File(uki.Path)
	if c.Default = err == nil; err != nil {
		if image, err = esp.File(uki.TrialPath); err != nil {
			return c, fmt.Errorf("%w: %w", errEmpty, err)
		}
	}
	if c.Root, err = rootHashOf(image); err != nil {
		return c, err
	}
	top, err := verity.Top(d.section(p.Tree))
	if err == nil && top != c.Root {
		err = fmt.Errorf("its hash tree has root hash %x, its kernel image %x", top, c.Root)
	}
	return c, err
}

func (d *Disk) section(p gpt.Partition) *io.SectionReader {
	return io.NewSectionReader(d.dev, p.Offset(), p.Size())
}

// rootHashOf returns the root hash on the command line of a kernel image.
func rootHashOf(image []byte) (root verity.Root, err error) {
	opened, err := uki.Open(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return root, err
	}
	cmdline, _ := opened.Section(".cmdline")
	return verity.RootOf(string(cmdline))
}

// Default is the slot that firmware starts by itself: the first of which the kernel image has that name.
func (d *Disk) Default() (slot.Slot, error) {
	var problems []error
	for _, n := range slot.Both() {
		c, err := d.Content(n)
		if err == nil && c.Default {
			return n, nil
		}
		problems = append(problems, err)
	}
	return slot.A, errors.Join(append(problems, errors.New("no slot starts by itself"))...)
}

// SetDefault makes a slot the one that starts by itself. It is two writes of a sector; cut between them, slot A starts. A slot on which
// nothing could start is refused.
func (d *Disk) SetDefault(n slot.Slot) error {
	if _, err := d.Content(n); err != nil {
		return fmt.Errorf("make it the one that starts: %w", err)
	}
	if err := d.name(n, uki.TrialPath, defaultName); err != nil {
		return fmt.Errorf("make slot %v the one that starts: %w", n, err)
	}
	// One that cannot be read does not start.
	if _, err := d.Content(n.Other()); errors.Is(err, errEmpty) {
		return nil
	}
	if err := d.name(n.Other(), uki.Path, trialName); err != nil {
		return fmt.Errorf("make slot %v one that does not start: %w", n.Other(), err)
	}
	return nil
}

// name gives the kernel image of a slot another name, unless it has that.
func (d *Disk) name(n slot.Slot, from, to string) error {
	p := d.slots[n].ESP
	esp, err := fat.Open(d.section(p), p.Size())
	if err != nil {
		return err
	}
	if _, err := esp.Time(path.Join(path.Dir(from), to)); err == nil {
		return nil
	}
	at, sector, err := esp.Renamed(from, to)
	if err != nil {
		return err
	}
	if _, err := d.dev.WriteAt(sector, p.Offset()+at); err != nil {
		return err
	}
	return d.dev.Sync()
}
