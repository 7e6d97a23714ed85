package pe

import (
	"fmt"
	"hash"
	"io"
)

// Authenticode writes to h the bytes that firmware hashes when it measures or
// verifies the image (Authenticode_PE.docx, "Calculating the PE Image Hash";
// EDK2's MeasurePeImage): the headers without CheckSum and without the
// certificate table's directory entry, the sections in file order, then what
// follows the last section without the certificate table.
//
// No padding is added: firmware hashes the file as it is. Signing tools first
// pad a file to a multiple of 8 bytes with zeros, so the digest of the signed
// file differs from that of an unsigned one of another length. What Append
// returns has an aligned length, so there both are the same.
//
// It fails for an image with bytes between two sections that belong to none:
// firmware then hashes other bytes than signing tools do.
func (f *File) Authenticode(h hash.Hash) error {
	if err := f.hashHeaders(h); err != nil {
		return fmt.Errorf("hash PE image: %w", err)
	}
	end := f.sizeOfHeader
	for _, s := range f.byOffset() {
		if int64(s.RawOffset) != end {
			return fmt.Errorf("hash PE image: section %s: starts at %d, the bytes from %d belong to no section", s.Name, s.RawOffset, end)
		}
		end += int64(s.RawSize)
	}
	return f.hashRange(h, f.sizeOfHeader, f.size-f.certSize)
}

func (f *File) hashHeaders(h hash.Hash) error {
	checksum := f.opt + optCheckSum
	skips := [][2]int64{{checksum, checksum + 4}}
	if f.directories > certificateDir {
		entry := f.opt + optFixedSize + certificateDir*dataDirectorySize
		skips = append(skips, [2]int64{entry, entry + dataDirectorySize})
	}
	start := int64(0)
	for _, skip := range skips {
		if err := f.hashRange(h, start, skip[0]); err != nil {
			return err
		}
		start = skip[1]
	}
	return f.hashRange(h, start, f.sizeOfHeader)
}

func (f *File) hashRange(h hash.Hash, start, end int64) error {
	n, err := io.Copy(h, io.NewSectionReader(f.r, start, end-start))
	if err == nil && n != end-start {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("bytes %d to %d: %w", start, end, err)
	}
	return nil
}
