package hullmark

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
)

// spkiPrefix starts the SubjectPublicKeyInfo of every ECDSA P-256 key (RFC 5480
// §2); the 65 bytes of the uncompressed point follow.
var spkiPrefix = []byte{
	0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01,
	0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
}

// Kinds of the signatures of a policy (SigningInput).
const (
	// PolicyKind is that of the root's.
	PolicyKind = "policy"
	// ChangedPolicyKind is that of an operator's.
	ChangedPolicyKind = "changed-policy"
)

// Signed is a policy with what it takes to check it against a cluster root. JSON writes each field in base64.
type Signed struct {
	// Policy is the document as it was signed.
	Policy []byte `json:"policy"`
	// RootKey is the root key's SubjectPublicKeyInfo.
	RootKey []byte `json:"rootKey"`
	// Signature is ECDSA over SHA-256, in ASN.1 DER: the root's, or with Changed the operator's.
	Signature []byte `json:"signature"`
	// Changed says by what an operator could sign this; nil if the root did.
	Changed *Changed `json:"changed,omitempty"`
}

// Changed is what an operator's signature rests on.
type Changed struct {
	// Key is his key's SubjectPublicKeyInfo.
	Key []byte `json:"key"`
	// Policy is the last policy that the root signed, which lets him change it, and Signature the root's over that.
	Policy    []byte `json:"policy"`
	Signature []byte `json:"signature"`
}

// SignPolicyDocument signs an encoded policy with a root key, which has to be ECDSA P-256. A signer that is a crypto.MessageSigner is
// shown what it signs.
func SignPolicyDocument(signer crypto.Signer, document []byte) (Signed, error) {
	spki, err := spkiOf(signer.Public())
	if err != nil {
		return Signed{}, fmt.Errorf("the root key %w", err)
	}
	s := Signed{Policy: document, RootKey: spki}
	if s.Signature, err = crypto.SignMessage(signer, rand.Reader, SigningInput(PolicyKind, s.Root(), document), crypto.SHA256); err != nil {
		return Signed{}, err
	}
	return s, nil
}

// SignChangedPolicy signs an encoded policy that an operator made of the last one, with his key, which has to be ECDSA P-256. It fails if
// Open would refuse the result.
func SignChangedPolicy(signer crypto.Signer, last Signed, document []byte) (Signed, error) {
	spki, err := spkiOf(signer.Public())
	if err != nil {
		return Signed{}, fmt.Errorf("the operator's key %w", err)
	}
	policy, signature := last.byRoot()
	s := Signed{Policy: document, RootKey: last.RootKey, Changed: &Changed{Key: spki, Policy: policy, Signature: signature}}
	if s.Signature, err = crypto.SignMessage(signer, rand.Reader, SigningInput(ChangedPolicyKind, s.Root(), document), crypto.SHA256); err != nil {
		return Signed{}, err
	}
	_, err = s.Open()
	return s, err
}

// spkiOf is the SubjectPublicKeyInfo of an ECDSA P-256 key.
func spkiOf(public crypto.PublicKey) ([]byte, error) {
	key, ok := public.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("is a %T, want ECDSA P-256", public)
	}
	point, err := key.Bytes()
	return append(bytes.Clone(spkiPrefix), point...), err
}

// ParseSigned strictly reads the JSON form of at most limit bytes. It checks no signature.
func ParseSigned(encoded []byte, limit int) (Signed, error) {
	var s Signed
	err := DecodeStrict(encoded, limit, &s)
	return s, err
}

// Root returns the root whose key the document says that it is signed by. Whether that is so, Open tells.
func (s Signed) Root() ClusterRoot { return ClusterRootOf(s.RootKey) }

// byRoot is the policy that the root signed, itself or as what an operator changed, with the root's signature.
func (s Signed) byRoot() (policy, signature []byte) {
	if s.Changed != nil {
		return s.Changed.Policy, s.Changed.Signature
	}
	return s.Policy, s.Signature
}

// Open checks the signature by the key of Root, and returns the document. Of one that an operator signed it checks that the root signed
// the policy before, and that this lets him change what he changed. Whether that root is the cluster's, the caller has to know.
func (s Signed) Open() ([]byte, error) {
	policy, signature := s.byRoot()
	if err := verifySigned("the root key", s.RootKey, SigningInput(PolicyKind, s.Root(), policy), signature); err != nil {
		return nil, err
	}
	if s.Changed == nil {
		return s.Policy, nil
	}
	if err := verifySigned("the operator's key", s.Changed.Key, SigningInput(ChangedPolicyKind, s.Root(), s.Policy), s.Signature); err != nil {
		return nil, err
	}
	if err := checkChanged(policy, s.Policy, OperatorKeyOf(s.Changed.Key)); err != nil {
		return nil, fmt.Errorf("changed by an operator: %w", err)
	}
	return s.Policy, nil
}

// verifySigned checks a signature by a key, which is called whose in errors.
func verifySigned(whose string, spki, message, signature []byte) error {
	point, ok := bytes.CutPrefix(spki, spkiPrefix)
	if !ok {
		return fmt.Errorf("%s is not an ECDSA P-256 key", whose)
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return fmt.Errorf("%s: %w", whose, err)
	}
	if digest := sha256.Sum256(message); !ecdsa.VerifyASN1(public, digest[:], signature) {
		return fmt.Errorf("the signature is not by %s; the policy was changed", whose)
	}
	return nil
}
