package joinservice

import (
	"context"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
)

// CodeUnreachable is the code of the condition that the keeper of the records does not answer, or not in time. It passes by itself.
const CodeUnreachable = "api-unreachable"

// CodeForbidden is the code of the condition that the keeper of the records refuses the service. It passes by itself.
const CodeForbidden = "api-forbidden"

// Outage is what a service knows of an outage of the records.
type Outage interface {
	// LetsBack reports whether a control plane may come back although no record can be read: this service's own disk was opened
	// by `hullmark recover` in this boot, and no record was read since; or only this machine and the service's own vote in etcd,
	// and what the service has seen of the records since its start is all that there can be, for neither decides anything alone.
	LetsBack(ctx context.Context, node hullmark.EKID) bool
	// LastSeen returns what this service read last of a control plane's record.
	LastSeen(node hullmark.EKID) (Seen, bool)
}

// Seen is what a service keeps of a control plane's record for an outage.
type Seen struct {
	// Name is the node's, and that of its member of etcd.
	Name string   `json:"name,omitempty"`
	Disk Record   `json:"disk"`
	Etcd EtcdNote `json:"etcd,omitzero"`
}

// admitUnchecked lets a control plane come back whose record cannot be read, if the service may do that: without a majority of the
// control planes there are no records. The node compares its disk's epoch with the record
// once that can be read (docs/protocol.md). Everybody else is told the cause.
func (p *proved) admitUnchecked(cause error) error {
	var c *hullmark.Condition
	if !errors.As(cause, &c) || c.Code != CodeUnreachable || p.kind() != hullmark.Rejoin || p.service.Outage == nil || !p.service.Outage.LetsBack(p.ctx, p.claims.EKID) {
		return cause
	}
	p.policy = p.service.Policy.inForce.Load()
	if err := p.checkDemands(); err != nil {
		return err
	}
	authorizer := p.authorizer()
	member, ok := authorizer.Policy.Member(p.claims.EKID)
	if !ok || member.Role != hullmark.ControlPlane {
		return cause
	}
	seen, ok := p.service.Outage.LastSeen(p.claims.EKID)
	if ok && seen.Disk.Disk != p.claims.Disk.UUID {
		return rolledBack("disk "+seen.Disk.Disk.String(), "disk "+p.claims.Disk.UUID.String())
	}
	if ok && seen.Name != "" && seen.Name != member.Name {
		return memberChanged(member, seen.Name, hullmark.ControlPlane)
	}
	admission, err := authorizer.Recover(hullmark.Rejoin, p.claims)
	if err != nil {
		return err
	}
	p.admission = admission
	return nil
}

// unchecked reports that the exchange goes on without records.
func (p *proved) unchecked() bool { return p.admission.Ticket.Disk.Epoch.Unchecked }

// checkUnchecked refuses a node that has yet to join, for which records are needed, and a disk that is older than the service knows.
func (o *opened) checkUnchecked() error {
	if !o.disk.Joined {
		return &hullmark.Condition{
			Code: CodeUnreachable, Step: "EPOCH", Title: "the node has not joined yet, and cannot while the cluster's records do not answer", Retry: true,
			Next: "wait: the node tries again by itself",
		}
	}
	seen, ok := o.service.Outage.LastSeen(o.claims.EKID)
	if ok && o.disk.EpochRead < seen.Disk.Least() {
		return rolledBack(fmt.Sprintf("epoch ≥ %d", seen.Disk.Least()), fmt.Sprintf("epoch %d", o.disk.EpochRead))
	}
	if why := seen.Etcd.Missing(o.disk.Etcd); why != "" {
		return forgetful(seen.Etcd.EtcdState, why)
	}
	return nil
}

// rolledBack is the condition of a state disk that is not the newest.
func rolledBack(expected, got string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "rollback-detected", Step: "EPOCH", Title: "the state disk is an old copy, or another one, than this control plane had before the outage",
		Expected: expected, Got: got, Next: "attach the newest disk; or start the node without the others' help (hullmark recover --accept-rollback)",
	}
}
