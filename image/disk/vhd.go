package disk

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	mib = 1 << 20
	// vhdBlock is the length of what is left out where it is zero, in bytes.
	vhdBlock = 64 << 10
	// maxVHD is the largest disk, 2040 GiB.
	maxVHD = 2040 << 30
)

// writeVHD writes the disk, zeros up to a whole MiB (Azure's rule), and the
// footer (Virtual Hard Disk Image Format Specification 1.0, "Hard Disk Footer
// Format").
func writeVHD(w io.WriterAt, r io.Reader, size int64) error {
	whole := roundUp(size, mib)
	if whole > maxVHD {
		return fmt.Errorf("a disk of %d bytes: want at most %d", size, int64(maxVHD))
	}
	digest := sha256.New()
	block := make([]byte, vhdBlock)
	for at := int64(0); at < size; at += vhdBlock {
		block = block[:min(vhdBlock, size-at)]
		if _, err := io.ReadFull(r, block); err != nil {
			return fmt.Errorf("read the disk: %w", err)
		}
		_, _ = digest.Write(block) // A hash never fails.
		if isZero(block) {
			continue
		}
		if _, err := w.WriteAt(block, at); err != nil {
			return err
		}
	}
	_, err := w.WriteAt(vhdFooter(whole, digest.Sum(nil)), whole)
	return err
}

// vhdFooter returns the 512 bytes that end a fixed disk. Its time is the
// format's zero; its UUID, of version 8 (RFC 9562 §5.8), is made of the disk's
// digest.
func vhdFooter(size int64, digest []byte) []byte {
	be := binary.BigEndian
	f := append(make([]byte, 0, 512), "conectix"...)
	f = be.AppendUint32(f, 2)                    // features: the bit that is always set
	f = be.AppendUint32(f, 0x00010000)           // format version
	f = be.AppendUint64(f, 1<<64-1)              // no further header
	f = be.AppendUint32(f, 0)                    // seconds since 2000
	f = append(f, "qem2\x00\x01\x00\x00Wi2k"...) // what QEMU calls itself where size, not geometry, counts
	f = be.AppendUint64(f, uint64(size))         // as made
	f = be.AppendUint64(f, uint64(size))         // now
	f = append(f, geometry(size)...)
	f = be.AppendUint32(f, 2) // a fixed disk
	f = be.AppendUint32(f, 0) // checksum, set below
	id := append([]byte{}, digest[:16]...)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	f = append(f, id...)
	sum := uint32(0)
	for _, b := range f {
		sum += uint32(b)
	}
	be.PutUint32(f[64:], ^sum)
	return f[:512]
}

// geometry returns cylinders, heads and sectors of a track (the specification's
// appendix, "CHS Calculation"): at most as many sectors as the disk has.
func geometry(size int64) []byte {
	sectors := min(size/sectorSize, 65535*16*255)
	track, heads := int64(17), int64(0)
	if sectors >= 65535*16*63 {
		track, heads = 255, 16
	} else {
		heads = max((sectors/track+1023)/1024, 4)
		if sectors/track >= heads*1024 || heads > 16 {
			track, heads = 31, 16
		}
		if sectors/track >= heads*1024 {
			track, heads = 63, 16
		}
	}
	g := binary.BigEndian.AppendUint16(nil, uint16(sectors/track/heads))
	return append(g, byte(heads), byte(track))
}
