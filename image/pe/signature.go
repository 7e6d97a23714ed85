package pe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// An attribute certificate begins with its length, its revision and its type
// (WIN_CERTIFICATE, PE/COFF §5.7), and ends on a multiple of 8 bytes.
const (
	certHeaderSize = 8
	certAlign      = 8
	// certPKCS is revision 2.0, type WIN_CERT_TYPE_PKCS_SIGNED_DATA.
	certPKCS = 0x0002_0200
)

// Signature returns the attribute certificate table (PE/COFF §5.7), which holds
// the signatures of the image; it is empty for an unsigned image.
func (f *File) Signature() ([]byte, error) {
	b := make([]byte, f.certSize)
	if err := f.readAt(b, f.certOffset); err != nil {
		return nil, fmt.Errorf("read PE image: certificate table: %w", err)
	}
	return b, nil
}

// Signatures returns the PKCS #7 structures of the attribute certificate table,
// in their order, each up to the length that its header gives. It fails for an
// attribute certificate of another kind.
func (f *File) Signatures() ([][]byte, error) {
	table, err := f.Signature()
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for len(table) > 0 {
		if len(table) < certHeaderSize {
			return nil, errors.New("read PE image: certificate table: it ends within a header")
		}
		length := int64(binary.LittleEndian.Uint32(table))
		if kind := binary.LittleEndian.Uint32(table[4:]); kind != certPKCS {
			return nil, fmt.Errorf("read PE image: certificate table: an entry of revision and type %#x, want PKCS #7 (%#x)", kind, certPKCS)
		}
		if length <= certHeaderSize || alignUp(length, certAlign) > int64(len(table)) {
			return nil, fmt.Errorf("read PE image: certificate table: an entry of %d bytes where %d are left", length, len(table))
		}
		out = append(out, table[certHeaderSize:length])
		table = table[alignUp(length, certAlign):]
	}
	return out, nil
}

// WithSignatures returns a copy of the image that carries these PKCS #7
// structures, in their order, in place of those that it had. Without any it
// returns the unsigned image. The copy is filled up with zeros to a multiple of
// 8 bytes before the table, as signing tools do; for an image of another length
// this changes its Authenticode digest, so sign what WithSignatures returned.
func WithSignatures(image []byte, signatures ...[]byte) ([]byte, error) {
	f, err := Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, fmt.Errorf("put signature in: %w", err)
	}
	if f.directories <= certificateDir {
		return nil, errors.New("put signature in: the headers have no place for a certificate table")
	}
	out := pad(bytes.Clone(image[:f.size-f.certSize]), certAlign)
	start := len(out)
	for _, s := range signatures {
		out = binary.LittleEndian.AppendUint32(out, uint32(certHeaderSize+len(s)))
		out = binary.LittleEndian.AppendUint32(out, certPKCS)
		out = pad(append(out, s...), certAlign)
	}
	if len(out) > math.MaxUint32 {
		return nil, errors.New("put signature in: the image would be larger than 4 GiB")
	}
	entry := out[f.opt+optFixedSize+certificateDir*dataDirectorySize:]
	clear(entry[:dataDirectorySize])
	if len(out) > start {
		binary.LittleEndian.PutUint32(entry, uint32(start))
		binary.LittleEndian.PutUint32(entry[4:], uint32(len(out)-start))
	}
	return out, nil
}
