package backup

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// record is that of one machine, where the backup has it.
type record struct {
	key     string
	object  *corev1.ConfigMap
	machine joinservice.Machine
}

// readMachines returns all machines' records, by their identities, and why others cannot be read.
func readMachines(s *state) (all []record, unread []string, err error) {
	for key := range s.live {
		if !strings.HasPrefix(key, machineKeys) {
			continue
		}
		object, err := s.configMap(key)
		if err != nil {
			return nil, nil, err
		}
		m, err := registry.ParseMachine(object)
		if err != nil {
			// Nothing vouches for that machine's disk; the others come back.
			unread = append(unread, fmt.Sprintf("%s: %v", object.Name, err))
			continue
		}
		all = append(all, record{key, object, m})
	}
	slices.SortFunc(all, func(a, b record) int { return strings.Compare(a.key, b.key) })
	slices.Sort(unread)
	return all, unread, nil
}

// succession is what today's policy says of the machines in a backup: who is a worker, and who has taken whose place since.
type succession struct {
	policy measurements.Policy
	// workers are the members by their names, rebinds those that may open a machine's disks.
	workers map[string]hullmark.EKID
	rebinds map[hullmark.EKID][]hullmark.EKID
	// recorded are the machines that have records of their own.
	recorded map[hullmark.EKID]bool
}

func newSuccession(policy measurements.Policy, all []record) *succession {
	s := &succession{
		policy: policy, workers: map[string]hullmark.EKID{},
		rebinds: map[hullmark.EKID][]hullmark.EKID{}, recorded: map[hullmark.EKID]bool{},
	}
	for _, m := range policy.Members {
		if m.Role == hullmark.Worker {
			s.workers[m.Name] = m.EKID
		}
	}
	for _, r := range policy.Rebinds {
		s.rebinds[r.Old] = append(s.rebinds[r.Old], r.New)
	}
	for _, r := range all {
		s.recorded[r.machine.EKID] = true
	}
	return s
}

// restored returns a machine as today's policy has it, or false if it does not come back: only workers do
// that have their names still, themselves or by those that their disks were handed to, or of a group.
func (s *succession) restored(m joinservice.Machine) (joinservice.Machine, bool) {
	heir, ok := s.workers[m.Name]
	if !ok {
		heir, ok = m.EKID, s.isGrouped(m)
	}
	if !ok || m.Role != hullmark.Worker {
		return joinservice.Machine{}, false
	}
	line := s.line(m.EKID, heir)
	if line == nil || s.isReset(line, m.Record.Disk) {
		return joinservice.Machine{}, false
	}
	if heir != m.EKID {
		m.Voucher = nil // It was for the other.
	}
	m.EKID, m.Record = heir, s.override(line, m.Record)
	return m, true
}

// isGrouped reports whether a group gave the machine its name, and no rule of its own gives it another by now. Whether the
// group still admits it is asked when it comes.
func (s *succession) isGrouped(m joinservice.Machine) bool {
	_, named := s.policy.Member(m.EKID)
	_, grouped := s.policy.Recorded(m.Name, m.EKID, m.Voucher)
	return !named && !s.policy.Denies(m.EKID) && grouped
}

// line returns the machines that a disk was handed on by, from its first to its last, or nil if it
// never came to the last. A machine with a record of its own has another disk, and takes none.
func (s *succession) line(first, last hullmark.EKID) []hullmark.EKID {
	from := map[hullmark.EKID]hullmark.EKID{first: {}}
	for ahead := []hullmark.EKID{first}; len(ahead) > 0; ahead = ahead[1:] {
		at := ahead[0]
		if at == last {
			return lineTo(from, first, last)
		}
		for _, next := range s.rebinds[at] {
			if _, seen := from[next]; !seen && !s.recorded[next] {
				from[next] = at
				ahead = append(ahead, next)
			}
		}
	}
	return nil
}

// lineTo follows the steps back from the last to the first.
func lineTo(from map[hullmark.EKID]hullmark.EKID, first, last hullmark.EKID) []hullmark.EKID {
	line := []hullmark.EKID{last}
	for at := last; at != first; {
		at = from[at]
		line = append(line, at)
	}
	slices.Reverse(line)
	return line
}

// isReset reports whether the disk's data was given up while it was one of these machines'.
func (s *succession) isReset(line []hullmark.EKID, disk hullmark.UUID) bool {
	return slices.ContainsFunc(s.policy.Resets, func(r measurements.Reset) bool {
		return r.OldUUID == disk && slices.Contains(line, r.EKID)
	})
}

// override returns the record as the newest override of the disk sets it, if it was signed after the backup; see joinservice.Authorizer.
func (s *succession) override(line []hullmark.EKID, r joinservice.Record) joinservice.Record {
	for _, o := range slices.Backward(s.policy.Overrides) { // their serials ascend
		if o.Serial > r.Serial && o.UUID == r.Disk && slices.Contains(line, o.EKID) {
			return joinservice.Record{Disk: r.Disk, Committed: o.Epoch, Issued: o.Epoch, Serial: o.Serial, Trust: r.Trust}
		}
	}
	return r
}
