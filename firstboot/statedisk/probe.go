package statedisk

import (
	"bytes"
	"fmt"
	"io"

	"github.com/hullmark/hullmark"
)

// Probe says what a disk of size bytes holds. Blank means that both ends are
// zero, or that only the beginning of record A was written. The claim of any
// other disk is unauthenticated. Probe reads EdgeSize bytes at each end.
func Probe(r io.ReaderAt, size int64) (hullmark.DiskClaim, error) {
	if size < MinSize {
		return hullmark.DiskClaim{}, fmt.Errorf("probe state disk: %d bytes, at least %d are needed", size, MinSize)
	}
	first, err := readEdge(r, 0)
	if err != nil {
		return hullmark.DiskClaim{}, err
	}
	if b, err := DecodeB(first[OffsetB : OffsetB+RecordSize]); err == nil {
		return claim(hullmark.DiskReady, b.Identity), nil
	}
	recordA := first[OffsetA : OffsetA+RecordSize]
	if a, err := DecodeA(recordA); err == nil {
		return claim(hullmark.DiskFormatting, a), nil
	}
	if bytes.HasPrefix(recordA, []byte(magicA)) {
		clear(recordA)
	}
	last, err := readEdge(r, size-EdgeSize)
	if err != nil {
		return hullmark.DiskClaim{}, err
	}
	if zero(first) && zero(last) {
		return hullmark.DiskClaim{State: hullmark.DiskBlank}, nil
	}
	return hullmark.DiskClaim{State: hullmark.DiskForeign}, nil
}

func claim(state hullmark.DiskState, id Identity) hullmark.DiskClaim {
	c := hullmark.DiskClaim{State: state, UUID: id.UUID}
	if state == hullmark.DiskReady {
		c.Generation, c.Owner = id.Generation, id.Owner
	}
	return c
}

func readEdge(r io.ReaderAt, offset int64) ([]byte, error) {
	b := make([]byte, EdgeSize)
	if _, err := io.ReadFull(io.NewSectionReader(r, offset, EdgeSize), b); err != nil {
		return nil, fmt.Errorf("probe state disk: read %d bytes at %d: %w", len(b), offset, err)
	}
	return b, nil
}

func zero(b []byte) bool {
	var page [blockSize]byte
	for len(b) > len(page) {
		if !bytes.Equal(b[:len(page)], page[:]) {
			return false
		}
		b = b[len(page):]
	}
	return bytes.Equal(b, page[:len(b)])
}
