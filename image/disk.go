package image

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/image/verity"
)

// Disk is a disk that was read back. It reads from the io.ReaderAt given to
// Open, which must stay valid.
type Disk struct {
	// Table is the partition table, as firmware measures it.
	Table *gpt.Table
	// UKI is the opened kernel image of the ESP.
	UKI *uki.UKI
	// UKIBytes is the file that UKI was opened from.
	UKIBytes []byte
	// Cmdline is the kernel command line in the kernel image.
	Cmdline string
	// RootHash is the root hash in Cmdline.
	RootHash verity.Root
	// Root is the root file system, without the padding of its partition.
	Root *io.SectionReader
	// Verity is its hash area, without the padding of its partition.
	Verity *io.SectionReader

	time  time.Time // of the kernel image
	id    uint32    // of the ESP's volume
	sizes slot.Sizes
	esp   *io.SectionReader
	trees *io.SectionReader // the hash area with what follows it
}

// Open reads a disk of the given size in bytes and checks its shape: exactly
// the partitions of two slots, exactly the kernel image on the first ESP, a root
// hash in the command line, and a hash tree with that hash at its top, which
// covers the root file system. In the second slot there is nothing that could
// start. Open does not hash the content; Verify does.
func Open(r io.ReaderAt, size int64) (*Disk, error) {
	d := &Disk{}
	if err := d.open(r, size); err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	return d, nil
}

func (d *Disk) open(r io.ReaderAt, size int64) error {
	table, err := gpt.Read(r, size)
	if err != nil {
		return err
	}
	d.Table = table
	slots, config, err := findSlots(table)
	if err != nil {
		return err
	}
	second := slots[slot.B]
	for _, p := range append([]gpt.Partition{second.ESP, second.Tree}, config...) {
		start := make([]byte, verity.BlockSize)
		if _, err := io.ReadFull(section(r, p), start); err != nil || len(bytes.Trim(start, "\x00")) > 0 {
			return errors.Join(fmt.Errorf("partition %s is not empty: an image has one release, in its first slot, and no node's configuration", p.Name), err)
		}
	}
	for _, p := range config {
		d.sizes.Config = p.Size()
	}
	return d.openRelease(r, slots[slot.A])
}

// findSlots returns a table's slots, and its partition for a configuration if it has one. It fails for a table with any other.
func findSlots(table *gpt.Table) (slots [2]slot.Partitions, config []gpt.Partition, err error) {
	if slots, err = slot.Find(table); err != nil || len(table.Partitions) == slot.Count {
		return slots, nil, err
	}
	p, err := slot.FindConfig(table, slots)
	if err == nil && len(table.Partitions) > slot.Count+1 {
		err = fmt.Errorf("%d partitions: it has others beside its slots", len(table.Partitions))
	}
	return slots, []gpt.Partition{p}, err
}

// openRelease opens what one slot, or a medium, holds.
func (d *Disk) openRelease(r io.ReaderAt, p slot.Partitions) (err error) {
	d.sizes.ESP, d.sizes.Root, d.sizes.Tree = p.ESP.Size(), p.Root.Size(), p.Tree.Size()
	d.esp, d.trees = section(r, p.ESP), section(r, p.Tree)
	if err := d.openESP(d.esp); err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	cmdline, _ := d.UKI.Section(".cmdline")
	d.Cmdline = string(cmdline)
	if d.RootHash, err = verity.RootOf(d.Cmdline); err != nil {
		return err
	}
	return d.openRoot(section(r, p.Root), d.trees)
}

func section(r io.ReaderAt, p gpt.Partition) *io.SectionReader {
	return io.NewSectionReader(r, p.Offset(), p.Size())
}

// openESP reads the kernel image. Any other file is refused, because the stub
// reads addons, credentials and extensions from the ESP.
func (d *Disk) openESP(esp *io.SectionReader) error {
	volume, err := fat.Open(esp, esp.Size())
	if err != nil {
		return err
	}
	d.id = volume.ID
	files, err := volume.Files()
	if err != nil {
		return err
	}
	if len(files) != 1 || files[0] != uki.Path {
		return fmt.Errorf("it holds %q, want %s only; open the image as it was built, and name what lies beside it elsewhere", files, uki.Path)
	}
	if d.UKIBytes, err = volume.File(uki.Path); err != nil {
		return err
	}
	if d.time, err = volume.Time(uki.Path); err != nil {
		return err
	}
	d.UKI, err = uki.Open(bytes.NewReader(d.UKIBytes), int64(len(d.UKIBytes)))
	return err
}

func (d *Disk) openRoot(root, tree *io.SectionReader) error {
	s, err := verity.ReadSuperblock(tree)
	if err != nil {
		return err
	}
	if s.DataSize > root.Size() || verity.Size(s.DataSize) > tree.Size() {
		return fmt.Errorf("verity superblock: %d bytes of data do not fit the partitions", s.DataSize)
	}
	if top, err := verity.Top(tree); err != nil || top != d.RootHash {
		return errors.Join(fmt.Errorf("the hash tree is not that of root hash %x in the command line", d.RootHash), err)
	}
	d.Root = io.NewSectionReader(root, 0, s.DataSize)
	d.Verity = io.NewSectionReader(tree, 0, verity.Size(s.DataSize))
	return nil
}

// WithUKI plans the same disk with another form of its kernel image: one with
// other signatures, or with none. Root file system and hash tree stay, and all
// that derives from the kernel image, because its Authenticode digest has to be
// the same. It fails where the kernel image does not fit the ESP: another
// partition table would be another release line.
func (d *Disk) WithUKI(image []byte) (*Layout, error) {
	before, err := seedOf(d.UKIBytes)
	if err != nil {
		return nil, fmt.Errorf("replace kernel image: %w", err)
	}
	after, err := seedOf(image)
	if err != nil {
		return nil, fmt.Errorf("replace kernel image: %w", err)
	}
	if before != after {
		return nil, errors.New("replace kernel image: it is another one, and not the same with other signatures")
	}
	tree, err := io.ReadAll(io.NewSectionReader(d.Verity, 0, d.Verity.Size()))
	if err != nil {
		return nil, fmt.Errorf("replace kernel image: hash tree: %w", err)
	}
	l := &Layout{cmdline: d.Cmdline, uki: image, rootHash: d.RootHash}
	if err := l.layOut(d.Root, d.Root.Size(), tree, d.sizes, d.time); err != nil {
		return nil, fmt.Errorf("replace kernel image: %w", err)
	}
	return l, nil
}

// Verify hashes the disk: the root file system and its hash tree against the
// root hash in the command line, salt and UUID of the tree and the serial number
// of the ESP against the content that they derive from, and the ESP against its
// own hash tree. A kernel image that was changed after planning is found by the
// serial number; signing it is no change.
func (d *Disk) Verify() error {
	if err := d.verifySeed(); err != nil {
		return fmt.Errorf("verify image: %w", err)
	}
	if err := verity.Verify(d.Root, d.Root.Size(), d.Verity, d.Verity.Size(), d.RootHash); err != nil {
		return fmt.Errorf("verify image: %w", err)
	}
	if err := d.verifyTreeParams(); err != nil {
		return fmt.Errorf("verify image: %w", err)
	}
	if err := d.verifyESPTree(); err != nil {
		return fmt.Errorf("verify image: %w", err)
	}
	return nil
}

func (d *Disk) verifySeed() error {
	seed, err := seedOf(d.UKIBytes)
	if err != nil {
		return err
	}
	if d.id != volumeID(seed) {
		return errors.New("the ESP's serial number does not follow from the kernel image: it was changed or damaged")
	}
	return nil
}

func (d *Disk) verifyTreeParams() error {
	s, err := verity.ReadSuperblock(d.Verity)
	if err != nil {
		return err
	}
	digest := sha256.New()
	if _, err := io.Copy(digest, io.NewSectionReader(d.Root, 0, d.Root.Size())); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	if s.Params != treeParams([sha256.Size]byte(digest.Sum(nil))) {
		return errors.New("salt or UUID of the hash tree do not follow from the root file system: another tool wrote it")
	}
	return nil
}

// verifyESPTree compares what follows the hash area with the hash tree that the ESP has.
func (d *Disk) verifyESPTree() error {
	esp, err := io.ReadAll(io.NewSectionReader(d.esp, 0, d.esp.Size()))
	if err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	want, err := slot.ESPTree(esp)
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(io.NewSectionReader(d.trees, d.Verity.Size(), d.trees.Size()-d.Verity.Size()), got); err != nil || !bytes.Equal(got, want) {
		return errors.Join(errors.New("behind the hash tree there is not that of the ESP: it was damaged, or made by another version"), err)
	}
	return nil
}
