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
	// Name is the node's, and that of its member of etcd; empty if the record was read before the service began.
	Name string `json:"-"`
	// Current reports that the service has read all records in its life, and knows of no later ones.
	Current bool     `json:"-"`
	Disk    Record   `json:"disk"`
	Etcd    EtcdNote `json:"etcd,omitzero"`
}

// unheard is how many numbers a control plane may have been issued since its record was read, while that is current: its own service
// issues one, and a replica's ticket brings another.
const unheard = 2

// admitUnchecked lets a control plane come back whose record cannot be read, if the service may do that: without a majority of the
// control planes there are no records. The node compares its disk's epoch with the record once that can be read
// (docs/protocol.md). Everybody else is told the cause.
func (p *proved) admitUnchecked(cause error) error {
	var c *hullmark.Condition
	outage := p.service.Outage
	if !errors.As(cause, &c) || p.kind() != hullmark.Rejoin || outage == nil {
		return cause
	}
	seen, known := outage.LastSeen(p.claims.EKID)
	// An API server that began without etcd answers, and refuses everybody.
	if away := c.Code == CodeUnreachable || c.Code == CodeForbidden && seen.Current; !away || !outage.LetsBack(p.ctx, p.claims.EKID) {
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
	admission, err := authorizer.Recover(hullmark.Rejoin, p.claims)
	if err != nil {
		return err
	}
	if known {
		err = p.checkSeen(authorizer, admission, seen)
	}
	if err != nil {
		admission.Ticket.Disk.Key.Wipe()
		return err
	}
	p.admission = admission
	return nil
}

// checkSeen holds a control plane without a record to what was seen of it last, as it would be held to its record.
func (p *proved) checkSeen(authorizer *Authorizer, admission Admission, seen Seen) error {
	member := admission.Member
	switch {
	case seen.Disk.Disk != p.claims.Disk.UUID:
		return rolledBack("disk "+seen.Disk.Disk.String(), "disk "+p.claims.Disk.UUID.String())
	case seen.Name != "" && seen.Name != member.Name:
		return memberChanged(member, seen.Name, hullmark.ControlPlane)
	}
	_, err := authorizer.keepTrust(p.claims, member, admission.Verdict.Document, &seen.Disk)
	return err
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
	if most := seen.Disk.Issued + unheard; seen.Current && o.disk.EpochRead > most { // of a disk that was given up by an override
		return rolledBack(fmt.Sprintf("epoch ≤ %d", most), fmt.Sprintf("epoch %d", o.disk.EpochRead))
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
