//go:build quorum || bench

package rolling

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/upgradetest"
)

// machine is one whose agent asks real join services, and whose restart, if it is a control plane, is that of real programs.
type machine struct {
	*upgradetest.Machine
	node  *nodetest.Node
	plane *plane
	// up says that it came back from its last restart.
	up atomic.Bool
}

// join has all machines join, control planes first, and play from then on until the test ends.
func (s *site) join(t testing.TB) {
	t.Helper()
	names := []string{}
	for name := range s.machines {
		names = append(names, name)
	}
	slices.Sort(names) // control planes first
	for i, name := range names {
		m, address := s.machines[name], fmt.Sprintf("192.0.2.%d", 101+i)
		if i < len(s.planes) {
			m.plane, address = s.planes[i], s.planes[i].At.String()
		}
		m.node.Join = func(*wire.Proceed) error { return s.Add(t.Context(), m.Machine, address) }
		must(t, s.attest(t.Context(), m))
		m.up.Store(true)
		m.Held = func() bool { return !m.up.Load() }
		m.Leaves = func(to hullmark.DocumentID) {
			m.up.Store(false)
			go s.restart(t, m, to)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	played := make(chan struct{})
	go func() { defer close(played); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-played })
	for _, p := range s.planes {
		must(t, s.startEngine(t, p))
	}
}

// restart takes a machine through firmware, its ticket, and, of a control plane, the start of what runs there.
func (s *site) restart(t testing.TB, m *machine, to hullmark.DocumentID) {
	if m.plane != nil {
		if err := s.halt(m.plane); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	time.Sleep(away)
	for image, d := range s.documents {
		if upgradetest.ID(d) == to {
			m.node.Reboot(t, image)
		}
	}
	m.node.Join = func(*wire.Proceed) error {
		if m.plane == nil {
			return nil
		}
		return s.boot(t.Context(), t, m.plane)
	}
	if err := s.attest(t.Context(), m); err != nil {
		t.Errorf("%s does not come back: %v", m.Name, err)
		return
	}
	m.up.Store(true)
}

// attest has a machine ask one join service after another, until it is Ready.
func (s *site) attest(ctx context.Context, m *machine) error {
	return eventually(ctx, func() (err error) {
		for _, p := range s.planes {
			err = m.node.Dial(ctx, p.service.Listen, s.cluster.ID())
			told := m.node.Denied()
			m.keepDisk(err == nil && told == nil)
			if err == nil && told == nil {
				return nil
			}
			if told != nil {
				err = told
			}
		}
		return err
	})
}

// keepDisk shows the disk that a ticket formatted, and whether kubeadm finished on it.
func (m *machine) keepDisk(ended bool) {
	ticket := m.node.Ticket()
	if ticket == nil || ticket.Disk.UUID != m.node.Disk.UUID {
		return
	}
	m.node.Unjoined = !ended && (m.node.Unjoined || m.node.Disk.State != hullmark.DiskReady)
	m.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: ticket.Disk.UUID, Generation: ticket.Disk.Generation, Owner: ticket.Disk.Owner}
}

// ask tells a join service what a machine's slots hold, and hears what it is to do. Where none answers it asks again later.
func (s *site) ask(ctx context.Context, played *upgradetest.Machine) (d hullmark.UpdateDirection, err error) {
	m := s.machines[played.Name]
	call := m.node.UpdateCall(played.Recorded)
	for i, first := 0, mathrand.IntN(len(s.planes)); i < len(s.planes); i++ {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := call.Do(ctx, s.planes[(first+i)%len(s.planes)].service.Listen, s.cluster.ID())
		cancel()
		if err != nil || call.Answer.GetDenied() != nil {
			continue
		}
		if order := call.Answer.GetOrder(); order != nil {
			return wire.DecodeUpdateOrder(order)
		}
		return d, nil
	}
	return d, nil
}
