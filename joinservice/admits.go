package joinservice

import (
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/measurements"
)

// Admits returns nil if the policy in force admits the machine of a record under the name and role that the record has, or why
// it does not: nothing admits it any more, or what does gives it another name or role. A machine of a group is held to the
// group as it is now, by the certificate or the voucher that its record keeps.
func (s *PolicyStore) Admits(m Machine) error { return s.inForce.Load().admits(m) }

// Rules say whom a policy admits, prepared for many records: an operator's program holds them to the policy as a join service does.
type Rules struct{ of *verified }

// NewRules returns the rules of a policy whose signature was checked, by one of the cluster's roots. Groups that this release cannot
// read admit nobody.
func NewRules(policy measurements.Policy, root hullmark.ClusterRoot) Rules {
	v := &verified{policy: policy, first: policy.First(root), members: membersOf(policy)}
	v.groups, _ = groupsOf(policy)
	return Rules{v}
}

// Admits is that of a PolicyStore with this policy.
func (r Rules) Admits(m Machine) error { return r.of.admits(m) }

func (v *verified) admits(m Machine) error {
	member, ok := v.member(m)
	switch {
	case !ok:
		return fmt.Errorf("policy version %d admits machine %s no more", v.policy.Version, m.EKID)
	case member.Name != m.Name || member.Role != m.Role:
		return fmt.Errorf("policy version %d: machine %s is %s %s by now, and was admitted as %s %s", v.policy.Version, m.EKID, member.Role, member.Name, m.Role, m.Name)
	}
	return nil
}

func membersOf(policy measurements.Policy) map[hullmark.EKID]measurements.Member {
	members := make(map[hullmark.EKID]measurements.Member, len(policy.Members))
	for _, m := range policy.Members {
		members[m.EKID] = m
	}
	return members
}

// member returns the rule for the machine of a record: its own, or the one of a group that admits it.
func (v *verified) member(m Machine) (measurements.Member, bool) {
	if own, named := v.members[m.EKID]; named {
		return own, true
	}
	ek, err := ekcert.Parse(m.EKCertificate)
	if err != nil {
		ek = nil // It has none, or none that can be read.
	}
	if len(m.Voucher) > 0 {
		if by, err := v.vouches(m.EKID, ek, m.Voucher, time.Time{}); err == nil {
			return by.voucher.Member(by.group), true
		}
	}
	group := groupOf(v.policy, v.groups, m.EKID, ek)
	if group == nil {
		return measurements.Member{}, false
	}
	return group.Member(m.EKID), true
}

// proof returns what a group admitted the machine by: the certificate of its endorsement key, its voucher, or both; nothing if a rule
// of its own did.
func (p *proved) proof() (ekCertificate, voucher []byte) {
	switch {
	case p.admission.Group == nil:
		return nil, nil
	case p.vouched != nil && !p.vouched.group.Certified():
		return nil, p.vouched.signed
	case p.vouched != nil:
		voucher = p.vouched.signed
	}
	return p.claims.EKCertificate.Encode(), voucher
}
