//go:build long && quorum

package main

import (
	"context"
	"errors"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/joinservice"
)

// waits has a machine ask while etcd has no quorum, and be told to wait.
func (s *threePlanes) waits(t *testing.T, why, name string, o options) {
	t.Helper()
	if _, told := s.boots(t, name, o); told == nil || told.Code != joinservice.CodeUnreachable || !told.Retry {
		t.Errorf("%s: %s was told %+v", why, name, told)
	}
}

// losesOther kills a member, and waits until the first one has no leader.
func (s *threePlanes) losesOther(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, s.etcd.Kill(name))
	}
	first := s.etcd.ClientURL(homes["control-plane-1"])
	client := s.client(t, first)
	eventually(t, "the first member has no leader", func(ctx context.Context) error {
		status, err := client.Status(ctx, first)
		if err == nil && status.Leader != 0 {
			err = errors.New("it has one")
		}
		return err
	})
}

// reads starts a service, and waits until it has read all records: what it kept of a machine that there is none of is gone then.
func (s *threePlanes) reads(t *testing.T) options {
	t.Helper()
	gone := hullmark.EKID{0xee}
	must(t, writeSeen(servicefiles.Files{Folder: s.state}.File(servicefiles.ControlPlanes), map[hullmark.EKID]joinservice.Seen{gone: {}}))
	o, _ := s.serve(t, neverRecovered)
	eventually(t, "the service has read all records", func(context.Context) error {
		seen, err := s.seen()
		if _, there := seen[gone]; err == nil && there {
			err = errors.New("not yet")
		}
		return err
	})
	return o
}

// The second of two control planes goes away: etcd has no quorum, so the records cannot be read. The first lets it back all the
// same, as it was when etcd decided for the last time, and nobody else.
func TestOneOfTwoControlPlanesComesBack(t *testing.T) {
	const second, third = "control-plane-2", "control-plane-3"
	s := newThreePlanes(t)
	o := s.reads(t)
	s.push(t, s.admin, o)
	s.remembers(t)
	s.machines["worker-1"] = s.node
	s.persists(t, "worker-1", o)

	// It loses its power once etcd has made a voter of it, and kubeadm has ended: no record says that it was ever Ready.
	node, joins := s.machines[second], s.machines[second].Join
	power := errors.New("its power is cut")
	node.Join = func(p *wire.Proceed) error { return errors.Join(joins(p), s.etcd.Kill(second), power) }
	if err := s.asks(t, second, o); !errors.Is(err, power) {
		t.Fatal(err)
	}
	node.Join = joins
	s.losesOther(t)
	node.Unjoined = true
	s.waits(t, "kubeadm had not ended", second, o)
	node.Unjoined = false
	comesBack := func() {
		t.Helper()
		ticket := s.persists(t, second, o)
		if ticket.Kind != hullmark.Rejoin || ticket.Disk.Epoch != (hullmark.EpochWindow{Unchecked: true}) || ticket.Disk.FormatAllowed {
			t.Fatalf("it came back with %+v", ticket)
		}
		s.restarts(t, second)
		s.quorum(t)
	}
	comesBack()
	if ticket := s.persists(t, second, o); ticket.Disk.Epoch.Unchecked {
		t.Errorf("with a quorum it came back with %+v", ticket.Disk.Epoch)
	}
	before := s.record(t, second)

	// It reboots.
	s.writesTo(t, acknowledged)
	s.persists(t, second, o) // Its record says what is stored by now.
	old := s.copies(t, second)
	s.restarts(t, second)
	s.quorum(t)
	s.writesTo(t, "/test/later")
	s.persists(t, second, o)
	s.losesOther(t, second)
	s.waits(t, "a worker", "worker-1", o)
	s.waits(t, "one that never joined", third, o)
	refused := func(what, code string) {
		t.Helper()
		if _, told := s.boots(t, second, o); told == nil || told.Code != code {
			t.Errorf("%s: it was told %+v", what, told)
		}
	}
	own := node.Disk.UUID
	node.Disk.UUID = hullmark.UUID{8}
	refused("another disk", "rollback-detected")
	node.Disk.UUID = own
	node.Epoch--
	refused("an old copy of the disk", "rollback-detected")
	node.Epoch++
	newest := s.copies(t, second)
	s.putsBack(t, second, old)
	refused("old blocks under etcd", joinservice.CodeEtcdRolledBack)
	s.putsBack(t, second, newest)
	comesBack()
	if after := s.record(t, second); after.Committed <= before.Committed {
		t.Errorf("its record went from %+v to %+v", before, after)
	}
}

// quorum waits until etcd decides again.
func (s *threePlanes) quorum(t *testing.T) {
	t.Helper()
	client := s.client(t)
	eventually(t, "etcd has a quorum", func(ctx context.Context) error {
		_, err := client.Put(ctx, "/test", "written")
		return err
	})
}
