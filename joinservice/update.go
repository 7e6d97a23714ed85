package joinservice

import (
	"context"
	"crypto/hmac"
	"errors"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/limit"
)

// updatePause is how long lies at least between two changes of a record by what its node says of its slots.
const updatePause = 2 * time.Second

// Directions are what somebody who may decide it wants nodes to do with their slots.
type Directions interface {
	// Direction returns the one of a node; the zero value is none.
	Direction(ctx context.Context, node hullmark.EKID) (hullmark.UpdateDirection, error)
}

// Update records what a Ready node says of its slots, and returns what it is to do with them: an order that it has not followed yet,
// with what it judges that by. It shows by its disk's epoch key who it is, and changes nothing but its own record's Update.
func (s *Service) Update(ctx context.Context, ask *wire.UpdateAsk) (*wire.UpdateAnswer, error) {
	if !limit.FirstCall(ctx) {
		return &wire.UpdateAnswer{}, nil
	}
	answer, node, err := s.direct(ctx, ask)
	if err == nil {
		return answer, nil
	}
	if s.Log != nil && node != (hullmark.EKID{}) {
		s.Log.Info("update", "node", node.String(), "error", err.Error())
	}
	var condition *hullmark.Condition
	if !errors.As(err, &condition) {
		return &wire.UpdateAnswer{}, nil // The service is at fault, or who asks speaks another language.
	}
	return &wire.UpdateAnswer{Denied: wire.FromCondition(condition)}, nil
}

func (s *Service) direct(ctx context.Context, ask *wire.UpdateAsk) (answer *wire.UpdateAnswer, node hullmark.EKID, err error) {
	claim, says, err := s.identify(ctx, ask)
	if err != nil {
		return nil, node, err
	}
	node = hullmark.EKID(claim.GetEkid())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), DecisionTime)
	defer cancel()
	if err := s.recordUpdate(ctx, node, claim, says); err != nil {
		return nil, node, err
	}
	order, err := s.order(ctx, node, says)
	return &wire.UpdateAnswer{Order: order}, node, err
}

// identify makes sure that who asks holds the epoch key of the disk that it names, in one of the bounded places for unauthenticated
// peers. Nothing is asked of the records.
func (s *Service) identify(ctx context.Context, ask *wire.UpdateAsk) (c *wire.UpdateClaim, says hullmark.UpdateStatus, err error) {
	if !s.enter() {
		return nil, says, busy("UPDATE")
	}
	defer s.leave()
	if err := wire.CheckUpdateAsk(ask); err != nil {
		return nil, says, err
	}
	if c, says, err = wire.DecodeUpdateClaim(ask.GetClaim()); err != nil {
		return nil, says, errors.Join(err, refused())
	}
	other, ok := peer.FromContext(ctx)
	if !ok {
		return nil, says, errors.New("update: the channel's peer is unknown")
	}
	shared, err := channel.Key(other)
	if err != nil {
		return nil, says, err
	}
	key, err := s.epochKey(c)
	if err != nil {
		return nil, says, err
	}
	defer key.Wipe()
	mac, err := attest.UpdateMAC(key, shared, ask.GetClaim())
	if err == nil && !hmac.Equal(mac, ask.GetMac()) {
		err = refused()
	}
	return c, says, err
}

// recordUpdate keeps what a node says of its slots, if that is news.
func (s *Service) recordUpdate(ctx context.Context, node hullmark.EKID, claim *wire.UpdateClaim, says hullmark.UpdateStatus) error {
	m, version, err := s.Records.Load(ctx, node)
	if err != nil {
		return err
	}
	member := func(m *Machine, known bool) error {
		if !known || !s.isMember(m, hullmark.EKID(claim.GetOwner())) || m.Record.Disk != hullmark.UUID(claim.GetUuid()) {
			return refused()
		}
		return nil
	}
	if err := member(&m, version != ""); err != nil {
		return err
	}
	if m.Update != nil && m.Update.Same(says) || time.Since(m.Seen).Abs() < updatePause {
		return nil // It says it again.
	}
	return s.change(ctx, node, &stored{m, version}, func(m *Machine, known bool) error {
		m.Update = &says
		return member(m, known)
	})
}

// order is what a node has not followed yet; nil if there is nothing.
func (s *Service) order(ctx context.Context, node hullmark.EKID, says hullmark.UpdateStatus) (*wire.UpdateOrder, error) {
	if s.Directions == nil {
		return nil, nil
	}
	d, err := s.Directions.Direction(ctx, node)
	if err != nil || !d.Follows(says.Serial) {
		return nil, err
	}
	if d.Document == (hullmark.DocumentID{}) {
		return wire.NewUpdateOrder(d, nil, nil)
	}
	held := s.Policy.inForce.Load()
	document, ok := held.signed.Documents[d.Document]
	if !ok {
		return nil, &hullmark.Condition{
			Code: "release-not-accepted", Step: "UPDATE", Title: "the policy in force does not accept the document of the release that the node is directed to", Retry: true,
			Expected: d.Document.String(), Next: "let the policy accept it (hullmark policy add document, hullmark policy push)",
		}
	}
	if agreement, too := held.references.Unattested(d.Document); too {
		return nil, tooFewBuilders("UPDATE", "the node is directed to a release", d.Document, agreement)
	}
	return wire.NewUpdateOrder(d, document, held.signed.Envelope)
}
