// Package policytest makes signed policies that no tool of ours makes.
package policytest

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// UnknownField is what WithUnknownField adds.
const UnknownField = "tolerance"

// WithUnknownField signs a policy that has a field more, as a later release's might. The signature is good.
func WithUnknownField(key crypto.Signer, root hullmark.ClusterRoot, p measurements.Policy) ([]byte, error) {
	envelope, err := measurements.SignPolicy(key, root, p)
	if err != nil {
		return nil, err
	}
	return change(envelope, func(s *hullmark.Signed) error {
		begin := []byte("{\n")
		if !bytes.HasPrefix(s.Policy, begin) {
			return fmt.Errorf("a policy that begins with %.10q", s.Policy)
		}
		s.Policy = fmt.Appendf(nil, "{\n  %q: 1,\n%s", UnknownField, s.Policy[len(begin):])
		digest := sha256.Sum256(hullmark.SigningInput("policy", root, s.Policy))
		s.Signature, err = key.Sign(rand.Reader, digest[:], crypto.SHA256)
		return err
	})
}

// WithWrongSignature changes the signature of a signed policy.
func WithWrongSignature(envelope []byte) ([]byte, error) {
	return change(envelope, func(s *hullmark.Signed) error {
		s.Signature[len(s.Signature)-1] ^= 1
		return nil
	})
}

func change(envelope []byte, edit func(*hullmark.Signed) error) ([]byte, error) {
	var s hullmark.Signed
	if err := json.Unmarshal(envelope, &s); err != nil {
		return nil, err
	}
	if err := edit(&s); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}
