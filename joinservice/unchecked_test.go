package joinservice_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// outage is a control plane that has joined and comes back, while no record can be read.
func outage(t *testing.T, lasts bool) *site {
	t.Helper()
	s := newSite(t)
	s.controlPlanes(t)
	s.join(t)
	s.reboot()
	s.service.Outage = known{lasts: lasts, seen: joinservice.Seen{Disk: s.machine(t).Record, Etcd: s.machine(t).Etcd}}
	s.records.SetDown(true)
	return s
}

// known is an outage before which one control plane's record was seen.
type known struct {
	lasts bool
	seen  joinservice.Seen
}

func (k known) LetsBack(context.Context, hullmark.EKID) bool { return k.lasts }

func (k known) LastSeen(hullmark.EKID) (joinservice.Seen, bool) { return k.seen, true }

// While an outage lasts a control plane comes back without a record, of which nothing is changed; afterwards it comes back by it.
func TestControlPlaneComesBackInAnOutage(t *testing.T) {
	s := outage(t, true)
	before := s.node.Ticket().Disk
	if err := s.dial(t); err != nil || s.outcome() != joinservice.OutcomeReady {
		t.Fatalf("outcome %s: %v; denied: %v", s.outcome(), err, s.node.Denied())
	}
	ticket := s.node.Ticket()
	if ticket.Kind != hullmark.Rejoin || ticket.Disk.Epoch != (hullmark.EpochWindow{Unchecked: true}) || ticket.Disk.FormatAllowed || !ticket.Disk.Key.Equal(before.Key) {
		t.Errorf("the ticket is %+v", ticket)
	}
	if p := s.node.Proceed(); p.GetNodeName() != "control-plane-2" || len(p.GetKubeadmDocuments()) != 0 || len(p.GetFiles()) != 1 {
		t.Errorf("Proceed brings %d files to %s; want its settings", len(p.GetFiles()), p.GetNodeName())
	}
	s.records.SetDown(false)
	if m := s.machine(t); m.Record.Committed != 1 || m.Record.Issued != 1 {
		t.Errorf("the record is %+v", m.Record)
	}
	if m := s.join(t); m.Record.Committed != 2 {
		t.Errorf("it came back by its record as %+v", m.Record)
	}
}

// Nobody else gets a ticket without a record: each case waits, and comes back once there are records.
func TestOutageLetsNobodyElseIn(t *testing.T) {
	for name, c := range map[string]struct {
		lasts   bool
		prepare func(*testing.T, *site)
	}{
		"after the outage": {false, func(*testing.T, *site) {}},
		"a worker": {true, func(t *testing.T, s *site) {
			s.accept(t, func(p *measurements.Policy) { p.Members[0].Role = hullmark.Worker }, "image")
		}},
		"an empty disk": {true, func(_ *testing.T, s *site) {
			s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: s.node.Disk.UUID}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := outage(t, c.lasts)
			ready := s.node.Disk
			c.prepare(t, s)
			s.denied(t, joinservice.CodeUnreachable, true, "the records are down")
			s.node.Disk = ready
			s.accept(t, func(p *measurements.Policy) { p.Members[0].Role = hullmark.ControlPlane }, "image")
			s.records.SetDown(false)
			s.join(t)
		})
	}
	t.Run("one that has not joined yet", func(t *testing.T) {
		s := outage(t, true)
		s.node.Unjoined = true
		if err := s.dial(t); err != nil {
			t.Fatal(err)
		}
		s.told(t, joinservice.CodeUnreachable, true, "has not joined yet, and cannot while the cluster's records do not answer")
		s.records.SetDown(false)
		s.join(t)
	})
	t.Run("another disk than before", func(t *testing.T) {
		s := outage(t, true)
		own := s.node.Disk.UUID
		s.node.Disk.UUID = hullmark.UUID{8}
		s.denied(t, "rollback-detected", false, "an old copy, or another one", "disk "+own.String(), "disk "+s.node.Disk.UUID.String())
		s.node.Disk.UUID = own
		s.records.SetDown(false)
		s.join(t)
	})
	t.Run("a machine of a lesser class than the disk's", func(t *testing.T) {
		s := outage(t, true)
		seen := s.service.Outage.(known).seen
		seen.Disk.Trust = hullmark.TrustConfidential
		s.service.Outage = known{lasts: true, seen: seen}
		s.denied(t, "trust-lowered", false, "of a higher class")
	})
	t.Run("a disk that an override gave up", func(t *testing.T) {
		s := outage(t, true)
		seen := s.service.Outage.(known).seen
		seen.Current = true
		s.service.Outage = known{lasts: true, seen: seen}
		s.node.Epoch = seen.Disk.Issued + 3
		if err := s.dial(t); err != nil {
			t.Fatal(err)
		}
		s.told(t, "rollback-detected", false, "an old copy, or another one", fmt.Sprintf("epoch ≤ %d", seen.Disk.Issued+2))
		s.node.Epoch = seen.Disk.Issued + 1
		if err := s.dial(t); err != nil || s.outcome() != joinservice.OutcomeReady {
			t.Errorf("a number that nobody heard of: %v, denied %v", err, s.node.Denied())
		}
	})
	t.Run("an API server without etcd", func(t *testing.T) {
		for current, want := range map[bool]string{true: joinservice.OutcomeReady, false: joinservice.CodeForbidden} {
			s := outage(t, true)
			seen := s.service.Outage.(known).seen
			seen.Current = current
			s.service.Outage = known{lasts: true, seen: seen}
			s.service.Records = forbidding{s.records}
			if err := s.dial(t); err != nil || s.outcome() != want {
				t.Errorf("the records are current: %t: %v, outcome %s, denied %v", current, err, s.outcome(), s.node.Denied())
			}
		}
	})
	t.Run("another name than before", func(t *testing.T) {
		s := outage(t, true)
		s.service.Outage = known{lasts: true, seen: joinservice.Seen{Name: "control-plane-9", Disk: s.service.Outage.(known).seen.Disk}}
		s.denied(t, "member-changed", false, "under another name", "control-plane-2", "control-plane-9")
	})
	t.Run("an old copy of the disk", func(t *testing.T) {
		s := outage(t, true)
		s.node.Epoch--
		if err := s.dial(t); err != nil {
			t.Fatal(err)
		}
		s.told(t, "rollback-detected", false, "an old copy, or another one", "epoch ≥ 1", "epoch 0")
	})
	t.Run("another machine's disk", func(t *testing.T) {
		s := outage(t, true)
		own := s.node.Disk.Owner
		s.node.Disk.Owner = hullmark.EKID{1}
		s.denied(t, "disk-owner", false, "formatted for another machine", s.node.ID.String(), s.node.Disk.Owner.String())
		s.node.Disk.Owner = own
		s.records.SetDown(false)
		s.join(t)
	})
}

// forbidding are records whose keeper refuses everybody.
type forbidding struct{ joinservice.Records }

func (forbidding) Load(context.Context, hullmark.EKID) (joinservice.Machine, joinservice.Version, error) {
	return joinservice.Machine{}, "", &hullmark.Condition{Code: joinservice.CodeForbidden, Title: "the Kubernetes API refuses it", Retry: true, Next: "wait"}
}
