package hullmark

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// spkiPrefix starts the SubjectPublicKeyInfo of every ECDSA P-256 key (RFC 5480
// §2); the 65 bytes of the uncompressed point follow.
var spkiPrefix = []byte{
	0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01,
	0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
}

// PolicyKind is the kind of the signature of a policy (SigningInput).
const PolicyKind = "policy"

// Signed is a policy with what it takes to check it against a cluster root. JSON writes each field in base64.
type Signed struct {
	// Policy is the document as it was signed.
	Policy []byte `json:"policy"`
	// RootKey is the root key's SubjectPublicKeyInfo.
	RootKey []byte `json:"rootKey"`
	// Signature is ECDSA over SHA-256, in ASN.1 DER.
	Signature []byte `json:"signature"`
}

// SignPolicyDocument signs an encoded policy with a root key, which has to be ECDSA P-256. A signer that is a crypto.MessageSigner is
// shown what it signs.
func SignPolicyDocument(signer crypto.Signer, document []byte) (Signed, error) {
	public, ok := signer.Public().(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return Signed{}, fmt.Errorf("the root key is a %T, want ECDSA P-256", signer.Public())
	}
	point, err := public.Bytes()
	if err != nil {
		return Signed{}, fmt.Errorf("root key: %w", err)
	}
	s := Signed{Policy: document, RootKey: append(bytes.Clone(spkiPrefix), point...)}
	if s.Signature, err = crypto.SignMessage(signer, rand.Reader, SigningInput(PolicyKind, s.Root(), document), crypto.SHA256); err != nil {
		return Signed{}, err
	}
	return s, nil
}

// ParseSigned strictly reads the JSON form of at most limit bytes. It checks no signature.
func ParseSigned(encoded []byte, limit int) (Signed, error) {
	var s Signed
	err := DecodeStrict(encoded, limit, &s)
	return s, err
}

// Root returns the root whose key the document says that it is signed by. Whether that is so, Open tells.
func (s Signed) Root() ClusterRoot { return ClusterRootOf(s.RootKey) }

// Open checks the signature by the key of Root, and returns the document. Whether that root is the cluster's, the caller has to know.
func (s Signed) Open() ([]byte, error) {
	point, ok := bytes.CutPrefix(s.RootKey, spkiPrefix)
	if !ok {
		return nil, errors.New("the root key is not an ECDSA P-256 key")
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return nil, fmt.Errorf("root key: %w", err)
	}
	digest := sha256.Sum256(SigningInput(PolicyKind, s.Root(), s.Policy))
	if !ecdsa.VerifyASN1(public, digest[:], s.Signature) {
		return nil, errors.New("the signature is not the root key's; the policy was changed")
	}
	return s.Policy, nil
}
