package update

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/verity"
)

// Limits of what is fetched at once, in bytes.
const (
	maxRange = 8 << 20
	// maxGap is how much is fetched once more, rather than asking twice.
	maxGap = 64 << 10
)

// place is where blocks of a release belong.
type place interface {
	io.ReaderAt
	io.WriterAt
}

// blocks are a part of a published disk as its hash tree describes it.
type blocks struct {
	place
	// what they are a part of
	what string
	// at is where the published disk has the first of them, in bytes.
	at     int64
	super  verity.Superblock
	leaves []byte
	// missing are their numbers by their hashes, as long as some may be found on this disk.
	missing map[[sha256.Size]byte][]int64
	// left marks the count of those that have to be fetched, of which none is before first.
	left         []bool
	first, count int64
}

func (b *blocks) wanted(i int64) [sha256.Size]byte {
	return [sha256.Size]byte(b.leaves[i*sha256.Size:])
}

func (b *blocks) put(i int64, block []byte) error {
	_, err := b.WriteAt(block, i*verity.BlockSize)
	return err
}

// fill puts all blocks into their place. What is there stays, and kept is told; what one of the others has is copied; the rest is fetched,
// by whom try asks.
func (s *stager) fill(b *blocks, try func(func(*fetcher) error) error, kept *int64, others ...*io.SectionReader) error {
	n, err := b.compare(s)
	if *kept += n; err != nil {
		return err
	}
	zero := io.NewSectionReader(bytes.NewReader(make([]byte, verity.BlockSize)), 0, verity.BlockSize)
	for _, other := range append(others, zero) {
		n, err := b.copyFrom(s, other)
		if s.fetched.Copied += n; err != nil {
			return err
		}
	}
	b.left = make([]bool, b.super.DataSize/verity.BlockSize)
	for _, all := range b.missing {
		for _, i := range all {
			b.left[i] = true
		}
		b.count += int64(len(all))
	}
	for b.count > 0 {
		if err := try(b.fetch); err != nil {
			return err
		}
	}
	return nil
}

// compare finds out which blocks are missing, and how many bytes are not.
func (b *blocks) compare(s *stager) (kept int64, err error) {
	b.missing = map[[sha256.Size]byte][]int64{}
	return kept, s.scan(io.NewSectionReader(b, 0, b.super.DataSize), b.super.Salt, func(i int64, _ []byte, hash [sha256.Size]byte) error {
		if hash == b.wanted(i) {
			kept += verity.BlockSize
			return nil
		}
		b.missing[b.wanted(i)] = append(b.missing[b.wanted(i)], i)
		return nil
	})
}

// copyFrom takes what is missing from elsewhere, and returns how many bytes that were.
func (b *blocks) copyFrom(s *stager, other *io.SectionReader) (copied int64, err error) {
	return copied, s.scan(other, b.super.Salt, func(_ int64, block []byte, hash [sha256.Size]byte) error {
		for _, i := range b.missing[hash] {
			if err := b.put(i, block); err != nil {
				return err
			}
			copied += verity.BlockSize
		}
		delete(b.missing, hash)
		return nil
	})
}

// scan reads whole blocks, with their hashes by a salt.
func (s *stager) scan(r *io.SectionReader, salt [verity.SaltSize]byte, use func(i int64, block []byte, hash [sha256.Size]byte) error) error {
	buffer := make([]byte, piece)
	for at := int64(0); at < r.Size(); at += piece {
		if err := context.Cause(s.ctx); err != nil {
			return err
		}
		part := buffer[:min(piece, r.Size()-at)]
		if _, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(part))), part); err != nil {
			return err
		}
		for n := int64(0); n < int64(len(part)); n += verity.BlockSize {
			block := part[n : n+verity.BlockSize]
			if err := use((at+n)/verity.BlockSize, block, verity.BlockHash(block, salt)); err != nil {
				return err
			}
		}
	}
	return nil
}

// next is the next range of blocks to fetch: from the first that is left to behind the last.
func (b *blocks) next() (at, end int64) {
	for !b.left[b.first] {
		b.first++
	}
	at = b.first
	end = at + 1
	for next := end; next < int64(len(b.left)) && next-end <= maxGap/verity.BlockSize && next-at < maxRange/verity.BlockSize; next++ {
		if b.left[next] {
			end = next + 1
		}
	}
	return at, end
}

// fetch fetches one range, and puts each block in its place as it comes, if it is the wanted one. After an error those stay, and if they
// are many the range was fetched: what is left of it begins another.
func (b *blocks) fetch(f *fetcher) error {
	at, end := b.next()
	in, err := f.open(b.at+at*verity.BlockSize, (end-at)*verity.BlockSize)
	if err != nil {
		return err
	}
	defer in.Close()
	block := make([]byte, verity.BlockSize)
	for i := at; i < end; i++ {
		if _, err := io.ReadFull(in, block); err != nil {
			if (i-at)*verity.BlockSize >= piece {
				return nil
			}
			return err
		}
		if !b.left[i] {
			continue
		}
		if verity.BlockHash(block, b.super.Salt) != b.wanted(i) {
			return foreign{fmt.Errorf("block %d of the %s is not the release's: the source is damaged, or another's", i, b.what)}
		}
		if err := b.put(i, block); err != nil {
			return err
		}
		b.left[i] = false
		b.count--
	}
	return nil
}
