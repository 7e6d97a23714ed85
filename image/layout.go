// Package image lays out the disk of a Hullmark node and reads one back. It
// knows every byte that it writes: the same parts give the same disk, wherever
// and whenever they are put together.
//
// A disk has two slots (package slot), of which the first is filled and the second is empty, for the release that comes next. A slot
// has three partitions: the ESP with one file, the unified kernel image; the root file system; its dm-verity hash tree, behind which
// lies one of the ESP. The kernel command line holds the root hash, so whoever measures the kernel image measures the root too.
package image

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/image/verity"
)

const (
	espLabel = "ESP"
)

// Parts are what a disk is made of.
type Parts struct {
	// Stub is the PE stub of systemd.
	Stub []byte
	// Kernel is the kernel, an EFI executable.
	Kernel []byte
	// Initrd is the initial file system, one or more archives in a row.
	Initrd []byte
	// Microcode is an archive with microcode of processors (Linux, Documentation/arch/x86/microcode.rst), which the stub puts before
	// Initrd, or empty: stubs before systemd 256 do not know it.
	Microcode []byte
	// OSRelease is the content of /usr/lib/os-release.
	OSRelease []byte
	// Uname is the kernel's version as uname -r prints it, or empty: stubs
	// before systemd 254 do not know it.
	Uname string
	// Cmdline is the kernel command line without roothash=, which Plan adds.
	Cmdline string
	// Root is the root file system, read while planning and again by WriteTo.
	Root io.ReaderAt
	// RootSize is its length in bytes, a multiple of verity.BlockSize.
	RootSize int64
	// Time is the modification time of the ESP's file. It should come from the
	// locked package set, not from the clock.
	Time time.Time
	// Slot has the sizes of a slot's ESP and root. Releases that are to follow each other on a disk need the same, with room in
	// them, as the table of the disk never changes. What is zero is as small as its content.
	Slot slot.Sizes
}

// Layout is a planned disk.
type Layout struct {
	cmdline    string
	uki        []byte
	rootHash   verity.Root
	partitions []gpt.Partition
	size       int64
	areas      []area
}

// area is a run of bytes of the disk; what no area covers is zero.
type area struct {
	name   string
	offset int64
	size   int64
	data   io.ReaderAt
}

// Plan decides every byte of the disk. It reads the root file system twice:
// once for its digest, once for the hash tree, of which it keeps the result.
//
// What other tools choose at random follows from the content, by derive:
// the salt and the UUID of the hash tree from the SHA-256 of the root file
// system; the serial number of the ESP's volume from the Authenticode digest of
// the kernel image, which signing leaves unchanged.
func Plan(p Parts) (*Layout, error) {
	l := &Layout{}
	tree, err := l.hashRoot(p)
	if err != nil {
		return nil, fmt.Errorf("plan image: root file system: %w", err)
	}
	if err := l.buildUKI(p); err != nil {
		return nil, fmt.Errorf("plan image: %w", err)
	}
	if err := l.layOut(p.Root, p.RootSize, tree, p.Slot, p.Time); err != nil {
		return nil, fmt.Errorf("plan image: %w", err)
	}
	return l, nil
}

// layOut puts the kernel image on an ESP, the partitions on the disk and the table around them.
func (l *Layout) layOut(root io.ReaderAt, rootSize int64, tree []byte, sizes slot.Sizes, at time.Time) error {
	seed, err := seedOf(l.uki)
	if err != nil {
		return err
	}
	if rootSize <= verity.BlockSize {
		return errors.New("the root file system is a single block, by which no slot is told from another")
	}
	if sizes.Root != 0 && rootSize > sizes.Root {
		return fmt.Errorf("the root file system has %d bytes, a slot has room for %d; leave something out, or give all releases larger slots", rootSize, sizes.Root)
	}
	sizes.Root = slot.Align(max(sizes.Root, rootSize))
	esp, err := fat.Build([]fat.File{{Path: uki.Path, Data: l.uki}}, fat.Params{
		Label: espLabel, VolumeID: volumeID(seed), Time: at, Size: sizes.ESP,
	})
	if err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	espTree, err := slot.ESPTree(esp)
	if err != nil {
		return err
	}
	sizes.ESP = int64(len(esp))
	sizes.Tree = max(sizes.Tree, sizes.TreeRoom())
	l.partitions, l.size = slot.Plan(sizes)
	return l.addAreas(slot.Disk(), [][]content{
		{{int64(len(esp)), bytes.NewReader(esp)}},
		{{rootSize, root}},
		{{int64(len(tree)), bytes.NewReader(tree)}, {int64(len(espTree)), bytes.NewReader(espTree)}},
	})
}

// content is what a partition holds, or a part of that.
type content struct {
	size int64
	data io.ReaderAt
}

// addAreas fills the first partitions, each with its contents, and puts the copies of the table around all of them.
func (l *Layout) addAreas(disk gpt.GUID, filled [][]content) error {
	primary, backup, err := gpt.Encode(l.size, disk, l.partitions)
	if err != nil {
		return err
	}
	l.areas = []area{{"partition table", 0, gpt.PrimarySize, bytes.NewReader(primary)}}
	for i, contents := range filled {
		at := l.partitions[i].Offset()
		for _, c := range contents {
			l.areas = append(l.areas, area{l.partitions[i].Name, at, c.size, c.data})
			at += c.size
		}
	}
	l.areas = append(l.areas, area{"second partition table", l.size - gpt.BackupSize, gpt.BackupSize, bytes.NewReader(backup)})
	return nil
}

// hashRoot computes the root hash and returns the hash tree.
func (l *Layout) hashRoot(p Parts) ([]byte, error) {
	digest := sha256.New()
	n, err := io.Copy(digest, io.NewSectionReader(p.Root, 0, p.RootSize))
	if err != nil {
		return nil, err
	}
	if n != p.RootSize {
		return nil, fmt.Errorf("it has %d bytes, %d were announced", n, p.RootSize)
	}
	var tree bytes.Buffer
	params := treeParams([sha256.Size]byte(digest.Sum(nil)))
	l.rootHash, err = verity.Write(p.Root, p.RootSize, &tree, params)
	return tree.Bytes(), err
}

func (l *Layout) buildUKI(p Parts) error {
	if err := checkCmdline(p.Cmdline); err != nil {
		return fmt.Errorf("command line: %w", err)
	}
	l.cmdline = strings.TrimSpace(p.Cmdline + " " + verity.Parameter + hex.EncodeToString(l.rootHash[:]))
	sections := []uki.Section{
		{Name: ".linux", Data: p.Kernel},
		{Name: ".osrel", Data: p.OSRelease},
		{Name: ".cmdline", Data: []byte(l.cmdline)},
		{Name: ".initrd", Data: p.Initrd},
	}
	if p.Uname != "" {
		sections = append(sections, uki.Section{Name: ".uname", Data: []byte(p.Uname)})
	}
	if len(p.Microcode) > 0 {
		sections = append(sections, uki.Section{Name: ".ucode", Data: p.Microcode})
	}
	image, err := uki.Build(p.Stub, sections)
	l.uki = image
	return err
}

// checkCmdline refuses what the stub or the kernel would read differently from
// what stands here, and a root hash that is not ours.
func checkCmdline(cmdline string) error {
	for _, c := range []byte(cmdline) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("byte %#02x: only printable ASCII on one line", c)
		}
	}
	for _, word := range strings.Fields(cmdline) {
		if strings.HasPrefix(word, verity.Parameter) {
			return errors.New("it has a roothash= already; leave it out, it is computed")
		}
	}
	return nil
}

// UKI returns the unified kernel image. The caller must not change it.
func (l *Layout) UKI() []byte { return l.uki }

// Cmdline returns the kernel command line, with the root hash.
func (l *Layout) Cmdline() string { return l.cmdline }

// RootHash returns the root hash of the root file system.
func (l *Layout) RootHash() verity.Root { return l.rootHash }

// Size returns the length of the disk in bytes.
func (l *Layout) Size() int64 { return l.size }

// File is what WriteInto writes: an *os.File.
type File interface {
	io.WriterAt
	Truncate(size int64) error
}

// WriteInto writes the whole disk into an empty file, with holes where it is zero between partitions.
func (l *Layout) WriteInto(f File) error {
	for _, a := range l.areas {
		w := bufio.NewWriterSize(io.NewOffsetWriter(f, a.offset), 1<<20)
		if _, err := io.Copy(w, io.NewSectionReader(a.data, 0, a.size)); err != nil {
			return fmt.Errorf("write image: %s: %w", a.name, err)
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write image: %s: %w", a.name, err)
		}
	}
	return f.Truncate(l.size)
}

// WriteTo writes the whole disk, Size bytes, from its first to its last, with all that is zero.
func (l *Layout) WriteTo(w io.Writer) (int64, error) {
	at := int64(0)
	for _, a := range l.areas {
		gap, err := io.CopyN(w, zeros{}, a.offset-at)
		at += gap
		if err != nil {
			return at, fmt.Errorf("write image: before %s: %w", a.name, err)
		}
		n, err := io.CopyN(w, io.NewSectionReader(a.data, 0, a.size), a.size)
		at += n
		if err != nil {
			return at, fmt.Errorf("write image: %s: %w", a.name, err)
		}
	}
	return at, nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
