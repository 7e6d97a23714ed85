package erofs

import "encoding/binary"

// Numbers of the compact index (erofs_fs.h, struct z_erofs_map_header; fs/erofs/zmap.c).
const (
	mapHeaderSize = 8

	adviseCompacted2B = 1 << 0
	adviseBigPcluster = 1<<1 | 1<<2
	adviseInline      = 1 << 3

	typePlain   = 0
	typeHead    = 1
	typeNonhead = 2

	// blockCount marks the number of a cluster's blocks in the second logical cluster that it covers.
	blockCount = 1 << 11
)

// indexStart is where the index begins behind an inode with attributes of that size.
func indexStart(fixed int) int { return (fixed+7)&^7 + mapHeaderSize }

// indexPacks returns how many logical clusters are in packs of 8 bytes for two, then in packs of 32 bytes for sixteen, and then
// again in packs of 8.
func indexPacks(fixed int, size int64) (first, middle, rest int) {
	n := int((size + blockSize - 1) / blockSize)
	first = min(-indexStart(fixed)&31/4, n)
	middle = (n - first) &^ 15
	return first, middle, n - first - middle
}

// indexSize is the index's length in bytes.
func indexSize(fixed int, size int64) int {
	first, middle, rest := indexPacks(fixed, size)
	return (first+1)&^1*4 + middle*2 + (rest+1)&^1*4
}

// logical is what the index says of one logical cluster, a block of the file.
type logical struct {
	kind int
	// low is where in it a cluster begins, or how far back it does, or its number of blocks; ahead is how far away the next one begins.
	low, ahead int
	// block is the address of the cluster that begins here.
	block int64
}

// logicals returns all logical clusters of a compressed content.
func (c *content) logicals() []logical {
	out := make([]logical, (c.size+blockSize-1)/blockSize)
	at, block := 0, c.block
	for _, p := range c.clusters {
		head, next := at/blockSize, (at+p.read)/blockSize
		kind := typeHead
		if p.raw {
			kind = typePlain
		}
		out[head] = logical{kind: kind, low: at % blockSize, block: block}
		for n := head + 1; n < next; n++ {
			out[n] = logical{kind: typeNonhead, low: n - head, ahead: next - n}
		}
		if head+1 < next {
			out[head+1].low = blockCount | max(p.blocks, 1)
		}
		at += p.read
		block += int64(p.blocks)
		if next > head && next < len(out) {
			// Here the next cluster begins, or the file ends.
			out[next] = logical{kind: typePlain, low: at % blockSize, block: block}
		}
	}
	return out
}

// writeIndex writes map header and index behind an inode with attributes of that size.
func (c *content) writeIndex(out []byte, fixed int) {
	start := indexStart(fixed)
	header := out[start-mapHeaderSize:]
	advise := uint16(adviseCompacted2B | adviseBigPcluster)
	if len(c.tail) > 0 {
		advise |= adviseInline
		binary.LittleEndian.PutUint16(header[2:], uint16(len(c.tail)))
	}
	binary.LittleEndian.PutUint16(header[4:], advise)
	all, out := c.logicals(), out[start:]
	first, middle, _ := indexPacks(fixed, c.size)
	for n := 0; n < len(all); {
		count, bits := 2, 16
		if n >= first && n < first+middle {
			count, bits = 16, 14
		}
		end := min(n+count, len(all))
		size := count*bits/8 + 4
		writePack(out[:size], all[n:end], count, bits)
		out = out[size:]
		n = end
	}
}

// writePack writes logical clusters of so many bits each, and the address that those of the clusters that begin there are counted from.
func writePack(out []byte, part []logical, count, bits int) {
	base, found := int64(0), false
	for n, l := range part {
		low := l.low
		if l.kind == typeNonhead && n == count-1 && low&blockCount == 0 {
			low = l.ahead
		}
		v := uint32(l.kind<<12|low) << (n * bits % 8)
		for b := n * bits / 8; v != 0; b, v = b+1, v>>8 {
			out[b] |= byte(v)
		}
		if l.kind != typeNonhead && !found {
			base, found = l.block, true
			if part[0].kind == typeNonhead && part[0].low&blockCount != 0 {
				base -= int64(part[0].low &^ blockCount)
			}
		}
	}
	binary.LittleEndian.PutUint32(out[len(out)-4:], uint32(base))
}
