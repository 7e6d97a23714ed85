// Package verity writes and checks the dm-verity hash tree of a file system,
// byte-identical to what veritysetup format writes: SHA-256 over 4 KiB blocks,
// hash type 1, superblock first (cryptsetup, docs/on-disk-format of verity;
// Linux, Documentation/admin-guide/device-mapper/verity.rst).
package verity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Sizes of the one profile of the format that is supported, in bytes.
const (
	// BlockSize is the size of data and hash blocks. The superblock occupies
	// the first block of the hash area.
	BlockSize = 4096
	// SaltSize is the length of the salt.
	SaltSize = 32
	// MaxSize bounds the data. The tree of that much data is 128 MiB, which
	// Write and Verify hold in memory.
	MaxSize = 16 << 30

	hashesPerBlock = BlockSize / sha256.Size
)

// Root is the hash at the top of the tree. It identifies the data.
type Root [sha256.Size]byte

// Parameter starts the word of a kernel command line that holds the root hash (systemd-veritysetup-generator(8)).
const Parameter = "roothash="

// RootOf finds the one root hash of a kernel command line.
func RootOf(cmdline string) (root Root, err error) {
	var found []string
	for word := range strings.FieldsSeq(cmdline) {
		if value, ok := strings.CutPrefix(word, Parameter); ok {
			found = append(found, value)
		}
	}
	if len(found) != 1 {
		return root, fmt.Errorf("kernel command line: %d words start with %s, want one", len(found), Parameter)
	}
	b, err := hex.DecodeString(found[0])
	if err != nil || len(b) != len(root) || found[0] != strings.ToLower(found[0]) {
		return root, fmt.Errorf("kernel command line: %s%.80s: want %d lower-case hexadecimal digits", Parameter, found[0], 2*len(root))
	}
	return Root(b), nil
}

// Params are the values of a superblock that do not follow from the data.
type Params struct {
	// Salt is hashed in front of every block.
	Salt [SaltSize]byte
	// UUID names the device; its string form prints the bytes in this order.
	UUID [16]byte
}

// Size returns how many bytes Write writes for that many bytes of data.
func Size(dataSize int64) int64 {
	blocks := int64(1)
	for n := dataSize / BlockSize; n > 1; {
		n = (n + hashesPerBlock - 1) / hashesPerBlock
		blocks += n
	}
	return blocks * BlockSize
}

// Write hashes size bytes of data on all cores and writes the superblock and
// the tree, Size(size) bytes, to w. size must be a positive multiple of
// BlockSize and at most MaxSize.
func Write(data io.ReaderAt, size int64, w io.Writer, p Params) (Root, error) {
	if err := checkSize(size); err != nil {
		return Root{}, fmt.Errorf("write verity tree: %w", err)
	}
	levels, root, err := buildTree(data, size, p.Salt)
	if err != nil {
		return Root{}, fmt.Errorf("write verity tree: %w", err)
	}
	parts := append([][]byte{superblock(size, p)}, levels...)
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return Root{}, fmt.Errorf("write verity tree: %w", err)
		}
	}
	return root, nil
}

// Superblock is what the first block of the hash area says.
type Superblock struct {
	Params
	// DataSize is the length of the data that the tree covers, in bytes.
	DataSize int64
}

// ReadSuperblock decodes the superblock at the start of r. It fails for
// anything that Write would not have written. The content is not authentic by
// itself: only data that hashes to a trusted Root is.
func ReadSuperblock(r io.ReaderAt) (Superblock, error) {
	b := make([]byte, BlockSize)
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, BlockSize), b); err != nil {
		return Superblock{}, fmt.Errorf("read verity superblock: %w", err)
	}
	if string(b[:8]) != signature {
		return Superblock{}, errors.New("read verity superblock: no verity signature")
	}
	blocks := binary.LittleEndian.Uint64(b[72:])
	if blocks < 1 || blocks > MaxSize/BlockSize {
		return Superblock{}, fmt.Errorf("read verity superblock: %d data blocks, want 1 to %d", blocks, MaxSize/BlockSize)
	}
	s := Superblock{DataSize: int64(blocks) * BlockSize}
	copy(s.UUID[:], b[16:32])
	copy(s.Salt[:], b[88:])
	if !bytes.Equal(b, superblock(s.DataSize, s.Params)) {
		return Superblock{}, errors.New("read verity superblock: not version 1, hash type 1, sha256 with 4096-byte blocks and a 32-byte salt")
	}
	return s, nil
}

// Top returns the root hash of the tree in a hash area, by its top block alone: what lies below that is not looked at. It fails for the
// tree of a single block of data, which has no block of its own.
func Top(tree io.ReaderAt) (Root, error) {
	s, err := ReadSuperblock(tree)
	if err != nil {
		return Root{}, err
	}
	if s.DataSize <= BlockSize {
		return Root{}, errors.New("read verity tree: it covers a single block, and has none itself")
	}
	top := make([]byte, BlockSize)
	if _, err := io.ReadFull(io.NewSectionReader(tree, BlockSize, BlockSize), top); err != nil {
		return Root{}, fmt.Errorf("read verity tree: %w", err)
	}
	return Root(hashLevel(top, s.Salt)), nil
}

// Verify checks that size bytes of data are what root stands for and that the
// hash area is exactly what Write would have written, so that every read of
// the opened device succeeds. The error names the first damaged data block.
func Verify(data io.ReaderAt, size int64, tree io.ReaderAt, treeSize int64, root Root) error {
	s, err := ReadSuperblock(tree)
	if err != nil {
		return err
	}
	if s.DataSize != size || Size(size) != treeSize {
		return fmt.Errorf("verify data: the tree covers %d bytes, the data has %d", s.DataSize, size)
	}
	levels, got, err := buildTree(data, size, s.Salt)
	if err != nil {
		return fmt.Errorf("verify data: %w", err)
	}
	stored := make([]byte, treeSize-BlockSize)
	if _, err := io.ReadFull(io.NewSectionReader(tree, BlockSize, treeSize-BlockSize), stored); err != nil {
		return fmt.Errorf("verify data: read tree: %w", err)
	}
	want := bytes.Join(levels, nil)
	switch same := bytes.Equal(want, stored); {
	case got == root && same:
		return nil
	case got == root:
		return fmt.Errorf("verify data: the hash tree is damaged in its block %d; the data is whole", 1+firstDifference(want, stored)/BlockSize)
	case len(levels) == 0 || same:
		return fmt.Errorf("verify data: root hash: want %x, got %x: other data", root, got)
	}
	leaves := levels[len(levels)-1]
	n := firstDifference(leaves, stored[len(stored)-len(leaves):]) / sha256.Size
	return fmt.Errorf("verify data: root hash: want %x, got %x: block %d of the data or its hash is damaged", root, got, n)
}

const signature = "verity\x00\x00"

// superblock returns the first block of the hash area (struct verity_sb of
// libcryptsetup, then zeros).
func superblock(size int64, p Params) []byte {
	b := make([]byte, BlockSize)
	copy(b, signature)
	binary.LittleEndian.PutUint32(b[8:], 1)  // version
	binary.LittleEndian.PutUint32(b[12:], 1) // hash type: salt first
	copy(b[16:32], p.UUID[:])
	copy(b[32:64], "sha256")
	binary.LittleEndian.PutUint32(b[64:], BlockSize)
	binary.LittleEndian.PutUint32(b[68:], BlockSize)
	binary.LittleEndian.PutUint64(b[72:], uint64(size/BlockSize))
	binary.LittleEndian.PutUint16(b[80:], SaltSize)
	copy(b[88:], p.Salt[:])
	return b
}

func checkSize(size int64) error {
	if size <= 0 || size%BlockSize != 0 || size > MaxSize {
		return fmt.Errorf("%d bytes of data, want a positive multiple of %d and at most %d", size, BlockSize, int64(MaxSize))
	}
	return nil
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
