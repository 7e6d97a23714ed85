// Package luks2 strictly decodes the LUKS2 header that Hullmark writes on its
// state disks, from a copy in memory, and refuses every other one (LUKS2
// On-Disk Format Specification 1.1). A header comes from a hostile host: one
// that merely parses could still name a null cipher, a plain segment, an
// expensive key derivation or a foreign token.
//
// The package is a leaf and pure.
package luks2

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
)

// The one layout that is written, in bytes.
const (
	// HeaderSize is the length of one of the two copies: binary header and JSON area (§2.1, §3).
	HeaderSize = 16 << 10
	// KeyslotOffset is where the only keyslot's key material starts.
	KeyslotOffset = 2 * HeaderSize
	// KeyslotSize is the key material's length: 4,000 stripes of KeySize, rounded up to 4 KiB.
	KeyslotSize = 385024
	// AreaSize is how much of a disk the headers and the keyslot occupy.
	AreaSize = KeyslotOffset + KeyslotSize
	// DataOffset is where the encrypted data starts.
	DataOffset = 16 << 20
)

// The one profile of cryptography that is written.
const (
	// Cipher and Mode encrypt the data and the key material.
	Cipher = "aes"
	// Mode is tied to the place on the disk; swapping sectors shows as a wrong tag.
	Mode = "xts-plain64"
	// Integrity authenticates every sector with its number.
	Integrity = "hmac(sha256)"
	// KeySize is the volume key's length: two AES-256 keys and the HMAC's.
	KeySize = 64 + 32
	// TagSize is the length of a sector's authentication tag.
	TagSize = 32
	// SectorSize is the unit of encryption and authentication.
	SectorSize = 4096
	// Iterations of PBKDF2: the specification's least. The key that is released
	// to a node is uniformly random, so a slow derivation would protect nothing.
	Iterations = 1000
	// Hash is PBKDF2's hash function.
	Hash = "sha256"
)

// Fields of the binary header (§2.2).
const (
	binaryHeaderSize = 4096
	jsonSize         = HeaderSize - binaryHeaderSize

	offVersion    = 6
	offSize       = 8
	offSequence   = 16
	offLabel      = 24
	offAlgorithm  = 72
	offSalt       = 104
	offUUID       = 168
	offSubsystem  = 208
	offOffset     = 256
	offPadding    = 264
	offChecksum   = 448
	checksumSpace = 64
	offPadding2   = 512
)

var (
	primaryMagic   = []byte("LUKS\xba\xbe")
	secondaryMagic = []byte("SKUL\xba\xbe")
	uuidPattern    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// Header is what a valid header leaves open: everything else is the profile.
type Header struct {
	// UUID is the disk's, in the form 8-4-4-4-12.
	UUID string
	// Sequence counts the updates that libcryptsetup made while formatting.
	Sequence uint64
}

// Decode checks the first AreaSize bytes of a header area. It fails unless
// both copies are whole, say the same, and describe exactly the one profile.
func Decode(area []byte) (Header, error) {
	if len(area) < AreaSize {
		return Header{}, fmt.Errorf("decode LUKS2 header: %d bytes, want at least %d", len(area), AreaSize)
	}
	h, first, err := decodeCopy(area[:HeaderSize], primaryMagic, 0)
	if err != nil {
		return Header{}, fmt.Errorf("decode LUKS2 header: first copy: %w", err)
	}
	second, text, err := decodeCopy(area[HeaderSize:2*HeaderSize], secondaryMagic, HeaderSize)
	if err != nil {
		return Header{}, fmt.Errorf("decode LUKS2 header: second copy: %w", err)
	}
	if h != second || !bytes.Equal(first, text) {
		return Header{}, errors.New("decode LUKS2 header: the two copies differ")
	}
	if err := checkMetadata(first); err != nil {
		return Header{}, fmt.Errorf("decode LUKS2 header: %w", err)
	}
	return h, nil
}

// decodeCopy checks one binary header and returns it with its JSON area.
func decodeCopy(b, magic []byte, offset uint64) (Header, []byte, error) {
	be := binary.BigEndian
	switch {
	case !bytes.Equal(b[:len(magic)], magic):
		return Header{}, nil, errors.New("no LUKS magic")
	case be.Uint16(b[offVersion:]) != 2:
		return Header{}, nil, fmt.Errorf("version %d, want 2", be.Uint16(b[offVersion:]))
	case be.Uint64(b[offSize:]) != HeaderSize:
		return Header{}, nil, fmt.Errorf("header size %d, want %d", be.Uint64(b[offSize:]), HeaderSize)
	case be.Uint64(b[offOffset:]) != offset:
		return Header{}, nil, fmt.Errorf("header offset %d, want %d", be.Uint64(b[offOffset:]), offset)
	case text(b[offAlgorithm:offSalt]) != Hash:
		return Header{}, nil, errors.New("checksum algorithm is not sha256")
	case !zero(b[offLabel:offAlgorithm]) || !zero(b[offSubsystem:offOffset]):
		return Header{}, nil, errors.New("label or subsystem is set")
	case !zero(b[offPadding:offChecksum]) || !zero(b[offPadding2:binaryHeaderSize]):
		return Header{}, nil, errors.New("padding is not zero")
	}
	if err := checkSum(b); err != nil {
		return Header{}, nil, err
	}
	h := Header{UUID: text(b[offUUID:offSubsystem]), Sequence: be.Uint64(b[offSequence:])}
	if !uuidPattern.MatchString(h.UUID) {
		return Header{}, nil, errors.New("no UUID")
	}
	return h, b[binaryHeaderSize:], nil
}

// checkSum compares the checksum of a copy, which is taken over header and
// JSON with the checksum's own field zero (§2.3). It finds accidents only.
func checkSum(b []byte) error {
	stored := b[offChecksum : offChecksum+checksumSpace]
	plain := bytes.Clone(b)
	clear(plain[offChecksum : offChecksum+checksumSpace])
	sum := sha256.Sum256(plain)
	if !bytes.Equal(stored[:len(sum)], sum[:]) || !zero(stored[len(sum):]) {
		return errors.New("checksum does not match")
	}
	return nil
}

// text returns a zero-padded field, or "" if something follows the first zero.
func text(b []byte) string {
	s, rest, _ := bytes.Cut(b, []byte{0})
	if !zero(rest) {
		return ""
	}
	return string(s)
}

func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// checkMetadata compares the JSON area with the profile, value by value.
func checkMetadata(area []byte) error {
	document, rest, _ := bytes.Cut(area, []byte{0})
	if !zero(rest) {
		return errors.New("metadata: data after the end of the document")
	}
	found, err := flatten(document)
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	for path, want := range profile {
		got, ok := found[path]
		if !ok {
			return fmt.Errorf("metadata: %s is missing", path)
		}
		if !matches(got, want) {
			return fmt.Errorf("metadata: %s: want %s, got %.60s", path, want, got)
		}
	}
	for path := range found {
		if _, ok := profile[path]; !ok {
			return fmt.Errorf("metadata: unexpected %.80s", path)
		}
	}
	return nil
}

func matches(got, want string) bool {
	if want != anySalt {
		return got == want
	}
	if len(got) < 2 || got[0] != '"' {
		return false
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(got[1 : len(got)-1])
	return err == nil && len(raw) == sha256.Size
}
