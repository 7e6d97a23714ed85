// Package pcrs models a measured boot event by event: it predicts what a boot
// extends into the registers of a TPM, replays event logs, and explains where
// a boot departed from its prediction.
//
// Everything is computed from bytes that the caller hands over. Nothing is
// guessed: a firmware, a stub version or a variable that the rules do not cover
// is an error.
package pcrs

import (
	"bytes"
	"crypto"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strings"
)

// Bank names a bank of registers by its hash: a TPM_ALG_ID (TPM 2.0 Part 2 §6.3).
type Bank uint16

// The banks that can be replayed. Predictions are made for all but SHA1.
const (
	// SHA1 is only replayed: no decision may rest on it.
	SHA1   Bank = 0x0004
	SHA256 Bank = 0x000b
	SHA384 Bank = 0x000c
	SHA512 Bank = 0x000d
)

var allBanks = []Bank{SHA1, SHA256, SHA384, SHA512}

// PredictedBanks returns the banks that a prediction covers.
func PredictedBanks() []Bank { return []Bank{SHA256, SHA384, SHA512} }

// ParseBank reads what String writes.
func ParseBank(name string) (Bank, error) {
	for _, b := range allBanks {
		if b.String() == name {
			return b, nil
		}
	}
	return 0, fmt.Errorf("bank %q: want sha1, sha256, sha384 or sha512", name)
}

// Valid reports whether b is one of the banks above.
func (b Bank) Valid() bool { return b.Hash() != 0 }

// Size returns the length of the bank's digests in bytes, 0 for an unknown bank.
func (b Bank) Size() int {
	if !b.Valid() {
		return 0
	}
	return b.Hash().Size()
}

// Hash returns the hash function of the bank, 0 for an unknown bank.
func (b Bank) Hash() crypto.Hash {
	switch b {
	case SHA1:
		return crypto.SHA1
	case SHA256:
		return crypto.SHA256
	case SHA384:
		return crypto.SHA384
	case SHA512:
		return crypto.SHA512
	}
	return 0
}

// String returns the name in lower case, such as "sha256".
func (b Bank) String() string {
	if !b.Valid() {
		return fmt.Sprintf("bank %#04x", uint16(b))
	}
	return strings.ReplaceAll(strings.ToLower(b.Hash().String()), "-", "")
}

// MarshalText writes String's form, so that a Bank can be a JSON map key.
func (b Bank) MarshalText() ([]byte, error) {
	if !b.Valid() {
		return nil, fmt.Errorf("%v is unknown", b)
	}
	return []byte(b.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (b *Bank) UnmarshalText(text []byte) (err error) {
	*b, err = ParseBank(string(text))
	return err
}

// sum hashes data with the bank's function.
func (b Bank) sum(data []byte) Digest { return b.appendSum(nil, data) }

// appendSum appends the hash of data, without memory of its own: a verifier takes a hundred for each log.
func (b Bank) appendSum(to, data []byte) []byte {
	switch b {
	case SHA1:
		sum := sha1.Sum(data)
		return append(to, sum[:]...)
	case SHA256:
		sum := sha256.Sum256(data)
		return append(to, sum[:]...)
	case SHA384:
		sum := sha512.Sum384(data)
		return append(to, sum[:]...)
	case SHA512:
		sum := sha512.Sum512(data)
		return append(to, sum[:]...)
	}
	panic(fmt.Sprintf("%v has no hash", b))
}

// Digest is the digest of an event, or the value of a register.
type Digest []byte

// String returns lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d) }

// Equal reports whether both are the same, non-empty bytes.
func (d Digest) Equal(other Digest) bool { return len(d) > 0 && bytes.Equal(d, other) }

// MarshalText writes String's form.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads lower-case hexadecimal digits of at most 64 bytes.
func (d *Digest) UnmarshalText(text []byte) error {
	decoded, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	if len(decoded) > crypto.SHA512.Size() || hex.EncodeToString(decoded) != string(text) {
		return fmt.Errorf("digest: want at most %d lower-case hexadecimal digits", 2*crypto.SHA512.Size())
	}
	*d = decoded
	return nil
}

// Digests holds one digest per bank.
type Digests map[Bank]Digest

// DigestsOf hashes data for each of the banks.
func DigestsOf(data []byte, banks ...Bank) Digests {
	out := Digests{}
	for _, b := range banks {
		out[b] = b.sum(data)
	}
	return out
}

// Values holds the values of some registers of one bank.
type Values map[Register]Digest
