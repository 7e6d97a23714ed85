package firmware

import (
	"encoding/binary"
	"strings"
	"testing"
)

// bitstream writes fields from the highest bit on: pairs of a width and a value.
func bitstream(fields ...int) []byte {
	var out []byte
	n := 0
	for i := 0; i < len(fields); i += 2 {
		for bit := fields[i] - 1; bit >= 0; bit-- {
			if n%8 == 0 {
				out = append(out, 0)
			}
			out[n/8] |= byte(fields[i+1]>>bit&1) << (7 - n%8)
			n++
		}
	}
	return out
}

func packed(original int, stream []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(stream)))
	return append(binary.LittleEndian.AppendUint32(b, uint32(original)), stream...)
}

// onlyA is a block of n symbols that are all "A" and take no bits.
func onlyA(n int) []byte { return bitstream(16, n, 5, 0, 5, 0, 9, 0, 9, 'A', 4, 0, 4, 0) }

// withMatch is a block with two symbols of one bit each: "A", and a match of three bytes, which begins one byte back.
func withMatch() []byte {
	return bitstream(16, 3,
		5, 4, 3, 0, 3, 0, 3, 1, 2, 0, 3, 1, // the code of the lengths: symbol 2 is a run, symbol 3 a length of 1
		9, 257, 1, 0, 9, 'A'-20, 1, 1, 1, 0, 9, 190-20, 1, 1, // a run up to "A", one up to the match
		4, 0, 4, 0,
		1, 0, 1, 1, 1, 0)
}

func TestDecompressEFI(t *testing.T) {
	for want, stream := range map[string][]byte{"AAAA": onlyA(4), "AAAAA": withMatch(), "": nil} {
		got, err := decompressEFI(packed(len(want), stream), 100)
		if err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}

func TestDecompressEFIRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		packed []byte
		want   string
	}{
		"nothing":           {nil, "ends in the middle"},
		"too large":         {packed(101, onlyA(4)), "want at most"},
		"shorter than said": {packed(4, onlyA(4))[:12], "want at most"},
		"cut":               {packed(5, withMatch()[:9]), "ends in the middle"},
		"longer than said":  {packed(2, withMatch()), "does not fit"},
		"empty block":       {packed(4, bitstream(16, 0)), "without symbols"},
		"match at once":     {packed(4, bitstream(16, 1, 5, 0, 5, 0, 9, 0, 9, 256, 4, 0, 4, 0)), "does not fit"},
		"too many lengths":  {packed(4, bitstream(16, 1, 5, 31, 64, 0, 64, 0)), "symbols"},
		"impossible code":   {packed(4, bitstream(16, 1, 5, 3, 3, 1, 3, 1, 3, 1, 2, 0)), "tell apart"},
	} {
		if _, err := decompressEFI(c.packed, 100); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func FuzzDecompressEFI(f *testing.F) {
	f.Add(packed(4, onlyA(4)))
	f.Add(packed(5, withMatch()))
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := decompressEFI(b, 1<<20)
		if err == nil && len(out) != int(binary.LittleEndian.Uint32(b[4:])) {
			t.Errorf("unpacked %d bytes", len(out))
		}
	})
}
