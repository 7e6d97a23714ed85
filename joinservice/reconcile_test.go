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

func TestUnfinished(t *testing.T) {
	lost := &hullmark.Condition{Code: joinservice.OutcomeEnded}
	for name, c := range map[string]struct {
		machine joinservice.Machine
		want    bool
	}{
		"ready":                {joinservice.Machine{State: joinservice.MachineReady}, false},
		"ready with a token":   {joinservice.Machine{State: joinservice.MachineReady, Token: "abcdef"}, true},
		"joining":              {joinservice.Machine{State: joinservice.MachineJoining}, true},
		"its stream was lost":  {joinservice.Machine{State: joinservice.MachineFailed, Condition: lost}, true},
		"it failed":            {joinservice.Machine{State: joinservice.MachineFailed, Condition: &hullmark.Condition{Code: "kubeadm-failed"}}, false},
		"it waits":             {joinservice.Machine{State: joinservice.MachineWaiting, Condition: &hullmark.Condition{Code: "busy"}}, false},
		"admitted, not opened": {joinservice.Machine{State: joinservice.MachineAdmitted}, false},
	} {
		if got := c.machine.Unfinished(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestReconcileEndsTheTokenOfAnUnheardNode(t *testing.T) {
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
	if err := s.service.Reconcile(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if m := s.machine(t); m.State != joinservice.MachineReady || m.Token != "" || m.Condition != nil || len(s.records.Tokens()) != 0 {
		t.Errorf("the record is %+v, tokens %v", m, s.records.Tokens())
	}
	// The last word of one that came back without a token may be lost, too.
	s.store(t, func(m *joinservice.Machine) { m.State = joinservice.MachineJoining })
	if err := s.service.Reconcile(t.Context(), s.machine(t)); err != nil || s.machine(t).State != joinservice.MachineReady {
		t.Errorf("without a token: %v, %+v", err, s.machine(t))
	}
	earlier := s.machine(t)
	s.store(t, func(m *joinservice.Machine) { m.State, m.Record.Issued = joinservice.MachineJoining, m.Record.Issued+1 })
	if err := s.service.Reconcile(t.Context(), earlier); err == nil || s.machine(t).State != joinservice.MachineJoining {
		t.Errorf("a later ticket was reconciled: %v, %+v", err, s.machine(t))
	}
	seen = s.machine(t)
	// A later ticket's token is not this one's.
	s.store(t, func(m *joinservice.Machine) { m.State, m.Token = joinservice.MachineJoining, "later1" })
	if err := s.service.Reconcile(t.Context(), seen); err == nil || s.machine(t).Token != "later1" {
		t.Errorf("a later token was reconciled: %v, %+v", err, s.machine(t))
	}
}

// What the operator saw of the first node's configuration counts, unless the machine came back elsewhere since.
func TestAdoptTakesTheRoot(t *testing.T) {
	s := newSite(t)
	earlier, later := hullmark.ClusterRoot{1}, hullmark.ClusterRoot{2}
	first := joinservice.Machine{EKID: s.node.ID, Name: "worker-1", Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 3, Issued: 3}, Root: earlier}
	for _, step := range []struct {
		committed uint64
		root      hullmark.ClusterRoot
		want      hullmark.ClusterRoot
	}{{3, earlier, earlier}, {3, later, later}, {2, earlier, later}, {4, earlier, earlier}} {
		first.Record.Committed, first.Root = step.committed, step.root
		if err := s.service.Adopt(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if got := s.machine(t).Root; got != step.want {
			t.Errorf("epoch %d: root %s, want %s", step.committed, got, step.want)
		}
	}
}

// A control plane's own join service says which keys it holds and what it runs; it makes no record, and changes nothing else of one.
func TestNoteBoot(t *testing.T) {
	s := newSite(t)
	boot := joinservice.Boot{Rotation: 3, Kubernetes: release(t, "v1.36.3"), Document: hullmark.DocumentID{9}}
	if noted, err := s.service.NoteBoot(t.Context(), s.node.ID, boot); err != nil || noted {
		t.Errorf("without a record: %t, %v", noted, err)
	}
	first := joinservice.Machine{EKID: s.node.ID, Name: "worker-1", Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 3, Issued: 3}}
	if err := s.service.Adopt(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	before := s.machine(t)
	if noted, err := s.service.NoteBoot(t.Context(), s.node.ID, boot); err != nil || !noted {
		t.Errorf("with a record: %t, %v", noted, err)
	}
	boot.Document = hullmark.DocumentID{} // Not known is not none.
	if noted, err := s.service.NoteBoot(t.Context(), s.node.ID, boot); err != nil || !noted {
		t.Errorf("again: %t, %v", noted, err)
	}
	after := s.machine(t)
	if after.Rotation != 3 || after.Kubernetes != release(t, "v1.36.3") || after.Document != (hullmark.DocumentID{9}) || after.Record != before.Record || after.Name != before.Name {
		t.Errorf("the record is %+v by now", after)
	}
}
