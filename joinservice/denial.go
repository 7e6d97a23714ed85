package joinservice

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// deny tells a verified machine why it gets nothing, and records a final reason for people.
func (x *release) deny(err error) error {
	condition := hullmark.AsCondition(err, "ATTEST", "service-failed")
	if !condition.Root().Retry {
		x.record(condition)
	}
	return errors.Join(condition, x.conversation.Deny(condition))
}

// errUnnamed keeps a machine of a group from a record before its first ticket: whoever can make machines there could fill the API with them.
var errUnnamed = errors.New("no rule names the machine, and it never had a ticket")

// record notes a refusal; of what earlier tickets bound it changes nothing.
func (x *release) record(condition *hullmark.Condition) {
	member, group, ok := x.service.desk().member(x.claims)
	if !ok {
		return
	}
	err := x.service.change(x.ctx, x.claims.Node, &x.last, func(m *Machine, known bool) error {
		if !known && group != nil {
			return errUnnamed
		}
		if !known {
			m.Name, m.Role, m.Trust = member.Name, member.Role, x.claims.Trust
		}
		m.State, m.Condition = MachineFailed, condition
		return nil
	})
	if !errors.Is(err, errUnnamed) {
		x.warn("refusal not recorded", err)
	}
}

// tellWithdrawn adds to a mismatch that the document of the machine's last ticket is not accepted any more: nothing that is compared by now says so.
func (s *Service) tellWithdrawn(mismatch *hullmark.Condition, last measurements.DocumentID) {
	is := func(a measurements.Accepted) bool { return a.Document == last }
	if last != (measurements.DocumentID{}) && !slices.ContainsFunc(s.desk().Policy.Documents, is) {
		mismatch.Title += fmt.Sprintf("; its last ticket was for document %s…, which the policy does not accept any more", last.String()[:12])
	}
}
