package joinservice

import (
	"cmp"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/limit"
)

const (
	// EpochPause is how long lies at least between two numbers that a node is issued while it is Ready.
	EpochPause = 5 * time.Minute
	// epochStored bounds the wait for EpochStored: a busy disk syncs slowly.
	epochStored = 30 * time.Second
)

// The codes of what stands between a Ready node and its next number.
const (
	// CodeEpochEarly: it had one less than EpochPause ago. It passes by itself.
	CodeEpochEarly = "epoch-early"
	// CodeEpochNotReady: its record does not say that it is Ready. It passes by itself.
	CodeEpochNotReady = "epoch-not-ready"
)

// advance is one call of a node that is Ready, for the next number of its disk.
type advance struct {
	service *Service
	stream  wire.JoinService_EpochServer
	// ctx outlives the stream, as a release's does.
	ctx   context.Context
	claim *wire.EpochClaim
	node  hullmark.EKID
	disk  hullmark.UUID
	// last is the record as this call stored it last.
	last stored
}

// Epoch moves the epoch of a node that is Ready on: EpochAsk to EpochCommitted (docs/protocol.md, While a node is Ready). It
// shows by its disk's epoch key who it is, and changes nothing but its own record's numbers.
func (s *Service) Epoch(stream wire.JoinService_EpochServer) error {
	if !limit.FirstCall(stream.Context()) {
		return nil
	}
	a := &advance{service: s, stream: stream, ctx: context.WithoutCancel(stream.Context())}
	err := a.run()
	if err != nil && s.Log != nil && a.node != (hullmark.EKID{}) {
		s.Log.Info("epoch", "node", a.node.String(), "error", err.Error())
	}
	return nil
}

func (a *advance) run() error {
	if err := a.identify(); err != nil {
		return a.deny(err)
	}
	issued, err := a.issue()
	if err != nil {
		return a.deny(err)
	}
	if err := a.send(&wire.EpochFromService{Message: &wire.EpochFromService_Issued{Issued: &wire.EpochIssued{Issued: issued}}}); err != nil {
		return err
	}
	answer, err := a.receive(epochStored)
	if err != nil {
		return err
	}
	if answer.GetStored().GetIssued() != issued {
		return a.deny(unexpected("EpochStored"))
	}
	if err := a.commit(issued); err != nil {
		return a.deny(err)
	}
	return a.send(&wire.EpochFromService{Message: &wire.EpochFromService_Committed{Committed: &wire.EpochCommitted{}}})
}

// identify receives EpochAsk, in one of the bounded places for unauthenticated peers. Until its code is verified nothing is
// asked of the records.
func (a *advance) identify() error {
	if !a.service.enter() {
		return busy("EPOCH")
	}
	defer a.service.leave()
	message, err := a.receive(a.service.Timeouts.Proof)
	if err != nil {
		return err
	}
	if message.GetAsk() == nil {
		return unexpected("EpochAsk")
	}
	if a.claim, err = wire.DecodeEpochClaim(message.GetAsk().GetClaim()); err != nil {
		return errors.Join(err, refused())
	}
	if err := a.verify(message.GetAsk()); err != nil {
		return err
	}
	a.node, a.disk = hullmark.EKID(a.claim.GetEkid()), hullmark.UUID(a.claim.GetUuid())
	return nil
}

// verify makes sure that who asks holds the epoch key of the disk that it names.
func (a *advance) verify(ask *wire.EpochAsk) error {
	other, ok := peer.FromContext(a.stream.Context())
	if !ok {
		return errors.New("epoch: the channel's peer is unknown")
	}
	channel, err := channel.Key(other)
	if err != nil {
		return err
	}
	key, err := a.service.epochKey(a.claim)
	if err != nil {
		return err
	}
	defer key.Wipe()
	mac, err := attest.EpochMAC(key, channel, ask.GetClaim())
	if err != nil {
		return err
	}
	if !hmac.Equal(mac, ask.GetMac()) {
		return refused()
	}
	return nil
}

// issue records the next number before it is sent.
func (a *advance) issue() (issued uint64, err error) {
	err = a.change(func(m *Machine, known bool) error {
		if err := a.admit(m, known); err != nil {
			return err
		}
		m.Record.Issued++
		m.Advanced = time.Now().UTC().Truncate(time.Second)
		issued = m.Record.Issued
		return nil
	})
	return issued, err
}

// admit holds the claim to the policy in force and to the record.
func (a *advance) admit(m *Machine, known bool) error {
	if !known || !a.service.isMember(m, hullmark.EKID(a.claim.GetOwner())) || m.Record.Disk != a.disk {
		return refused()
	}
	epoch := a.claim.GetEpoch()
	if least := m.Record.Least(); epoch < least {
		return rolledBack(fmt.Sprintf("epoch ≥ %d", least), strconv.FormatUint(epoch, 10))
	}
	if m.State != MachineReady || epoch > m.Record.Issued { // The operator's record of a first node is handed over a little later.
		return &hullmark.Condition{
			Code: CodeEpochNotReady, Step: "EPOCH", Title: "by its record the node is not Ready, or never had its disk's number", Retry: true,
			Expected: fmt.Sprintf("%s, epoch ≤ %d", MachineReady, m.Record.Issued), Got: fmt.Sprintf("%s, %d", m.State, epoch), Next: "wait: the node asks again by itself",
		}
	}
	if c := m.Etcd.forgot(a.claim.GetEtcd().HullmarkEtcdState()); c != nil && m.Role == hullmark.ControlPlane {
		return c
	}
	if m.Role == hullmark.ControlPlane && a.claim.GetEtcd() == nil && !m.Etcd.Removed && m.Etcd.EtcdState != (hullmark.EtcdState{}) {
		// Else the number would go on without the note, and a host could keep the log from being read.
		return &hullmark.Condition{
			Code: CodeEpochNotReady, Step: "EPOCH", Title: "the machine says nothing of its member of etcd", Retry: true, Expected: m.Etcd.String() + ", or more",
			Next: "wait: the node asks again by itself; if it does not get further, read in its journal why etcd's log cannot be read",
		}
	}
	if since := time.Since(m.Advanced); since >= 0 && since < EpochPause { // A clock that was put back locks nobody out.
		return &hullmark.Condition{
			Code: CodeEpochEarly, Step: "EPOCH", Title: "the node's epoch moved on a moment ago", Retry: true,
			Expected: "a pause of at least " + EpochPause.String(), Got: since.Round(time.Second).String(), Next: "wait: the node asks again by itself",
		}
	}
	return nil
}

// commit records that the number is on the disk.
func (a *advance) commit(issued uint64) error {
	return a.change(func(m *Machine, _ bool) (err error) {
		if m.Role == hullmark.ControlPlane {
			m.Etcd.Note(a.claim.GetEtcd().HullmarkEtcdState())
		}
		m.Record, err = m.Record.Commit(a.disk, issued)
		return err
	})
}

// change edits the node's record within the time that it waits.
func (a *advance) change(edit func(m *Machine, known bool) error) error {
	ctx, cancel := context.WithTimeout(a.ctx, DecisionTime)
	defer cancel()
	return a.service.change(ctx, a.node, &a.last, edit)
}

// deny tells the node why it gets no number: the condition that err carries, or that there is one.
func (a *advance) deny(err error) error {
	var condition *hullmark.Condition
	if !errors.As(err, &condition) {
		return err // The stream has ended, or the service is at fault.
	}
	said := a.send(&wire.EpochFromService{Message: &wire.EpochFromService_Denied{Denied: wire.FromCondition(condition)}})
	return cmp.Or(err, said)
}

func (a *advance) send(m *wire.EpochFromService) error {
	if err := a.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("send the epoch's message: %w", err)
	}
	return nil
}

// receive waits for one message and holds it to its limits. Returning ends the stream, and with it the goroutine.
func (a *advance) receive(limit time.Duration) (*wire.EpochFromNode, error) {
	message, err := wire.Receive(a.stream.Recv, limit, nil)
	switch {
	case errors.Is(err, wire.ErrSilent):
		return nil, errors.New("receive the epoch's message: the node said nothing for " + limit.String())
	case err != nil:
		return nil, fmt.Errorf("receive the epoch's message: %w", err)
	}
	return message, wire.CheckEpochFromNode(message)
}
