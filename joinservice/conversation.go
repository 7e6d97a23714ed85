package joinservice

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/limit"
)

// Stream is the verifier's end of the exchange: of a stream that an operator
// opened to a node, or that a node opened to a join service.
type Stream interface {
	Send(*wire.FromVerifier) error
	Recv() (*wire.FromNode, error)
	Context() context.Context
}

// Timeouts is how long a verifier waits for each of a node's messages.
type Timeouts struct {
	// Proof bounds the wait for Hello, and again for Proof.
	Proof time.Duration
	// Opened bounds the wait for Opened: formatting a disk takes a while.
	Opened time.Duration
	// Progress bounds the silence between two messages of Progress.
	Progress time.Duration
	// Renew lies between two renewals of the Lease that a control plane holds while it joins.
	Renew time.Duration
}

// farewell is how long a denied node has to end the stream.
const farewell = 5 * time.Second

// ServiceTimeouts is a join service's: anybody can dial it.
func ServiceTimeouts() Timeouts {
	return Timeouts{Proof: 15 * time.Second, Opened: 5 * time.Minute, Progress: 10 * time.Minute, Renew: 30 * time.Second}
}

// OperatorTimeouts is an operator's, who waits for one machine of their own.
func OperatorTimeouts() Timeouts {
	return Timeouts{Proof: 2 * time.Minute, Opened: 15 * time.Minute, Progress: 15 * time.Minute}
}

// Conversation speaks the verifier's half of one exchange. Its methods are
// called once each, in order: Attest, Grant, Proceed, Follow, with Snapshot beside Follow if Proceed announced one; Deny ends it
// anywhere. The caller ends the stream.
type Conversation struct {
	stream   Stream
	timeouts Timeouts
	// over, if set, is closed when the exchange has to end although the stream has not.
	over <-chan struct{}
	// stalled says that a message was given up while somebody still waits for it: a stream has one receiver at a time.
	stalled bool
}

// Converse begins an exchange on a stream.
func Converse(stream Stream, timeouts Timeouts) *Conversation {
	return &Conversation{stream: stream, timeouts: timeouts}
}

// Attest receives Hello, sends Challenge, receives Proof, and returns what they prove. A
// node whose evidence is refused before its TPM answered is told no more than that.
func (c *Conversation) Attest(demands verifier.Demands) (attest.Claims, error) {
	exchange, err := c.challenge(demands)
	if err != nil {
		return attest.Claims{}, c.refuse(err, refused())
	}
	message, err := c.receive("Proof", c.timeouts.Proof)
	if err != nil {
		return attest.Claims{}, err
	}
	if message.GetProof() == nil {
		return attest.Claims{}, c.refuse(unexpected("Proof"), refused())
	}
	claims, err := exchange.Verify(message.GetProof())
	if err != nil {
		return attest.Claims{}, c.refuse(err, refused())
	}
	return claims, nil
}

// challenge does Hello and Challenge.
func (c *Conversation) challenge(demands verifier.Demands) (*verifier.Exchange, error) {
	message, err := c.receive("Hello", c.timeouts.Proof)
	if err != nil {
		return nil, err
	}
	if message.GetHello() == nil {
		return nil, unexpected("Hello")
	}
	// Only now, after a first message, is a dialled stream's peer known.
	other, ok := peer.FromContext(c.stream.Context())
	if !ok {
		return nil, errors.New("exchange: the channel's peer is unknown")
	}
	channelKey, err := channel.Key(other)
	if err != nil {
		return nil, err
	}
	exchange, err := verifier.Begin(message.GetHello(), channelKey, demands)
	if err != nil {
		return nil, err
	}
	credential, secret, err := exchange.Challenge(rand.Reader)
	if err != nil {
		return nil, err
	}
	limit.Challenged(c.stream.Context(), exchange.Node().String())
	return exchange, c.send("Challenge", &wire.FromVerifier{Message: &wire.FromVerifier_Challenge{
		Challenge: &wire.Challenge{Credential: credential, Secret: secret},
	}})
}

// Opened is what a node reports once its disk is open.
type Opened struct {
	// EpochRead is what the disk's counter held before the node wrote the ticket's number.
	EpochRead uint64
	// Joined reports that the disk holds a finished kubeadm init or join.
	Joined bool
	// LastBoot is when the node last came so far, by its own clock; for people.
	LastBoot string
	// Addresses are the node's own, first the one at which it was reached.
	Addresses []netip.Addr
	// CertificateEnds is when its kubelet's client certificate ends; the start of 1970 if it holds none.
	CertificateEnds time.Time
	// Etcd is what its member of etcd has stored on the disk; zero if there is none, or none that can be read.
	Etcd hullmark.EtcdState
}

// Grant sends Ticket and receives Opened. The ticket's epoch must be recorded before.
// The ticket's key is wiped.
func (c *Conversation) Grant(ticket hullmark.Ticket) (Opened, error) {
	defer ticket.Disk.Key.Wipe()
	if err := c.send("Ticket", &wire.FromVerifier{Message: &wire.FromVerifier_Ticket{Ticket: wire.FromTicket(ticket)}}); err != nil {
		return Opened{}, err
	}
	message, err := c.receive("Opened", c.timeouts.Opened)
	if err != nil {
		return Opened{}, err
	}
	opened := message.GetOpened()
	if opened == nil {
		return Opened{}, c.refuse(unexpected("Opened"), refused())
	}
	if opened.GetIssued() != ticket.Disk.Epoch.Issued {
		return Opened{}, c.refuse(&hullmark.Condition{
			Code: "epoch-mismatch", Step: "EPOCH", Title: "the node opened its disk with another ticket than this one",
			Expected: fmt.Sprint(ticket.Disk.Epoch.Issued), Got: fmt.Sprint(opened.GetIssued()), Next: "reboot the node and begin again",
		}, refused())
	}
	return readOpened(opened), nil
}

func readOpened(message *wire.Opened) Opened {
	opened := Opened{
		EpochRead: message.GetEpochRead(), Joined: message.GetJoined(), LastBoot: message.GetLastBoot(),
		CertificateEnds: time.Unix(message.GetCertificateEnds(), 0), Etcd: message.GetEtcd().HullmarkEtcdState(),
	}
	for _, text := range message.GetAddresses() {
		if address, err := netip.ParseAddr(text); err == nil { // CheckFromNode refused all others.
			opened.Addresses = append(opened.Addresses, address)
		}
	}
	return opened
}

// Proceed sends Proceed. What Opened reported must be recorded before.
func (c *Conversation) Proceed(proceed *wire.Proceed) error {
	defer wire.WipeFiles(proceed.GetFiles())
	return c.send("Proceed", &wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: proceed}})
}

// Snapshot sends what Proceed announced. If the node ends the stream meanwhile, Follow tells why.
func (c *Conversation) Snapshot(content io.Reader) error {
	piece := make([]byte, wire.MaxPiece)
	defer clear(piece)
	for {
		n, err := io.ReadFull(content, piece)
		if n > 0 {
			sent := c.stream.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Snapshot{Snapshot: piece[:n]}})
			if errors.Is(sent, io.EOF) {
				return nil
			}
			if sent != nil {
				return fmt.Errorf("send the snapshot: %w", sent)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the snapshot: %w", err)
		}
	}
}

// Follow receives Progress until the node is Ready or failed, and hands each message
// to report. It returns what the node's member of etcd has stored by then, zero if it has none. A failure is a *NodeError.
func (c *Conversation) Follow(report func(phase, message string)) (hullmark.EtcdState, error) {
	for {
		message, err := c.receive("Progress", c.timeouts.Progress)
		if err != nil {
			return hullmark.EtcdState{}, err
		}
		progress := message.GetProgress()
		if progress == nil {
			return hullmark.EtcdState{}, unexpected("Progress")
		}
		report(progress.GetPhase(), progress.GetMessage())
		if progress.GetReady() {
			return progress.GetEtcd().HullmarkEtcdState(), nil
		}
	}
}

// Deny ends the exchange with a condition that the node is told. It waits a
// moment for the node to end the stream: ending it here could overtake the message.
func (c *Conversation) Deny(condition *hullmark.Condition) error {
	err := c.send("denial", &wire.FromVerifier{Message: &wire.FromVerifier_Denied{Denied: wire.FromCondition(condition)}})
	if err == nil && !c.stalled {
		_, _ = c.receive("end", farewell) // Whatever comes, the exchange is over.
	}
	return err
}

// refuse tells the node said and returns err. That the node may no longer hear it changes nothing.
func (c *Conversation) refuse(err error, said *hullmark.Condition) error {
	return errors.Join(err, c.Deny(said))
}

func (c *Conversation) send(what string, message *wire.FromVerifier) error {
	if err := c.stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("send %s: %w", what, err)
	}
	return nil // After io.EOF the reason of the end is what Recv returns.
}

// receive waits for one message and holds it to its limits. After a time-out
// the stream must be ended, which also ends the waiting goroutine.
func (c *Conversation) receive(what string, limit time.Duration) (*wire.FromNode, error) {
	message, err := wire.Receive(c.stream.Recv, limit, c.over)
	c.stalled = c.stalled || errors.Is(err, wire.ErrOver) || errors.Is(err, wire.ErrSilent)
	switch {
	case errors.Is(err, wire.ErrOver):
		return nil, fmt.Errorf("receive %s: %w", what, errSuperseded)
	case errors.Is(err, wire.ErrSilent):
		return nil, fmt.Errorf("receive %s: the node said nothing for %v", what, limit)
	case err != nil:
		return nil, fmt.Errorf("receive %s: %w", what, err)
	}
	return inspect(message)
}

// inspect holds a message to its limits, and turns a node's own failure into an error.
func inspect(message *wire.FromNode) (*wire.FromNode, error) {
	if err := wire.CheckFromNode(message); err != nil {
		return nil, err
	}
	if failed := message.GetProgress().GetFailed(); failed != nil {
		return nil, &NodeError{Condition: failed.HullmarkCondition()}
	}
	return message, nil
}

// NodeError is a failure that the node itself reports, at any point of the exchange.
type NodeError struct {
	// Condition is what the node says of it.
	Condition *hullmark.Condition
}

// Error says the condition in one line.
func (e *NodeError) Error() string { return "the node reports: " + e.Condition.Error() }

// Unwrap returns the condition.
func (e *NodeError) Unwrap() error { return e.Condition }

// unexpected is the error of a message out of order.
func unexpected(want string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "message-unexpected", Step: "ATTEST", Title: "the node sent another message than the one whose turn it is",
		Expected: want, Next: "check that the node boots a Hullmark image of the same release",
	}
}

// refused is all that a machine learns whose evidence is not accepted: the
// details would tell an attacker which attempt came closer.
func refused() *hullmark.Condition {
	return &hullmark.Condition{
		Code: "denied", Step: "ATTEST", Title: "the evidence was not accepted",
		Next: "ask the cluster's operator, whose side knows the reason",
	}
}
