package firstboot

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/network"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// nap is how long everything takes at least that is not the agent's own; the operator takes silence before each message, while
// the node waits for most of it.
const (
	nap     = 25 * time.Millisecond
	silence = 100 * time.Millisecond
)

// slow is what stands around the agent, and takes its time.
type slow struct {
	transport.TPM
	commands *atomic.Int64
}

func (s slow) Send(command []byte) ([]byte, error) {
	time.Sleep(nap)
	s.commands.Add(1)
	return s.TPM.Send(command)
}

func (slow) Close() error { return nil }

type slowDisk struct{ Disk }

func (d slowDisk) Probe(ctx context.Context, s hullmark.DiskSelector) (hullmark.DiskClaim, error) {
	time.Sleep(nap)
	return d.Disk.Probe(ctx, s)
}

func (d slowDisk) Open(ctx context.Context, s hullmark.DiskSelector, g hullmark.DiskGrant) (statedisk.Opened, error) {
	time.Sleep(nap)
	return d.Disk.Open(ctx, s, g)
}

type slowMachine struct {
	System
	online *time.Time
}

// Links notes when the network is first looked at, which is when it is up.
func (m slowMachine) Links() ([]network.Link, bool, error) {
	if m.online.IsZero() {
		*m.online = time.Now()
	}
	return m.System.Links()
}

func (m slowMachine) Start(ctx context.Context, unit string) error {
	time.Sleep(nap)
	return m.System.Start(ctx, unit)
}

func (m slowMachine) Restart(ctx context.Context, unit string) error {
	time.Sleep(nap)
	return m.System.Restart(ctx, unit)
}

type slowCluster struct {
	Cluster
	began chan time.Time
}

// Init notes when kubeadm begins, which is not waited for.
func (c slowCluster) Init(ctx context.Context, w run.Work) error {
	c.began <- time.Now()
	return c.Cluster.Init(ctx, w)
}

func (c slowCluster) Validate(ctx context.Context, documents []byte) error {
	time.Sleep(nap)
	return c.Cluster.Validate(ctx, documents)
}

// What the agent waits for the TPM, the disk helper, its verifier and other programs is told apart from its own time, and all
// together is no more than passed from the network to kubeadm.
func TestOwnTimeIsToldApart(t *testing.T) {
	s := newStage(t)
	var log agenttest.Text
	var commands atomic.Int64
	var online time.Time
	kubeadmBegan := make(chan time.Time, 1)
	s.agent.OpenTPM = func() (transport.TPMCloser, error) { return slow{s.tpm, &commands}, nil }
	s.agent.Disk, s.agent.Machine, s.agent.Cluster = slowDisk{s.disk}, slowMachine{s.machine, &online}, slowCluster{s.cluster, kubeadmBegan}
	s.agent.Status.Log = &log
	address, _ := s.serve(t)
	commands.Store(0)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	time.Sleep(silence)
	claims := c.admit(s)
	time.Sleep(silence)
	c.ticket(claims)
	c.receive()
	time.Sleep(silence)
	c.proceed()
	if _, last := c.rest(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	passed := (<-kubeadmBegan).Sub(online)
	took := agenttest.TookIn(t, log.String())
	t.Logf("%+v of %v", took, passed)
	const (
		asked = 2 // the disk helper, to probe and to open
		ran   = 4 // kubeadm's validation, and the units of the disk, the hostname and the join service
	)
	for what, w := range map[string]struct{ got, least time.Duration }{
		"its own":        {took.Own, 1},
		"the TPM":        {took.TPM, time.Duration(commands.Load()) * nap},
		"the disk":       {took.Disk, asked * nap},
		"the network":    {took.Network, silence},
		"other programs": {took.Programs, ran * nap},
	} {
		if w.got < w.least {
			t.Errorf("%s: %v, want %v at least", what, w.got, w.least)
		}
	}
	if all := took.Own + took.TPM + took.Disk + took.Network + took.Programs; all > passed+time.Millisecond { // what was rounded
		t.Errorf("the parts are %v, but only %v passed", all, passed)
	}
}
