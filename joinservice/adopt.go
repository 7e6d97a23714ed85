package joinservice

import (
	"context"
)

// Adopt merges what a cluster's operator recorded of the first node, while no
// API could keep it, into the record that the API keeps: of the same disk the
// higher numbers count, unless only one has seen a signed override. A record of
// another disk is a later one and stays.
func (s *Service) Adopt(ctx context.Context, first Machine) error {
	if err := s.Records.Claim(ctx, first.Name, first.Node); err != nil {
		return err
	}
	err := s.change(ctx, first.Node, &stored{}, func(m *Machine, known bool) error {
		switch {
		case !known || m.Name == "":
			*m = first
		case m.Record.Disk == first.Record.Disk:
			if first.Record.Committed >= m.Record.Committed { // else the machine came back elsewhere since
				m.Root = first.Root
			}
			m.Record = m.Record.merge(first.Record)
			m.State, m.Condition = first.State, nil
			if len(first.Addresses) > 0 {
				m.Addresses = first.Addresses
			}
		}
		return nil
	})
	return err
}

// merge returns what two keepers know of one disk together. The one that used
// the later override is right about the numbers, which that may have lowered.
func (r Record) merge(other Record) Record {
	switch {
	case r.Serial > other.Serial:
		return r
	case r.Serial < other.Serial:
		return other
	}
	r.Committed, r.Issued = max(r.Committed, other.Committed), max(r.Issued, other.Issued)
	return r
}
