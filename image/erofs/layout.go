package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"
)

// Where things lie, in bytes.
const (
	superOffset = 1024
	superSize   = 128
	slot        = 32 // inodes begin at multiples of it; their number is which one
	firstInode  = superOffset + superSize + slot
)

// Numbers of the format (erofs_fs.h).
const (
	magic = 0xe0f5e1e2

	compatChecksum = 1 << 0
	compatMtime    = 1 << 1

	incompatZeroPadding  = 1 << 0
	incompatBigPcluster  = 1 << 1 // and a configuration of each algorithm after the superblock
	incompatZtailpacking = 1 << 4

	flatPlain         = 0
	flatInline        = 2
	compressedCompact = 3

	nullAddress = math.MaxUint32
)

// metadataStep is what the blocks before the contents are a multiple of: a few more bytes of them move no content.
const metadataStep = 16

// layOut gives every inode and every content its place, and returns all blocks before the contents.
func layOut(inodes []*inode, contents []*content, at time.Time) ([]byte, error) {
	if at.Unix() < 0 || at.Nanosecond() != 0 {
		return nil, fmt.Errorf("time %v: want a whole second after 1970", at)
	}
	for _, i := range inodes {
		i.prepare()
	}
	a := allocator{end: firstInode}
	for _, i := range inodes {
		i.at = a.place(i.headSize(), len(i.tail()), i.compressed())
	}
	next := (a.end + blockSize - 1) / blockSize
	for _, i := range inodes {
		if i.data != nil {
			i.block = next
			next += int64(len(i.flatBlocks()) / blockSize)
		}
	}
	next = align(next, metadataStep)
	metadata := make([]byte, next*blockSize)
	for _, c := range contents {
		c.block = next
		next += int64(len(c.blocks) / blockSize)
	}
	if next > math.MaxUint32 {
		return nil, errors.New("the files do not fit in 2^32 blocks")
	}
	for _, i := range inodes {
		i.write(metadata, at)
	}
	writeSuperblock(metadata[superOffset:], inodes, next, at)
	return metadata, nil
}

// reach is how far back a gap is filled, in bytes: an inode of another size moves those around it, and not all that follow. So more of an
// image is the same as in an earlier one, for 0.02 % of its size.
const reach = 4 * blockSize

// An allocator finds places for inodes. Those that have to lie in one block leave gaps at the ends of blocks, which later ones fill.
type allocator struct {
	end  int64
	gaps []gap
}

// gap is a free stretch of one block.
type gap struct{ start, end int64 }

// place returns where head bytes and, in one block, the tail after them fit. Unless it is split, head is in that block too.
func (a *allocator) place(head, tail int, split bool) int64 {
	size := int64(head + tail)
	for len(a.gaps) > 0 && a.gaps[0].end < a.end-reach {
		a.gaps = a.gaps[1:]
	}
	for n, g := range a.gaps {
		if g.start+size <= g.end {
			a.gaps[n].start = align(g.start+size, slot)
			return g.start
		}
	}
	at := align(a.end, slot)
	switch {
	case split && tail > 0 && (at+int64(head))%blockSize+int64(tail) > blockSize:
		at = a.skip(align(align(at+int64(head), blockSize)-int64(head), slot))
	case !split && at%blockSize+size > blockSize:
		at = a.skip(align(at, blockSize))
	}
	a.end = at + size
	return at
}

// skip leaves gaps up to a position.
func (a *allocator) skip(to int64) int64 {
	for at := align(a.end, slot); at < to; {
		end := min(to, align(at+1, blockSize))
		a.gaps = append(a.gaps, gap{at, end})
		at = end
	}
	return to
}

func align(n, to int64) int64 { return (n + to - 1) / to * to }

// prepare makes the data of what has no content to open. A folder's gets its numbers later.
func (i *inode) prepare() {
	switch i.Mode.Type() {
	case fs.ModeDir:
		i.data = encodeFolder(i.entries)
	case fs.ModeSymlink:
		i.data = []byte(i.Link)
	}
}

func (i *inode) compressed() bool { return i.content != nil && i.content.clusters != nil }

// flatBlocks are the blocks of a folder or symbolic link that lie in blocks of their own.
func (i *inode) flatBlocks() []byte {
	n := len(i.data) / blockSize * blockSize
	if len(i.data)-n > maxTail {
		return append(append([]byte(nil), i.data...), make([]byte, n+blockSize-len(i.data))...)
	}
	return i.data[:n]
}

// tail is what lies behind the inode.
func (i *inode) tail() []byte {
	switch {
	case i.content != nil:
		return i.content.tail
	case len(i.data)%blockSize <= maxTail:
		return i.data[len(i.data)/blockSize*blockSize:]
	}
	return nil
}

// length is the file's size as stat tells it.
func (i *inode) length() int64 {
	if i.data != nil {
		return int64(len(i.data))
	}
	return i.Size
}

// extended tells whether the 32 bytes of a compact inode are too few.
func (i *inode) extended() bool {
	return i.length() > math.MaxUint32 || i.links > math.MaxUint16 || i.UID > math.MaxUint16 || i.GID > math.MaxUint16
}

// fixedSize is the length of the inode and its attributes.
func (i *inode) fixedSize() int {
	n := 32 + len(i.xattrs)
	if i.extended() {
		n += 32
	}
	return n
}

// headSize is the length of all that is before the tail.
func (i *inode) headSize() int {
	n := i.fixedSize()
	if i.compressed() {
		n = indexStart(n) + indexSize(n, i.content.size)
	}
	return n
}

// write writes inode, attributes, indexes, tail, and blocks of its own to the first blocks of the image.
func (i *inode) write(metadata []byte, at time.Time) {
	out := metadata[i.at:]
	layout, value := i.layout()
	le := binary.LittleEndian
	if i.extended() {
		le.PutUint16(out, layout<<1|1)
		le.PutUint64(out[8:], uint64(i.length()))
		le.PutUint32(out[24:], i.UID)
		le.PutUint32(out[28:], i.GID)
		le.PutUint64(out[32:], uint64(at.Unix()))
		le.PutUint32(out[44:], uint32(i.links))
	} else {
		le.PutUint16(out, layout<<1)
		le.PutUint16(out[6:], uint16(i.links))
		le.PutUint32(out[8:], uint32(i.length()))
		le.PutUint16(out[24:], uint16(i.UID))
		le.PutUint16(out[26:], uint16(i.GID))
	}
	if len(i.xattrs) > 0 {
		le.PutUint16(out[2:], uint16((len(i.xattrs)-12)/4+1))
	}
	le.PutUint16(out[4:], unixMode(i.Mode))
	le.PutUint32(out[16:], value)
	le.PutUint32(out[20:], uint32(i.number))
	copy(out[i.fixedSize()-len(i.xattrs):], i.xattrs)
	if i.compressed() {
		i.content.writeIndex(out[:i.headSize()], i.fixedSize())
	}
	if i.Mode.IsDir() {
		numberEntries(i.data, i.entries)
	}
	copy(out[i.headSize():], i.tail())
	if i.content != nil && i.content.tailAt == 0 {
		i.content.tailAt = i.at + int64(i.headSize())
	}
	if i.data != nil {
		copy(metadata[i.block*blockSize:], i.flatBlocks())
	}
}

// layout returns the data layout, and what the inode says of where the data is.
func (i *inode) layout() (layout uint16, value uint32) {
	switch {
	case i.compressed():
		return compressedCompact, uint32(len(i.content.blocks) / blockSize)
	case i.length() == 0:
		return flatPlain, nullAddress
	}
	block, blocks := i.block, len(i.flatBlocks())
	if i.content != nil {
		block, blocks = i.content.block, len(i.content.blocks)
	}
	value = uint32(block)
	if blocks == 0 {
		value = nullAddress
	}
	if len(i.tail()) > 0 {
		return flatInline, value
	}
	return flatPlain, value
}

// unixMode returns the mode as stat(2) has it.
func unixMode(m fs.FileMode) uint16 {
	out := uint16(m.Perm())
	for bit, is := range map[uint16]bool{0o4000: m&fs.ModeSetuid != 0, 0o2000: m&fs.ModeSetgid != 0, 0o1000: m&fs.ModeSticky != 0} {
		if is {
			out |= bit
		}
	}
	return out | fileTypes[m.Type()].mode
}

// fileTypes are the types by their numbers in modes and in folders.
var fileTypes = map[fs.FileMode]struct {
	mode  uint16
	entry byte
}{
	0: {0o100000, 1}, fs.ModeDir: {0o040000, 2}, fs.ModeSymlink: {0o120000, 7},
}

// entrySize is the length of a struct erofs_dirent.
const entrySize = 12

// folderBlocks calls do for the entries of each block of a folder, with how many bytes of it they need.
func folderBlocks(entries []entry, do func(entries []entry, size int)) {
	for len(entries) > 0 {
		n, size := 0, 0
		for ; n < len(entries) && size+entrySize+len(entries[n].name) <= blockSize; n++ {
			size += entrySize + len(entries[n].name)
		}
		do(entries[:n], size)
		entries = entries[n:]
	}
}

// encodeFolder returns a folder's blocks, the last one up to where it ends: in each the entries and then their names. The
// inodes have no numbers yet.
func encodeFolder(entries []entry) []byte {
	var out []byte
	folderBlocks(entries, func(entries []entry, size int) {
		out = append(out, make([]byte, -len(out)&(blockSize-1))...)
		name := len(entries) * entrySize
		for _, e := range entries {
			out = append(out, make([]byte, 8)...)
			out = append(out, byte(name), byte(name>>8), fileTypes[e.of.Mode.Type()].entry, 0)
			name += len(e.name)
		}
		for _, e := range entries {
			out = append(out, e.name...)
		}
	})
	return out
}

// numberEntries fills in the inodes' numbers.
func numberEntries(data []byte, entries []entry) {
	folderBlocks(entries, func(entries []entry, _ int) {
		for n, e := range entries {
			binary.LittleEndian.PutUint64(data[n*entrySize:], uint64(e.of.at/slot))
		}
		data = data[min(blockSize, len(data)):]
	})
}

// writeSuperblock writes all but UUID and checksum (struct erofs_super_block), and the configuration of LZ4.
func writeSuperblock(out []byte, inodes []*inode, blocks int64, at time.Time) {
	le := binary.LittleEndian
	le.PutUint32(out, magic)
	le.PutUint32(out[8:], compatChecksum|compatMtime)
	out[12] = 12 // the block size is 1<<12
	le.PutUint16(out[14:], uint16(inodes[0].at/slot))
	le.PutUint64(out[16:], uint64(len(inodes)))
	le.PutUint64(out[24:], uint64(at.Unix()))
	le.PutUint32(out[36:], uint32(blocks))
	le.PutUint32(out[80:], incompatZeroPadding|incompatBigPcluster|incompatZtailpacking)
	le.PutUint16(out[84:], 1<<0) // the algorithms: LZ4 alone
	config := out[superSize:]
	le.PutUint16(config, 14)
	le.PutUint16(config[2:], maxDistance)
	le.PutUint16(config[4:], clusterSize/blockSize)
}
