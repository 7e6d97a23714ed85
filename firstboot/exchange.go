package firstboot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
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

// exchange is the node's side of one release exchange (docs/protocol.md).
type exchange struct {
	agent  *Agent
	stream stream
	// service is the endpoint of the join service that the node dialled; empty if the operator dialled the node.
	service string

	node hullmark.NodeID
	kind hullmark.TicketKind
	// errand is what the operator's leaf is good for.
	errand  channel.Errand
	ticket  hullmark.Ticket
	opened  statedisk.Opened
	proceed *wire.Proceed
	// joinAnew says that M6 takes the node that the disk holds for none: its member of etcd came back with less than it had acknowledged.
	joinAnew bool
	// fused is set once register 15 is extended, or may be.
	fused bool
	// machineBegan is when the machine was started by its verifier's clock, in Unix time; 0 if M6 did not say the time.
	machineBegan int64
	// stalled is set when a message did not come in time: somebody still waits for it.
	stalled bool
	// warning is what stands against the node although it is Ready.
	warning *hullmark.Condition
	// took is where its time goes.
	took account
}

// verifier names the other end for people.
func (x *exchange) verifier() string {
	if x.service != "" {
		return "the join service at " + x.service
	}
	return "the operator"
}

// run goes from the first message to Ready. The caller has the turn. An error before the fuse
// leaves the node as it was; one from the fuse on wraps errReboot.
func (x *exchange) run(ctx context.Context) error {
	defer func() { x.ticket.Disk.Key.Wipe() }()
	x.took.began = time.Now().Add(-x.agent.setUp)
	journal := Journal{Status: x.agent.Status}
	err := journal.Run(ctx,
		Step{Name: StepAttest, Do: x.attest},
		Step{Name: StepDisk, Do: x.openDisk},
		Step{Name: StepEpoch, Do: x.awaitProceed},
	)
	if err != nil {
		x.agent.Status.Say("%s", x.agent.waiting())
		return err
	}
	// The other end may go away now: the node goes on by itself.
	ctx = context.WithoutCancel(ctx)
	x.fused = true
	if err := journal.Run(ctx, x.finishSteps()...); err != nil {
		if errors.Is(err, errReboot) {
			return err
		}
		return fmt.Errorf("%w: %w", errReboot, err)
	}
	if err := x.markReady(); err != nil {
		return fmt.Errorf("%w: %w", errReboot, err)
	}
	x.agent.Status.Finish()
	if x.warning != nil {
		x.agent.Status.Warn(x.warning)
	}
	x.send(&wire.Progress{Ready: true, Etcd: wire.FromEtcdState(x.agent.etcdState())})
	return nil
}

// attest proves what was booted and takes the ticket: M1 to M4.
func (x *exchange) attest(ctx context.Context) error {
	if err := x.takeCall(); err != nil {
		return err
	}
	probing := time.Now()
	claim, err := x.agent.probe(ctx)
	wait(&x.took.disk, probing)
	if err != nil {
		return err
	}
	if err := x.chooseKind(claim); err != nil {
		return err
	}
	return x.withTPM(func(tpm transport.TPM) error {
		p, err := prover.Open(tpm)
		if err != nil {
			return err
		}
		x.node = p.Node()
		x.agent.Status.Know(x.node)
		if err := x.checkErrand(x.kind, x.node); err != nil {
			return errors.Join(err, p.Close())
		}
		return errors.Join(x.prove(p, claim), p.Close())
	})
}

// takeCall learns what an operator wants. A join service is not asked: it gives what the disk needs.
func (x *exchange) takeCall() error {
	if x.service != "" {
		return nil
	}
	call, err := x.receive(x.agent.Timing.Answer)
	if err != nil {
		return err
	}
	switch kind := hullmark.TicketKind(call.GetCall().GetKind()); kind {
	case hullmark.Init, hullmark.Recover:
		x.kind = kind
		return nil
	default:
		return &hullmark.Condition{
			Code: "call-refused", Step: StepAttest, Title: "the operator asked for an exchange that this node does not know",
			Expected: string(hullmark.Init + " or " + hullmark.Recover), Got: fmt.Sprintf("%.20q", kind), Next: "use a hullmark of this image's release",
		}
	}
}

// chooseKind settles which ticket fits the disk: a join service's, or the one that the operator called for.
func (x *exchange) chooseKind(claim hullmark.DiskClaim) error {
	switch {
	case x.service != "" && claim.State == hullmark.DiskReady:
		x.kind = hullmark.Rejoin
	case x.service != "":
		x.kind = hullmark.Join
	case x.kind == hullmark.Recover && claim.State != hullmark.DiskReady:
		return &hullmark.Condition{
			Code: "disk-not-ready", Step: StepDisk, Title: "the state disk holds nothing that could be recovered",
			Expected: hullmark.DiskReady.String(), Got: claim.State.String(), Next: "attach the node's own disk; to begin a new cluster, run hullmark init",
		}
	}
	return nil
}

func (x *exchange) prove(p *prover.Prover, claim hullmark.DiskClaim) error {
	identity := p.Identity()
	hello, err := wire.EncodeHello(&wire.Hello{
		Version: attest.Version, EkPublic: identity.EKPublic, EkCertificate: identity.EKCertificate, AkPublic: identity.AKPublic,
		NodeConfig: x.agent.configData, Disk: wire.FromDiskClaim(claim),
	})
	if err != nil {
		return err
	}
	if err := x.say(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: hello}}); err != nil {
		return err
	}
	challenge, err := x.receive(x.agent.Timing.Answer)
	if err != nil {
		return err
	}
	if challenge.GetChallenge() == nil {
		return x.outOfTurn("a challenge")
	}
	secret, err := p.Activate(challenge.GetChallenge().GetCredential(), challenge.GetChallenge().GetSecret())
	if err != nil {
		return err
	}
	defer secret.Wipe()
	if err := x.sendProof(p, secret, hello); err != nil {
		return err
	}
	return x.takeTicket(claim, p.Node())
}

func (x *exchange) sendProof(p *prover.Prover, secret hullmark.Secret, hello []byte) error {
	from, ok := peer.FromContext(x.stream.Context())
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
	evidence, err := p.Prove(binding)
	if err != nil {
		return err
	}
	return x.say(&wire.FromNode{Message: &wire.FromNode_Proof{Proof: &wire.Proof{
		Quoted: evidence.Quoted, Signature: evidence.Signature, PcrValues: evidence.Registers.Bytes(), EventLog: x.agent.eventLog(),
	}}})
}

// takeTicket accepts a ticket of the one kind that it may be, for this disk. From now on the turn is this exchange's.
func (x *exchange) takeTicket(claim hullmark.DiskClaim, node hullmark.NodeID) error {
	message, err := x.receive(x.agent.Timing.Answer)
	if err != nil {
		return err
	}
	if message.GetTicket() == nil {
		return x.outOfTurn("a ticket")
	}
	ticket, err := message.GetTicket().HullmarkTicket()
	if err != nil {
		return err
	}
	x.ticket = ticket
	if ticket.Kind != x.kind || ticket.Disk.UUID != claim.UUID {
		return &hullmark.Condition{
			Code: "ticket-mismatch", Step: StepAttest, Title: "the ticket is for another exchange or disk",
			Expected: fmt.Sprintf("%s for %s", x.kind, claim.UUID), Got: fmt.Sprintf("%s for %s", ticket.Kind, ticket.Disk.UUID),
			Next: "start the exchange again",
		}
	}
	if fresh := x.kind == hullmark.Init || x.kind == hullmark.Join; fresh && ticket.Disk.Epoch.Unchecked {
		return &hullmark.Condition{
			Code: "ticket-mismatch", Step: StepAttest, Title: "only a node that comes back may put its epoch's comparison off",
			Expected: "an epoch's window", Got: "unchecked", Next: "start the exchange again",
		}
	}
	// A disk that is ready now and blank when it is opened was swapped in between.
	x.ticket.Disk.FormatAllowed = ticket.Disk.FormatAllowed && claim.State != hullmark.DiskReady
	x.agent.turn.keep()
	x.agent.Status.Say("admitted as %s", node)
	return nil
}

// openDisk opens the state disk, which checks and advances its epoch too: M5.
func (x *exchange) openDisk(ctx context.Context) error {
	x.agent.Status.Say("opening the state disk")
	opening := time.Now()
	keys, err := deriveKeys(x.ticket.Disk, x.node)
	if err != nil {
		return err
	}
	opened, err := x.agent.Disk.Open(ctx, x.agent.config.StateDisk, x.ticket.Disk)
	wait(&x.took.disk, opening)
	x.ticket.Disk.Key.Wipe()
	if err != nil {
		return err
	}
	x.opened = opened
	x.agent.kept.take(keys, opened.Manifest)
	if x.kind == hullmark.Recover && !opened.Joined {
		return &hullmark.Condition{
			Code: "not-initialised", Step: StepDisk, Title: "the state disk belongs to a node that was never Ready", Next: "run hullmark init, which goes on where it ended",
		}
	}
	return x.say(&wire.FromNode{Message: &wire.FromNode_Opened{Opened: &wire.Opened{
		Issued: x.ticket.Disk.Epoch.Issued, EpochRead: opened.EpochRead, Joined: opened.Joined, LastBoot: opened.LastBoot,
		Addresses: ownAddresses(x.stream.Context(), x.agent.config), CertificateEnds: opened.CertificateEnds, Etcd: wire.FromEtcdState(opened.Etcd),
	}}})
}

// ownAddresses returns the node's addresses, for its kubeadm documents and certificates: first the one towards the verifier, then those of its config.
func ownAddresses(ctx context.Context, config hullmark.NodeConfig) []string {
	var own []string
	add := func(a netip.Addr) {
		if text := a.Unmap().WithZone("").String(); len(own) < wire.MaxAddresses && !slices.Contains(own, text) {
			own = append(own, text)
		}
	}
	if other, ok := peer.FromContext(ctx); ok && other.LocalAddr != nil {
		if local, err := netip.ParseAddrPort(other.LocalAddr.String()); err == nil {
			add(local.Addr())
		}
	}
	for _, text := range config.Addresses {
		if prefix, err := netip.ParsePrefix(text); err == nil { // ParseNodeConfig refused all others.
			add(prefix.Addr())
		}
	}
	return own
}

// awaitProceed waits until the epoch is committed, and refuses before the fuse
// what would only fail after it: M6.
func (x *exchange) awaitProceed(ctx context.Context) error {
	message, err := x.receive(x.agent.Timing.Proceed)
	if err != nil {
		return err
	}
	proceed := message.GetProceed()
	if proceed == nil {
		return x.outOfTurn("permission to proceed")
	}
	if err := x.check(ctx, proceed); err != nil {
		wire.WipeFiles(proceed.GetFiles())
		return err
	}
	x.proceed = proceed
	return x.takeTime()
}

// check refuses M6 that could not be carried out.
func (x *exchange) check(ctx context.Context, proceed *wire.Proceed) error {
	x.joinAnew = proceed.GetJoinAnew()
	if err := x.checkProceed(proceed); err != nil {
		return err
	}
	if x.comesBack() {
		return nil
	}
	if err := x.validate(ctx, proceed.GetKubeadmDocuments()); err != nil {
		return &hullmark.Condition{
			Code: "kubeadm-refused", Step: StepKubeadm, Title: err.Error(), Next: "correct the cluster's settings and let the node try again",
		}
	}
	return nil
}

// receive waits for the verifier's next message. A refusal is returned as its condition.
func (x *exchange) receive(limit time.Duration) (*wire.FromVerifier, error) {
	type result struct {
		message *wire.FromVerifier
		err     error
	}
	arrived, asked := make(chan result, 1), time.Now()
	go func() {
		m, err := x.stream.Recv()
		arrived <- result{m, err}
	}()
	select {
	case r := <-arrived:
		wait(&x.took.network, asked)
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", errEnded, r.err)
		}
		return r.message, checkMessage(r.message)
	case <-time.After(limit):
		// Returning ends the stream, and with it the goroutine above.
		x.stalled = true
		return nil, &hullmark.Condition{
			Code: "timeout", Step: StepAttest, Title: x.verifier() + " did not answer in time", Expected: "an answer within " + limit.String(),
			Next: "start the exchange again", Retry: true,
		}
	}
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

func (x *exchange) outOfTurn(want string) error {
	return &hullmark.Condition{
		Code: "out-of-turn", Step: StepAttest, Title: x.verifier() + " sent something else than " + want, Next: "use a hullmark of this image's release",
	}
}

// say sends a message that the exchange needs. When the other end has ended the stream, what it said last is what receive returns.
func (x *exchange) say(m *wire.FromNode) error {
	defer wait(&x.took.network, time.Now())
	if err := x.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", errEnded, err)
	}
	return nil
}

// send reports progress. The other end may have gone; that does not stop the node.
func (x *exchange) send(p *wire.Progress) {
	_ = x.stream.Send(&wire.FromNode{Message: &wire.FromNode_Progress{Progress: p}})
}
