// Package disk writes a disk into the files that hypervisors and clouds take.
//
// All of them hold the disk as it was laid out, byte for byte. Where one has to
// be larger, zeros follow: the partition table stays where it is, so firmware
// measures the same table (PCR 5) whatever file a machine was made from.
//
// A file depends on the disk alone: not on a clock, nor on the number of
// processors that compress it.
package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Format is a kind of file, named by the ending that its files have.
type Format string

// The formats beside the raw disk itself.
const (
	// QCOW2 is QEMU's, version 3, with clusters compressed by zstd: QEMU 5.1 or
	// newer reads it.
	QCOW2 Format = "qcow2"
	// VHD is the fixed VHD that Azure takes: its disk has whole MiB.
	VHD Format = "vhd"
	// TarGz is the archive that Google Compute Engine takes: one file disk.raw,
	// a disk of whole GiB.
	TarGz Format = "tar.gz"
	// RawZst is the raw disk as a zstd stream.
	RawZst Format = "raw.zst"
)

// writer writes a disk of size bytes that r reads. Parts of w that it does not
// write are zero; its last byte is always written.
type writer func(w io.WriterAt, r io.Reader, size int64) error

var writers = map[Format]writer{QCOW2: writeQCOW2, VHD: writeVHD, TarGz: writeTarGz, RawZst: writeRawZst}

// Formats lists all formats, in the order in which they are shown.
func Formats() []Format { return []Format{QCOW2, VHD, TarGz, RawZst} }

// Parse returns the format of that name.
func Parse(name string) (Format, error) {
	if f := Format(name); slices.Contains(Formats(), f) {
		return f, nil
	}
	return "", fmt.Errorf("unknown format %q: there is %q", name, Formats())
}

// sectorSize is what the size of a disk is a multiple of.
const sectorSize = 512

// Write reads a disk of the given size in bytes from r, once from its first
// byte to its last, and writes it into the empty file w. It fails if r has
// fewer bytes, or more.
func (f Format) Write(w io.WriterAt, r io.Reader, size int64) error {
	if size <= 0 || size%sectorSize != 0 {
		return fmt.Errorf("write %s: a disk of %d bytes: want a multiple of %d", f, size, sectorSize)
	}
	if err := writers[f](w, r, size); err != nil {
		return fmt.Errorf("write %s: %w", f, err)
	}
	switch _, err := io.ReadFull(r, make([]byte, 1)); {
	case err == nil:
		return fmt.Errorf("write %s: read the disk: it goes on after %d bytes", f, size)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("write %s: read the disk: %w", f, err)
	}
	return nil
}

// roundUp returns the smallest multiple of unit that holds size.
func roundUp(size, unit int64) int64 { return (size + unit - 1) / unit * unit }

// zeros is what blocks are compared with; no block is longer.
var zeros [maxBlock]byte

func isZero(block []byte) bool { return bytes.Equal(block, zeros[:len(block)]) }
