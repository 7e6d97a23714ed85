package tlog

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// KeyDigest is the SHA-256 of a public key's SubjectPublicKeyInfo (RFC 5280 §4.1.2.7, DER): what entries name who signed by. The
// key is ECDSA P-256 or Ed25519.
func KeyDigest(key crypto.PublicKey) (pcrs.Digest, error) {
	info, err := measurements.KeyInfo(key)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(info)
	return digest[:], nil
}

// The types of signatures that are known (C2SP signed-note, "Signature types").
const (
	plainSignature = 0x01
	cosignature    = 0x04
)

// timeSize is how many bytes of a cosignature are its time (C2SP tlog-cosignature, "Format": timestamped_signature).
const timeSize = 8

// noteKey is an Ed25519 key under a name, for signatures of one type. It is a note.Verifier.
type noteKey struct {
	name   string
	kind   byte
	public ed25519.PublicKey
}

// Name is note.Verifier's.
func (k noteKey) Name() string { return k.name }

// KeyHash is note.Verifier's (C2SP signed-note, "Signatures": the key ID).
func (k noteKey) KeyHash() uint32 {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%c%s", k.name, k.kind, k.public) // Both kinds are one byte as characters, too.
	return binary.BigEndian.Uint32(h.Sum(nil))
}

// Verify is note.Verifier's.
func (k noteKey) Verify(text, signature []byte) bool {
	if k.kind == plainSignature {
		return ed25519.Verify(k.public, text, signature)
	}
	at, ok := cosignedAt(signature)
	return ok && ed25519.Verify(k.public, cosignedMessage(at, text), signature[timeSize:])
}

// cosignedAt returns the time in a cosignature, in seconds since 1970, and whether it can be one at all.
func cosignedAt(signature []byte) (int64, bool) {
	if len(signature) != timeSize+ed25519.SignatureSize {
		return 0, false
	}
	at := binary.BigEndian.Uint64(signature)
	return int64(at), at <= math.MaxInt64
}

// cosignedMessage is what a witness signs (C2SP tlog-cosignature, "Ed25519 signed message").
func cosignedMessage(at int64, text []byte) []byte {
	return append([]byte("cosignature/v1\ntime "+strconv.FormatInt(at, 10)+"\n"), text...)
}

// noteSigner signs by the key. It is a note.Signer.
type noteSigner struct {
	noteKey
	key crypto.Signer
	// at is the time of a cosignature, in seconds since 1970.
	at int64
}

// newSigner signs by an Ed25519 key, and by no other.
func newSigner(name string, kind byte, key crypto.Signer) (noteSigner, error) {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return noteSigner{}, fmt.Errorf("the key is %s, want Ed25519", measurements.KeyKind(key.Public()))
	}
	return noteSigner{noteKey: noteKey{name, kind, public}, key: key}, nil
}

// Sign is note.Signer's.
func (s noteSigner) Sign(text []byte) ([]byte, error) {
	if s.kind == plainSignature {
		return s.key.Sign(rand.Reader, text, crypto.Hash(0))
	}
	signature, err := s.key.Sign(rand.Reader, cosignedMessage(s.at, text), crypto.Hash(0))
	return append(binary.BigEndian.AppendUint64(nil, uint64(s.at)), signature...), err
}

// witnessName is what a witness of ours is called in the lines that it signs. Nothing rests on it: a witness is its key.
func witnessName(origin string, public ed25519.PublicKey) string {
	digest := sha256.Sum256(public)
	return origin + "/witness/" + hex.EncodeToString(digest[:8])
}
