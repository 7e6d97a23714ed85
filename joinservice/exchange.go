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
	"github.com/hullmark/hullmark/internal/limit"
	"github.com/hullmark/hullmark/kubeadm/step"
	"github.com/hullmark/hullmark/measurements"
)

// progressPause is how long is waited at least between two writes of a machine's progress.
const progressPause = 10 * time.Second

const (
	// DecisionTime bounds what is asked of the records between Proof and Ticket: a node waits 15 s for its ticket.
	DecisionTime = 10 * time.Second
	// decisionWait bounds how long a machine waits before that for a place.
	decisionWait = 4 * time.Second
)

// errSuperseded says that the machine has begun another exchange, or holds a later ticket.
var errSuperseded = errors.New("the machine began another exchange")

// exchange is one exchange of the service (docs/protocol.md). Its stages follow each other, each made only from the one
// before: proved, ticketed, opened.
type exchange struct {
	service      *Service
	conversation *Conversation
	// ctx outlives the stream: what is recorded of an exchange is recorded even if the node is gone.
	ctx context.Context
}

// proved is the stage of a machine whose evidence is verified, with what later stages come back to.
type proved struct {
	*exchange
	claims attest.Claims
	// policy is the one that the exchange goes by: the newest, each time that a ticket is decided.
	policy *verified
	// demanded is what the policy demanded of platforms when the machine was attested.
	demanded []measurements.Platform
	// issued is the voucher that was found for a machine that no rule names, and vouched the one that admits it, by its record or
	// as issued; nil if none does.
	issued  []byte
	vouched *vouched
	// admission is what was decided last, and servers the API servers of other control planes that it went by.
	admission Admission
	servers   []step.Seen
	// last is the record as this exchange stored it last.
	last stored
	// noted is what the record says of the machine's member of etcd.
	noted EtcdNote
	// held is the lease of a control plane that joins; proceeded says that its Proceed was sent, or may have been.
	held      *heldLease
	proceeded bool
}

// ticketed is the stage of a machine whose ticket is recorded, and was sent, or may have been.
type ticketed struct {
	*proved
	// token is the public half of the token that Proceed brings, empty if it brings none.
	token string
	// trusts is what Proceed brings a worker of the Kubernetes CA, once all control planes hold it.
	trusts hullmark.CADigest
	// phase is the one that was recorded last, at phased.
	phase  string
	phased time.Time
}

// opened is the stage of a machine that opened its disk.
type opened struct {
	*ticketed
	// disk is what the node said of it.
	disk Opened
	// addresses are what became of those that Opened named.
	addresses addressClaims
	// anew is set where the machine's member of etcd is not believed: it joins as on an empty disk.
	anew bool
}

// run goes from Hello to Ready. What it made is nil if no evidence was verified.
func (x *exchange) run() (p *proved, err error) {
	if p, err = x.attest(); err != nil {
		return p, err
	}
	defer func() { p.giveLeaseBack(err) }()
	defer limit.Authenticated(x.ctx)()
	mine := x.service.beginSession(p.claims.EKID)
	defer x.service.endSession(p.claims.EKID, mine)
	x.conversation.over = mine.over
	t, err := p.admitInTurn()
	if err != nil {
		return p, err
	}
	o, err := t.grant()
	if err != nil {
		return p, t.finish(err, hullmark.EtcdState{})
	}
	return p, o.proceed()
}

// proceed does Proceed, and follows the node to Ready.
func (o *opened) proceed() error {
	proceed, err := o.commit()
	if err != nil {
		return o.denyUnless(err, func(m *Machine) bool { return !o.unchecked() && o.overtaken(m) })
	}
	o.proceeded = true
	err = o.conversation.Proceed(proceed)
	clear(proceed.GetKubeadmDocuments())
	if err != nil {
		return o.finish(err, hullmark.EtcdState{})
	}
	state, err := o.conversation.Follow(o.progress)
	return o.finish(err, state)
}

// attest does Hello to Proof, in one of the bounded places for unauthenticated peers. A machine whose evidence is refused may still
// be known by its name in the log.
func (x *exchange) attest() (*proved, error) {
	if !x.service.enter() {
		busy := busy("ATTEST")
		return nil, x.conversation.refuse(busy, busy)
	}
	defer x.service.leave()
	p := &proved{exchange: x, policy: x.service.Policy.inForce.Load()}
	p.demanded = p.policy.policy.Platforms
	var err error
	p.claims, err = x.conversation.Attest(verifier.Demands{
		Roots: p.policy.roots, Anchor: verifier.Anchor{Admits: p.policy.mayAdmit}, Platform: p.policy.platforms.of,
	})
	if err != nil {
		return p, err
	}
	if err = p.vouch(); err != nil {
		err = p.deny(err)
		p.claims = attest.Claims{} // Nobody vouches for this key: it is a stranger's, of whom no line each is logged.
	}
	return p, err
}

// kind is what the disk says: one that holds data comes back, any other joins.
func (p *proved) kind() hullmark.TicketKind {
	if p.claims.Disk.State == hullmark.DiskReady {
		return hullmark.Rejoin
	}
	return hullmark.Join
}

// admitInTurn admits, or denies, in one of the places for that. Control planes need none: they are few, and the others wait for them.
// That a machine got no place is not recorded.
func (p *proved) admitInTurn() (*ticketed, error) {
	if member, _, _ := p.authorizer().member(p.claims); member.Role != hullmark.ControlPlane {
		ctx, cancel := context.WithTimeout(p.ctx, decisionWait)
		defer cancel()
		giveBack, ok := p.service.decisions.take(ctx, MaxDecisions)
		if !ok {
			many := &hullmark.Condition{
				Code: "busy", Step: "ATTEST", Title: "the join service decides as many tickets at once as it takes", Retry: true,
				Next: "wait: the node tries again by itself",
			}
			return nil, p.conversation.refuse(many, many)
		}
		defer giveBack()
	}
	t, err := p.admit()
	if err != nil {
		return nil, p.deny(err)
	}
	return t, nil
}

// admit decides by the newest policy, claims the node's name, and records the ticket before it is sent.
func (p *proved) admit() (*ticketed, error) {
	ctx, cancel := context.WithTimeout(p.ctx, DecisionTime)
	defer cancel()
	p.warn("the API's policy is not taken", p.service.TakeNewest(ctx))
	err := p.recordTicket(ctx)
	for range attempts {
		if !errors.Is(err, errPolicyChanged) {
			break
		}
		err = p.recordTicket(ctx)
	}
	if err != nil {
		p.admission.Ticket.Disk.Key.Wipe()
		if err := p.admitUnchecked(err); err != nil {
			return nil, err
		}
	}
	return &ticketed{proved: p}, nil
}

// recordTicket decides by the policy that is in force as it begins. If that is another one by the time at which the record
// would be stored, nothing is.
func (p *proved) recordTicket(ctx context.Context) error {
	p.policy = p.service.Policy.inForce.Load()
	if err := p.checkDemands(); err != nil {
		return err
	}
	var err error
	if p.servers, err = p.service.servers(ctx, p.policy, p.claims.EKID); err != nil {
		return err
	}
	var left string // the group that the machine's former voucher was for, if it has a rule of its own now
	err = p.service.change(ctx, p.claims.EKID, &p.last, func(m *Machine, known bool) (err error) {
		left = ""
		p.admission.Ticket.Disk.Key.Wipe() // of an attempt that lost its race
		if p.admission, err = p.decide(*m, known); err != nil {
			return err
		}
		if g := p.admission.Group; g != nil && !(known && m.isCounted(*g, p.admission.Member.Name)) { // else it was counted before its record was stored
			if err := p.service.Records.Enrol(ctx, g.Name, p.claims.EKID, g.Max); err != nil {
				return err
			}
		}
		if err := p.service.Records.Claim(ctx, p.admission.Member.Name, p.claims.EKID); err != nil {
			return err
		}
		if p.kind() == hullmark.Join && p.admission.Member.Role == hullmark.ControlPlane {
			if err := p.takeLease(ctx); err != nil {
				return err
			}
		}
		if err := p.end(ctx, m.Token, ""); err != nil {
			return err
		}
		p.noted = m.Etcd
		former := *m
		ekCertificate, voucher := p.proof()
		if group, ok := m.GroupName(); ok && len(m.Voucher) > 0 && p.admission.Group == nil {
			left = group
		}
		*m = Machine{
			EKID: p.claims.EKID, Name: p.admission.Member.Name, Role: p.admission.Member.Role,
			Platform: p.claims.Platform, Document: p.admission.Verdict.Document, Kubernetes: p.admission.Verdict.Versions.Kubernetes, Root: NamedRoot(p.policy.policy, p.claims),
			Record: p.admission.Record, Etcd: m.Etcd, Addresses: m.Addresses, Refused: m.Refused, State: MachineAdmitted,
			EKCertificate: ekCertificate, Voucher: voucher, ProviderID: p.admission.Member.ProviderID, CertificateEnds: m.CertificateEnds,
		}
		if p.kind() == hullmark.Rejoin {
			m.FirstKey, m.Credentials, m.ProviderID, m.KubernetesCA = former.FirstKey, former.Credentials, former.ProviderID, former.KubernetesCA
		}
		return p.checkPolicy()
	})
	if err == nil && left != "" { // Not before its record says so: one that is of a group by its record is not counted again.
		p.warn("the group "+left+" counts the machine still", p.service.Records.Leave(ctx, left, p.claims.EKID))
	}
	if p.admission.Member.Role == hullmark.ControlPlane {
		p.service.planes.Store(nil) // Its release may be another one since.
	}
	return err
}

// isCounted reports whether a record is of a machine that was counted to the group under its name.
func (m *Machine) isCounted(g measurements.Group, name string) bool {
	of, ok := m.GroupName()
	return ok && of == g.Name && m.Name == name
}

// end ends the token of an earlier ticket, if it is not this ticket's own, before the record forgets it: a replica may be
// killed at any moment, and a token that no record names would stay until it expires.
func (p *proved) end(ctx context.Context, former, own string) error {
	if former == "" || former == own {
		return nil
	}
	return p.service.Tokens.Revoke(ctx, former)
}

// decide asks the authorizer, and holds a disk that was joined to the name and role it was joined with.
func (p *proved) decide(m Machine, known bool) (Admission, error) {
	var record *Record
	if known {
		record = &m.Record
	}
	if err := p.judgeVoucher(m); err != nil {
		return Admission{}, err
	}
	admission, err := p.authorizer().Admit(p.kind(), p.claims, record)
	if err != nil {
		var c *hullmark.Condition
		switch {
		case !errors.As(err, &c):
		case c.Code == codeGeneration:
			err = cmp.Or(p.service.checkRotation(p.policy.policy), err)
		case c.Code == CodeMismatch:
			p.tellWithdrawn(c, m.Document)
		}
		return Admission{}, err
	}
	member := admission.Member
	if member.Role == hullmark.ControlPlane || admission.Ticket.Disk.FormatAllowed {
		if err := p.service.checkRotation(p.policy.policy); err != nil {
			admission.Ticket.Disk.Key.Wipe()
			return Admission{}, err
		}
	}
	if known && p.kind() == hullmark.Join && m.Role == hullmark.Worker && member.Role == hullmark.ControlPlane && m.Name == member.Name && time.Now().Before(m.CertificateEnds) {
		admission.Ticket.Disk.Key.Wipe()
		return Admission{}, NameRests(m.Name, m.EKID, m.CertificateEnds) // A control plane is recognised by its name.
	}
	if known && p.kind() == hullmark.Rejoin && (m.Name != member.Name || m.Role != member.Role) {
		admission.Ticket.Disk.Key.Wipe()
		return Admission{}, memberChanged(member, m.Name, m.Role)
	}
	return admission, nil
}

// memberChanged is the condition of a machine whose rule gives another name or role than it has joined with.
func memberChanged(member measurements.Member, name string, role hullmark.Role) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "member-changed", Step: "ATTEST", Title: "the machine's disk was set up under another name or role than its rule gives now",
		Expected: fmt.Sprintf("%s %s", member.Role, member.Name), Got: fmt.Sprintf("%s %s", role, name),
		Next: "restore the rule, or remove the node and give it an empty disk",
	}
}

// grant does Ticket and Opened.
func (t *ticketed) grant() (*opened, error) {
	disk, err := t.conversation.Grant(t.admission.Ticket)
	return &opened{ticketed: t, disk: disk}, err
}

// commit records what the node confirmed, with the token that Proceed brings it, and
// makes Proceed.
func (o *opened) commit() (proceed *wire.Proceed, err error) {
	o.judgeEtcdMember()
	proceed = &wire.Proceed{NodeName: o.admission.Member.Name, Role: string(o.admission.Member.Role), Time: time.Now().Unix()}
	if err = o.checkPolicy(); err == nil && !o.unchecked() {
		err = o.claimAddresses(proceed)
	}
	switch {
	case err != nil: // Nothing that this ticket brings is of the policy in force, or the records do not answer.
	case o.unchecked():
		own, _ := o.service.Settings.NodeAddresses(usable(o.disk.Addresses))
		o.service.Settings.Tell(proceed, own)
		err = o.checkUnchecked()
	case o.comesBack() && o.lacksCertificate():
		err = o.addBootstrap(proceed)
	case o.comesBack():
		err = o.confirm("")
	default:
		proceed.JoinAnew = o.anew
		err = o.addMaterial(proceed)
	}
	if err == nil && o.comesBack() {
		err = o.addEndpoint(proceed)
	}
	if err == nil {
		err = AddPool(proceed, o.policy.policy, o.admission.Member, o.service.Keys, o.policy.first)
	}
	if err == nil {
		err = o.checkPolicy()
	}
	if err != nil {
		wire.WipeFiles(proceed.GetFiles())
		clear(proceed.GetKubeadmDocuments())
		o.revoke(o.ctx, o.token)
		return nil, err
	}
	return proceed, nil
}

// confirm records what the node confirmed, and the public half of the token that it is about to be given.
func (o *opened) confirm(token string) error {
	issued := o.admission.Record.Issued
	err := o.service.change(o.ctx, o.claims.EKID, &o.last, func(m *Machine, _ bool) error {
		record, err := m.Record.Commit(o.claims.Disk.UUID, issued)
		if err != nil || m.Record.Committed > issued {
			return o.stale(m.Record)
		}
		// An exchange may have gone on at another replica, or in a process that has ended, after this ticket.
		if err := o.end(o.ctx, m.Token, o.token); err != nil {
			return err
		}
		m.Record, m.Token = record, ""
		if token != "" {
			m.beginLife(token)
		}
		o.addresses.note(m)
		o.noteMember(m)
		m.State, m.Phase, m.Condition = MachineJoining, "", nil
		return nil
	})
	if err == nil {
		o.token = token
	}
	return err
}

// stale is the condition of a ticket that a later one overtook.
func (t *ticketed) stale(record Record) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "ticket-stale", Step: "EPOCH", Title: "the machine was given a later ticket, or one for another disk, since this one",
		Expected: fmt.Sprintf("disk %s, epoch %d", record.Disk, record.Issued),
		Got:      fmt.Sprintf("disk %s, epoch %d", t.claims.Disk.UUID, t.admission.Record.Issued),
		Next:     "wait: the node tries again by itself", Retry: true,
	}
}

// progress records what the node does now and then.
func (t *ticketed) progress(phase, _ string) {
	if phase == t.phase || time.Since(t.phased) < progressPause {
		return
	}
	t.phase, t.phased = phase, time.Now()
	t.note(func(m *Machine) { m.Phase = cut(phase) })
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

// finish records how the exchange ended after its ticket, with what the member of etcd had stored once the node was Ready, and returns err.
func (t *ticketed) finish(err error, ready hullmark.EtcdState) error {
	var reported *NodeError
	switch {
	case errors.Is(err, errSuperseded):
		t.revoke(t.ctx, t.token)
	case err == nil:
		left := t.revoke(t.ctx, t.token)
		t.note(func(m *Machine) {
			stored := t.hosted(ready)
			m.State, m.Token, m.Phase, m.Condition = MachineReady, left, "", m.Etcd.forgot(stored)
			m.Etcd.Note(stored)
			m.KubernetesCA = cmp.Or(t.trusts, m.KubernetesCA)
		})
	case errors.As(err, &reported):
		left := t.revoke(t.ctx, t.token)
		t.note(func(m *Machine) { m.State, m.Token, m.Condition = MachineFailed, left, brief(reported.Condition) })
	default:
		// The node goes on without its verifier: its token stays until it expires, or until the next ticket.
		if t.note(func(m *Machine) { m.State, m.Condition = MachineFailed, ended(err) }) {
			t.revoke(t.ctx, t.token) // A later ticket's exchange may have looked for it before it was made.
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

// note edits the record as long as it is this ticket's, and reports whether it no longer is. What it fails to record changes
// nothing for the node.
func (t *ticketed) note(edit func(*Machine)) (superseded bool) {
	if t.unchecked() {
		return false // There is no ticket of it in the record.
	}
	err := t.service.change(t.ctx, t.claims.EKID, &t.last, func(m *Machine, _ bool) error {
		if t.overtaken(m) {
			return errSuperseded
		}
		edit(m)
		return nil
	})
	t.warn("not recorded", err)
	return errors.Is(err, errSuperseded)
}

// overtaken reports whether the record is of a later ticket than this exchange's, or of another disk.
func (t *ticketed) overtaken(m *Machine) bool {
	return m.Record.Disk != t.claims.Disk.UUID || m.Record.Issued != t.admission.Record.Issued
}

// revoke ends a token, if there is one, and returns what is left of it: one that cannot be ended now is tried again later,
// by RevokeLeftOver, and stays in the machine's record, which outlives this process.
func (t *ticketed) revoke(ctx context.Context, token string) (left string) {
	if token == "" {
		return ""
	}
	if err := t.service.Tokens.Revoke(ctx, token); err != nil {
		t.service.leaveOver(token)
		t.warn("token not revoked yet", err)
		return token
	}
	return ""
}

func (p *proved) warn(what string, err error) {
	if err != nil && p.service.Log != nil {
		p.service.Log.Warn(what, "node", p.claims.EKID.String(), "error", err.Error())
	}
}

// log writes one line, which is where the operator reads why evidence was refused. Peers without verified evidence get one line
// a second between them.
func (s *Service) log(p *proved, outcome string, err error) {
	if s.Log == nil {
		return
	}
	if p == nil || p.claims.EKID == (hullmark.EKID{}) {
		now := time.Now().Unix()
		if s.refusalLogged.Swap(now) != now {
			s.Log.Info("refused", "outcome", outcome, "error", fmt.Sprint(err))
		}
		return
	}
	attributes := []any{
		"node", p.claims.EKID.String(), "name", p.admission.Member.Name, "kind", string(p.kind()), "unchecked", p.unchecked(), "outcome", outcome,
	}
	if err != nil {
		attributes = append(attributes, slog.String("error", err.Error()))
	}
	s.Log.Info("exchange", attributes...)
}
