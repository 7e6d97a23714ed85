package verity

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// chunkBlocks is how many blocks a worker reads at once: 1 MiB.
const chunkBlocks = 256

// buildTree returns the levels of the tree as stored, top first, and the root
// hash. One block of data has no levels: its hash is the root.
func buildTree(data io.ReaderAt, size int64, salt [SaltSize]byte) (levels [][]byte, root Root, err error) {
	hashes, err := hashBlocks(data, size, salt)
	if err != nil {
		return nil, Root{}, err
	}
	for len(hashes) > sha256.Size {
		level := padBlock(hashes)
		levels = append([][]byte{level}, levels...)
		hashes = hashLevel(level, salt)
	}
	return levels, Root(hashes), nil
}

// Leaves checks a whole hash area, Size(DataSize) bytes, against a root hash, and returns its superblock and the hashes of the data's
// blocks, one after the other. What they are of is not looked at.
func Leaves(area []byte, root Root) (Superblock, []byte, error) {
	r := bytes.NewReader(area)
	s, err := ReadSuperblock(r)
	if err != nil {
		return s, nil, err
	}
	if int64(len(area)) != Size(s.DataSize) {
		return s, nil, fmt.Errorf("read verity tree: %d bytes, want %d", len(area), Size(s.DataSize))
	}
	if top, err := Top(r); err != nil || top != root {
		return s, nil, errors.Join(fmt.Errorf("read verity tree: its root hash is %x, want %x", top, root), err)
	}
	var sizes []int64 // of the levels in blocks, that of the hashes of data first
	blocks := s.DataSize / BlockSize
	for n := blocks; n > 1; sizes = append(sizes, n) {
		n = (n + hashesPerBlock - 1) / hashesPerBlock
	}
	level, rest := area[BlockSize:2*BlockSize], area[2*BlockSize:]
	for _, size := range slices.Backward(sizes[:len(sizes)-1]) {
		below := rest[:size*BlockSize]
		if got := hashLevel(below, s.Salt); !bytes.Equal(padBlock(got), level) {
			return s, nil, fmt.Errorf("read verity tree: block %d of a level does not have the hash that is above it", 1+firstDifference(got, level)/sha256.Size)
		}
		level, rest = below, rest[len(below):]
	}
	leaves := level[:blocks*sha256.Size]
	// The superblock is in no hash: what it says has to be how far the hashes go.
	if last := leaves[len(leaves)-sha256.Size:]; len(bytes.Trim(level[len(leaves):], "\x00")) > 0 || len(bytes.Trim(last, "\x00")) == 0 {
		return s, nil, fmt.Errorf("read verity tree: it does not have the hashes of %d blocks", blocks)
	}
	return s, leaves, nil
}

// BlockHash is what a tree has of a block of data.
func BlockHash(block []byte, salt [SaltSize]byte) [sha256.Size]byte {
	return [sha256.Size]byte(hashLevel(block, salt))
}

// hashBlocks returns the hashes of all blocks of the data, computed on all
// cores. Workers take chunks in turn, so memory does not grow with the data
// beyond its hashes.
func hashBlocks(data io.ReaderAt, size int64, salt [SaltSize]byte) ([]byte, error) {
	hashes := make([]byte, size/BlockSize*sha256.Size)
	chunks := (size + chunkBlocks*BlockSize - 1) / (chunkBlocks * BlockSize)
	var (
		next   atomic.Int64
		wait   sync.WaitGroup
		once   sync.Once
		failed error
	)
	for range min(int64(runtime.GOMAXPROCS(0)), chunks) {
		wait.Go(func() {
			buf := make([]byte, chunkBlocks*BlockSize)
			for {
				chunk := next.Add(1) - 1
				if chunk >= chunks {
					return
				}
				if err := hashChunk(data, size, chunk, buf, salt, hashes); err != nil {
					once.Do(func() { failed = err })
					next.Store(chunks) // the other workers stop too
					return
				}
			}
		})
	}
	wait.Wait()
	return hashes, failed
}

// hashChunk reads one chunk into buf and stores the hashes of its blocks.
func hashChunk(data io.ReaderAt, size, chunk int64, buf []byte, salt [SaltSize]byte, hashes []byte) error {
	start := chunk * chunkBlocks * BlockSize
	buf = buf[:min(int64(len(buf)), size-start)]
	if _, err := io.ReadFull(io.NewSectionReader(data, start, int64(len(buf))), buf); err != nil {
		return fmt.Errorf("read data at %d: %w", start, err)
	}
	copy(hashes[start/BlockSize*sha256.Size:], hashLevel(buf, salt))
	return nil
}

// hashLevel returns the hashes of the blocks of b.
func hashLevel(b []byte, salt [SaltSize]byte) []byte {
	out := make([]byte, 0, len(b)/BlockSize*sha256.Size)
	h := sha256.New()
	for ; len(b) > 0; b = b[BlockSize:] {
		h.Reset()
		h.Write(salt[:])
		h.Write(b[:BlockSize])
		out = h.Sum(out)
	}
	return out
}

// padBlock fills the last block with zeros.
func padBlock(b []byte) []byte {
	if rest := len(b) % BlockSize; rest > 0 {
		b = append(b, make([]byte, BlockSize-rest)...)
	}
	return b
}
