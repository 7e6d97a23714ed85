package joinservice

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/measurements"
)

// group is a policy's rule for machines that somebody vouches for, prepared for judging many.
type group struct {
	rule               measurements.Group
	authorities, roots []*x509.Certificate
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

func newGroup(rule measurements.Group) (g group, err error) {
	g.rule = rule
	if g.authorities, err = parseAuthorities(rule.Authorities); err == nil {
		g.roots, err = parseAuthorities(rule.Roots)
	}
	return g, err
}

func parseAuthorities(all [][]byte) (authorities []*x509.Certificate, err error) {
	for _, der := range all {
		authority, err := x509.ParseCertificate(der)
		if err == nil {
			err = checkAuthority(authority)
		}
		if err != nil {
			return nil, err
		}
		authorities = append(authorities, authority)
	}
	return authorities, nil
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
func groupOf(policy measurements.Policy, groups []group, node hullmark.EKID, ek *ekcert.Certificate) *measurements.Group {
	if ek == nil || policy.Denies(node) {
		return nil
	}
	i := slices.IndexFunc(groups, func(g group) bool { return g.admits(ek) })
	if i < 0 {
		return nil
	}
	return &groups[i].rule
}

// admits reports whether an EK's certificate is of the group. Signatures come last: they are what costs.
func (g group) admits(certificate *ekcert.Certificate) bool {
	if slices.ContainsFunc(g.rule.Subject, func(a measurements.Attribute) bool { return !hasAttribute(certificate.Certificate, a) }) {
		return false
	}
	return slices.ContainsFunc(g.authorities, func(authority *x509.Certificate) bool { return certificate.CheckSignedBy(authority) == nil }) ||
		len(g.roots) > 0 && certificate.CheckLeadsTo(g.roots) == nil
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
