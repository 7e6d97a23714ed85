package hullmark

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// EncryptedText is a secret in a text that is public, such as a pool's file in the policy: encrypted under one of the cluster's master
// keys, so that the cluster file and join services read it, and bound to what it is for (docs/protocol.md, What is hashed).
type EncryptedText struct {
	// Generation is that of the master key.
	Generation uint32
	// Purpose says what the secret is for: a file's path, or a registry's URL.
	Purpose string
	// Box is a nonce of 12 bytes, and AES-256-GCM's output.
	Box []byte
}

// Limits of an encrypted text, in bytes.
const (
	MaxPurpose   = 255
	MaxPlaintext = 64 << 10
	// boxOverhead is AES-GCM's nonce and tag.
	boxOverhead = 12 + 16
)

// encryptedPrefix begins each, and stands nowhere else.
const encryptedPrefix = "hullmark-encrypted:"

var (
	purposePattern   = regexp.MustCompile(`^[A-Za-z0-9:/_.-]+$`)
	encryptedPattern = regexp.MustCompile(encryptedPrefix + `([1-9][0-9]{0,9}):([A-Za-z0-9:/_.-]+):([A-Za-z0-9_-]+)`)
)

// ValidPurpose reports whether a secret can be encrypted for it.
func ValidPurpose(s string) bool { return len(s) <= MaxPurpose && purposePattern.MatchString(s) }

// String returns its one line of text.
func (e EncryptedText) String() string {
	return encryptedPrefix + strconv.FormatUint(uint64(e.Generation), 10) + ":" + e.Purpose + ":" + base64.RawURLEncoding.EncodeToString(e.Box)
}

// ParseEncrypted reads what String writes.
func ParseEncrypted(text string) (e EncryptedText, err error) {
	found := encryptedPattern.FindStringSubmatch(text)
	if found == nil || found[0] != text {
		return e, errors.New("want the line that hullmark cluster encrypt prints")
	}
	generation, err := strconv.ParseUint(found[1], 10, 32)
	if err != nil {
		return e, fmt.Errorf("encrypted text: generation %s: want one of 32 bits", found[1])
	}
	box, err := base64.RawURLEncoding.Strict().DecodeString(found[3])
	if err != nil || len(box) < boxOverhead || len(box) > boxOverhead+MaxPlaintext || len(found[2]) > MaxPurpose {
		return e, fmt.Errorf("encrypted text for %.80q: want 1 to %d bytes in base64 (URL), and at most %d that say what for", found[2], MaxPlaintext, MaxPurpose)
	}
	return EncryptedText{Generation: uint32(generation), Purpose: found[2], Box: box}, nil
}

// HasEncrypted reports whether a text has an encrypted one in it, or the beginning of one.
func HasEncrypted(text string) bool { return strings.Contains(text, encryptedPrefix) }

// EncryptedIn returns those in a text, and where they begin and end. What begins as one and is none is an error.
func EncryptedIn(text string) (found []EncryptedText, where [][]int, err error) {
	where = encryptedPattern.FindAllStringIndex(text, -1)
	if len(where) != strings.Count(text, encryptedPrefix) {
		return nil, nil, errors.New("an encrypted text in it is damaged: want the line that hullmark cluster encrypt prints")
	}
	for _, at := range where {
		e, err := ParseEncrypted(text[at[0]:at[1]])
		if err != nil {
			return nil, nil, err
		}
		found = append(found, e)
	}
	return found, where, nil
}

// Decrypted returns a text with what open makes of each encrypted one in its place. The caller wipes it.
func Decrypted(text string, open func(EncryptedText) (Secret, error)) (plain []byte, err error) {
	found, where, err := EncryptedIn(text)
	if err != nil {
		return nil, err
	}
	// It is never longer than the text, so nothing of it is left behind in memory that grew.
	plain = make([]byte, 0, len(text))
	rest := 0
	for i, e := range found {
		secret, err := open(e)
		if err != nil {
			clear(plain)
			return nil, err
		}
		plain = append(append(plain, text[rest:where[i][0]]...), secret.Expose()...)
		secret.Wipe()
		rest = where[i][1]
	}
	return append(plain, text[rest:]...), nil
}
