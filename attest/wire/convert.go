package wire

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark"
)

// FromDiskClaim returns a disk claim as it is sent.
func FromDiskClaim(d hullmark.DiskClaim) *Disk {
	disk := &Disk{State: uint32(d.State), Uuid: d.UUID[:], Generation: d.Generation}
	if d.State == hullmark.DiskReady {
		disk.Owner = d.Owner[:]
	}
	return disk
}

// DiskClaim strictly reads a disk claim: the state must be one that can earn a
// ticket, and only a ready disk has a generation and an owner.
func (x *Disk) DiskClaim() (hullmark.DiskClaim, error) {
	d := hullmark.DiskClaim{State: hullmark.DiskState(x.GetState()), Generation: x.GetGeneration()}
	if err := exactly("uuid", len(x.GetUuid()), len(d.UUID)); err != nil {
		return hullmark.DiskClaim{}, fmt.Errorf("disk: %w", err)
	}
	copy(d.UUID[:], x.GetUuid())
	switch d.State {
	case hullmark.DiskBlank, hullmark.DiskFormatting:
		if d.Generation != 0 || len(x.GetOwner()) != 0 {
			return hullmark.DiskClaim{}, errors.New("disk: only a ready disk has a generation and an owner")
		}
	case hullmark.DiskReady:
		if err := exactly("owner", len(x.GetOwner()), len(d.Owner)); err != nil {
			return hullmark.DiskClaim{}, fmt.Errorf("disk: %w", err)
		}
		copy(d.Owner[:], x.GetOwner())
	default:
		return hullmark.DiskClaim{}, fmt.Errorf("disk: state %d is none of blank, formatting and ready", x.GetState())
	}
	return d, nil
}

// FromEtcdState returns what a member of etcd has stored as it is sent; nothing is absent.
func FromEtcdState(s hullmark.EtcdState) *EtcdState {
	if s == (hullmark.EtcdState{}) {
		return nil
	}
	return &EtcdState{Cluster: s.Cluster, Member: s.Member, Term: s.Term, Vote: s.Vote, Commit: s.Commit, Last: s.Last, LastTerm: s.LastTerm}
}

// HullmarkEtcdState reads it; zero is none.
func (x *EtcdState) HullmarkEtcdState() hullmark.EtcdState {
	return hullmark.EtcdState{
		Cluster: x.GetCluster(), Member: x.GetMember(), Term: x.GetTerm(), Vote: x.GetVote(), Commit: x.GetCommit(), Last: x.GetLast(), LastTerm: x.GetLastTerm(),
	}
}

// FromTicket returns a ticket as it is sent. The message shares the disk key's
// memory: wiping the secret once the message is sent wipes both.
func FromTicket(t hullmark.Ticket) *Ticket {
	return &Ticket{
		Kind:          string(t.Kind),
		DiskKey:       t.Disk.Key.Expose(),
		Generation:    t.Disk.Generation,
		Uuid:          t.Disk.UUID[:],
		Owner:         t.Disk.Owner[:],
		FormatAllowed: t.Disk.FormatAllowed,
		Committed:     t.Disk.Epoch.Committed,
		Issued:        t.Disk.Epoch.Issued,
		Unchecked:     t.Disk.Epoch.Unchecked,
	}
}

// HullmarkTicket reads a ticket that CheckFromVerifier accepted; the disk key
// keeps the message's memory.
func (x *Ticket) HullmarkTicket() (hullmark.Ticket, error) {
	if err := checkTicket(x); err != nil {
		return hullmark.Ticket{}, fmt.Errorf("ticket: %w", err)
	}
	kind := hullmark.TicketKind(x.GetKind())
	switch kind {
	case hullmark.Init, hullmark.Join, hullmark.Rejoin, hullmark.Recover:
	default:
		return hullmark.Ticket{}, fmt.Errorf("ticket: unknown kind %q", x.GetKind())
	}
	return hullmark.Ticket{Kind: kind, Disk: hullmark.DiskGrant{
		Key:           hullmark.NewSecret(x.GetDiskKey()),
		Generation:    x.GetGeneration(),
		UUID:          hullmark.UUID(x.GetUuid()),
		Owner:         hullmark.EKID(x.GetOwner()),
		FormatAllowed: x.GetFormatAllowed(),
		Epoch:         hullmark.EpochWindow{Committed: x.GetCommitted(), Issued: x.GetIssued(), Unchecked: x.GetUnchecked()},
	}}, nil
}

// FromCondition returns a condition, with its chain of causes, as it is sent;
// causes beyond MaxCauses are left out, and text beyond MaxText is cut.
func FromCondition(c *hullmark.Condition) *Condition {
	return fromCondition(c, MaxCauses)
}

func fromCondition(c *hullmark.Condition, room int) *Condition {
	if c == nil || room == 0 {
		return nil
	}
	return &Condition{
		Code: cut(c.Code), Step: cut(c.Step), Title: cut(c.Title),
		Expected: cut(c.Expected), Got: cut(c.Got), Next: cut(c.Next),
		Retry: c.Retry, Because: fromCondition(c.Because, room-1),
	}
}

// cut makes text fit: valid UTF-8, which proto3 wants of a string, of at most MaxText bytes.
func cut(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText]
	}
	return strings.ToValidUTF8(s, "")
}

// HullmarkCondition reads a condition with its chain of causes; nil stays nil.
func (x *Condition) HullmarkCondition() *hullmark.Condition {
	if x == nil {
		return nil
	}
	return &hullmark.Condition{
		Code: x.GetCode(), Step: x.GetStep(), Title: x.GetTitle(),
		Expected: x.GetExpected(), Got: x.GetGot(), Next: x.GetNext(),
		Retry: x.GetRetry(), Because: x.GetBecause().HullmarkCondition(),
	}
}
