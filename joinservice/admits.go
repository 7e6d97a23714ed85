package joinservice

import (
	"fmt"
	"time"

	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/measurements"
)

// Admits returns nil if the policy in force admits the machine of a record under the name and role that the record has, or why
// it does not: nothing admits it any more, or what does gives it another name or role. A machine of a group is held to the
// group as it is now, by the certificate or the voucher that its record keeps.
func (s *PolicyStore) Admits(m Machine) error {
	now := s.inForce.Load()
	member, ok := now.member(m)
	switch {
	case !ok:
		return fmt.Errorf("policy version %d admits machine %s no more", now.policy.Version, m.EKID)
	case member.Name != m.Name || member.Role != m.Role:
		return fmt.Errorf("policy version %d: machine %s is %s %s by now, and was admitted as %s %s", now.policy.Version, m.EKID, member.Role, member.Name, m.Role, m.Name)
	}
	return nil
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
