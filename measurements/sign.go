package measurements

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
)

// policyKind is what the root key's signature covers first.
const policyKind = "policy"

// maxSigned is the largest signed policy, in bytes: base64 takes a third more.
const maxSigned = MaxPolicy/3*4 + 4096

// spkiPrefix starts the SubjectPublicKeyInfo of every ECDSA P-256 key (RFC 5480
// §2); the 65 bytes of the uncompressed point follow.
var spkiPrefix = []byte{
	0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01,
	0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
}

// signedPolicy is a policy with what it takes to check it against a cluster root.
type signedPolicy struct {
	// Policy is the canonical form; JSON writes it in base64, as the other fields.
	Policy []byte `json:"policy"`
	// RootKey is the root key's SubjectPublicKeyInfo.
	RootKey []byte `json:"rootKey"`
	// Signature is ECDSA over SHA-256, in ASN.1 DER.
	Signature []byte `json:"signature"`
}

// SignPolicy signs a policy with the cluster's root key, an ECDSA P-256 key,
// and returns the signed document. It fails if root does not name that key.
func SignPolicy(signer crypto.Signer, root hullmark.ClusterRoot, p Policy) ([]byte, error) {
	encoded, err := p.Encode()
	if err != nil {
		return nil, fmt.Errorf("sign policy: %w", err)
	}
	public, ok := signer.Public().(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, fmt.Errorf("sign policy: the root key is a %T, want ECDSA P-256", signer.Public())
	}
	point, err := public.Bytes()
	if err != nil {
		return nil, fmt.Errorf("sign policy: root key: %w", err)
	}
	spki := append(bytes.Clone(spkiPrefix), point...)
	if hullmark.ClusterRootOf(spki) != root {
		return nil, errors.New("sign policy: the key is not the root key of this cluster")
	}
	digest := sha256.Sum256(hullmark.SigningInput(policyKind, root, encoded))
	signature, err := signer.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign policy: %w", err)
	}
	return canonical(signedPolicy{Policy: encoded, RootKey: spki, Signature: signature})
}

// PolicySigner returns the root that a signed policy says that it is signed by. Whether that is so, OpenPolicy tells.
func PolicySigner(signed []byte) (hullmark.ClusterRoot, error) {
	var s signedPolicy
	if err := strict(signed, maxSigned, &s); err != nil {
		return hullmark.ClusterRoot{}, fmt.Errorf("open policy: %w", err)
	}
	return hullmark.ClusterRootOf(s.RootKey), nil
}

// OpenPolicy checks a signed policy against a cluster root and reads it. It
// does not know whether a newer one exists: the caller compares versions.
func OpenPolicy(signed []byte, root hullmark.ClusterRoot) (Policy, error) {
	var s signedPolicy
	if err := strict(signed, maxSigned, &s); err != nil {
		return Policy{}, fmt.Errorf("open policy: %w", err)
	}
	if hullmark.ClusterRootOf(s.RootKey) != root {
		return Policy{}, errors.New("open policy: signed by the root key of another cluster")
	}
	point, ok := bytes.CutPrefix(s.RootKey, spkiPrefix)
	if !ok {
		return Policy{}, errors.New("open policy: the root key is not an ECDSA P-256 key")
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return Policy{}, fmt.Errorf("open policy: root key: %w", err)
	}
	digest := sha256.Sum256(hullmark.SigningInput(policyKind, root, s.Policy))
	if !ecdsa.VerifyASN1(public, digest[:], s.Signature) {
		return Policy{}, errors.New("open policy: the signature is not the root key's; the policy was changed")
	}
	p, err := ParsePolicy(s.Policy)
	if err != nil {
		return Policy{}, fmt.Errorf("open policy: %w", err)
	}
	return p, nil
}
