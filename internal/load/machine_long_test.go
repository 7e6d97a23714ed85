//go:build long

package load

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/flood"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/measurements"
)

// images are what machines boot, in turn.
var images = []string{"old", "new"}

var documentOf = map[string]measurements.Document{}

// firstPause and longestPause are the agent's (firstboot.DefaultTiming).
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// machine is the fake of one machine: what its agent and its kubelet do.
type machine struct {
	*nodetest.Node
	number int
	image  string
	group  *measurements.Group // that it is of, if it is of one

	mutex sync.Mutex // guards what follows, which one join fills
	node  *node      // the Node object, once it is Ready in this boot
	known *node      // the same, since an earlier boot
	told  told
	times map[string]time.Time
}

// told is how often attempts ended early, by what a machine was told: a condition's code, or gRPC's where there was no answer.
type told map[string]int

const (
	// codeBusy is what a machine is told that there is no place for.
	codeBusy = "busy"
	// lost is gRPC's code for a replica that is not there, or no longer.
	lost = "Unavailable"
)

func (m *machine) name() string {
	if m.group != nil {
		return m.group.Member(m.ID).Name
	}
	return fmt.Sprintf("worker-%03d", m.number)
}

// member is the machine's rule.
func (m *machine) member() measurements.Member {
	return measurements.Member{EKID: m.ID, Role: hullmark.Worker, Name: m.name()}
}

// makeMachines makes TPMs, a few at once, and boots the machines.
func (s *site) makeMachines(t *testing.T, n int) {
	t.Helper()
	for _, image := range images {
		documentOf[image] = nodetest.Document(t, image)
	}
	s.machines = make([]*machine, n)
	places := make(chan struct{}, 4)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			m := &machine{Node: nodetest.New(t, s.Cluster.ID()), number: i, image: images[i%len(images)]}
			m.Boot(t, m.image)
			m.Prepare(t)
			m.Observe, m.Dialer = m.note, flood.Dialer(1, i)
			s.machines[i] = m
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// wipe gives the machine an empty disk.
func (m *machine) wipe() {
	m.Disk, m.Epoch, m.Unjoined = hullmark.DiskClaim{State: hullmark.DiskBlank}, 0, false
	_, _ = rand.Read(m.Disk.UUID[:])
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.node, m.known, m.told, m.times = nil, nil, told{}, map[string]time.Time{}
}

// restart is a reboot of a machine that has joined: its disk and its Node are there.
func (m *machine) restart() {
	m.mutex.Lock()
	m.node, m.known, m.told, m.times = nil, m.node, told{}, map[string]time.Time{}
	m.mutex.Unlock()
	m.keepDisk()
}

// note keeps when something happened last.
func (m *machine) note(what string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.times[what] = time.Now()
}

// took is the time between two notes.
func (m *machine) took(from, to string) time.Duration {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.times[to].Sub(m.times[from])
}

// did reports whether something happened.
func (m *machine) did(what string) bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return !m.times[what].IsZero()
}

// join is the agent: it asks one replica after another until its node is Ready, or it is told a final no.
func (m *machine) join(ctx context.Context, s *site) error {
	m.note("begin")
	m.Join = func(proceed *wire.Proceed) error {
		made := m.known
		if made == nil {
			var err error
			if made, err = m.kubelet(ctx, proceed); err != nil {
				return err
			}
		}
		m.mutex.Lock()
		defer m.mutex.Unlock()
		m.node = made
		return nil
	}
	pause := firstPause
	for turn := mathrand.IntN(len(s.replicas)); ; turn++ {
		err := m.hear(m.Dial(ctx, s.replicas[turn%len(s.replicas)].Listen, s.Cluster.ID()))
		if m.ready() {
			m.note("end")
			return nil
		}
		if denied := m.Denied(); denied != nil && !denied.Retry {
			return denied
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		m.keepDisk()
		if turn%len(s.replicas) == 0 {
			continue // a round asks every replica
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pause/2 + mathrand.N(pause/2)):
		}
		pause = min(2*pause, longestPause)
	}
}

// wasTurnedAway reports whether the machine was told to come again, for another reason than that there was no place.
func (m *machine) wasTurnedAway() bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return len(m.told) > 1 || len(m.told) == 1 && m.told[codeBusy] == 0
}

// ready reports whether the machine's Node is Ready.
func (m *machine) ready() bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.node != nil
}

// hear counts how an attempt ended, if that was early, and returns why.
func (m *machine) hear(err error) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	switch denied := m.Denied(); {
	case denied != nil:
		m.told[denied.Code]++
		return denied
	case errors.Is(err, io.EOF): // what a stream's sender gets
		m.told[lost]++
	case err != nil:
		m.told[status.Code(err).String()]++
	}
	return err
}

// keepDisk shows the disk that a ticket formatted; no kubeadm finished on it, unless that was in an earlier boot.
func (m *machine) keepDisk() {
	if ticket := m.Ticket(); ticket != nil && ticket.Disk.UUID == m.Disk.UUID {
		m.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: ticket.Disk.UUID, Generation: ticket.Disk.Generation, Owner: ticket.Disk.Owner}
		m.Unjoined = m.known == nil
	}
}
