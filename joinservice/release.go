package joinservice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
)

// progressPause is how long is waited at least between two writes of a machine's progress.
const progressPause = 10 * time.Second

// DecisionTime bounds what is asked of the records between M3 and M4: a node waits 15 s for its ticket.
const DecisionTime = 10 * time.Second

// errSuperseded says that the machine has begun another exchange, or holds a later ticket.
var errSuperseded = errors.New("the machine began another exchange")

// release is one exchange of the service.
type release struct {
	service      *Service
	conversation *Conversation
	// ctx outlives the stream: what is recorded of an exchange is recorded even if the node is gone.
	ctx context.Context

	// policy is the one that all of the exchange goes by.
	policy    *verified
	claims    attest.Claims
	admission Admission
	// granted says that the ticket was sent, and opened is what the node said of it.
	granted bool
	opened  Opened
	// last is the record as this exchange stored it last.
	last stored
	// addresses are what became of those that M5 named.
	addresses addressClaims
	// noted is what the record says of the machine's member of etcd; anew is set where that is not believed, and the machine joins as on an empty disk.
	noted EtcdNote
	anew  bool
	// token is the public half of the token that M6 brings, empty if it brings none.
	token string
	// place is held by a control plane that joins; proceeded says that its M6 was sent, or may have been.
	place     *place
	proceeded bool
	// ready is what the member of etcd had stored once the node was Ready.
	ready hullmark.EtcdState
	// phase is the one that was recorded last, at phased.
	phase  string
	phased time.Time
}

// run goes from M1 to Ready.
func (x *release) run() (err error) {
	defer func() { x.leavePlace(err) }()
	if err := x.attest(); err != nil {
		return err
	}
	defer attest.Welcome(x.ctx)()
	mine := x.service.takeTurn(x.claims.Node)
	defer x.service.endTurn(x.claims.Node, mine)
	x.conversation.over = mine.over
	if err := x.admit(); err != nil {
		return x.deny(err)
	}
	if err := x.grant(); err != nil {
		return err
	}
	proceed, err := x.commit()
	if err != nil {
		return x.deny(err)
	}
	x.proceeded = true
	err = x.conversation.Proceed(proceed)
	clear(proceed.GetKubeadmDocuments())
	if err != nil {
		return x.finish(err)
	}
	state, err := x.conversation.Follow(x.progress)
	x.ready = state
	return x.finish(err)
}

// attest does M1 to M3, in one of the bounded places for strangers.
func (x *release) attest() (err error) {
	if !x.service.enter() {
		busy := &hullmark.Condition{
			Code: "busy", Step: "ATTEST", Title: "the join service has as many exchanges under way as it takes", Retry: true,
			Next: "wait: the node tries again by itself",
		}
		return x.conversation.refuse(busy, busy)
	}
	defer x.service.leave()
	x.policy = x.service.Policy.inForce.Load()
	x.claims, err = x.conversation.Attest(x.policy.roots, verifier.Anchor{Members: x.policy.isMember})
	return err
}

// kind is what the disk says: one that holds data comes back, any other joins.
func (x *release) kind() hullmark.TicketKind {
	if x.claims.Disk.State == hullmark.DiskReady {
		return hullmark.Rejoin
	}
	return hullmark.Join
}

// admit decides by the newest policy, claims the node's name, and records the ticket before it is sent.
func (x *release) admit() error {
	ctx, cancel := context.WithTimeout(x.ctx, DecisionTime)
	defer cancel()
	x.warn("the API's policy is not taken", x.service.TakeNewest(ctx))
	err := x.recordTicket(ctx)
	for range attempts {
		if !errors.Is(err, errPolicyChanged) {
			break
		}
		err = x.recordTicket(ctx)
	}
	if err != nil {
		x.admission.Ticket.Disk.Key.Wipe()
		return x.admitUnchecked(err)
	}
	return nil
}

// recordTicket decides by the policy that is in force as it begins. If that is another one by the time at which the record would be stored, nothing is.
func (x *release) recordTicket(ctx context.Context) error {
	x.policy = x.service.Policy.inForce.Load()
	return x.service.change(ctx, x.claims.Node, &x.last, func(m *Machine, known bool) (err error) {
		x.admission.Ticket.Disk.Key.Wipe() // of an attempt that lost its race
		if x.admission, err = x.decide(*m, known); err != nil {
			return err
		}
		if g := x.admission.Group; g != nil && !(known && m.Name == x.admission.Member.Name) { // else it was counted before its record was stored
			if err := x.service.Records.Enrol(ctx, g.Name, x.claims.Node, g.Max); err != nil {
				return err
			}
		}
		if err := x.service.Records.Claim(ctx, x.admission.Member.Name, x.claims.Node); err != nil {
			return err
		}
		if x.kind() == hullmark.Join && x.admission.Member.Role == hullmark.ControlPlane {
			if err := x.takePlace(ctx); err != nil {
				return err
			}
		}
		if err := x.end(ctx, m.Token); err != nil {
			return err
		}
		x.noted = m.Etcd
		former := *m
		*m = Machine{
			Node: x.claims.Node, Name: x.admission.Member.Name, Role: x.admission.Member.Role,
			Trust: x.claims.Trust, Document: x.admission.Verdict.Document, Root: NamedRoot(x.policy.policy, x.claims),
			Record: x.admission.Record, Etcd: m.Etcd, Addresses: m.Addresses, Refused: m.Refused, State: MachineAdmitted,
			EKCertificate: x.vouched(), CertificateEnds: m.CertificateEnds,
		}
		if x.kind() == hullmark.Rejoin {
			m.FirstKey, m.Credentials = former.FirstKey, former.Credentials
		}
		return x.checkPolicy()
	})
}

// end ends the token of an earlier ticket before the record forgets it: a replica may be killed at any moment, and
// a token that no record names would stay until it expires.
func (x *release) end(ctx context.Context, former string) error {
	if former == "" || former == x.token {
		return nil
	}
	return x.service.Tokens.Revoke(ctx, former)
}

// decide asks the desk, and holds a disk that was joined to the name and role it was joined with.
func (x *release) decide(m Machine, known bool) (Admission, error) {
	var record *Record
	if known {
		record = &m.Record
	}
	admission, err := x.desk().Admit(x.kind(), x.claims, record)
	if err != nil {
		var c *hullmark.Condition
		switch {
		case !errors.As(err, &c):
		case c.Code == codeGeneration:
			err = cmp.Or(x.service.checkRotation(x.policy.policy), err)
		case c.Code == CodeMismatch:
			x.tellWithdrawn(c, m.Document)
		}
		return Admission{}, err
	}
	member := admission.Member
	if member.Role == hullmark.ControlPlane || admission.Ticket.Disk.FormatAllowed {
		if err := x.service.checkRotation(x.policy.policy); err != nil {
			admission.Ticket.Disk.Key.Wipe()
			return Admission{}, err
		}
	}
	if known && x.kind() == hullmark.Join && m.Role == hullmark.Worker && member.Role == hullmark.ControlPlane && m.Name == member.Name && time.Now().Before(m.CertificateEnds) {
		admission.Ticket.Disk.Key.Wipe()
		return Admission{}, NameRests(m.Name, m.Node, m.CertificateEnds) // A control plane is recognised by its name.
	}
	if known && x.kind() == hullmark.Rejoin && (m.Name != member.Name || m.Role != member.Role) {
		admission.Ticket.Disk.Key.Wipe()
		return Admission{}, &hullmark.Condition{
			Code: "member-changed", Step: "ATTEST", Title: "the machine's disk was set up under another name or role than its rule gives now",
			Expected: fmt.Sprintf("%s %s", member.Role, member.Name), Got: fmt.Sprintf("%s %s", m.Role, m.Name),
			Next: "restore the rule, or remove the node and give it an empty disk",
		}
	}
	return admission, nil
}

// grant does M4 and M5.
func (x *release) grant() (err error) {
	x.granted = true
	x.opened, err = x.conversation.Grant(x.admission.Ticket)
	if err != nil {
		return x.finish(err)
	}
	return nil
}

// commit records what the node confirmed, with the token that M6 brings it, and
// makes M6.
func (x *release) commit() (proceed *wire.Proceed, err error) {
	x.judgeMember()
	proceed = &wire.Proceed{NodeName: x.admission.Member.Name, Role: string(x.admission.Member.Role), Time: time.Now().Unix()}
	if err = x.checkPolicy(); err == nil && !x.unchecked() {
		err = x.claimAddresses(proceed)
	}
	switch {
	case err != nil: // Nothing that this ticket brings is of the policy in force, or the records do not answer.
	case x.unchecked():
		err = x.checkUnchecked()
	case x.comesBack() && x.lacksCertificate():
		err = x.addBootstrap(proceed)
	case x.comesBack():
		err = x.confirm("")
	default:
		proceed.JoinAnew = x.anew
		err = x.addMaterial(proceed)
	}
	if err == nil && x.comesBack() {
		err = x.addEndpoint(proceed)
	}
	if err == nil {
		err = AddPool(proceed, x.policy.policy, x.admission.Member)
	}
	if err == nil {
		err = x.checkPolicy()
	}
	if err != nil {
		wire.WipeFiles(proceed.GetFiles())
		clear(proceed.GetKubeadmDocuments())
		x.revoke(x.ctx, x.token)
		return nil, err
	}
	return proceed, nil
}

// confirm records what the node confirmed, and the public half of the token that it is about to be given.
func (x *release) confirm(token string) error {
	issued := x.admission.Record.Issued
	err := x.service.change(x.ctx, x.claims.Node, &x.last, func(m *Machine, _ bool) error {
		record, err := m.Record.Commit(x.claims.Disk.UUID, issued)
		if err != nil || m.Record.Committed > issued {
			return x.stale(m.Record)
		}
		// An exchange may have gone on at another replica, or in a process that has ended, after this ticket.
		if err := x.end(x.ctx, m.Token); err != nil {
			return err
		}
		m.Record, m.Token = record, ""
		if token != "" {
			m.beginLife(token)
		}
		x.addresses.note(m)
		x.noteMember(m)
		m.State, m.Phase, m.Condition = MachineJoining, "", nil
		return nil
	})
	if err == nil {
		x.token = token
	}
	return err
}

// stale is the condition of a ticket that a later one overtook.
func (x *release) stale(record Record) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "ticket-stale", Step: "EPOCH", Title: "the machine was given a later ticket, or one for another disk, since this one",
		Expected: fmt.Sprintf("disk %s, epoch %d", record.Disk, record.Issued),
		Got:      fmt.Sprintf("disk %s, epoch %d", x.claims.Disk.UUID, x.admission.Record.Issued),
		Next:     "wait: the node tries again by itself", Retry: true,
	}
}

// progress records what the node does now and then.
func (x *release) progress(phase, _ string) {
	if phase == x.phase || time.Since(x.phased) < progressPause {
		return
	}
	x.phase, x.phased = phase, time.Now()
	x.note(func(m *Machine) { m.Phase = cut(phase) })
}

// brief is the root of a condition that a node reports, bounded to what a record has room for.
func brief(c *hullmark.Condition) *hullmark.Condition {
	c = c.Root()
	return &hullmark.Condition{
		Code: cut(c.Code), Step: cut(c.Step), Title: cut(c.Title),
		Expected: cut(c.Expected), Got: cut(c.Got), Next: cut(c.Next), Retry: c.Retry,
	}
}

// cut bounds a text of a node's, in bytes.
func cut(text string) string {
	const most = 512
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}

// finish records how the exchange ended after its ticket, and returns err.
func (x *release) finish(err error) error {
	var reported *NodeError
	switch {
	case errors.Is(err, errSuperseded):
		x.revoke(x.ctx, x.token)
	case err == nil:
		left := x.revoke(x.ctx, x.token)
		x.note(func(m *Machine) {
			ready := x.hosted(x.ready)
			m.State, m.Token, m.Phase, m.Condition = MachineReady, left, "", m.Etcd.forgot(ready)
			m.Etcd.Note(ready)
		})
	case errors.As(err, &reported):
		left := x.revoke(x.ctx, x.token)
		x.note(func(m *Machine) { m.State, m.Token, m.Condition = MachineFailed, left, brief(reported.Condition) })
	default:
		// The node goes on without its verifier: its token stays until it expires, or until the next ticket.
		if x.note(func(m *Machine) { m.State, m.Condition = MachineFailed, ended(err) }) {
			x.revoke(x.ctx, x.token) // A later ticket's exchange may have looked for it before it was made.
		}
	}
	return err
}

// ended is the condition of a stream that ended before its node was Ready.
func ended(err error) *hullmark.Condition {
	return &hullmark.Condition{
		Code: OutcomeEnded, Step: "ATTEST", Title: "the node was not heard to the end: " + err.Error(), Retry: true,
		Next: "look at the node (hullmark node status); it may have gone on by itself",
	}
}

// note edits the record as long as it is this ticket's, and reports whether it no longer is. What it fails to record changes nothing for the node.
func (x *release) note(edit func(*Machine)) (superseded bool) {
	if x.unchecked() {
		return false // There is no ticket of it in the record.
	}
	err := x.service.change(x.ctx, x.claims.Node, &x.last, func(m *Machine, _ bool) error {
		if x.overtaken(m) {
			return errSuperseded
		}
		edit(m)
		return nil
	})
	x.warn("not recorded", err)
	return errors.Is(err, errSuperseded)
}

// overtaken reports whether the record is of a later ticket than this exchange's, or of another disk.
func (x *release) overtaken(m *Machine) bool {
	return m.Record.Disk != x.claims.Disk.UUID || m.Record.Issued != x.admission.Record.Issued
}

// revoke ends a token, if there is one, and returns what is left of it: one that cannot be ended now is tried again later,
// by RevokeLeftOver, and stays in the machine's record, which outlives this process.
func (x *release) revoke(ctx context.Context, token string) (left string) {
	if token == "" {
		return ""
	}
	if err := x.service.Tokens.Revoke(ctx, token); err != nil {
		x.service.leaveOver(token)
		x.warn("token not revoked yet", err)
		return token
	}
	return ""
}

func (x *release) warn(what string, err error) {
	if err != nil && x.service.Log != nil {
		x.service.Log.Warn(what, "node", x.claims.Node.String(), "error", err.Error())
	}
}

// log writes one line, which is where the operator reads why evidence was
// refused. Strangers get one line a second between them.
func (x *release) log(outcome string, err error) {
	if x.service.Log == nil {
		return
	}
	if x.claims.Node == (hullmark.NodeID{}) {
		now := time.Now().Unix()
		if x.service.refusalLogged.Swap(now) != now {
			x.service.Log.Info("refused", "outcome", outcome, "error", fmt.Sprint(err))
		}
		return
	}
	attributes := []any{
		"node", x.claims.Node.String(), "name", x.admission.Member.Name, "kind", string(x.kind()), "unchecked", x.unchecked(), "outcome", outcome,
	}
	if err != nil {
		attributes = append(attributes, slog.String("error", err.Error()))
	}
	x.service.Log.Info("exchange", attributes...)
}
