package joinservice

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/hullmark/hullmark"
)

// Adopt merges what a cluster's operator recorded of the first node, while no API could keep it, into the record that the API
// keeps: of the same disk the higher numbers count, unless only one has seen a signed override. A record of another disk is a
// later one and stays. Its addresses are claimed as those of Opened are; reserved ones, such as those of the pod network's
// interfaces, are left out.
func (s *Service) Adopt(ctx context.Context, first Machine) error {
	if err := s.Records.Claim(ctx, first.Name, first.EKID); err != nil {
		return err
	}
	own := first.Addresses
	first.Addresses = nil
	var last stored
	err := s.change(ctx, first.EKID, &last, func(m *Machine, known bool) error {
		switch {
		case !known || m.Name == "":
			*m = first
		case m.Record.Disk == first.Record.Disk:
			if first.Record.Committed >= m.Record.Committed { // else the machine came back elsewhere since
				m.Root = first.Root
			}
			m.Record = m.Record.merge(first.Record)
			m.State, m.Condition = first.State, nil
		}
		return nil
	})
	if err != nil || len(own) == 0 || last.machine.Record.Disk != first.Record.Disk {
		return err
	}
	return s.adoptAddresses(ctx, &last, own)
}

// adoptAddresses claims what the first node, which this is, has.
func (s *Service) adoptAddresses(ctx context.Context, last *stored, own []netip.Addr) error {
	reserved := s.Reserved()
	own = slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return reserved.Check(a, last.machine.Role) != nil })
	claims, err := s.claimAddresses(ctx, last, own, false)
	if err != nil || claims.noted(last.machine) {
		return err
	}
	return s.change(ctx, last.machine.EKID, last, func(m *Machine, _ bool) error {
		claims.note(m)
		return nil
	})
}

// Boot is what a control plane's own service says of the boot that both run in.
type Boot struct {
	// Rotation is that of the keys by which its programs run, and Kubernetes its release.
	Rotation   uint64
	Kubernetes hullmark.Version
	// Document is the accepted one whose registers it shows; zero if that is not known.
	Document hullmark.DocumentID
}

// NoteBoot records a boot. The first control plane, and one that was recovered, had no ticket of a service that could have. One without a
// record is left alone, and noted is false.
func (s *Service) NoteBoot(ctx context.Context, node hullmark.EKID, b Boot) (noted bool, err error) {
	err = s.change(ctx, node, &stored{}, func(m *Machine, known bool) error {
		if !known || m.Name == "" {
			return errNoRecord
		}
		m.Rotation, m.Kubernetes = b.Rotation, b.Kubernetes
		if b.Document != (hullmark.DocumentID{}) {
			m.Document = b.Document
		}
		return nil
	})
	s.planes.Store(nil)
	if errors.Is(err, errNoRecord) {
		return false, nil
	}
	return err == nil, err
}

// errNoRecord ends a change of a record that is not there.
var errNoRecord = errors.New("the machine has no record")

// merge returns what two keepers know of one disk together. The one that used
// the later override is right about the numbers, which that may have lowered.
func (r Record) merge(other Record) Record {
	switch {
	case r.Serial > other.Serial:
		return r
	case r.Serial < other.Serial:
		return other
	}
	r.Committed, r.Issued, r.Floor = max(r.Committed, other.Committed), max(r.Issued, other.Issued), max(r.Floor, other.Floor)
	return r
}
