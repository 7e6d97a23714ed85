package cluster

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/measurements"
)

// MaxAsked bounds what a root is asked to sign, in bytes.
const MaxAsked = measurements.MaxPolicy + 1<<10

// Asked says for people what a root is asked to sign (RemoteRoot.Sign), before somebody who has the key does. What is neither a policy
// nor a certificate that a root signs is an error.
func Asked(message []byte) (string, error) {
	var root hullmark.ClusterRoot
	label := hullmark.SigningInput(hullmark.PolicyKind, root, nil)
	label = label[:len(label)-len(root)]
	if signed, ok := bytes.CutPrefix(message, label); ok && len(signed) > len(root) {
		copy(root[:], signed)
		policy, err := measurements.ParsePolicy(signed[len(root):])
		if err != nil {
			return "", fmt.Errorf("what is to be signed: %w", err)
		}
		return fmt.Sprintf("policy version %d of root %s: %d documents, %d members, %d groups, %d resets, %d rebinds and %d overrides",
			policy.Version, root, len(policy.Documents), len(policy.Members), len(policy.Groups), len(policy.Resets), len(policy.Rebinds), len(policy.Overrides)), nil
	}
	certificate, err := unsigned(message)
	if err != nil {
		return "", errors.New("what is to be signed is neither a policy nor a certificate")
	}
	return describe(certificate)
}

// describe says what a certificate of a root is for.
func describe(certificate *x509.Certificate) (string, error) {
	key := hullmark.ClusterRootOf(certificate.RawSubjectPublicKeyInfo)
	switch {
	case certificate.IsCA && certificate.MaxPathLenZero:
		return fmt.Sprintf("the certificate of an online CA, key %s", key), nil
	case certificate.IsCA:
		return fmt.Sprintf("the certificate of a root, key %s: its own, or that to which it hands over", key), nil
	}
	scope, err := channel.LeafScope(certificate)
	if err != nil {
		return "", fmt.Errorf("what is to be signed: %w", err)
	}
	if scope.EKID == (hullmark.EKID{}) {
		return fmt.Sprintf("an operator's certificate for %s of any machine, by policy version %d", scope.Verb, scope.Policy), nil
	}
	return fmt.Sprintf("an operator's certificate for %s of machine %s, by policy version %d", scope.Verb, scope.EKID, scope.Policy), nil
}

// ecdsaWithSHA256 is RFC 5758 §3.2's ecdsa-with-SHA256.
var ecdsaWithSHA256 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}

// unsigned reads a certificate that is yet to be signed (RFC 5280 §4.1, TBSCertificate).
func unsigned(tbs []byte) (*x509.Certificate, error) {
	der, err := asn1.Marshal(struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: tbs}, pkix.AlgorithmIdentifier{Algorithm: ecdsaWithSHA256}, asn1.BitString{Bytes: []byte{0}, BitLength: 8}})
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err == nil && !bytes.Equal(certificate.RawTBSCertificate, tbs) {
		err = errors.New("there is more than a certificate")
	}
	return certificate, err
}
