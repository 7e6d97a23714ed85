package joinservice_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/joinservice"
)

// clinging are tokens that cannot be revoked for now.
type clinging struct {
	*memrecords.Store
	cling bool
}

func (c *clinging) Revoke(ctx context.Context, id string) error {
	if c.cling {
		return &hullmark.Condition{Code: "api-unreachable", Title: "the API is down", Next: "wait", Retry: true}
	}
	return c.Store.Revoke(ctx, id)
}

func TestATokenThatCouldNotBeRevokedIsRevokedLater(t *testing.T) {
	s := newSite(t)
	tokens := &clinging{Store: s.records, cling: true}
	s.service.Tokens = tokens
	s.join(t)
	var c *hullmark.Condition
	if err := s.service.RevokeLeftOver(t.Context()); !errors.As(err, &c) || len(s.records.Tokens()) != 1 {
		t.Fatalf("while the API is down: %v, tokens %v", err, s.records.Tokens())
	}
	tokens.cling = false
	if err := s.service.RevokeLeftOver(t.Context()); err != nil || len(s.records.Tokens()) != 0 {
		t.Errorf("after the outage: %v, tokens %v", err, s.records.Tokens())
	}
}

func TestSettleEndsTheTokenOfAnUnheardNode(t *testing.T) {
	s := newSite(t)
	s.node.Silent = true
	if err := s.dial(t); err == nil {
		t.Fatal("the exchange came to its end")
	}
	s.server.GracefulStop() // until the service has recorded it
	seen := s.machine(t)
	if seen.Token == "" || len(s.records.Tokens()) != 1 {
		t.Fatalf("the record is %+v, tokens %v", seen, s.records.Tokens())
	}
	if err := s.service.Settle(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if m := s.machine(t); m.State != joinservice.MachineReady || m.Token != "" || m.Condition != nil || len(s.records.Tokens()) != 0 {
		t.Errorf("the record is %+v, tokens %v", m, s.records.Tokens())
	}
	// A later ticket's token is not this one's.
	s.store(t, func(m *joinservice.Machine) { m.State, m.Token = joinservice.MachineJoining, "later1" })
	if err := s.service.Settle(t.Context(), seen); err == nil || s.machine(t).Token != "later1" {
		t.Errorf("a later token was settled: %v, %+v", err, s.machine(t))
	}
}
