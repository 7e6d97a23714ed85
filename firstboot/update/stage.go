package update

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/image/verity"
)

// Release is what a signed document says of an image.
type Release struct {
	// RootHash is of its root, and Disk the SHA-256 of the whole raw disk.
	RootHash verity.Root
	Disk     [sha256.Size]byte
}

// Source has the raw disk of a release. It may say anything: nothing that it says is used before it hashes to the release.
type Source interface {
	// Range reads n bytes of the disk from an offset on. ErrNoRanges is the error of one that gives whole disks alone: from 0 on.
	Range(ctx context.Context, offset, n int64) (io.ReadCloser, error)
}

// ErrNoRanges is a source that has no parts of a disk.
var ErrNoRanges = errors.New("it does not give parts of a file")

// Fetched says what a release cost, in bytes.
type Fetched struct {
	// Fetched came from the source; Copied was in the slot that runs, and Kept was where it belongs already.
	Fetched, Copied, Kept int64
}

// Limits of what is read at once, in bytes.
const (
	piece    = 1 << 20
	maxRange = 8 << 20
	// maxGap is how much is fetched once more, rather than asking twice.
	maxGap = 64 << 10
)

// stager is one Stage.
type stager struct {
	*Disk
	ctx     context.Context
	release Release
	source  Source
	to      slot.Partitions
	fetched Fetched
	tell    func(Fetched)
	// volume is the ESP of a disk that came as a whole; nil of one of which parts are fetched.
	volume []byte
}

// Stage writes a release into the slot that does not run, so that it can be tried. Until all of it is there, and is what the release says,
// nothing in that slot can start; after a cut, or an error, the next Stage goes on with what is there. It is refused while the slot that
// runs is not the one that starts by itself. tell, if not nil, is told now and then how far it is.
func (d *Disk) Stage(ctx context.Context, release Release, source Source, tell func(Fetched)) (Fetched, error) {
	s := &stager{Disk: d, ctx: ctx, release: release, source: source, to: d.slots[d.running.Other()], tell: tell}
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
	// From here on nothing starts in the other slot.
	if err := s.write(make([]byte, gpt.SectorSize), s.to.ESP.Offset()); err != nil {
		return err
	}
	if err := s.dev.Sync(); err != nil {
		return err
	}
	tree, err := s.content()
	if err != nil {
		return err
	}
	if err := s.dev.Sync(); err != nil {
		return err
	}
	super, err := verity.ReadSuperblock(bytes.NewReader(tree))
	if err != nil {
		return err
	}
	// What was written is read back before anything can start from it.
	if err := verity.Verify(s.section(s.to.Root), super.DataSize, s.section(s.to.Tree), int64(len(tree)), s.release.RootHash); err != nil {
		return fmt.Errorf("what was written: %w", err)
	}
	esp, err := s.esp()
	if err != nil {
		return err
	}
	if err := s.checkDisk(esp, super.DataSize, tree); err != nil {
		return err
	}
	return s.writeESP(esp)
}

// errOtherTable is a release that has no place on this disk.
var errOtherTable = errors.New("its disk has another partition table: it is no release for this disk")

// whole reads a disk from its start to the end of its first slot, writes root and tree, and returns the tree.
func (s *stager) whole() ([]byte, error) {
	from, at := s.slots[slot.A], int64(0)
	r, err := s.source.Range(s.ctx, 0, s.size)
	if err != nil {
		return nil, fmt.Errorf("fetch the disk: %w", err)
	}
	defer r.Close()
	read := func(b []byte, offset int64) error {
		skipped, err := io.CopyN(io.Discard, r, offset-at)
		n := 0
		if err == nil {
			n, err = io.ReadFull(r, b)
		}
		at += skipped + int64(n)
		s.fetched.Fetched = at
		if s.tell != nil {
			s.tell(s.fetched)
		}
		if err != nil {
			return fmt.Errorf("fetch the disk, at %d: %w", at, err)
		}
		return nil
	}
	head := make([]byte, gpt.PrimarySize)
	if err := read(head, 0); err != nil {
		return nil, err
	}
	if !bytes.Equal(head, s.primary) {
		return nil, errOtherTable
	}
	s.volume = make([]byte, from.ESP.Size())
	if err := read(s.volume, from.ESP.Offset()); err != nil {
		return nil, err
	}
	buffer := make([]byte, piece)
	for n := int64(0); n < from.Root.Size(); n += piece {
		part := buffer[:min(piece, from.Root.Size()-n)]
		if err := read(part, from.Root.Offset()+n); err != nil {
			return nil, err
		}
		if err := s.write(part, s.to.Root.Offset()+n); err != nil {
			return nil, err
		}
	}
	tree := make([]byte, from.Tree.Size())
	if err := read(tree, from.Tree.Offset()); err != nil {
		return nil, err
	}
	size, err := s.treeSize(tree)
	if err != nil {
		return nil, err
	}
	tree = tree[:size]
	if _, _, err := verity.Leaves(tree, s.release.RootHash); err != nil {
		return nil, err
	}
	return tree, s.write(tree, s.to.Tree.Offset())
}

// content writes root and tree, and returns the tree.
func (s *stager) content() ([]byte, error) {
	from := s.slots[slot.A] // where a published disk has its release
	head, err := s.fetch(0, gpt.PrimarySize)
	if errors.Is(err, ErrNoRanges) {
		return s.whole()
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(head, s.primary) {
		return nil, errOtherTable
	}
	block, err := s.fetch(from.Tree.Offset(), verity.BlockSize)
	if err != nil {
		return nil, err
	}
	size, err := s.treeSize(block)
	if err != nil {
		return nil, err
	}
	tree, err := s.fetch(from.Tree.Offset(), size)
	if err != nil {
		return nil, err
	}
	super, leaves, err := verity.Leaves(tree, s.release.RootHash)
	if err != nil {
		return nil, err
	}
	if err := s.root(super, leaves); err != nil {
		return nil, err
	}
	return tree, s.write(tree, s.to.Tree.Offset())
}

// treeSize returns how long a hash area is that begins so, in bytes, if it and its data fit the slot.
func (s *stager) treeSize(start []byte) (int64, error) {
	super, err := verity.ReadSuperblock(bytes.NewReader(start))
	if err != nil {
		return 0, err
	}
	size := verity.Size(super.DataSize)
	if super.DataSize > s.to.Root.Size() || size > s.to.Tree.Size() {
		return 0, fmt.Errorf("a root of %d bytes does not fit the slot", super.DataSize)
	}
	return size, nil
}

// root writes the blocks of a root: what is there stays, what the slot that runs has is copied, and the rest is fetched.
func (s *stager) root(super verity.Superblock, leaves []byte) error {
	missing := map[[sha256.Size]byte][]int64{} // blocks by their hash
	wanted := func(i int64) [sha256.Size]byte { return [sha256.Size]byte(leaves[i*sha256.Size:]) }
	err := s.blocks(s.to.Root, super, func(i int64, _ []byte, hash [sha256.Size]byte) error {
		if hash == wanted(i) {
			s.fetched.Kept += verity.BlockSize
			return nil
		}
		missing[wanted(i)] = append(missing[wanted(i)], i)
		return nil
	})
	if err != nil {
		return err
	}
	old := s.slots[s.running].Root
	running := verity.Superblock{Params: super.Params, DataSize: old.Size()}
	err = s.blocks(old, running, func(_ int64, block []byte, hash [sha256.Size]byte) error {
		for _, i := range missing[hash] {
			if err := s.write(block, s.to.Root.Offset()+i*verity.BlockSize); err != nil {
				return err
			}
			s.fetched.Copied += verity.BlockSize
		}
		delete(missing, hash)
		return nil
	})
	if err != nil {
		return err
	}
	left := make([]bool, super.DataSize/verity.BlockSize)
	for _, all := range missing {
		for _, i := range all {
			left[i] = true
		}
	}
	return s.fetchBlocks(super, left, wanted)
}

// blocks reads a partition's blocks, as many as a superblock says, with their hashes by its salt.
func (s *stager) blocks(p gpt.Partition, super verity.Superblock, use func(i int64, block []byte, hash [sha256.Size]byte) error) error {
	buffer := make([]byte, piece)
	for at := int64(0); at < super.DataSize; at += piece {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		part := buffer[:min(piece, super.DataSize-at)]
		if _, err := s.dev.ReadAt(part, p.Offset()+at); err != nil {
			return err
		}
		for n := int64(0); n < int64(len(part)); n += verity.BlockSize {
			block := part[n : n+verity.BlockSize]
			if err := use((at+n)/verity.BlockSize, block, verity.BlockHash(block, super.Salt)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fetchBlocks fetches the blocks that are left, in ranges, and writes each when its hash is the wanted one.
func (s *stager) fetchBlocks(super verity.Superblock, left []bool, wanted func(i int64) [sha256.Size]byte) error {
	from := s.slots[slot.A].Root.Offset()
	for at := int64(0); at < int64(len(left)); {
		if !left[at] {
			at++
			continue
		}
		end := at + 1 // behind the last block of the range that is left
		for next := end; next < int64(len(left)) && next-end <= maxGap/verity.BlockSize && next-at < maxRange/verity.BlockSize; next++ {
			if left[next] {
				end = next + 1
			}
		}
		content, err := s.fetch(from+at*verity.BlockSize, (end-at)*verity.BlockSize)
		if err != nil {
			return err
		}
		for i := at; i < end; i++ {
			block := content[(i-at)*verity.BlockSize:][:verity.BlockSize]
			if !left[i] {
				continue
			}
			if verity.BlockHash(block, super.Salt) != wanted(i) {
				return fmt.Errorf("block %d of the root is not the release's: the source is damaged, or another's", i)
			}
			if err := s.write(block, s.to.Root.Offset()+i*verity.BlockSize); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// esp fetches the ESP of the published disk: as far as its own FSInfo says that it is used, and zeros (FAT specification §5).
func (s *stager) esp() ([]byte, error) {
	if s.volume != nil {
		return s.volume, nil
	}
	p := s.slots[slot.A].ESP
	head, err := s.fetch(p.Offset(), 2*gpt.SectorSize)
	if err != nil {
		return nil, err
	}
	used, err := fat.Used(head, p.Size())
	if err != nil {
		return nil, err
	}
	content, err := s.fetch(p.Offset(), used)
	if err != nil {
		return nil, err
	}
	return append(content, make([]byte, p.Size()-used)...), nil
}

// checkDisk computes the digest of the disk that the release makes, of which every byte is known now.
func (s *stager) checkDisk(esp []byte, rootSize int64, tree []byte) error {
	from, at, digest := s.slots[slot.A], int64(0), sha256.New()
	for _, part := range []struct {
		at, size int64
		r        io.Reader
	}{
		{0, int64(len(s.primary)), bytes.NewReader(s.primary)},
		{from.ESP.Offset(), int64(len(esp)), bytes.NewReader(esp)},
		{from.Root.Offset(), rootSize, s.section(s.to.Root)},
		{from.Tree.Offset(), int64(len(tree)), bytes.NewReader(tree)},
		{s.size - int64(len(s.backup)), int64(len(s.backup)), bytes.NewReader(s.backup)},
	} {
		if _, err := io.CopyN(digest, zeros{}, part.at-at); err != nil {
			return err
		}
		if _, err := io.CopyN(digest, part.r, part.size); err != nil {
			return err
		}
		at = part.at + part.size
	}
	if got := digest.Sum(nil); !bytes.Equal(got, s.release.Disk[:]) {
		return fmt.Errorf("the disk that it makes has digest %x, the release %x: its ESP or its table is another's", got, s.release.Disk)
	}
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// writeESP writes the ESP, with the kernel image under the name for trials. Its first sector comes last: without it there is no volume.
func (s *stager) writeESP(esp []byte) error {
	volume, err := fat.Open(bytes.NewReader(esp), int64(len(esp)))
	if err != nil {
		return err
	}
	at, sector, err := volume.Renamed(uki.Path, trialName)
	if err != nil {
		return err
	}
	copy(esp[at:], sector)
	for n := int64(gpt.SectorSize); n < int64(len(esp)); {
		end := min(n-n%piece+piece, int64(len(esp)))
		if err := s.write(esp[n:end], s.to.ESP.Offset()+n); err != nil {
			return err
		}
		n = end
	}
	if err := s.dev.Sync(); err != nil {
		return err
	}
	written := make([]byte, len(esp)-gpt.SectorSize)
	if _, err := s.dev.ReadAt(written, s.to.ESP.Offset()+gpt.SectorSize); err != nil {
		return err
	}
	if !bytes.Equal(written, esp[gpt.SectorSize:]) {
		return errors.New("the ESP does not hold what was written")
	}
	if err := s.write(esp[:gpt.SectorSize], s.to.ESP.Offset()); err != nil {
		return err
	}
	return s.dev.Sync()
}

func (s *stager) write(b []byte, at int64) error {
	_, err := s.dev.WriteAt(b, at)
	return err
}

// fetch reads a part of the published disk.
func (s *stager) fetch(at, n int64) ([]byte, error) {
	r, err := s.source.Range(s.ctx, at, n)
	if err != nil {
		return nil, fmt.Errorf("fetch %d bytes at %d: %w", n, at, err)
	}
	defer r.Close()
	content := make([]byte, n)
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, fmt.Errorf("fetch %d bytes at %d: %w", n, at, err)
	}
	s.fetched.Fetched += n
	if s.tell != nil {
		s.tell(s.fetched)
	}
	return content, nil
}
