package erofs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pierrec/lz4/v4"
)

// unpack decodes what pack made of a file, by another implementation of LZ4.
func (p packed) unpack(t testing.TB, size int) []byte {
	t.Helper()
	if len(p.clusters) == 0 {
		return append(slices.Clone(p.blocks), p.tail...)[:size]
	}
	var out []byte
	rest := p.blocks
	for _, c := range p.clusters {
		stored := p.tail
		if c.blocks > 0 {
			stored, rest = rest[:c.blocks*blockSize], rest[c.blocks*blockSize:]
		}
		if c.raw {
			out = append(out, stored[:c.read]...)
			continue
		}
		if c.read > clusterReads || c.blocks > clusterSize/blockSize || c.blocks > 0 && c.read <= c.blocks*blockSize {
			t.Fatalf("a cluster of %d blocks holds %d bytes", c.blocks, c.read)
		}
		b := make([]byte, c.read)
		if n, err := lz4.UncompressBlock(bytes.TrimLeft(stored, "\x00"), b); err != nil || n != c.read {
			t.Fatalf("decode %d blocks to %d bytes: %d, %v", c.blocks, c.read, n, err)
		}
		out = append(out, b...)
	}
	if len(rest) > 0 {
		t.Fatalf("%d bytes belong to no cluster", len(rest))
	}
	return out
}

// random returns n bytes of seed: noise, or text of few words.
func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	words := make([][]byte, 2+r.IntN(300))
	for i := range words {
		words[i] = make([]byte, 1+r.IntN(20))
		for j := range words[i] {
			words[i][j] = byte(r.Uint32())
		}
	}
	var out []byte
	for len(out) < n {
		switch w := words[r.IntN(len(words))]; r.IntN(40) {
		case 0:
			out = append(out, bytes.Repeat(w, r.IntN(3000))...)
		case 1:
			out = append(out, bytes.Repeat(w[:1], r.IntN(20000))...)
		case 2:
			for range r.IntN(30000) {
				out = append(out, byte(r.Uint32()))
			}
		default:
			out = append(out, w...)
		}
	}
	return out[:n]
}

func TestPackedBytesUnpack(t *testing.T) {
	e := new(encoder)
	for seed := range uint64(20) {
		for _, n := range []int{1, 11, 12, 13, 16, 4095, 4096, 4097, 8192, 70_000, int(seed)*20_011 + 1} {
			content := random(seed, n)
			for _, last := range []bool{true, false} {
				if !last && n%blockSize != 0 {
					continue
				}
				p := e.pack(content, last)
				if got := join([]packed{p}).unpack(t, n); !bytes.Equal(got, content) {
					t.Fatalf("seed %d, %d bytes, last %v: other bytes unpacked", seed, n, last)
				}
				if !last && len(p.tail) > 0 {
					t.Fatal("a segment in the middle has a tail")
				}
				if again := new(encoder).pack(content, last); !bytes.Equal(again.blocks, p.blocks) || !bytes.Equal(again.tail, p.tail) {
					t.Fatalf("seed %d, %d bytes: the encoder remembers what it packed before", seed, n)
				}
			}
		}
	}
}

func TestZerosTakeAlmostNothing(t *testing.T) {
	p := new(encoder).pack(make([]byte, segmentSize), true)
	if got := p.unpack(t, segmentSize); !bytes.Equal(got, make([]byte, segmentSize)) || len(p.blocks) > 10*blockSize {
		t.Errorf("%d bytes for %d zeros", len(p.blocks), segmentSize)
	}
}

// TestEncodingIsNamed fails when bytes are packed otherwise than before. Then encoding needs a new name, or images would be
// made of both kinds.
func TestEncodingIsNamed(t *testing.T) {
	e := new(encoder)
	h := sha256.New()
	for seed := range uint64(20) {
		p := e.pack(random(seed, int(seed)*20_011+1), true)
		h.Write(p.blocks)
		h.Write(p.tail)
	}
	known := map[string]string{"lz4 2": "c2d80dbabedd303b0492e1560458c4b6b2b3859e8a8d8acee4e18fb069a5ba9e"}
	if got := hex.EncodeToString(h.Sum(nil)); got != known[encoding] {
		t.Errorf("encoding %q gives %s, want %s", encoding, got, known[encoding])
	}
}

func FuzzPack(f *testing.F) {
	f.Add([]byte("a"), 1)
	f.Add([]byte("twelve bytes, and then some of them again: twelve bytes, and then"), 300)
	f.Add(random(1, 5000), 3)
	f.Add(make([]byte, 300), 40)
	e := new(encoder)
	f.Fuzz(func(t *testing.T, part []byte, times int) {
		if len(part) == 0 || times < 1 || len(part)*times > 1<<18 {
			return
		}
		content := bytes.Repeat(part, times)
		if got := join([]packed{e.pack(content, true)}).unpack(t, len(content)); !bytes.Equal(got, content) {
			t.Fatal("other bytes unpacked")
		}
	})
}
