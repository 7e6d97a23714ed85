package joinservice

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// deny tells a verified machine why it gets nothing, and records the reason for people.
func (p *proved) deny(err error) error {
	return p.denyUnless(err, func(*Machine) bool { return false })
}

// denyUnless denies, and leaves a record alone that is another ticket's.
func (p *proved) denyUnless(err error, overtaken func(*Machine) bool) error {
	condition := hullmark.AsCondition(err, "ATTEST", "service-failed")
	// A record that could not be read or changed will not take this either, and the node waits for its answer.
	if !slices.Contains([]string{CodeUnreachable, CodeForbidden, CodeContended}, condition.Root().Code) {
		p.record(condition, overtaken)
	}
	return errors.Join(condition, p.conversation.Deny(condition))
}

// errUnchanged leaves a record as it is.
var errUnchanged = errors.New("the record stays as it is")

// record notes a refusal; of what earlier tickets bound it changes nothing.
func (p *proved) record(condition *hullmark.Condition, overtaken func(*Machine) bool) {
	member, group, ok := p.authorizer().member(p.claims)
	if !ok {
		return
	}
	state := MachineFailed
	if condition.Root().Retry {
		state = MachineWaiting
	}
	err := p.service.change(p.ctx, p.claims.EKID, &p.last, func(m *Machine, known bool) error {
		// A machine of a group has no record before its first ticket: whoever can make machines there could fill the API with them.
		if !known && group != nil || overtaken(m) || m.waitsFor(condition) {
			return errUnchanged
		}
		if !known {
			m.Name, m.Role, m.Platform = member.Name, member.Role, p.claims.Platform
		}
		m.State, m.Condition = state, brief(condition)
		return nil
	})
	if !errors.Is(err, errUnchanged) {
		p.warn("refusal not recorded", err)
	}
}

// waitsFor reports whether the record said the same just now: a machine that waits asks again and again.
func (m *Machine) waitsFor(c *hullmark.Condition) bool {
	return m.State == MachineWaiting && m.Condition != nil && m.Condition.Root().Code == c.Root().Code && time.Since(m.Seen) < progressPause
}

// tellWithdrawn adds to a mismatch that the document of the machine's last ticket is not accepted any more: nothing that is
// compared by now says so.
func (p *proved) tellWithdrawn(mismatch *hullmark.Condition, last measurements.DocumentID) {
	is := func(a measurements.Accepted) bool { return a.Document == last }
	if last != (measurements.DocumentID{}) && !slices.ContainsFunc(p.policy.policy.Documents, is) {
		mismatch.Title += fmt.Sprintf("; its last ticket was for document %s…, which the policy does not accept any more", last.String()[:12])
	}
}
