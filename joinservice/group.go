package joinservice

import (
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// group is a policy's rule for machines that somebody vouches for, prepared for judging many.
type group struct {
	rule      measurements.Group
	authority *x509.Certificate
}

// CheckGroups reports what keeps a policy's groups from admitting anybody.
func CheckGroups(policy measurements.Policy) error {
	_, err := groupsOf(policy)
	return err
}

func groupsOf(policy measurements.Policy) ([]group, error) {
	var groups []group
	for _, rule := range policy.Groups {
		authority, err := x509.ParseCertificate(rule.Authority)
		if err == nil && (!authority.IsCA || authority.KeyUsage != 0 && authority.KeyUsage&x509.KeyUsageCertSign == 0) {
			err = fmt.Errorf("%s signs no certificates", authority.Subject)
		}
		if err != nil {
			return nil, fmt.Errorf("group %s: authority: %w", rule.Name, err)
		}
		groups = append(groups, group{rule, authority})
	}
	return groups, nil
}

// admits reports whether the group's authority signed a certificate, and its subject is of the group. As with all EK certificates, times are not looked at.
func (g group) admits(certificate *x509.Certificate) bool {
	if certificate == nil || certificate.CheckSignatureFrom(g.authority) != nil {
		return false
	}
	return !slices.ContainsFunc(g.rule.Subject, func(a measurements.Attribute) bool { return !hasAttribute(certificate, a) })
}

// hasAttribute reports whether a certificate's subject has an attribute of this type once, with this value: of two of one type nobody knows which counts.
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

// memberOf returns the rule for a machine: its own, or that of the first group which admits it.
func memberOf(own measurements.Member, named bool, policy measurements.Policy, groups []group, node hullmark.NodeID, ek *x509.Certificate) (measurements.Member, bool) {
	if named || policy.Bars(node) {
		return own, named
	}
	i := slices.IndexFunc(groups, func(g group) bool { return g.admits(ek) })
	if i < 0 {
		return measurements.Member{}, false
	}
	return groups[i].rule.Member(node), true
}
