package firstboot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// exchange is the node's side of one release exchange (docs/protocol.md).
type exchange struct {
	agent  *Agent
	stream wire.Node_ReleaseServer

	kind    hullmark.TicketKind
	ticket  hullmark.Ticket
	opened  statedisk.Opened
	proceed *wire.Proceed
	// fused is set once register 15 is extended, or may be.
	fused bool
}

// run goes from the operator's call to Ready. An error before the fuse leaves
// the node as it was; one from the fuse on wraps errReboot.
func (x *exchange) run(ctx context.Context) error {
	defer func() { x.ticket.Disk.Key.Wipe() }()
	journal := Journal{Status: x.agent.Status}
	err := journal.Run(ctx,
		Step{Name: StepAttest, Do: x.attest},
		Step{Name: StepDisk, Do: x.openDisk},
		Step{Name: StepEpoch, Do: x.awaitProceed},
	)
	if err != nil {
		x.agent.Status.Say("waiting for the operator")
		return err
	}
	// The operator may go away now: the node goes on by itself.
	ctx = context.WithoutCancel(ctx)
	x.fused = true
	if err := journal.Run(ctx, x.finishSteps()...); err != nil {
		if errors.Is(err, errReboot) {
			return err
		}
		return fmt.Errorf("%w: %w", errReboot, err)
	}
	if err := x.agent.markReady(); err != nil {
		return fmt.Errorf("%w: %w", errReboot, err)
	}
	x.agent.Status.Finish()
	x.send(&wire.Progress{Ready: true})
	return nil
}

// attest proves what was booted and takes the ticket: M1 to M4.
func (x *exchange) attest(ctx context.Context) error {
	call, err := x.receive(callTimeout)
	if err != nil {
		return err
	}
	kind := call.GetCall().GetKind()
	if kind != string(hullmark.Init) {
		return &hullmark.Condition{
			Code: "call-refused", Step: StepAttest, Title: "the operator asked for an exchange that this node does not know",
			Expected: string(hullmark.Init), Got: fmt.Sprintf("%.20q", kind), Next: "use a hullmark of this image's release",
		}
	}
	x.kind = hullmark.TicketKind(kind)
	claim, err := x.agent.probe(ctx)
	if err != nil {
		return err
	}
	return x.agent.withTPM(func(tpm transport.TPM) error {
		p, err := prover.Open(tpm)
		if err != nil {
			return err
		}
		x.agent.Status.Know(p.Node())
		return errors.Join(x.prove(p, claim), p.Close())
	})
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
	if err := x.stream.Send(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: hello}}); err != nil {
		return err
	}
	challenge, err := x.receive(ticketTimeout)
	if err != nil {
		return err
	}
	if challenge.GetChallenge() == nil {
		return errOutOfTurn("a challenge")
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
	key, err := attest.ChannelKey(from)
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
	return x.stream.Send(&wire.FromNode{Message: &wire.FromNode_Proof{Proof: &wire.Proof{
		Quoted: evidence.Quoted, Signature: evidence.Signature, PcrValues: evidence.Registers.Bytes(), EventLog: x.agent.eventLog(),
	}}})
}

// takeTicket accepts a ticket of the kind that was called for, for this disk and this node.
func (x *exchange) takeTicket(claim hullmark.DiskClaim, node hullmark.NodeID) error {
	message, err := x.receive(ticketTimeout)
	if err != nil {
		return err
	}
	if message.GetTicket() == nil {
		return errOutOfTurn("a ticket")
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
	x.agent.Status.Say("admitted as %s", node)
	return nil
}

// openDisk opens the state disk, which checks and advances its epoch too: M5.
func (x *exchange) openDisk(ctx context.Context) error {
	x.agent.Status.Say("opening the state disk")
	opened, err := x.agent.Disk.Open(ctx, x.agent.config.StateDisk, x.ticket.Disk)
	x.ticket.Disk.Key.Wipe()
	if err != nil {
		return err
	}
	x.opened = opened
	return x.stream.Send(&wire.FromNode{Message: &wire.FromNode_Opened{Opened: &wire.Opened{
		Issued: x.ticket.Disk.Epoch.Issued, EpochRead: opened.EpochRead, Joined: opened.Joined, LastBoot: opened.LastBoot,
		Addresses: ownAddresses(ctx),
	}}})
}

// ownAddresses returns the address at which the operator reached the node, for its kubeadm documents.
func ownAddresses(ctx context.Context) []string {
	operator, ok := peer.FromContext(ctx)
	if !ok || operator.LocalAddr == nil {
		return nil
	}
	own, err := netip.ParseAddrPort(operator.LocalAddr.String())
	if err != nil {
		return nil
	}
	return []string{own.Addr().Unmap().WithZone("").String()}
}

// awaitProceed waits until the epoch is committed, and refuses before the fuse
// what would only fail after it: M6.
func (x *exchange) awaitProceed(ctx context.Context) error {
	message, err := x.receive(proceedTimeout)
	if err != nil {
		return err
	}
	proceed := message.GetProceed()
	if proceed == nil {
		return errOutOfTurn("permission to proceed")
	}
	if err := checkProceed(proceed, x.opened.Joined); err != nil {
		return err
	}
	x.proceed = proceed
	if x.opened.Joined {
		return nil
	}
	if err := x.agent.Cluster.Validate(ctx, proceed.GetKubeadmDocuments()); err != nil {
		return &hullmark.Condition{
			Code: "kubeadm-refused", Step: StepKubeadm, Title: err.Error(), Next: "correct the cluster's settings and run init again",
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
	arrived := make(chan result, 1)
	go func() {
		m, err := x.stream.Recv()
		arrived <- result{m, err}
	}()
	select {
	case r := <-arrived:
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", errEnded, r.err)
		}
		return r.message, checkMessage(r.message)
	case <-time.After(limit):
		// Returning ends the stream, and with it the goroutine above.
		return nil, &hullmark.Condition{
			Code: "timeout", Step: StepAttest, Title: "the operator did not answer in time", Expected: "an answer within " + limit.String(),
			Next: "run the command again", Retry: true,
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

func errOutOfTurn(want string) error {
	return &hullmark.Condition{
		Code: "out-of-turn", Step: StepAttest, Title: "the operator sent something else than " + want, Next: "use a hullmark of this image's release",
	}
}

// send reports progress. The operator may have gone; that does not stop the node.
func (x *exchange) send(p *wire.Progress) {
	_ = x.stream.Send(&wire.FromNode{Message: &wire.FromNode_Progress{Progress: p}})
}
