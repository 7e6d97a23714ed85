package joinservice_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// direction is the same for every node.
type direction struct {
	last  hullmark.UpdateDirection
	asked atomic.Int64
}

// Direction returns it.
func (d *direction) Direction(context.Context, hullmark.EKID) (hullmark.UpdateDirection, error) {
	d.asked.Add(1)
	return d.last, nil
}

func (s *site) tell(t *testing.T, c *nodetest.UpdateCall) *wire.UpdateAnswer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Do(ctx, s.address, s.cluster.ID()); err != nil {
		t.Fatal(err)
	}
	return c.Answer
}

// settled makes the record old enough for another change.
func (s *site) settled(t *testing.T) {
	t.Helper()
	s.store(t, func(m *joinservice.Machine) { m.Seen = time.Now().Add(-time.Hour) })
}

var says = hullmark.UpdateStatus{Running: "a", Default: "a", A: hullmark.RootHash{1}, Phase: hullmark.UpdateIdle, Serial: 3}

func TestUpdateClaimIsAuthenticated(t *testing.T) {
	s := newSite(t)
	s.join(t)
	d := &direction{last: hullmark.UpdateDirection{Serial: 4, Action: hullmark.UpdateRestart}}
	s.service.Directions = d
	s.settled(t)
	other := [32]byte{9}
	var heard wire.UpdateAsk
	for name, spoil := range map[string]func(*nodetest.UpdateCall){
		"another key":                  func(c *nodetest.UpdateCall) { c.Key = hullmark.NewSecret(make([]byte, 32)) },
		"the disk's key":               func(c *nodetest.UpdateCall) { c.Key = s.node.Ticket().Disk.Key },
		"another machine":              func(c *nodetest.UpdateCall) { c.Claim.Ekid = other[:] },
		"another disk":                 func(c *nodetest.UpdateCall) { c.Claim.Uuid = make([]byte, 16) },
		"another owner":                func(c *nodetest.UpdateCall) { c.Claim.Owner = other[:] },
		"a generation that nobody has": func(c *nodetest.UpdateCall) { c.Claim.Generation = 7 },
		"a changed claim":              func(c *nodetest.UpdateCall) { c.Edit = func(a *wire.UpdateAsk) { a.Claim[len(a.Claim)-3] ^= 1 } },
		"a torn claim":                 func(c *nodetest.UpdateCall) { c.Edit = func(a *wire.UpdateAsk) { a.Claim = a.Claim[:9] } },
		"a status that is none":        func(c *nodetest.UpdateCall) { c.Claim.Status = []byte(`{"running":"a","more":1}`) },
	} {
		c := s.node.UpdateCall(says)
		spoil(c)
		if a := s.tell(t, c); a.GetDenied().GetCode() != "denied" || a.GetOrder() != nil {
			t.Errorf("%s: %v", name, a)
		}
	}
	if m := s.machine(t); m.Update != nil || d.asked.Load() > 0 {
		t.Errorf("the record has %+v, and %d directions were read", m.Update, d.asked.Load())
	}
	honest := s.node.UpdateCall(says)
	honest.Edit = func(a *wire.UpdateAsk) { heard.Claim, heard.Mac = a.Claim, a.Mac }
	if a := s.tell(t, honest); a.GetDenied() != nil || a.GetOrder() == nil {
		t.Errorf("the honest call: %v", a)
	}
	if m := s.machine(t); m.Update == nil || !m.Update.Same(says) {
		t.Errorf("the record has %+v", m.Update)
	}
	// What was authenticated for one channel is worth nothing on another.
	again := s.node.UpdateCall(says)
	again.Edit = func(a *wire.UpdateAsk) { a.Claim, a.Mac = heard.Claim, heard.Mac }
	if a := s.tell(t, again); a.GetDenied().GetCode() != "denied" {
		t.Errorf("a claim of another channel: %v", a)
	}
	// Nor does the claim of an epoch pass for one of slots.
	s.accept(t, func(p *measurements.Policy) { p.Members = nil }, "image")
	if a := s.tell(t, s.node.UpdateCall(says)); a.GetDenied().GetCode() != "denied" {
		t.Errorf("a machine that was removed: %v", a)
	}
}

func TestDirectionIsHandedOnOnce(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.accept(t, func(*measurements.Policy) {}, "image", "next")
	p := s.service.Policy.Policy()
	next := p.Documents[len(p.Documents)-1].Document
	d := &direction{}
	s.service.Directions = d
	order := func() *wire.UpdateAnswer { return s.tell(t, s.node.UpdateCall(says)) }
	if a := order(); a.GetOrder() != nil {
		t.Errorf("without a direction: %v", a)
	}
	d.last = hullmark.UpdateDirection{Serial: 4, Action: hullmark.UpdateStage, Document: next, Sources: []string{"https://releases.example.com"}}
	got, err := wire.DecodeUpdateOrder(order().GetOrder())
	if err != nil || got.Document != next || len(got.Sources) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	d.last.Serial = says.Serial
	if a := order(); a.GetOrder() != nil {
		t.Errorf("a direction that was followed: %v", a)
	}
	d.last.Serial, d.last.Document = 5, hullmark.DocumentID{7}
	if a := order(); a.GetDenied().GetCode() != "release-not-accepted" {
		t.Errorf("a document that the policy does not accept: %v", a)
	}
}

// A node that says something else each time changes its record no more often than every two seconds.
func TestUpdatesAreRecordedWithAPause(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.settled(t)
	for n := range 20 {
		more := says
		more.Fetched = int64(n)
		if a := s.tell(t, s.node.UpdateCall(more)); a.GetDenied() != nil {
			t.Fatal(a)
		}
		if m := s.machine(t); m.Update == nil || time.Since(m.Seen) < time.Second && m.Update.Fetched > 1 {
			t.Fatalf("after %d calls the record has %+v", n, m.Update)
		}
	}
}
