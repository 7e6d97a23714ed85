package upgrade_test

import (
	"context"
	"testing"
	"time"

	"github.com/hullmark/hullmark/upgrade"
)

// turned lets one engine look once.
func turned(t *testing.T, e *upgrade.Engine) {
	t.Helper()
	if _, err := e.Turn(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// holder is whose the Lease is.
func (s *site) holder(t *testing.T) upgrade.Lease {
	t.Helper()
	lease, _, err := s.Lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestLeaseIsOneEngines(t *testing.T) {
	s := small(t)
	first, second := s.engine(), s.engine()
	if turned(t, first); s.holder(t).Holder != "" {
		t.Error("without an upgrade somebody has the Lease")
	}
	s.Want(request(s.spec()))
	for range 30 {
		turned(t, first)
		turned(t, second)
		if got := s.holder(t); got.Holder != first.Name || got.Term != 1 {
			t.Fatalf("the Lease is %+v", got)
		}
		s.Tick(4 * time.Second)
	}
	for range 2 { // The first one stands still: its Lease ends 40 s after it was renewed last.
		s.Tick(11 * time.Second)
		if turned(t, second); s.holder(t).Holder != first.Name {
			t.Fatal("the Lease did not last")
		}
	}
	s.Tick(11 * time.Second)
	if turned(t, second); s.holder(t).Holder != second.Name || s.holder(t).Term != 2 || s.Last().Term != 2 {
		t.Errorf("the Lease is %+v, and the state of term %d", s.holder(t), s.Last().Term)
	}
	if turned(t, first); s.holder(t).Holder != second.Name {
		t.Error("the first took it back")
	}
}

// An engine that ends gives the Lease up, so that the next one does not wait.
func TestLeaseIsGivenUp(t *testing.T) {
	s := small(t)
	s.Want(request(s.spec()))
	ctx, cancel := context.WithCancel(t.Context())
	s.Before = func(call string) error {
		if call != "store lease" {
			s.Before = nil
			cancel()
		}
		return nil
	}
	if err := s.engine().Run(ctx); err == nil {
		t.Error("it ran to the end")
	}
	if got := s.holder(t); got.Holder != "" || got.Term != 1 {
		t.Errorf("the Lease is %+v", got)
	}
	next := s.engine()
	if turned(t, next); s.holder(t).Holder != next.Name {
		t.Error("the next one waits")
	}
}

// An engine whose look at the cluster took too long stores and does nothing by it, though nobody else acts yet.
func TestLookThatTakesTooLong(t *testing.T) {
	s := small(t)
	s.Want(request(s.spec()))
	e := s.engine()
	turned(t, e)
	before := s.Last()
	e.Cluster = slow{s.Cluster, s}
	if turned(t, e); s.Last().Term != before.Term || len(phases(s.Last())) != len(phases(before)) || s.Last().Nodes[0].Phase != before.Nodes[0].Phase {
		t.Errorf("it went on to %s", show(s.Last()))
	}
	s.Before = func(call string) error {
		if call != "store lease" {
			t.Errorf("it did %s", call)
		}
		return nil
	}
	turned(t, e)
}

// slow takes a minute to look.
type slow struct {
	upgrade.Cluster
	s *site
}

func (c slow) Look(ctx context.Context, need upgrade.Need) (upgrade.View, error) {
	view, err := c.Cluster.Look(ctx, need)
	c.s.Tick(time.Minute)
	return view, err
}

// Where somebody deletes the Lease, terms go on, and the engine that acted finds out before it is renewed.
func TestLeaseIsDeleted(t *testing.T) {
	s := small(t)
	s.Want(request(s.spec()))
	first, second := s.engine(), s.engine()
	for range 3 {
		turned(t, first)
	}
	s.DropLease()
	turned(t, second)
	if got := s.holder(t); got.Term != 2 || got.Holder != second.Name || s.Last().Term != 2 {
		t.Errorf("the Lease is %+v, and the state of term %d", got, s.Last().Term)
	}
	if turned(t, first); s.Last().Term != 2 {
		t.Error("the first wrote over the second")
	}
	s.engines = []*upgrade.Engine{first, second}
	s.over(t, upgrade.Done)
}
