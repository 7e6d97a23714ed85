package disk

import (
	"io"

	"github.com/klauspost/compress/zstd"
)

// frame is how much of the disk is in one zstd frame, in bytes.
const frame = 4 << 20

// writeRawZst writes frames one after the other, which are one stream for
// every reader (RFC 8878 §3). Each tells its length and has a checksum.
func writeRawZst(w io.WriterAt, r io.Reader, size int64) error {
	out := io.NewOffsetWriter(w, 0)
	return inBlocks(r, size, frame, newZstd(true), func(_, packed []byte) error {
		_, err := out.Write(packed)
		return err
	})
}

// newZstd makes packs whose blocks become frames of their own.
func newZstd(checksum bool) func() (pack, error) {
	return func() (pack, error) {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(checksum))
		return func(block []byte) ([]byte, error) { return e.EncodeAll(block, nil), nil }, err
	}
}
