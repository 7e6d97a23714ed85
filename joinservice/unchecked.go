package joinservice

import (
	"errors"

	"github.com/hullmark/hullmark"
)

// CodeUnreachable is the code of the condition that the keeper of the records does not answer, or not in time. It passes by itself.
const CodeUnreachable = "api-unreachable"

// admitUnchecked lets a control plane come back whose record cannot be read, if the service may do that: after a total outage
// there are no records before a majority of the control planes is back. The node compares its disk's epoch with the record
// once that can be read (docs/protocol.md). Everybody else is told the cause.
func (x *release) admitUnchecked(cause error) error {
	var c *hullmark.Condition
	if !errors.As(cause, &c) || c.Code != CodeUnreachable || x.kind() != hullmark.Rejoin || x.service.Unchecked == nil || !x.service.Unchecked() {
		return cause
	}
	desk := x.service.desk()
	if member, ok := desk.Policy.Member(x.claims.Node); !ok || member.Role != hullmark.ControlPlane {
		return cause
	}
	admission, err := desk.Recover(hullmark.Rejoin, x.claims)
	if err != nil {
		return err
	}
	x.admission = admission
	return nil
}

// unchecked reports that the exchange goes on without records.
func (x *release) unchecked() bool { return x.admission.Ticket.Disk.Epoch.Unchecked }

// checkInitialised refuses a node that has yet to join: for that, records are needed.
func (x *release) checkInitialised() error {
	if x.opened.Joined {
		return nil
	}
	return &hullmark.Condition{
		Code: CodeUnreachable, Step: "EPOCH", Title: "the node has not joined yet, and cannot while the cluster's records do not answer", Retry: true,
		Next: "wait: the node tries again by itself",
	}
}
