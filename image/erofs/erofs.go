// Package erofs writes read-only EROFS images with LZ4 compression, as mkfs.erofs -zlz4hc -C65536 -Eztailpacking does (Linux
// 6.12, Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h). An image is a function of its files, whatever machine
// makes it, and what an earlier image holds of them need not be compressed again.
package erofs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"time"
)

// File is one name in the tree.
type File struct {
	// Name is the path, clean, relative and with slashes; "." is the root folder. All folders on the way to a file have to be there.
	Name string
	// Mode is type and permissions: a regular file, a folder or a symbolic link.
	Mode     fs.FileMode
	UID, GID uint32
	// Link is where a symbolic link points to.
	Link string
	// Xattrs are the extended attributes by their full names ("security.capability"), at most maxXattrs bytes in all.
	Xattrs map[string]string
	// Same marks hard links: files other than folders with the same non-empty value are names of one file, and alike in all but the name.
	Same string
	// Size is a regular file's length in bytes. Open returns its content; it is called from several goroutines and more than once.
	Size int64
	Open func() (io.ReadCloser, error)
}

// Image is a file system that is ready to be written. It holds the compressed files in memory.
type Image struct {
	// metadata are the first blocks, up to the content of files; UUID and checksum are still zero.
	metadata []byte
	contents []*content
}

// Pack reads, compresses and lays out a tree, on all cores. Every file gets the time at, which has to be a whole second after
// 1970. What is in one of the earlier images is taken from there, if it is still what it was. The error names the file that it
// is about.
func Pack(ctx context.Context, files []File, at time.Time, earlier ...*Earlier) (*Image, error) {
	inodes, err := link(files)
	if err != nil {
		return nil, fmt.Errorf("pack erofs: %w", err)
	}
	contents, err := pack(ctx, inodes, earlier)
	if err != nil {
		return nil, fmt.Errorf("pack erofs: %w", err)
	}
	metadata, err := layOut(inodes, contents, at)
	if err != nil {
		return nil, fmt.Errorf("pack erofs: %w", err)
	}
	return &Image{metadata: metadata, contents: contents}, nil
}

// Digest is a SHA-256 over all that the image holds, names, modes, owners, time and content, and how it is packed.
func (i *Image) Digest() [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte(encoding))
	h.Write(i.metadata)
	for _, c := range i.contents {
		h.Write(c.sum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Write writes the image from its first byte to its last. The UUID names the file system; its string form prints the bytes in this order.
func (i *Image) Write(w io.Writer, uuid [16]byte) error {
	first := append([]byte(nil), i.metadata[:blockSize]...)
	copy(first[superOffset+48:], uuid[:])
	// The kernel's crc32c begins with all bits set and does not invert the result.
	sum := ^crc32.Checksum(first[superOffset:], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(first[superOffset+4:], sum)
	parts := [][]byte{first, i.metadata[blockSize:]}
	for _, c := range i.contents {
		parts = append(parts, c.blocks)
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return fmt.Errorf("write erofs: %w", err)
		}
	}
	return nil
}
