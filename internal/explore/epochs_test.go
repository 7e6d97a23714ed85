//go:build explore

package explore

import (
	"context"
	"fmt"
	"maps"

	"google.golang.org/grpc"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/joinservice"
)

// A node that is Ready, and asks for its disk's next number.

// ask lets the agent of a machine that is Ready ask once. It is another run of it in the same boot, which takes up what the one
// before left on the RAM disk.
func (r *run) ask(machine int) {
	m, at := &r.w.machines[machine], r.site.places[machine]
	d := &r.w.disks[m.disk]
	m.stored = d.files
	fillTree(at.state(), d.files)
	fillTree(at.run(), m.run)
	p := &proc{kind: "agent", machine: machine, left: r.w.left}
	agent := r.newAgent(machine)
	r.spawn(p, func(ctx context.Context) { _ = agent.Run(ctx) })
	p.history = []string{"asks", d.text(), filesText(d.files), fmt.Sprint(r.own(machine))}
}

// own reports whether the disk of a machine holds the manifest that the machine wrote last in this boot.
func (r *run) own(machine int) bool {
	m := &r.w.machines[machine]
	return r.w.disks[m.disk].files[statedisk.ManifestFile] == m.wrote
}

// Advances lets the agent of a machine that is Ready ask once, and ends it.
func (r *run) Advances(ready bool, advance func() error) {
	p := r.cur
	if !ready || p == nil || p.dead {
		return
	}
	// A member that says less than is known of it, or nothing, gets no number: its host put other files in the place of etcd's.
	own := r.own(p.machine) && !(r.site.scenario.role == hullmark.ControlPlane && r.forgot(r.site.places[p.machine].held()))
	err := advance()
	if p.dead {
		return
	}
	if err != nil && own && r.w.left == p.left && r.recordOf(p.machine).State == joinservice.MachineReady && !r.behind() {
		r.violate("the epoch of a Ready node stands still")
	}
	r.leave(p.machine)
	p.cancel()
}

// recordOf is a machine's record.
func (r *run) recordOf(machine int) joinservice.Machine {
	m, _, err := r.w.records.Load(context.Background(), r.site.nodes[machine])
	must(err)
	return m
}

// behind reports whether an exchange fell behind: it may have changed the record meanwhile.
func (r *run) behind() bool {
	for _, p := range r.procs {
		if p.slow {
			return true
		}
	}
	return false
}

// leave keeps what is on a machine's disk and RAM disk while no agent of it runs.
func (r *run) leave(machine int) {
	m, at := &r.w.machines[machine], r.site.places[machine]
	r.w.disks[m.disk].files = at.held()
	if m.mode == ready {
		m.run = tree(at.run())
	}
}

// epochNode is the node's end of a call.
type epochNode struct {
	grpc.ClientStream
	*nodeEnd
}

func (s epochNode) Context() context.Context { return s.nodeEnd.Context() }
func (s epochNode) CloseSend() error         { return s.nodeEnd.CloseSend() }

func (s epochNode) Send(m *wire.EpochFromNode) error {
	s.put(m)
	return nil
}

func (s epochNode) Recv() (*wire.EpochFromService, error) {
	m, err := s.take()
	if err != nil {
		return nil, err
	}
	answer := m.(*wire.EpochFromService)
	if answer.GetCommitted() != nil {
		s.run.wentOn()
		s.run.noteMember()
	}
	return answer, nil
}

// wentOn is called when the machine that runs goes on with its disk for sure: no older copy may be opened from now on.
func (r *run) wentOn() {
	d := r.disk()
	id, _ := d.identity()
	r.w.boots = maps.Clone(r.w.boots)
	r.w.boots[id.UUID]++
	d.boot = r.w.boots[id.UUID]
}

// epochService is the service's end of a call.
type epochService struct{ *serviceEnd }

func (s epochService) Send(m *wire.EpochFromService) error {
	if i := m.GetIssued(); i != nil && !s.gone() {
		s.issue(s.run.recordOf(s.c.machine).Record.Disk, i.GetIssued())
	}
	s.put(m)
	return nil
}

func (s epochService) Recv() (*wire.EpochFromNode, error) {
	m, err := s.take()
	if err != nil {
		return nil, err
	}
	return m.(*wire.EpochFromNode), nil
}

// forge are what a host does with the manifest of a disk: it makes a copy of the disk that lacks it, or has an older copy's.
func (r *run) forge(i int) (all []choice) {
	m := &r.w.machines[i]
	d := &r.w.disks[m.disk]
	id, _ := d.identity()
	if d.files[statedisk.ManifestFile] == "" || d.last == 0 {
		return nil
	}
	all = fault(&r.w.left.Forge, fmt.Sprintf("disk %d is copied without its manifest", m.disk), func() { r.forged(m.disk, nil) })
	for k := range r.w.disks {
		older := &r.w.disks[k]
		if of, _ := older.identity(); k == m.disk || of.UUID != id.UUID || of.UUID == (hullmark.UUID{}) || older.last >= d.last || older.forged {
			continue
		}
		all = append(all, fault(&r.w.left.Forge, fmt.Sprintf("disk %d is copied with the manifest of disk %d", m.disk, k), func() {
			r.forged(m.disk, older)
		})...)
	}
	return all
}

// forged adds a copy of a disk with the manifest of an older one, or with none.
func (r *run) forged(k int, older *disk) {
	d := r.w.disks[k]
	d.files = maps.Clone(d.files)
	if older == nil {
		delete(d.files, statedisk.ManifestFile)
		d.forged = true
	} else {
		d.files[statedisk.ManifestFile] = older.files[statedisk.ManifestFile]
		d.boot, d.last = older.boot, older.last
	}
	r.w.disks = append(r.w.disks, d)
}
