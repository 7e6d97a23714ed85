package measurements

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"

	"filippo.io/edwards25519"
)

// What a SubjectPublicKeyInfo in DER begins with, before the key itself: RFC 5480 §2.1.1 and §2.2, for a point on P-256 that is not
// compressed; RFC 8410 §4.
const (
	spkiP256    = "\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00"
	spkiEd25519 = "\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00"
)

// KeyInfo is a public key's SubjectPublicKeyInfo (RFC 5280 §4.1.2.7, DER), without the network that crypto/x509 brings. The key is
// ECDSA P-256 or Ed25519.
func KeyInfo(public crypto.PublicKey) ([]byte, error) {
	switch key := public.(type) {
	case ed25519.PublicKey:
		if err := CheckEd25519(key); err != nil {
			return nil, err
		}
		return append([]byte(spkiEd25519), key...), nil
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			point, err := key.Bytes()
			return append([]byte(spkiP256), point...), err
		}
	}
	return nil, errKey(public)
}

func errKey(public crypto.PublicKey) error {
	return fmt.Errorf("the key is %s, want ECDSA P-256 or Ed25519", KeyKind(public))
}

// KeyKind names a public key's algorithm and size for people.
func KeyKind(public crypto.PublicKey) string {
	switch key := public.(type) {
	case ed25519.PublicKey:
		return "Ed25519"
	case *ecdsa.PublicKey:
		return "ECDSA " + key.Params().Name
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA with %d bits", key.N.BitLen())
	}
	return fmt.Sprintf("of another kind (%T)", public)
}

// CheckEd25519 refuses what verifies and is nobody's key: a point of small order, under which a signature that nobody made holds for any
// message (RFC 8032 §5.1.7 does not exclude it), and a second spelling of a point, which would count as a second key.
func CheckEd25519(key ed25519.PublicKey) error {
	if len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("a key of %d bytes, want an Ed25519 public key of %d", len(key), ed25519.PublicKeySize)
	}
	point, err := new(edwards25519.Point).SetBytes(key)
	if err != nil || !bytes.Equal(point.Bytes(), key) {
		return errors.New("an Ed25519 public key that is no point in its one spelling (RFC 8032 §5.1.2)")
	}
	if new(edwards25519.Point).MultByCofactor(point).Equal(edwards25519.NewIdentityPoint()) == 1 {
		return errors.New("an Ed25519 public key of small order: anybody can sign by it")
	}
	return nil
}
