package joinservice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
	"github.com/hullmark/hullmark/measurements"
)

// maxVoucherLookups bounds how many unknown machines' vouchers are looked for at once: anybody can make up a TPM that answers.
const maxVoucherLookups = 8

// Vouchers keeps what enrollers issued for machines that no rule names.
type Vouchers interface {
	// Voucher returns the signed voucher for a machine, of any length and content; nil if there is none. An unreachable keeper is a
	// *hullmark.Condition with Retry.
	Voucher(ctx context.Context, node hullmark.EKID) ([]byte, error)
}

// CodeVoucherRefused is the code of the condition of a voucher that admits nobody. It passes once there is a better one.
const CodeVoucherRefused = "voucher-refused"

// CodeVoucherMissing is the code of the condition of a machine that only a voucher could admit, and that has none yet.
const CodeVoucherMissing = "voucher-missing"

// vouched is a voucher that the policy takes.
type vouched struct {
	signed  []byte
	voucher measurements.Voucher
	group   measurements.Group
}

// vouches judges a voucher for a machine by the policy. ek is the certificate of the machine's endorsement key; nil if it has shown
// none. now is when the machine came first; zero if it has a record by the voucher: then its time is not looked at. Every refusal is
// a *hullmark.Condition.
func (e *verified) vouches(node hullmark.EKID, ek *ekcert.Certificate, signed []byte, now time.Time) (*vouched, error) {
	v, enroller, err := measurements.OpenVoucher(signed, e.policy.Enrolls)
	if errors.Is(err, measurements.ErrEnroller) {
		return nil, voucherRefused("it is by a key that no group of the policy names", "", strings.TrimPrefix(err.Error(), "open voucher: "))
	}
	if err != nil {
		return nil, voucherRefused("it cannot be read: "+cut(err.Error()), "", "")
	}
	group, known := e.policy.Group(v.Group)
	holder := slices.IndexFunc(e.policy.Members, func(m measurements.Member) bool { return m.Name == v.Name && m.EKID != node })
	called := slices.IndexFunc(e.policy.Members, func(m measurements.Member) bool {
		return v.ProviderID != "" && m.ProviderID == v.ProviderID && m.EKID != node
	})
	switch {
	case v.ClusterRoot != e.first:
		return nil, voucherRefused("it is for another cluster", e.first.String(), v.ClusterRoot.String())
	case v.EKID != node:
		return nil, voucherRefused("it is for another machine", node.String(), v.EKID.String())
	case !known || !group.Enrolls(enroller):
		return nil, voucherRefused("its enroller does not enrol for the group "+v.Group, enrollers(group), fmt.Sprintf("%x", enroller))
	case !authorized(group, ek):
		return nil, voucherRefused("the certificate of its endorsement key is of none of the group's authorities, and leads to none of its roots", "", "")
	case e.policy.Denies(node):
		return nil, voucherRefused("the policy denies the machine", "", node.String())
	case !now.IsZero() && now.After(v.NotAfter):
		return nil, voucherRefused("it has expired", "the machine's first ticket by "+v.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case called >= 0:
		return nil, voucherRefused("its provider ID is that of "+e.policy.Members[called].Name, "", v.ProviderID)
	case holder >= 0:
		return nil, NameTaken(v.Name, e.policy.Members[holder].EKID, node)
	}
	return &vouched{signed: signed, voucher: v, group: group}, nil
}

// authorized reports whether one of the authorities of a group with enrollers signed an endorsement key's certificate. Without any, the
// enroller's word is enough.
func authorized(rule measurements.Group, ek *ekcert.Certificate) bool {
	if !rule.Certified() {
		return true
	}
	g, err := newGroup(rule)
	return err == nil && ek != nil && g.admits(ek)
}

func enrollers(g measurements.Group) string {
	var keys []string
	for _, key := range g.Enrollers {
		keys = append(keys, fmt.Sprintf("%x", key))
	}
	return strings.Join(keys, ", ")
}

func voucherRefused(why, expected, got string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: CodeVoucherRefused, Step: "ATTEST", Title: "the machine's voucher admits nobody: " + why, Expected: expected, Got: got, Retry: true,
		Next: "issue another voucher for the machine (hullmark voucher sign), or name the enroller's key in the policy; the node tries again by itself",
	}
}

func voucherMissing(node hullmark.EKID) *hullmark.Condition {
	return &hullmark.Condition{
		Code: CodeVoucherMissing, Step: "ATTEST", Title: "no membership rule admits this machine, and there is no voucher for it", Got: node.String(), Retry: true,
		Next: "issue a voucher for the machine (hullmark voucher sign), or add a rule for its identity to the policy; the node tries again by itself",
	}
}

// enrolls reports whether a voucher could admit a machine.
func (e *verified) enrolls(node hullmark.EKID) bool {
	return !e.policy.Denies(node) && slices.ContainsFunc(e.policy.Groups, func(g measurements.Group) bool { return len(g.Enrollers) > 0 })
}

// vouch looks whether a voucher admits a machine that no rule and no CA does, while it still has one of the places for
// unauthenticated peers: that it holds its key, which it may have made up, says nothing. What the machine's record keeps counts
// before what is issued for it now.
func (p *proved) vouch() error {
	if p.policy.isMember(p.claims.EKID, p.claims.EKCertificate) {
		return nil
	}
	ctx, cancel := context.WithTimeout(p.conversation.stream.Context(), newestTime) // Who hangs up gives the place back.
	defer cancel()
	giveBack, ok := p.service.lookups.take(ctx, maxVoucherLookups)
	if !ok {
		return busy("ATTEST")
	}
	defer giveBack()
	m, _, err := p.service.Records.Load(ctx, p.claims.EKID)
	if err != nil {
		return err
	}
	if len(m.Voucher) > 0 {
		if _, err := p.policy.vouches(m.EKID, p.claims.EKCertificate, m.Voucher, time.Time{}); err == nil {
			return nil
		}
	}
	if p.service.Vouchers != nil {
		if p.issued, err = p.service.Vouchers.Voucher(ctx, p.claims.EKID); err != nil {
			return err
		}
	}
	_, err = p.policy.vouchedFor(m, p.claims.EKCertificate, p.issued)
	return err
}

// vouchedFor returns the voucher that admits a machine: the one that its record keeps, as long as the policy takes that, and else the
// one that is issued for it now, nil if there is none.
func (e *verified) vouchedFor(m Machine, ek *ekcert.Certificate, issued []byte) (*vouched, error) {
	var former error
	if len(m.Voucher) > 0 {
		v, err := e.vouches(m.EKID, ek, m.Voucher, time.Time{})
		if err == nil {
			return v, nil
		}
		former = err
	}
	switch {
	case issued != nil:
		return e.vouches(m.EKID, ek, issued, time.Now())
	case former != nil:
		return nil, former
	}
	return nil, voucherMissing(m.EKID)
}

// judgeVoucher decides by which voucher, if by any, the machine of a record is admitted under the policy of the exchange. One that its
// record keeps goes before the CA of a group, so that its name stays.
func (p *proved) judgeVoucher(m Machine) error {
	p.vouched = nil
	if _, named := p.policy.members[p.claims.EKID]; named {
		return nil
	}
	if p.policy.isMember(p.claims.EKID, p.claims.EKCertificate) {
		if len(m.Voucher) > 0 {
			p.vouched, _ = p.policy.vouches(m.EKID, p.claims.EKCertificate, m.Voucher, time.Time{})
		}
		return nil
	}
	if !p.policy.enrolls(p.claims.EKID) {
		return nil // Nothing admits it: the authorizer says so.
	}
	var err error
	p.vouched, err = p.policy.vouchedFor(m, p.claims.EKCertificate, p.issued)
	return err
}

// GroupName returns the group that a machine is of by its record, and whether it is of one.
func (m Machine) GroupName() (group string, ok bool) {
	return measurements.GroupOfRecord(m.Name, m.EKID, m.Voucher)
}
