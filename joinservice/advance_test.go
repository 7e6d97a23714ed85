package joinservice_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// call makes a call and returns it.
func (s *site) call(t *testing.T, c *nodetest.EpochCall) *nodetest.EpochCall {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Do(ctx, s.address, s.cluster.ID()); err != nil {
		t.Fatal(err)
	}
	return c
}

// later lets the node ask again at once.
func (s *site) later(t *testing.T) {
	t.Helper()
	s.store(t, func(m *joinservice.Machine) { m.Advanced = time.Time{} })
}

// A copy of the disk that was taken while the node was Ready comes back after the node went on: it is older than what the node committed.
func TestCopyOfAReadyNodesDisk(t *testing.T) {
	s := newSite(t)
	s.join(t)
	copied := s.node.Epoch
	if c := s.call(t, s.node.EpochCall()); !c.Committed || c.Issued != 2 {
		t.Fatalf("the epoch of a Ready node was not moved on: %+v", c)
	}
	now := s.node.Epoch
	if m := s.machine(t); m.Record.Committed != 2 || m.Record.Issued != 2 || m.State != joinservice.MachineReady || m.Advanced.IsZero() {
		t.Errorf("the record is %+v", m)
	}
	s.reboot()
	s.node.Epoch = copied
	if err := s.dial(t); err == nil && s.outcome() == joinservice.OutcomeReady {
		t.Error("a copy that is older than the running node was accepted")
	}
	s.node.Epoch = now
	if m := s.join(t); m.Record.Committed <= 2 {
		t.Errorf("the node's own disk came back, and the record is %+v", m.Record)
	}
}

// Power goes, or the answer is lost, at each step: the node boots, and goes on.
func TestEpochIsCutAnywhere(t *testing.T) {
	s := newSite(t)
	for step, stored := range map[string]func(uint64) bool{
		"before it is stored": func(uint64) bool { return false },
		"after it is stored":  func(issued uint64) bool { s.node.Epoch = issued; return false },
		"never":               func(issued uint64) bool { s.node.Epoch = issued; return true },
	} {
		t.Run(step, func(t *testing.T) {
			s.join(t)
			s.later(t)
			c := s.node.EpochCall()
			c.Stored = stored
			s.call(t, c)
			s.reboot()
			s.join(t)
			if c := s.call(t, s.node.EpochCall()); !c.Committed {
				t.Errorf("the epoch does not go on: %+v", c)
			}
			s.reboot()
		})
	}
}

func TestEpochRefuses(t *testing.T) {
	s := newSite(t)
	s.join(t)
	other := hullmark.EKID{9}
	for name, c := range map[string]struct {
		prepare func(*joinservice.Machine)
		call    func(*nodetest.EpochCall)
		code    string
	}{
		"another key":        {call: func(c *nodetest.EpochCall) { c.Key = hullmark.NewSecret(make([]byte, 32)) }, code: "denied"},
		"the disk's key":     {call: func(c *nodetest.EpochCall) { c.Key = s.node.Ticket().Disk.Key }, code: "denied"},
		"another record":     {call: func(c *nodetest.EpochCall) { c.Claim.Ekid = other[:] }, code: "denied"},
		"another disk":       {call: func(c *nodetest.EpochCall) { c.Claim.Uuid = make([]byte, 16) }, code: "denied"},
		"another generation": {call: func(c *nodetest.EpochCall) { c.Claim.Generation = 7 }, code: "denied"},
		"a changed claim": {call: func(c *nodetest.EpochCall) {
			c.Edit = func(a *wire.EpochAsk) { a.Claim[len(a.Claim)-1] ^= 1 }
		}, code: "denied"},
		"a torn claim":             {call: func(c *nodetest.EpochCall) { c.Edit = func(a *wire.EpochAsk) { a.Claim = a.Claim[:9] } }, code: "denied"},
		"a disk that is older":     {call: func(c *nodetest.EpochCall) { c.Claim.Epoch = 0 }, code: "rollback-detected"},
		"a number of nobody's":     {call: func(c *nodetest.EpochCall) { c.Claim.Epoch = 2 }, code: "epoch-not-ready"},
		"one a moment ago":         {prepare: func(m *joinservice.Machine) { m.Advanced = time.Now().Add(-joinservice.EpochPause / 2) }, code: "epoch-early"},
		"a node that joins":        {prepare: func(m *joinservice.Machine) { m.State = joinservice.MachineJoining }, code: "epoch-not-ready"},
		"a node that has a ticket": {prepare: func(m *joinservice.Machine) { m.State = joinservice.MachineAdmitted }, code: "epoch-not-ready"},
		"another disk by now":      {prepare: func(m *joinservice.Machine) { m.Record.Disk = hullmark.UUID{8} }, code: "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			before := s.machine(t)
			defer s.store(t, func(m *joinservice.Machine) { *m = before })
			if c.prepare != nil {
				s.store(t, c.prepare)
			}
			record := s.machine(t).Record
			call := s.node.EpochCall()
			if c.call != nil {
				c.call(call)
			}
			if s.call(t, call); call.Denied == nil || call.Denied.Code != c.code || call.Issued != 0 {
				t.Errorf("%+v, want %s", call, c.code)
			}
			if now := s.machine(t).Record; now != record {
				t.Errorf("the record went from %+v to %+v", record, now)
			}
		})
	}
	if c := s.call(t, s.node.EpochCall()); !c.Committed {
		t.Errorf("the honest call: %+v", c)
	}
}

// What was authenticated for one channel is worth nothing on another.
func TestEpochClaimIsOneChannels(t *testing.T) {
	s := newSite(t)
	s.join(t)
	var heard wire.EpochAsk
	first := s.node.EpochCall()
	first.Edit = func(a *wire.EpochAsk) { heard.Claim, heard.Mac = a.Claim, a.Mac }
	first.Stored = func(uint64) bool { return false }
	s.call(t, first)
	s.later(t)
	again := s.node.EpochCall()
	again.Edit = func(a *wire.EpochAsk) { a.Claim, a.Mac = heard.Claim, heard.Mac }
	if s.call(t, again); again.Denied == nil || again.Denied.Code != "denied" {
		t.Errorf("%+v", again)
	}
}

func TestEpochIsAMembers(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.accept(t, func(p *measurements.Policy) { p.Members = nil }, "image")
	if c := s.call(t, s.node.EpochCall()); c.Denied == nil || c.Denied.Code != "denied" {
		t.Errorf("a machine that was removed: %+v", c)
	}
	s.accept(t, func(p *measurements.Policy) { p.Members = []measurements.Member{worker(s.node.ID)} }, "image")
	if c := s.call(t, s.node.EpochCall()); !c.Committed {
		t.Errorf("a member again: %+v", c)
	}
}

func TestEpochOfAGroupsMachine(t *testing.T) {
	s, p := groupSite(t)
	s.node.EditHello = p.vouch(t, mine)
	s.join(t)
	if c := s.call(t, s.node.EpochCall()); !c.Committed {
		t.Errorf("a machine of the group: %+v", c)
	}
	s.later(t)
	s.accept(t, func(policy *measurements.Policy) { policy.Denied = []hullmark.EKID{s.node.ID} }, "image")
	if c := s.call(t, s.node.EpochCall()); c.Denied == nil {
		t.Errorf("a denied machine: %+v", c)
	}
}

// A disk that was rebound speaks under its former owner's key.
func TestEpochOfAReboundDisk(t *testing.T) {
	s := newSite(t)
	s.join(t)
	former := hullmark.EKID{9}
	key, err := s.cluster.Keys.DiskKey(s.node.Ticket().Disk.Generation, s.cluster.ID(), former, s.node.Ticket().Disk.UUID)
	if err != nil {
		t.Fatal(err)
	}
	rebound := func() *nodetest.EpochCall {
		c := s.node.EpochCall()
		if c.Key, err = attest.EpochKey(key); err != nil {
			t.Fatal(err)
		}
		c.Claim.Owner = former[:]
		return c
	}
	if c := s.call(t, rebound()); c.Denied == nil || c.Denied.Code != "denied" {
		t.Errorf("a disk of another's: %+v", c)
	}
	s.accept(t, func(p *measurements.Policy) { p.Rebinds = []measurements.Rebind{{Old: former, New: s.node.ID}} }, "image")
	if c := s.call(t, rebound()); !c.Committed {
		t.Errorf("a disk that was rebound: %+v", c)
	}
}

// While the records do not answer, the epoch stands still; it goes on once they do.
func TestEpochWhileTheRecordsAreDown(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.records.SetDown(true)
	if c := s.call(t, s.node.EpochCall()); c.Denied == nil || !c.Denied.Retry {
		t.Errorf("%+v", c)
	}
	s.records.SetDown(false)
	if c := s.call(t, s.node.EpochCall()); !c.Committed {
		t.Errorf("%+v", c)
	}
}

// Many calls at two replicas never give one number twice.
func TestEpochsOfTwoReplicas(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.records.BeforeStore = func(joinservice.Machine) {
		s.records.BeforeStore = nil
		s.store(t, func(m *joinservice.Machine) { m.Record.Issued++ })
	}
	c := s.call(t, s.node.EpochCall())
	if fmt.Sprint(c.Committed, c.Issued) != "true 3" {
		t.Errorf("%+v", c)
	}
}

// The operator of a first node hears nothing of the numbers that its own service issued since: init lets it come back, and
// refuses what is older than its last init.
func TestInitAfterEpochsThatNobodyHeard(t *testing.T) {
	s := newSite(t)
	m := s.join(t)
	authorizer := &joinservice.Authorizer{Root: s.cluster.ID(), Policy: s.policy.Policy(), Documents: []measurements.Document{nodetest.Document(t, "image")}, Keys: s.cluster.Keys}
	s.reboot()
	s.node.Disk.Owner = machine
	claims := withRole(t, authorizer, s.node.Disk)
	before := joinservice.Record{Disk: m.Record.Disk, Committed: 5, Issued: 5}
	a, err := authorizer.Admit(hullmark.Init, claims, &before)
	if err != nil {
		t.Fatal(err)
	}
	if e := a.Ticket.Disk.Epoch; e.Committed != 5 || e.Issued <= 5+100*365*9 {
		t.Errorf("the window is %+v", e)
	}
	if before.Issued != 5 {
		t.Error("the operator's record was changed")
	}
	if a, err = authorizer.Admit(hullmark.Rejoin, claims, &before); err != nil || a.Ticket.Disk.Epoch.Issued != 6 {
		t.Errorf("a join service's ticket: %+v, %v", a.Ticket.Disk.Epoch, err)
	}
}
