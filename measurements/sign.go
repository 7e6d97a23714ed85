package measurements

import (
	"crypto"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
)

// maxSigned is the largest signed policy, in bytes: base64 takes a third more, and one that an operator changed has the one before in it.
const maxSigned = 2 * (MaxPolicy/3*4 + 4096)

// SignPolicy signs a policy with the cluster's root key, an ECDSA P-256 key,
// and returns the signed document. It fails if root does not name that key.
func SignPolicy(signer crypto.Signer, root hullmark.ClusterRoot, p Policy) ([]byte, error) {
	encoded, err := p.Encode()
	if err != nil {
		return nil, fmt.Errorf("sign policy: %w", err)
	}
	signed, err := hullmark.SignPolicyDocument(signer, encoded)
	if err != nil {
		return nil, fmt.Errorf("sign policy: %w", err)
	}
	if signed.Root() != root {
		return nil, errors.New("sign policy: the key is not the root key of this cluster")
	}
	return hullmark.CanonicalJSON(signed)
}

// ChangePolicy signs a policy that an operator made of the last one, which is in its signed form, with his key, an ECDSA P-256 key. The
// error is hullmark.ErrReserved if the last policy that the root signed does not let him change what he changed (hullmark.Changed).
func ChangePolicy(operator crypto.Signer, last []byte, p Policy) ([]byte, error) {
	encoded, err := p.Encode()
	if err != nil {
		return nil, fmt.Errorf("change policy: %w", err)
	}
	before, err := hullmark.ParseSigned(last, maxSigned)
	if err != nil {
		return nil, fmt.Errorf("change policy: %w", err)
	}
	signed, err := hullmark.SignChangedPolicy(operator, before, encoded)
	if err != nil {
		return nil, fmt.Errorf("change policy: %w", err)
	}
	return hullmark.CanonicalJSON(signed)
}

// PolicyChanger returns the operator who signed a policy, whose signature OpenPolicy has checked; ok is false if the root did.
func PolicyChanger(signed []byte) (o hullmark.Operator, ok bool) {
	s, err := hullmark.ParseSigned(signed, maxSigned)
	if err != nil {
		return o, false
	}
	return s.Changer()
}

// PolicySigner returns the root that a signed policy says that it is signed by. Whether that is so, OpenPolicy tells.
func PolicySigner(signed []byte) (hullmark.ClusterRoot, error) {
	s, err := hullmark.ParseSigned(signed, maxSigned)
	if err != nil {
		return hullmark.ClusterRoot{}, fmt.Errorf("open policy: %w", err)
	}
	return s.Root(), nil
}

// OpenPolicy checks a signed policy against a cluster root and reads it. It
// does not know whether a newer one exists: the caller compares versions.
func OpenPolicy(signed []byte, root hullmark.ClusterRoot) (Policy, error) {
	s, err := hullmark.ParseSigned(signed, maxSigned)
	if err != nil {
		return Policy{}, fmt.Errorf("open policy: %w", err)
	}
	if s.Root() != root {
		return Policy{}, errors.New("open policy: signed by the root key of another cluster")
	}
	encoded, err := s.Open()
	if err != nil {
		return Policy{}, fmt.Errorf("open policy: %w", err)
	}
	p, err := ParsePolicy(encoded)
	if err != nil {
		return Policy{}, fmt.Errorf("open policy: %w", err)
	}
	return p, nil
}
