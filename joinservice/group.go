package joinservice

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// group is a policy's rule for machines that somebody vouches for, prepared for judging many.
type group struct {
	rule        measurements.Group
	authorities []*x509.Certificate
}

// CheckGroups reports what keeps a policy's groups from admitting anybody, or lets two of them admit the same machine.
func CheckGroups(policy measurements.Policy) error {
	if _, err := groupsOf(policy); err != nil {
		return err
	}
	for i, g := range policy.Groups {
		for _, other := range policy.Groups[:i] {
			if err := g.CheckApart(other, sameAuthority); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameAuthority reports whether two certificates are of one CA's name and key, as one that was renewed: then admits takes
// either for the other.
func sameAuthority(a, b []byte) bool {
	one, err := x509.ParseCertificate(a)
	if err != nil {
		return false
	}
	other, err := x509.ParseCertificate(b)
	return err == nil && bytes.Equal(one.RawSubject, other.RawSubject) && bytes.Equal(one.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo)
}

// groupsOf prepares the groups that can be; the others, which the error names, admit nobody.
func groupsOf(policy measurements.Policy) (groups []group, err error) {
	for _, rule := range policy.Groups {
		g, wrong := newGroup(rule)
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("group %s: authorities: %w", rule.Name, wrong))
			continue
		}
		if len(rule.Enrollers) == 0 { // Enrollers admit by vouchers: see voucher.go.
			groups = append(groups, g)
		}
	}
	return groups, err
}

func newGroup(rule measurements.Group) (group, error) {
	g := group{rule: rule}
	for _, der := range rule.Authorities {
		authority, err := x509.ParseCertificate(der)
		if err == nil {
			err = checkAuthority(authority)
		}
		if err != nil {
			return g, err
		}
		g.authorities = append(g.authorities, authority)
	}
	return g, nil
}

// maxModulus bounds an authority's RSA key, in bits: whoever dials costs a verification.
const maxModulus = 8192

func checkAuthority(authority *x509.Certificate) error {
	rsaKey, isRSA := authority.PublicKey.(*rsa.PublicKey)
	switch {
	case !authority.IsCA || authority.KeyUsage != 0 && authority.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%s signs no certificates", authority.Subject)
	case authority.PublicKeyAlgorithm == x509.UnknownPublicKeyAlgorithm, isRSA && rsaKey.N.BitLen() > maxModulus:
		return fmt.Errorf("%s has a key of a kind or size that is not taken", authority.Subject)
	}
	return nil
}

// groupOf returns the one group that admits a machine which has no rule of its own, or nil.
func groupOf(policy measurements.Policy, groups []group, node hullmark.EKID, ek *x509.Certificate) *measurements.Group {
	if ek == nil || policy.Denies(node) {
		return nil
	}
	i := slices.IndexFunc(groups, func(g group) bool { return g.admits(ek) })
	if i < 0 {
		return nil
	}
	return &groups[i].rule
}

// admits reports whether an EK's certificate is of the group. The signature comes last: it is what costs. As with all EK
// certificates, times are not looked at.
func (g group) admits(certificate *x509.Certificate) bool {
	if !isForEK(certificate) || slices.ContainsFunc(g.rule.Subject, func(a measurements.Attribute) bool { return !hasAttribute(certificate, a) }) {
		return false
	}
	return slices.ContainsFunc(g.authorities, func(authority *x509.Certificate) bool {
		return bytes.Equal(certificate.RawIssuer, authority.RawSubject) && certificate.CheckSignatureFrom(authority) == nil
	})
}

// ekUsage is the purpose of an EK's certificate (TCG EK Credential Profile §3.2.16, tcg-kp-EKCertificate).
var ekUsage = asn1.ObjectIdentifier{2, 23, 133, 8, 1}

// isForEK refuses a certificate that says that it is for something else than an EK, which only decrypts: a CA may sign other
// keys, which are in no TPM.
func isForEK(certificate *x509.Certificate) bool {
	if certificate.IsCA || certificate.KeyUsage != 0 && certificate.KeyUsage&x509.KeyUsageKeyEncipherment == 0 {
		return false
	}
	purposes := len(certificate.ExtKeyUsage) + len(certificate.UnknownExtKeyUsage)
	return purposes == 0 || slices.ContainsFunc(certificate.UnknownExtKeyUsage, ekUsage.Equal)
}

// hasAttribute reports whether a certificate's subject has an attribute of this type once, with this value: of two of one type
// nobody knows which counts.
func hasAttribute(certificate *x509.Certificate, want measurements.Attribute) bool {
	id, found := measurements.AttributeTypes()[want.Type], 0
	for _, a := range certificate.Subject.Names {
		if a.Type.String() != id {
			continue
		}
		if value, ok := a.Value.(string); !ok || value != want.Value {
			return false
		}
		found++
	}
	return found == 1
}
