package statedisk

import (
	"bytes"
	"errors"
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
	b, err := DecodeB(first[OffsetB : OffsetB+RecordSize])
	switch {
	case err == nil:
		return claim(hullmark.DiskReady, b.Identity), nil
	case errors.Is(err, errVersion):
		return hullmark.DiskClaim{}, fmt.Errorf("probe state disk: %w", err)
	}
	recordA := first[OffsetA : OffsetA+RecordSize]
	if a, err := DecodeA(recordA); err == nil {
		return claim(hullmark.DiskFormatting, a), nil
	}
	blank, err := blankAround(first, r, size)
	if err != nil {
		return hullmark.DiskClaim{}, err
	}
	if blank {
		return hullmark.DiskClaim{State: hullmark.DiskBlank}, nil
	}
	return hullmark.DiskClaim{State: hullmark.DiskForeign}, nil
}

// OnlyBegun reports whether a disk holds the beginning of record A and
// otherwise zeros at both ends: the power went while A was written, so a
// record A that does not verify is nobody's.
func OnlyBegun(r io.ReaderAt, size int64) (bool, error) {
	first, err := readEdge(r, 0)
	if err != nil {
		return false, err
	}
	return blankAround(first, r, size)
}

// blankAround reports whether both edges are zero, a begun record A apart. It changes first.
func blankAround(first []byte, r io.ReaderAt, size int64) (bool, error) {
	recordA := first[OffsetA : OffsetA+RecordSize]
	if bytes.HasPrefix(recordA, []byte(magicA)) {
		clear(recordA)
	}
	last, err := readEdge(r, size-EdgeSize)
	return err == nil && zero(first) && zero(last), err
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
