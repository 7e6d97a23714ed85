package disk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
)

const (
	gib = 1 << 30
	// archived is the name that Compute Engine looks for.
	archived = "disk.raw"
	// tarBlock is what an archive is padded to; two empty ones end it.
	tarBlock = 512
	// maxTarSize is what the header's twelve octal digits, the last a NUL, can say.
	maxTarSize = 1<<33 - 1
	// part is how much of the archive one processor compresses, in bytes.
	part = 1 << 20
)

// writeTarGz writes the archive that Compute Engine's guide to importing boot
// disks asks for: GNU's old format, one sparse file of whole GiB. All that is
// missing to a whole GiB is a hole, which takes no space.
func writeTarGz(w io.WriterAt, r io.Reader, size int64) error {
	if roundUp(size, gib) > maxTarSize {
		return fmt.Errorf("a disk of %d bytes: want at most %d", size, int64(maxTarSize/gib*gib))
	}
	end := make([]byte, roundUp(size, tarBlock)-size+2*tarBlock)
	archive := io.MultiReader(bytes.NewReader(tarHeader(size, roundUp(size, gib))), io.LimitReader(r, size), bytes.NewReader(end))
	return writeGzip(io.NewOffsetWriter(w, 0), archive, tarBlock+size+int64(len(end)))
}

// tarHeader returns the header of a sparse file with the given bytes at its
// start and a hole up to its whole length (GNU tar manual, "Basic Tar Format",
// struct oldgnu_header). It belongs to root, and its time is 0.
func tarHeader(size, whole int64) []byte {
	h := make([]byte, tarBlock)
	octal := func(at, digits int, v int64) { copy(h[at:], fmt.Sprintf("%0*o", digits, v)) }
	copy(h, archived)
	octal(100, 7, 0o644)
	octal(108, 7, 0) // owner
	octal(116, 7, 0) // group
	octal(124, 11, size)
	octal(136, 11, 0) // time
	h[156] = 'S'
	copy(h[257:], "ustar  ")
	octal(386, 11, 0)
	octal(398, 11, size)
	octal(410, 11, whole)
	octal(422, 11, 0)
	octal(483, 11, whole)
	copy(h[148:], "        ")
	sum := int64(0)
	for _, b := range h {
		sum += int64(b)
	}
	octal(148, 6, sum)
	h[154] = 0
	return h
}

// writeGzip compresses size bytes of r into one member (RFC 1952): parts that
// know nothing of each other, each ended by an empty stored block, so that the
// next begins at a byte (RFC 1951 §3.2.4).
func writeGzip(w io.Writer, r io.Reader, size int64) error {
	// Magic, deflate, no flags, no time, no hint, unknown system.
	if _, err := w.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}); err != nil {
		return err
	}
	sum := crc32.NewIEEE()
	err := inBlocks(r, size, part, newDeflate, func(block, packed []byte) error {
		_, _ = sum.Write(block) // A hash never fails.
		_, err := w.Write(packed)
		return err
	})
	if err != nil {
		return err
	}
	end := []byte{1, 0, 0, 0xff, 0xff} // an empty stored block that is the last
	end = binary.LittleEndian.AppendUint32(end, sum.Sum32())
	_, err = w.Write(binary.LittleEndian.AppendUint32(end, uint32(size)))
	return err
}

func newDeflate() (pack, error) {
	var b bytes.Buffer
	f, err := flate.NewWriter(&b, flate.DefaultCompression)
	return func(block []byte) ([]byte, error) {
		b.Reset()
		f.Reset(&b)
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		err := f.Flush()
		return bytes.Clone(b.Bytes()), err
	}, err
}
