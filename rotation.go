package hullmark

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// blindSize is the length of a blind, in bytes: all have the same, so that no two keys and files have one digest (RFC 2104).
const blindSize = sha256.Size

// KeyRotation says of which rotation (measurements.Policy) the keys are that a control plane holds.
type KeyRotation struct {
	// Number counts the rotations.
	Number uint64
	// Blind keeps whoever reads the policy from guessing what KeysDigest is of: a keeper's secret may be short.
	Blind Secret
}

// NewBlind reads a blind from random.
func NewBlind(random io.Reader) (Secret, error) { return RandomSecret(random, blindSize) }

// CheckBlind refuses what NewBlind does not make.
func CheckBlind(blind Secret) error {
	if blind.Len() != blindSize {
		return fmt.Errorf("blind of a rotation: %d bytes, want %d", blind.Len(), blindSize)
	}
	return nil
}

// Encode returns the content of a RotationFile: the number in decimal, a space, and the blind in hexadecimal digits. It is secret.
func (r KeyRotation) Encode() []byte {
	return hex.AppendEncode(append(strconv.AppendUint(nil, r.Number, 10), ' '), r.Blind.Expose())
}

// ParseKeyRotation strictly reads what Encode writes. No error quotes it.
func ParseKeyRotation(text []byte) (KeyRotation, error) {
	number, digits, _ := bytes.Cut(text, []byte(" "))
	n, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil || string(strconv.AppendUint(nil, n, 10)) != string(number) || len(digits) != hex.EncodedLen(blindSize) {
		return KeyRotation{}, errors.New("rotation: want a number, a space and 64 hexadecimal digits")
	}
	blind := make([]byte, blindSize)
	if err := decodeHex(blind, string(digits)); err != nil {
		return KeyRotation{}, errors.New("rotation: the blind has other characters than lower-case hexadecimal digits")
	}
	return KeyRotation{Number: n, Blind: NewSecret(blind)}, nil
}

// KeysDigest commits to the keys of a rotation, and tells nothing of them.
type KeysDigest [sha256.Size]byte

// DigestKeys is HMAC-SHA256, under the blind, of "hullmark/v1/keys\0", the number (8 bytes, big-endian), and for each file that
// a rotation exchanges its path, a zero byte, its length (8 bytes, big-endian) and its content. content returns nothing for a
// file that is not there.
func DigestKeys(r KeyRotation, content func(path string) []byte) KeysDigest {
	mac := hmac.New(sha256.New, r.Blind.Expose())
	number := func(n uint64) { mac.Write(binary.BigEndian.AppendUint64(nil, n)) }
	mac.Write([]byte("hullmark/v1/keys\x00"))
	number(r.Number)
	for _, f := range nodeFiles {
		if !f.Replaced {
			continue
		}
		file := content(f.Path)
		mac.Write(append([]byte(f.Path), 0))
		number(uint64(len(file)))
		mac.Write(file)
	}
	return KeysDigest(mac.Sum(nil))
}

// String returns the digest as 64 lower-case hexadecimal digits.
func (d KeysDigest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes String's form.
func (d KeysDigest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *KeysDigest) UnmarshalText(text []byte) error {
	if err := decodeHex(d[:], string(text)); err != nil {
		return fmt.Errorf("digest of keys: %w", err)
	}
	return nil
}

// CADigest commits to the certificates of the Kubernetes CA that nodes trust. The zero value commits to none.
type CADigest [sha256.Size]byte

// DigestCA is the SHA-256 of what KubernetesCACertificate holds.
func DigestCA(certificates []byte) CADigest { return sha256.Sum256(certificates) }

// String returns the digest as 64 lower-case hexadecimal digits.
func (d CADigest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes String's form.
func (d CADigest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *CADigest) UnmarshalText(text []byte) error {
	if err := decodeHex(d[:], string(text)); err != nil {
		return fmt.Errorf("digest of the Kubernetes CA: %w", err)
	}
	return nil
}
