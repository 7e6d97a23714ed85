package erofs

import (
	"encoding/binary"
	"math/bits"
)

// Rules of an LZ4 block (lz4_Block_format.md).
const (
	minMatch     = 4     // a match is at least so long
	maxDistance  = 65535 // and begins at most so far back
	lastLiterals = 5     // the last bytes of a block are literals
	matchLimit   = 12    // no match begins in so many bytes before the end
)

// What the encoder looks at. More candidates or a longer stretch cost time and save little; a change here changes images: see encoding.
const (
	hashBits   = 16
	candidates = 8
	// enough is a match so long that none is looked for at the positions that it covers.
	enough = 16
	// stretch is how many bytes are parsed at once.
	stretch = 8 << 10
	// probe is after how many bytes a cluster that saves nothing is given up.
	probe = 2 * stretch
)

// An encoder compresses stretches of bytes to LZ4 blocks of a wanted size. It looks for the longest match among some candidates
// at every position, and picks those that make the output smallest. The same bytes give the same blocks, whatever it was used
// for before.
type encoder struct {
	// head has the last position with a hash, plus one; chain the distance to the one before it, by the position's low 16 bits, or zero.
	head  [1 << hashBits]uint32
	chain [1 << 16]uint16
	// inserted is the first position that head does not know.
	inserted int

	length   [stretch]uint32
	distance [stretch]uint16
	// cost is what encoding costs from a position of the stretch on, in eighths of a byte.
	cost [stretch + 1]int32
}

// reset forgets everything, for the next source.
func (e *encoder) reset() {
	clear(e.head[:])
	e.inserted = 0
}

// encode compresses src from start on into dst, a block that decodes by itself. It fills dst as far as it can and returns how
// many bytes of src the block stands for, and its length. After reset, calls on the same src must have rising starts. If the
// first bytes do not become fewer, it gives up early and says how many were looked at, with written 0.
func (e *encoder) encode(src []byte, start int, dst []byte) (read, written int) {
	out := blockWriter{src: src, dst: dst, anchor: start}
	at := start
	for at < len(src) {
		end := min(at+stretch, len(src))
		e.find(src, start, at, end)
		e.parse(at, end)
		var full bool
		if at, full = e.emit(&out, at, end); full {
			return out.finish() - start, out.n
		}
		if looked := at - start; looked >= probe && out.size(at) > looked-looked/64 && looked < 2*probe {
			return looked, 0
		}
	}
	return out.finish() - start, out.n
}

// find sets length and distance of the longest match of all positions of src[at:end], in what follows low.
func (e *encoder) find(src []byte, low, at, end int) {
	e.insert(src, at)
	length, distance := uint32(0), uint16(0)
	last := len(src) - matchLimit
	for p := at; p < end; p++ {
		i := p - at
		if p > last {
			e.length[i] = 0
			continue
		}
		if length > 0 {
			length-- // the match of the position before goes on
		}
		if length < minMatch {
			length, distance = 0, 0
		}
		if p >= e.inserted {
			e.insertOne(src, p)
		}
		if length < enough {
			before := distance
			length, distance = e.longest(src, max(low, p-maxDistance), p, length, distance)
			if distance != before {
				e.extend(src[low:p], i, length, distance)
			}
		}
		e.length[i], e.distance[i] = length, distance
	}
}

// extend lets positions before position i of the stretch use its match too, as far as it goes on backwards in src and is longer
// than theirs.
func (e *encoder) extend(src []byte, i int, length uint32, distance uint16) {
	for i, p := i-1, len(src)-1; i >= 0 && p >= int(distance) && src[p] == src[p-int(distance)]; i, p = i-1, p-1 {
		if length++; length <= e.length[i] {
			return
		}
		e.length[i], e.distance[i] = length, distance
	}
}

// longest returns the longest match for position p that begins at low or after it, if it is longer than the one that is known.
func (e *encoder) longest(src []byte, low, p int, length uint32, distance uint16) (uint32, uint16) {
	limit := src[: len(src)-lastLiterals : len(src)-lastLiterals]
	here := src[p:len(limit)]
	best := max(int(length), minMatch-1)
	if best >= len(here) {
		return length, distance
	}
	want := binary.LittleEndian.Uint32(here[best-3:])
	c := p
	for range candidates {
		step := int(e.chain[uint16(c)])
		c -= step
		if step == 0 || c < low {
			break
		}
		if binary.LittleEndian.Uint32(src[c+best-3:]) != want {
			continue
		}
		if n := common(limit[c:], here); n > best {
			best = n
			length, distance = uint32(n), uint16(p-c)
			if n >= enough || n == len(here) {
				break
			}
			want = binary.LittleEndian.Uint32(here[best-3:])
		}
	}
	return length, distance
}

// common returns how many first bytes of b are those of a, which is not shorter.
func common(a, b []byte) int {
	n := 0
	for len(b)-n >= 8 && len(a)-n >= 8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
		n += 8
	}
	for n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// insert makes all positions before end known.
func (e *encoder) insert(src []byte, end int) {
	for end = min(end, len(src)-minMatch); e.inserted < end; {
		e.insertOne(src, e.inserted)
	}
}

func (e *encoder) insertOne(src []byte, p int) {
	h := binary.LittleEndian.Uint32(src[p:]) * 2654435761 >> (32 - hashBits)
	step := p + 1 - int(e.head[h])
	if step > maxDistance || e.head[h] == 0 {
		step = 0
	}
	e.chain[uint16(p)] = uint16(step)
	e.head[h] = uint32(p + 1)
	e.inserted = p + 1
}

// parse decides for each position of a stretch whether to begin a match there: length is zero where not. A shorter match than
// the longest is never better, since what follows costs no less from an earlier position.
func (e *encoder) parse(at, end int) {
	n := end - at
	e.cost[n] = 0
	for i := n - 1; i >= 0; i-- {
		e.cost[i] = e.cost[i+1] + 8
		if e.length[i] == 0 {
			continue
		}
		c := int32(3 * 8)
		l := int(e.length[i])
		if l >= minMatch+15 {
			c += 8 * int32(1+(l-minMatch-15)/255)
		}
		if i+l <= n {
			c += e.cost[i+l]
		} else {
			c -= 4 * int32(min(i+l-n, 1<<20)) // what it covers of the next stretch need not be encoded there
		}
		if c < e.cost[i] {
			e.cost[i] = c
		} else {
			e.length[i] = 0
		}
	}
}

// emit writes what parse chose. It returns the position up to which it came, which may be after end, and whether the block is full.
func (e *encoder) emit(out *blockWriter, at, end int) (p int, full bool) {
	for p = at; p < end; {
		l := int(e.length[p-at])
		if l == 0 {
			p++
			continue
		}
		if !out.sequence(p, l, int(e.distance[p-at])) {
			return p, true
		}
		p += l
	}
	return p, !out.fits(p)
}

// A blockWriter writes the sequences of one block. Up to anchor, src is written.
type blockWriter struct {
	src, dst  []byte
	anchor, n int
}

// extra is how many bytes it takes to write a length beyond the token's four bits.
func extra(n int) int {
	if n < 15 {
		return 0
	}
	return 1 + (n-15)/255
}

// size is the length of the block if it ended at p.
func (o *blockWriter) size(p int) int { return o.n + 1 + extra(p-o.anchor) + p - o.anchor }

// fits tells whether the bytes up to p can be written as literals.
func (o *blockWriter) fits(p int) bool { return o.size(p) <= len(o.dst) }

// sequence writes the literals before p and a match there. It does nothing and returns false if too little would be left for
// the end of the block.
func (o *blockWriter) sequence(p, length, distance int) bool {
	end := 1 + max(lastLiterals, matchLimit-length)
	if o.size(p)+2+extra(length-minMatch)+end > len(o.dst) {
		return false
	}
	o.literals(p, length-minMatch)
	o.dst[o.n], o.dst[o.n+1] = byte(distance), byte(distance>>8)
	o.n += 2
	o.more(length - minMatch)
	o.anchor = p + length
	return true
}

// literals writes a token for a match, and the literals up to p.
func (o *blockWriter) literals(p, match int) {
	n := p - o.anchor
	o.dst[o.n] = byte(min(n, 15)<<4 | min(match, 15))
	o.n++
	o.more(n)
	o.n += copy(o.dst[o.n:], o.src[o.anchor:p])
}

// more writes the part of a length that does not fit in the token.
func (o *blockWriter) more(n int) {
	if n < 15 {
		return
	}
	for n -= 15; n >= 255; n -= 255 {
		o.dst[o.n] = 255
		o.n++
	}
	o.dst[o.n] = byte(n)
	o.n++
}

// finish ends the block with as many literals as fit, and returns the position after them.
func (o *blockWriter) finish() int {
	room := len(o.dst) - o.n - 1
	n := min(room, len(o.src)-o.anchor)
	for n+extra(n) > room {
		n--
	}
	end := o.anchor + n
	o.literals(end, 0)
	o.anchor = end
	return end
}
