package firmware

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Parameters of EFI's compression, LZ77 with Huffman codes per block (UEFI 2.10 §19.2).
const (
	efiLiterals     = 256
	efiThreshold    = 3 // the shortest match, in bytes
	efiCodes        = efiLiterals + 256 + 1 - efiThreshold
	efiCodeBits     = 9 // how many bits count efiCodes
	efiLengths      = 19
	efiLengthBits   = 5
	efiPositions    = 14
	efiPositionBits = 4
	efiMaxCode      = 16 // the longest Huffman code, in bits
)

var errEFITruncated = errors.New("compressed data ends in the middle")

// decompressEFI unpacks data that begins with its compressed and its original length in bytes. The result has at most limit bytes.
func decompressEFI(packed []byte, limit int) ([]byte, error) {
	if len(packed) < 8 {
		return nil, errEFITruncated
	}
	size, original := binary.LittleEndian.Uint32(packed), binary.LittleEndian.Uint32(packed[4:])
	if int64(size) > int64(len(packed)-8) || int64(original) > int64(limit) {
		return nil, fmt.Errorf("%d bytes that unpack to %d, want at most %d to at most %d", size, original, len(packed)-8, limit)
	}
	d := efiDecoder{in: bits{data: packed[8 : 8+size]}, out: make([]byte, 0, original)}
	for len(d.out) < int(original) {
		if err := d.symbol(int(original)); err != nil {
			return nil, err
		}
	}
	return d.out, nil
}

// bits reads a stream from the highest bit of its first byte on.
type bits struct {
	data []byte
	at   int
}

// read returns the next n bits, at most 16.
func (b *bits) read(n int) (int, error) {
	if b.at+n > 8*len(b.data) {
		return 0, errEFITruncated
	}
	value := 0
	for range n {
		value = value<<1 | int(b.data[b.at/8]>>(7-b.at%8)&1)
		b.at++
	}
	return value, nil
}

// code is a canonical Huffman code: of symbols with codes of equal length, the lower has the lower code.
type code struct {
	counts  [efiMaxCode + 1]int // how many symbols have codes of that many bits
	symbols []int               // by length, then by value
	only    int                 // the symbol that takes no bits, if symbols is empty
}

// newCode makes the code in which each symbol's code has the given length, 0 for a symbol without one.
func newCode(lengths []int) (code, error) {
	var c code
	for _, n := range lengths {
		if n > efiMaxCode {
			return c, fmt.Errorf("a code of %d bits", n)
		}
		c.counts[n]++
	}
	c.counts[0] = 0
	room := 1
	for length := 1; length <= efiMaxCode; length++ {
		if room = room<<1 - c.counts[length]; room < 0 {
			return c, errors.New("more codes than bits can tell apart")
		}
		for symbol, n := range lengths {
			if n == length {
				c.symbols = append(c.symbols, symbol)
			}
		}
	}
	if len(c.symbols) == 0 {
		return c, errors.New("a code without symbols")
	}
	return c, nil
}

// read decodes one symbol.
func (c code) read(in *bits) (int, error) {
	if len(c.symbols) == 0 {
		return c.only, nil
	}
	value, first, index := 0, 0, 0
	for length := 1; length <= efiMaxCode; length++ {
		bit, err := in.read(1)
		if err != nil {
			return 0, err
		}
		value |= bit
		if value-first < c.counts[length] {
			return c.symbols[index+value-first], nil
		}
		index += c.counts[length]
		first = (first + c.counts[length]) << 1
		value <<= 1
	}
	return 0, errors.New("bits that are no code")
}

// efiDecoder unpacks one stream. A block has a number of symbols and the codes for them.
type efiDecoder struct {
	in               bits
	out              []byte
	left             int // symbols left in the block
	codes, positions code
}

// symbol unpacks a literal byte, or a match: a run of bytes that were unpacked before.
func (d *efiDecoder) symbol(limit int) error {
	if d.left == 0 {
		if err := d.block(); err != nil {
			return err
		}
	}
	d.left--
	s, err := d.codes.read(&d.in)
	if err != nil {
		return err
	}
	if s < efiLiterals {
		d.out = append(d.out, byte(s))
		return nil
	}
	distance, err := d.distance()
	if err != nil {
		return err
	}
	length := s - efiLiterals + efiThreshold
	if distance > len(d.out) || length > limit-len(d.out) {
		return fmt.Errorf("a match of %d bytes, %d back, does not fit", length, distance)
	}
	for range length { // it may overlap what it makes
		d.out = append(d.out, d.out[len(d.out)-distance])
	}
	return nil
}

// distance reads how far back a match begins, at least 1.
func (d *efiDecoder) distance() (int, error) {
	p, err := d.positions.read(&d.in)
	if err != nil || p < 2 {
		return p + 1, err
	}
	low, err := d.in.read(p - 1)
	return 1<<(p-1) + low + 1, err
}

// block reads the head of a block.
func (d *efiDecoder) block() (err error) {
	if d.left, err = d.in.read(16); err != nil {
		return err
	}
	if d.left == 0 {
		return errors.New("a block without symbols")
	}
	// The lengths of the codes are written in a code of their own, which has a gap after the third.
	lengths, err := d.shortCode(efiLengths, efiLengthBits, 3)
	if err != nil {
		return err
	}
	if d.codes, err = d.longCode(lengths); err != nil {
		return err
	}
	d.positions, err = d.shortCode(efiPositions, efiPositionBits, -1)
	return err
}

// shortCode reads a code of at most n symbols whose lengths are written as they are: three bits, and from 7 on one more bit for each 1.
func (d *efiDecoder) shortCode(n, width, gap int) (code, error) {
	count, err := d.in.read(width)
	if err != nil {
		return code{}, err
	}
	if count == 0 {
		only, err := d.in.read(width)
		return code{only: only}, err
	}
	lengths := make([]int, 0, n)
	for len(lengths) < count {
		length, err := d.shortLength()
		if err != nil {
			return code{}, err
		}
		lengths = append(lengths, length)
		if len(lengths) == gap {
			skipped, err := d.in.read(2)
			if err != nil {
				return code{}, err
			}
			lengths = append(lengths, make([]int, skipped)...)
		}
	}
	if len(lengths) > n {
		return code{}, fmt.Errorf("%d symbols, want at most %d", len(lengths), n)
	}
	return newCode(lengths)
}

func (d *efiDecoder) shortLength() (int, error) {
	length, err := d.in.read(3)
	for bit := 1; err == nil && length >= 7 && bit == 1; {
		if bit, err = d.in.read(1); bit == 1 {
			length++
		}
	}
	return length, err
}

// longCode reads the code of literals and lengths; symbols 0 to 2 of the code that it is written in stand for runs of symbols
// without a code.
func (d *efiDecoder) longCode(written code) (code, error) {
	count, err := d.in.read(efiCodeBits)
	if err != nil {
		return code{}, err
	}
	if count == 0 {
		only, err := d.in.read(efiCodeBits)
		return code{only: only}, err
	}
	lengths := make([]int, 0, efiCodes)
	for len(lengths) < count {
		s, err := written.read(&d.in)
		if err != nil {
			return code{}, err
		}
		if s > 2 {
			lengths = append(lengths, s-2)
			continue
		}
		run := 1
		if s > 0 {
			width := []int{4, efiCodeBits}[s-1]
			more, err := d.in.read(width)
			if err != nil {
				return code{}, err
			}
			run = more + []int{3, 20}[s-1]
		}
		lengths = append(lengths, make([]int, run)...)
	}
	if len(lengths) > efiCodes {
		return code{}, fmt.Errorf("%d symbols, want at most %d", len(lengths), efiCodes)
	}
	return newCode(lengths)
}
