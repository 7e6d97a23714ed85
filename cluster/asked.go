package cluster

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/measurements"
)

// MaxAsked bounds what a root is asked to sign, in bytes.
const MaxAsked = measurements.MaxPolicy + 1<<10

// Request is what a root is asked to sign, for people to read before somebody who has the key does.
type Request struct {
	// Text says what it is, as far as that is known before the root is which is to sign: see By.
	Text string
	// policyOf is the root that a policy names, certified the key that a root's certificate is for; each is nil of all else.
	policyOf, certified *hullmark.ClusterRoot
}

// By says what there is to say once it is known which root is to sign; it may be empty. A policy that names another root is an error.
func (r Request) By(root hullmark.ClusterRoot) (string, error) {
	switch {
	case r.policyOf != nil && *r.policyOf != root:
		return "", fmt.Errorf("the policy that is to be signed names root %s, and the key is that of root %s; nothing was signed", *r.policyOf, root)
	case r.certified == nil:
		return "", nil
	case *r.certified == root:
		return "the certificate is the root's own", nil
	}
	return fmt.Sprintf("root %s HANDS OVER to %s: nodes obey that one then", root, *r.certified), nil
}

// Asked reads what a root is asked to sign (RemoteRoot.Sign). What is neither a policy nor a certificate that a root signs is an error.
func Asked(message []byte) (Request, error) {
	var root hullmark.ClusterRoot
	label := hullmark.SigningInput(hullmark.PolicyKind, root, nil)
	label = label[:len(label)-len(root)]
	if signed, ok := bytes.CutPrefix(message, label); ok && len(signed) > len(root) {
		copy(root[:], signed)
		text, err := describePolicy(root, signed[len(root):])
		return Request{Text: text, policyOf: &root}, err
	}
	certificate, err := unsigned(message)
	if err != nil {
		return Request{}, errors.New("what is to be signed is neither a policy nor a certificate")
	}
	return describe(certificate)
}

// describePolicy says what a policy decides, in numbers.
func describePolicy(root hullmark.ClusterRoot, encoded []byte) (string, error) {
	p, err := measurements.ParsePolicy(encoded)
	if err != nil {
		return "", fmt.Errorf("what is to be signed: %w", err)
	}
	text := fmt.Sprintf("policy version %d, SHA-256 %s, of root %s: %d documents signed by %d of %d builders, minimumSVN %d, %d members, %d groups, %d denied, %d operators, %d resets, %d rebinds and %d overrides",
		p.Version, ShortDigest(encoded), root, len(p.Documents), p.Builders.Threshold, len(p.Builders.Of), p.MinimumSVN,
		len(p.Members), len(p.Groups), len(p.Denied), len(p.Operators), len(p.Resets), len(p.Rebinds), len(p.Overrides))
	if p.OperatorsFrom > 0 {
		text += fmt.Sprintf(", operatorsFrom %d", p.OperatorsFrom)
	}
	if p.Endpoint != nil {
		text += fmt.Sprintf(", endpoint %s with %d further names", p.Endpoint.Address, len(p.Endpoint.Names))
	}
	return text, nil
}

// ShortDigest is how people tell an encoded policy from others of its version: the first 16 hexadecimal digits of its SHA-256.
func ShortDigest(encoded []byte) string {
	digest := sha256.Sum256(encoded)
	return hex.EncodeToString(digest[:8])
}

// describe says what a certificate of a root is for.
func describe(certificate *x509.Certificate) (Request, error) {
	key := hullmark.ClusterRootOf(certificate.RawSubjectPublicKeyInfo)
	switch {
	case certificate.IsCA && certificate.MaxPathLenZero:
		return Request{Text: fmt.Sprintf("the certificate of an online CA, key %s", key)}, nil
	case certificate.IsCA:
		return Request{Text: fmt.Sprintf("the certificate of a root, key %s", key), certified: &key}, nil
	}
	named, ok, err := channel.LeafNamed(certificate)
	if err != nil {
		return Request{}, fmt.Errorf("what is to be signed: %w", err)
	}
	if ok {
		return Request{Text: fmt.Sprintf("the certificate of operator %s, who may %s until %s, by policy version %d",
			named.Name, hullmark.FormatPermissions(named.May), named.Ends.UTC().Format(time.DateOnly), named.Policy)}, nil
	}
	scope, err := channel.LeafScope(certificate)
	if err != nil {
		return Request{}, fmt.Errorf("what is to be signed: %w", err)
	}
	machine := "any machine"
	if scope.EKID != (hullmark.EKID{}) {
		machine = "machine " + scope.EKID.String()
	}
	return Request{Text: fmt.Sprintf("an operator's certificate for %s of %s, by policy version %d", scope.Verb, machine, scope.Policy)}, nil
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
