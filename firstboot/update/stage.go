package update

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
)

// Release is what a signed document says of an image.
type Release struct {
	// RootHash is of its root, and Disk the SHA-256 of the whole raw disk.
	RootHash verity.Root
	Disk     [sha256.Size]byte
}

// Fetched says what a release cost, in bytes.
type Fetched struct {
	// Fetched came from the sources; Copied was in the slot that runs, and Kept was where it belongs already.
	Fetched, Copied, Kept int64
}

// piece is how much of a disk is read or written at once, in bytes.
const piece = 1 << 20

// stager is one Stage.
type stager struct {
	*Disk
	ctx     context.Context
	release Release
	sources []*asked
	to      slot.Partitions
	fetched Fetched
	tell    func(Fetched)
	// super, leaves and tree are the root's hash tree, and esp is the ESP; zeros follow.
	super             verity.Superblock
	leaves, tree, esp []byte
}

// Stage writes a release into the slot that does not run, so that it can be tried. Until all of it is there, and is what the release says,
// nothing in that slot can start; after a cut, or an error, the next Stage goes on with what is there. It is refused while the slot that
// runs is not the one that starts by itself. Sources are asked in their order; one that gives anything but the release is asked no more,
// and one that is slow after the others. tell, if not nil, is told now and then how far it is.
func (d *Disk) Stage(ctx context.Context, release Release, sources []Source, tell func(Fetched)) (Fetched, error) {
	s := &stager{Disk: d, ctx: ctx, release: release, to: d.slots[d.running.Other()], tell: tell}
	for n, source := range sources {
		s.sources = append(s.sources, &asked{Source: source, number: n + 1})
	}
	if err := s.stage(); err != nil {
		return s.fetched, fmt.Errorf("stage release %x: %w", release.RootHash[:8], err)
	}
	return s.fetched, nil
}

func (s *stager) stage() error {
	first, err := s.Default()
	if err != nil {
		return err
	}
	if first != s.running {
		return fmt.Errorf("slot %v runs, and slot %v starts by itself: commit the one or go back to the other first", s.running, first)
	}
	if c, err := s.Content(s.running); err == nil && c.Root == s.release.RootHash {
		return errors.New("this release runs already")
	}
	if len(s.sources) == 0 {
		return errors.New("there is no source to fetch it from")
	}
	// From here on nothing starts in the other slot.
	if err := s.write(make([]byte, gpt.SectorSize), s.to.ESP.Offset()); err != nil {
		return err
	}
	if err := s.dev.Sync(); err != nil {
		return err
	}
	err = s.byBlocks()
	if errors.Is(err, ErrNoRanges) {
		err = s.try(true, s.whole)
	}
	if err != nil {
		return err
	}
	return s.writeESP()
}

// byBlocks writes root and tree, and makes the ESP, of what this disk has and of what sources with ranges give.
func (s *stager) byBlocks() error {
	if err := s.try(false, s.fetchTree); err != nil {
		return err
	}
	if err := s.fillRoot(); err != nil {
		return err
	}
	if err := s.storeTree(); err != nil {
		return err
	}
	if err := s.checkRoot(); err != nil {
		return err
	}
	return s.try(false, s.fetchESP)
}

// errOtherTable is a release that has no place on this disk.
var errOtherTable = foreign{errors.New("its disk has another partition table: it is no release for this disk")}

// fetchTree fetches the root's hash tree.
func (s *stager) fetchTree(f *fetcher) error {
	from := s.slots[slot.A].Tree // where a published disk has it
	head, err := f.fetch(0, gpt.PrimarySize)
	if err != nil {
		return err
	}
	if !bytes.Equal(head, s.primary) {
		return errOtherTable
	}
	size, err := s.treeSize(io.NewSectionReader(f, from.Offset(), from.Size()))
	if err != nil {
		return judge(err)
	}
	tree, err := f.fetch(from.Offset(), size)
	if err != nil {
		return err
	}
	return judge(s.takeTree(tree))
}

// treeSize returns how long a hash tree is, in bytes, if it and its root have room in the slot.
func (s *stager) treeSize(tree io.ReaderAt) (int64, error) {
	super, err := verity.ReadSuperblock(tree)
	if err != nil {
		return 0, err
	}
	size := verity.Size(super.DataSize)
	if super.DataSize > s.to.Root.Size() || size > s.to.Tree.Size() {
		return 0, fmt.Errorf("a root of %d bytes does not fit the slot", super.DataSize)
	}
	return size, nil
}

// takeTree takes a hash tree that has the release's root hash.
func (s *stager) takeTree(tree []byte) (err error) {
	s.tree = tree
	s.super, s.leaves, err = verity.Leaves(tree, s.release.RootHash)
	return err
}

// fillRoot writes the blocks of the root.
func (s *stager) fillRoot() error {
	old := s.slots[s.running]
	used := old.Root.Size()
	if super, err := verity.ReadSuperblock(s.section(old.Tree)); err == nil {
		used = min(used, super.DataSize)
	}
	b := &blocks{
		place: struct {
			io.ReaderAt
			io.WriterAt
		}{s.section(s.to.Root), io.NewOffsetWriter(s.dev, s.to.Root.Offset())},
		what: "root", at: s.slots[slot.A].Root.Offset(), super: s.super, leaves: s.leaves,
	}
	try := func(do func(*fetcher) error) error { return s.try(false, do) }
	return s.fill(b, try, &s.fetched.Kept, io.NewSectionReader(s.dev, old.Root.Offset(), used))
}

// storeTree writes the root's hash tree, for good.
func (s *stager) storeTree() error {
	if err := s.write(s.tree, s.to.Tree.Offset()); err != nil {
		return err
	}
	return s.dev.Sync()
}

// checkRoot reads back what was written, before anything can start from it.
func (s *stager) checkRoot() error {
	if err := verity.Verify(s.section(s.to.Root), s.super.DataSize, s.section(s.to.Tree), int64(len(s.tree)), s.release.RootHash); err != nil {
		return fmt.Errorf("what was written: %w", err)
	}
	return nil
}

// whole reads a disk from its start to the end of its first slot, writes root and tree, and takes the ESP.
func (s *stager) whole(f *fetcher) error {
	in, err := f.open(0, s.size)
	if err != nil {
		return err
	}
	defer in.Close()
	from, stream := s.slots[slot.A], &forward{in, 0}
	head, volume, trees := make([]byte, gpt.PrimarySize), make([]byte, from.ESP.Size()), make([]byte, from.Tree.Size())
	if err := stream.read(head, 0); err != nil {
		return err
	}
	if !bytes.Equal(head, s.primary) {
		return errOtherTable
	}
	if err := stream.read(volume, from.ESP.Offset()); err != nil {
		return err
	}
	s.esp = bytes.TrimRight(volume, "\x00")
	buffer := make([]byte, piece)
	for n := int64(0); n < from.Root.Size(); n += piece {
		part := buffer[:min(piece, from.Root.Size()-n)]
		if err := stream.read(part, from.Root.Offset()+n); err != nil {
			return err
		}
		if err := s.write(part, s.to.Root.Offset()+n); err != nil {
			return err
		}
	}
	if err := stream.read(trees, from.Tree.Offset()); err != nil {
		return err
	}
	size, err := s.treeSize(bytes.NewReader(trees))
	if err != nil {
		return judge(err)
	}
	if err := s.takeTree(trees[:size]); err != nil {
		return judge(err)
	}
	if err := s.storeTree(); err != nil {
		return err
	}
	if err := s.checkRoot(); err != nil {
		return judge(err)
	}
	return s.checkDisk()
}

// forward reads parts of what comes only once.
type forward struct {
	io.Reader
	at int64
}

func (f *forward) read(b []byte, offset int64) error {
	skipped, err := io.CopyN(io.Discard, f, offset-f.at)
	n := 0
	if err == nil {
		n, err = io.ReadFull(f, b)
	}
	f.at += skipped + int64(n)
	return err
}

func (s *stager) write(b []byte, at int64) error {
	_, err := s.dev.WriteAt(b, at)
	return err
}
