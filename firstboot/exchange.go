package firstboot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// stream is the node's end of an exchange: of one that the operator opened, or of one that the node opened to a join service.
type stream interface {
	Send(*wire.FromNode) error
	Recv() (*wire.FromVerifier, error)
	Context() context.Context
}

// conversation is the node's end of one exchange (docs/protocol.md), whichever stage that is in: what it says and
// hears, and where the time goes. The stages follow each other, each made only from the one before: proving, ticketed, opened,
// finishing.
type conversation struct {
	agent  *Agent
	stream stream
	// service is the endpoint of the join service that the node dialled; empty if the operator dialled the node.
	service string
	// stalled is set when a message did not come in time: somebody still waits for it.
	stalled bool
	// took is where its time goes.
	took account
}

// verifier names the other end for people.
func (c *conversation) verifier() string {
	if c.service != "" {
		return "the join service at " + c.service
	}
	return "the operator"
}

// run goes from the first message to Ready. The caller has the turn. An error without a finishing leaves the node as it was:
// its fuse is not blown. One with it, from the fuse on, wraps errReboot.
func (c *conversation) run(ctx context.Context) (*finishing, error) {
	c.took.began = time.Now().Add(-c.agent.setUp)
	journal := Journal{Status: c.agent.Status}
	f, err := c.earn(ctx, journal)
	if err != nil {
		c.agent.Status.Say("%s", c.agent.waiting())
		return nil, err
	}
	// The other end may go away now: the node goes on by itself.
	ctx = context.WithoutCancel(ctx)
	if err := journal.Run(ctx, f.steps()...); err != nil {
		if errors.Is(err, errReboot) {
			return f, err
		}
		return f, fmt.Errorf("%w: %w", errReboot, err)
	}
	if err := f.markReady(); err != nil {
		return f, fmt.Errorf("%w: %w", errReboot, err)
	}
	c.agent.Status.Finish()
	if f.warning != nil {
		c.agent.Status.Warn(f.warning)
	}
	c.send(&wire.Progress{Ready: true, Etcd: wire.FromEtcdState(c.agent.etcdState())})
	return f, nil
}

// earn goes through the stages that come before the fuse.
func (c *conversation) earn(ctx context.Context, journal Journal) (f *finishing, err error) {
	var t *ticketed
	var o *opened
	err = journal.Run(ctx,
		Step{Name: StepAttest, Do: func(ctx context.Context) (err error) { t, err = c.attest(ctx); return err }},
		Step{Name: StepDisk, Do: func(ctx context.Context) (err error) { o, err = t.openDisk(ctx); return err }},
		Step{Name: StepEpoch, Do: func(ctx context.Context) (err error) { f, err = o.awaitProceed(ctx); return err }},
	)
	if t != nil {
		t.ticket.Disk.Key.Wipe()
	}
	return f, err
}

// attest proves what was booted and takes the ticket: Hello to Ticket.
func (c *conversation) attest(ctx context.Context) (t *ticketed, err error) {
	called, err := c.takeCall()
	if err != nil {
		return nil, err
	}
	probing := time.Now()
	claim, err := c.agent.probe(ctx)
	wait(&c.took.disk, probing)
	if err != nil {
		return nil, err
	}
	kind, err := c.chooseKind(called, claim)
	if err != nil {
		return nil, err
	}
	err = c.withTPM(func(tpm transport.TPM) error {
		p, err := prover.Open(tpm, claim.Owner)
		if err != nil {
			return err
		}
		c.agent.Status.Know(p.Node())
		if wrong := p.Identity().EKWrong; wrong != nil {
			c.agent.Status.Say("the TPM's endorsement key is shown without what certifies it: %.300s", wrong.Error())
		}
		t, err = (&proving{conversation: c, prover: p, claim: claim, kind: kind, tpm: tpm, platform: c.platform(ctx, tpm)}).run()
		return errors.Join(err, p.Close())
	})
	return t, err
}

// platform gathers what the machine's platform says of it. What cannot be gathered, and what is too long to be sent, is said in the
// log and left out: the verifier knows what it needs.
func (c *conversation) platform(ctx context.Context, tpm transport.TPM) *prover.Platform {
	if c.agent.Platform == nil {
		return nil
	}
	p, err := c.agent.Platform(ctx, tpm)
	if err == nil && p != nil {
		if err = wire.CheckPlatform(toWire(p)); err == nil {
			return p
		}
	}
	if err != nil {
		c.agent.Status.Say("the evidence of the machine's platform is not shown: %.300s", err.Error())
	}
	return nil
}

// toWire is what Hello has of a platform's evidence; nil of none.
func toWire(p *prover.Platform) *wire.Platform {
	if p == nil {
		return nil
	}
	return &wire.Platform{Kind: p.Kind, Report: p.Report, Quote: p.Quote, Certificates: p.Certificates}
}

// takeCall learns what an operator wants. A join service is not asked: it gives what the disk needs.
func (c *conversation) takeCall() (hullmark.TicketKind, error) {
	if c.service != "" {
		return "", nil
	}
	call, err := c.receive(c.agent.Timing.Answer)
	if err != nil {
		return "", err
	}
	switch kind := hullmark.TicketKind(call.GetCall().GetKind()); kind {
	case hullmark.Init, hullmark.Recover:
		return kind, nil
	default:
		return "", &hullmark.Condition{
			Code: "call-refused", Step: StepAttest, Title: "the operator asked for an exchange that this node does not know",
			Expected: string(hullmark.Init + " or " + hullmark.Recover), Got: fmt.Sprintf("%.20q", kind), Next: "use a hullmark of this image's release",
		}
	}
}

// chooseKind settles which ticket fits the disk: a join service's, or the one that the operator called for.
func (c *conversation) chooseKind(called hullmark.TicketKind, claim hullmark.DiskClaim) (hullmark.TicketKind, error) {
	switch {
	case c.service != "" && claim.State == hullmark.DiskReady:
		return hullmark.Rejoin, nil
	case c.service != "":
		return hullmark.Join, nil
	case called == hullmark.Recover && claim.State != hullmark.DiskReady:
		return "", &hullmark.Condition{
			Code: "disk-not-ready", Step: StepDisk, Title: "the state disk holds nothing that could be recovered",
			Expected: hullmark.DiskReady.String(), Got: claim.State.String(), Next: "attach the node's own disk; to begin a new cluster, run hullmark init",
		}
	}
	return called, nil
}

// proving is the stage in which the node shows what it booted, for a ticket of one kind and for one disk.
type proving struct {
	*conversation
	prover *prover.Prover
	claim  hullmark.DiskClaim
	kind   hullmark.TicketKind
	// platform is the machine's evidence beside its TPM's; nil where there is none.
	platform *prover.Platform
	tpm      transport.TPM
	// scope is what the operator's leaf is good for; zero towards a join service, and of an operator whom the policy names: then named
	// says who that is.
	scope channel.Scope
	named *channel.Named
}

// ticketed is the stage of a node that has a ticket. From now on the turn is its exchange's.
type ticketed struct {
	*conversation
	admitted
	ticket hullmark.Ticket
}

// admitted is what the stages from the ticket on know of it.
type admitted struct {
	node  hullmark.EKID
	kind  hullmark.TicketKind
	scope channel.Scope
	named *channel.Named
}

// run leads to a ticket.
func (p *proving) run() (*ticketed, error) {
	if err := p.checkScope(); err != nil {
		return nil, err
	}
	identity := p.prover.Identity()
	hello, err := wire.EncodeHello(&wire.Hello{
		Version: attest.Version, EkPublic: identity.EKPublic, EkCertificate: identity.EKCertificate, AkPublic: identity.AKPublic,
		NodeConfig: p.agent.configData, Disk: wire.FromDiskClaim(p.claim), Platform: toWire(p.platform),
	})
	if err != nil {
		return nil, err
	}
	if err := p.say(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	challenge, err := p.receive(p.agent.Timing.Answer)
	if err != nil {
		return nil, err
	}
	if challenge.GetChallenge() == nil {
		return nil, p.outOfTurn("a challenge")
	}
	secret, err := p.prover.Activate(challenge.GetChallenge().GetCredential(), challenge.GetChallenge().GetSecret())
	if err != nil {
		return nil, err
	}
	defer secret.Wipe()
	if err := p.sendProof(secret, hello); err != nil {
		return nil, err
	}
	return p.takeTicket()
}

func (p *proving) sendProof(secret hullmark.Secret, hello []byte) error {
	from, ok := peer.FromContext(p.stream.Context())
	if !ok {
		return errors.New("the channel has no peer")
	}
	key, err := channel.Key(from)
	if err != nil {
		return err
	}
	binding, err := attest.Bind(key, secret, hello)
	if err != nil {
		return err
	}
	evidence, err := p.prover.Prove(binding)
	if err != nil {
		return err
	}
	var report []byte
	if p.platform != nil && p.platform.Prove != nil {
		if report, err = p.platform.Prove(p.tpm, binding); err != nil {
			return fmt.Errorf("evidence of the machine's platform: %w", err)
		}
	}
	return p.say(&wire.FromNode{Message: &wire.FromNode_Proof{Proof: &wire.Proof{
		Quoted: evidence.Quoted, Signature: evidence.Signature, PcrValues: evidence.Registers.Bytes(), EventLog: p.agent.eventLog(), PlatformReport: report,
	}}})
}

// takeTicket accepts a ticket of the one kind that it may be, for this disk.
func (p *proving) takeTicket() (*ticketed, error) {
	message, err := p.receive(p.agent.Timing.Answer)
	if err != nil {
		return nil, err
	}
	if message.GetTicket() == nil {
		return nil, p.outOfTurn("a ticket")
	}
	ticket, err := message.GetTicket().HullmarkTicket()
	if err != nil {
		return nil, err
	}
	if err := p.checkTicket(ticket); err != nil {
		ticket.Disk.Key.Wipe()
		return nil, err
	}
	// A disk that is ready now and blank when it is opened was swapped in between.
	ticket.Disk.FormatAllowed = ticket.Disk.FormatAllowed && p.claim.State != hullmark.DiskReady
	p.agent.turn.keep()
	p.agent.Status.Say("admitted as %s", p.prover.Node())
	return &ticketed{conversation: p.conversation, admitted: admitted{node: p.prover.Node(), kind: p.kind, scope: p.scope, named: p.named}, ticket: ticket}, nil
}

func (p *proving) checkTicket(ticket hullmark.Ticket) error {
	if ticket.Kind != p.kind || ticket.Disk.UUID != p.claim.UUID {
		return &hullmark.Condition{
			Code: "ticket-mismatch", Step: StepAttest, Title: "the ticket is for another exchange or disk",
			Expected: fmt.Sprintf("%s for %s", p.kind, p.claim.UUID), Got: fmt.Sprintf("%s for %s", ticket.Kind, ticket.Disk.UUID),
			Next: "start the exchange again",
		}
	}
	if fresh := p.kind == hullmark.Init || p.kind == hullmark.Join; fresh && ticket.Disk.Epoch.Unchecked {
		return &hullmark.Condition{
			Code: "ticket-mismatch", Step: StepAttest, Title: "only a node that comes back may put its epoch's comparison off",
			Expected: "an epoch's window", Got: "unchecked", Next: "start the exchange again",
		}
	}
	return p.checkNamed(ticket)
}

// opened is the stage of a node whose state disk is open, its epoch raised and its key gone.
type opened struct {
	*conversation
	admitted
	// grant is the ticket's, without its key.
	grant hullmark.DiskGrant
	disk  statedisk.Opened
}

// openDisk opens the state disk, which checks and advances its epoch too: Opened.
func (t *ticketed) openDisk(ctx context.Context) (*opened, error) {
	t.agent.Status.Say("opening the state disk")
	opening := time.Now()
	keys, err := deriveKeys(t.ticket.Disk, t.node)
	if err != nil {
		return nil, err
	}
	disk, err := t.agent.Disk.Open(ctx, t.agent.config.StateDisk, t.ticket.Disk)
	wait(&t.took.disk, opening)
	t.ticket.Disk.Key.Wipe()
	if err != nil {
		return nil, err
	}
	grant := t.ticket.Disk
	grant.Key = hullmark.Secret{}
	o := &opened{conversation: t.conversation, admitted: t.admitted, grant: grant, disk: disk}
	t.agent.kept.take(keys, disk.Manifest)
	if t.kind == hullmark.Recover && !disk.Joined {
		return nil, &hullmark.Condition{
			Code: "not-initialised", Step: StepDisk, Title: "the state disk belongs to a node that was never Ready", Next: "run hullmark init, which goes on where it ended",
		}
	}
	addresses, err := networking{t.agent}.ownAddresses(t.stream.Context())
	if err != nil {
		return nil, err
	}
	return o, o.say(&wire.FromNode{Message: &wire.FromNode_Opened{Opened: &wire.Opened{
		Issued: grant.Epoch.Issued, EpochRead: disk.EpochRead, Joined: disk.Joined, LastBoot: disk.LastBoot,
		Addresses: addresses, CertificateEnds: disk.CertificateEnds, Etcd: wire.FromEtcdState(disk.Etcd),
	}}})
}

// awaitProceed waits until the epoch is committed, and refuses before the fuse
// what would only fail after it: Proceed.
func (o *opened) awaitProceed(ctx context.Context) (*finishing, error) {
	message, err := o.receive(o.agent.Timing.Proceed)
	if err != nil {
		return nil, err
	}
	proceed := message.GetProceed()
	if proceed == nil {
		return nil, o.outOfTurn("permission to proceed")
	}
	began, err := o.check(ctx, proceed)
	if err != nil {
		wire.WipeFiles(proceed.GetFiles())
		return nil, err
	}
	return &finishing{
		conversation: o.conversation, admitted: o.admitted, grant: o.grant, disk: o.disk,
		proceed: proceed, comesBack: o.comesBack(proceed), joins: o.joins(proceed), machineBegan: began,
	}, nil
}

// check refuses Proceed that could not be carried out, and returns when the machine was started by its verifier's clock.
func (o *opened) check(ctx context.Context, proceed *wire.Proceed) (machineBegan int64, err error) {
	if err := o.checkProceed(proceed); err != nil {
		return 0, err
	}
	if !o.comesBack(proceed) {
		if err := o.validate(ctx, proceed.GetKubeadmDocuments()); err != nil {
			return 0, &hullmark.Condition{
				Code: "kubeadm-refused", Step: StepKubeadm, Title: err.Error(), Next: "correct the cluster's settings and let the node try again",
			}
		}
	}
	return o.agent.machineBegan(proceed)
}

// receive waits for the verifier's next message. A refusal is returned as its condition.
func (c *conversation) receive(limit time.Duration) (*wire.FromVerifier, error) {
	asked := time.Now()
	message, err := wire.Receive(c.stream.Recv, limit, nil)
	switch {
	case errors.Is(err, wire.ErrSilent):
		c.stalled = true // Returning ends the stream.
		return nil, &hullmark.Condition{
			Code: "timeout", Step: StepAttest, Title: c.verifier() + " did not answer in time", Expected: "an answer within " + limit.String(),
			Next: "start the exchange again", Retry: true,
		}
	case err != nil:
		wait(&c.took.network, asked)
		return nil, fmt.Errorf("%w: %w", errEnded, err)
	}
	wait(&c.took.network, asked)
	return message, checkMessage(message)
}

func checkMessage(m *wire.FromVerifier) error {
	if err := wire.CheckFromVerifier(m); err != nil {
		return err
	}
	denied := m.GetDenied()
	switch {
	case denied == nil:
		return nil
	case denied.GetCode() == "dry-run":
		return errEnded
	}
	return fmt.Errorf("%w: %w", errEnded, denied.HullmarkCondition())
}

func (c *conversation) outOfTurn(want string) error {
	return &hullmark.Condition{
		Code: "out-of-turn", Step: StepAttest, Title: c.verifier() + " sent something else than " + want, Next: "use a hullmark of this image's release",
	}
}

// say sends a message that the exchange needs. When the other end has ended the stream, what it said last is what receive returns.
func (c *conversation) say(m *wire.FromNode) error {
	defer wait(&c.took.network, time.Now())
	if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", errEnded, err)
	}
	return nil
}

// send reports progress. The other end may have gone; that does not stop the node.
func (c *conversation) send(p *wire.Progress) {
	_ = c.stream.Send(&wire.FromNode{Message: &wire.FromNode_Progress{Progress: p}})
}
