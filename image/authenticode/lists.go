// Package authenticode reads what decides whether firmware starts a program while Secure Boot is on: the signatures of an image, and
// the lists of certificates and hashes in db and dbx. It judges signatures as EDK2 does, which asks OpenSSL.
package authenticode

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark/image/efi"
)

// Types of signature lists (UEFI 2.10 §32.4.1).
var (
	// TypeSHA256, TypeSHA384 and TypeSHA512 are hashes of images.
	TypeSHA256 = efi.MustGUID("c1c41626-504c-4092-aca9-41f936934328")
	TypeSHA384 = efi.MustGUID("ff3e5307-9fd0-48c9-85f1-8ad56c701e01")
	TypeSHA512 = efi.MustGUID("093e0fae-a6c4-4f50-9f1b-d41e2b89c19a")
	// TypeX509SHA256, TypeX509SHA384 and TypeX509SHA512 are hashes of what is signed in a certificate, each with a time of revocation.
	TypeX509SHA256 = efi.MustGUID("3bd2a492-96c0-4079-b420-fcf98ef103ed")
	TypeX509SHA384 = efi.MustGUID("7076876e-80c2-4ee6-aad2-28b349a6865b")
	TypeX509SHA512 = efi.MustGUID("446dbf63-2502-4cda-bcfa-2465d2b0fe9d")
)

// MaxLists is the largest variable of signature lists that is read, in bytes. Microsoft's dbx has some 24 KiB.
const MaxLists = 1 << 20

// Sizes in bytes: the head of a list, the owner of an entry, and a time.
const (
	listHeader = 16 + 3*4
	ownerSize  = 16
	timeSize   = 16
)

// sizes are those of the entries whose types have one, owner and all.
var sizes = map[efi.GUID]int{
	TypeSHA256: ownerSize + 32, TypeSHA384: ownerSize + 48, TypeSHA512: ownerSize + 64,
	TypeX509SHA256: ownerSize + 32 + timeSize, TypeX509SHA384: ownerSize + 48 + timeSize, TypeX509SHA512: ownerSize + 64 + timeSize,
}

// Entry is an EFI_SIGNATURE_DATA of a list: who put it there, and a certificate or a hash.
type Entry struct {
	// Type is that of the list.
	Type efi.GUID
	// Raw is the entry as firmware measures it: the owner's GUID, then Data.
	Raw []byte
}

// Data is the certificate or the hash, without its owner.
func (e Entry) Data() []byte { return e.Raw[ownerSize:] }

// ParseLists reads the value of db or dbx, one or more EFI_SIGNATURE_LISTs, and returns their entries in order. It fails where lists
// do not fill the value exactly, entries do not fill their list, or have not the size of their type. A value without a byte has no
// entry.
func ParseLists(value []byte) ([]Entry, error) {
	if len(value) > MaxLists {
		return nil, fmt.Errorf("signature lists: %d bytes, want at most %d", len(value), MaxLists)
	}
	var out []Entry
	for n := 1; len(value) > 0; n++ {
		size, entries, err := parseList(value)
		if err != nil {
			return nil, fmt.Errorf("signature list %d: %w", n, err)
		}
		out, value = append(out, entries...), value[size:]
	}
	return out, nil
}

// parseList reads the list that b begins with.
func parseList(b []byte) (size int, out []Entry, err error) {
	if len(b) < listHeader {
		return 0, nil, fmt.Errorf("%d bytes, want at least %d", len(b), listHeader)
	}
	kind, le := efi.GUID(b[:16]), binary.LittleEndian
	whole, header, entry := int64(le.Uint32(b[16:])), le.Uint32(b[20:]), int64(le.Uint32(b[24:]))
	want, known := sizes[kind]
	switch {
	case whole < listHeader || whole > int64(len(b)):
		return 0, nil, fmt.Errorf("it says that it has %d bytes, of %d that are left", whole, len(b))
	case header != 0:
		return 0, nil, errors.New("it has a header of its own, which no known type has")
	case entry <= ownerSize || (whole-listHeader)%entry != 0:
		return 0, nil, fmt.Errorf("entries of %d bytes do not fill its %d bytes", entry, whole-listHeader)
	case known && entry != int64(want):
		return 0, nil, fmt.Errorf("entries of %d bytes, want %d", entry, want)
	}
	for at := int64(listHeader); at < whole; at += entry {
		out = append(out, Entry{Type: kind, Raw: b[at : at+entry : at+entry]})
	}
	return int(whole), out, nil
}
