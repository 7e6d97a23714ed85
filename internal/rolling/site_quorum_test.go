//go:build quorum || bench

package rolling

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
	"github.com/hullmark/hullmark/upgrade/kube"
)

// images are what machines boot: at first the first.
var images = []string{"one", "two"}

const (
	// away is how long firmware and kernel take.
	away = 5 * time.Second
	// grace is systemd's for what it asks to end (DefaultTimeoutStopSec).
	grace = 90 * time.Second
)

// site is a cluster of control planes behind a balancer, and of workers.
type site struct {
	*upgradetest.Live
	cluster   *cluster.Cluster
	dir       string
	planes    []*plane
	machines  map[string]*machine
	balancer  *testenv.Balancer
	documents map[string]measurements.Document
	admin     *rest.Config // through the balancer
	operator  *kube.Cluster
	// ordered has a plane's API server end before its member of etcd, as Hullmark's nodes do; engines says that there are some.
	ordered, engines bool

	mutex sync.Mutex // guards what follows
	steps []step
}

// step is one control plane's restart.
type step struct {
	plane      string
	left, back time.Time
}

// plane is what runs on a control plane.
type plane struct {
	*testenv.Plane
	name      string
	service   *testenv.JoinService
	boots     int
	halted    bool
	endEngine func()
}

// newSite starts control planes, and has them and workers join.
func newSite(t testing.TB, planes, workers int) *site {
	t.Helper()
	s := &site{dir: t.TempDir(), machines: map[string]*machine{}, documents: map[string]measurements.Document{}, ordered: true, engines: true}
	var err error
	s.cluster, err = cluster.New()
	must(t, err)
	s.balancer, err = testenv.NewBalancer()
	must(t, err)
	t.Cleanup(func() { _ = s.balancer.Close() })
	s.makeMachines(t, planes, workers)
	s.sign(t)
	s.startPlanes(t, planes)
	s.admin, err = s.planes[0].Config("testenv", "system:masters")
	must(t, err)
	s.admin.Host, s.admin.Timeout = "https://"+s.balancer.Addr().String(), 0
	quick := rest.CopyConfig(s.admin)
	quick.Timeout = patience
	s.Live, err = upgradetest.NewLive(quick)
	must(t, err)
	s.Ask = s.ask
	s.operator, err = kube.New(quick)
	must(t, err)
	admin, err := registry.New(quick)
	must(t, err)
	must(t, admin.PushPolicy(t.Context(), "", registry.AnyVersion, s.cluster.Policy, s.cluster.Documents))
	s.startServices(t)
	s.join(t)
	return s
}

// sign makes the cluster's policy: all machines, and the documents of both images.
func (s *site) sign(t testing.TB) {
	t.Helper()
	policy := measurements.Policy{Version: 1}
	var documents []measurements.Document
	for _, image := range images {
		d := s.documents[image]
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: upgradetest.ID(d), Enforce: joinservice.DefaultEnforced(d)})
		documents = append(documents, d)
	}
	for _, m := range s.machines {
		policy.Members = append(policy.Members, measurements.Member{EKID: m.EKID, Role: m.Role, Name: m.Name})
	}
	must(t, s.cluster.SetPolicy(policy, documents...))
	s.cluster.Settings = &joinservice.Settings{
		ControlPlaneEndpoint: s.balancer.Addr().String(), Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")},
	}
}

func (s *site) startPlanes(t testing.TB, n int) {
	t.Helper()
	var at []netip.Addr
	var addresses []string
	for i := range n {
		at = append(at, netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}))
	}
	started, err := testenv.StartPlanes(t.Context(), s.dir, s.cluster, at...)
	must(t, err)
	t.Cleanup(func() {
		if err := testenv.StopPlanes(started); err != nil {
			t.Error(err)
		}
	})
	for i, p := range started {
		s.planes = append(s.planes, &plane{Plane: p, name: planeName(i)})
		addresses = append(addresses, p.Address)
	}
	must(t, started[0].Apply(t.Context(), registry.Manifest()))
	must(t, s.balancer.Serve(t.Context(), started[0].Anonymous(), addresses))
}

func (s *site) startServices(t testing.TB) {
	t.Helper()
	program := filepath.Join(s.dir, "bin", "joinservice")
	must(t, testenv.BuildJoinService(t.Context(), program))
	for i, p := range s.planes {
		var err error
		p.service, err = testenv.NewJoinService(program, filepath.Join(s.dir, fmt.Sprint("service-", i)), s.cluster, "-api", "https://"+p.Address, "-etcd", p.MemberURL())
		must(t, err)
		must(t, p.service.Start(t.Context()))
		t.Cleanup(func() {
			if err := p.service.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// startEngine runs a plane's engine, which asks its own API server, until the plane leaves.
func (s *site) startEngine(t testing.TB, p *plane) error {
	config, err := p.Config(registry.UpgradeUser)
	if err != nil {
		return err
	}
	c, err := kube.New(config)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(p.Address)
	if err != nil {
		return err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	if err := c.Probe(config, uint16(number)); err != nil {
		return err
	}
	p.boots++
	e := &upgrade.Engine{Cluster: c, Name: fmt.Sprintf("%s.%d", p.name, p.boots), Judge: upgrade.ByVersions, Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.Run(ctx) // It says what it could not do.
	}()
	p.endEngine = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(p.endEngine)
	return nil
}

// halt ends what runs on a plane in a restart's order: the units of the services, and at the end what ran in pods.
func (s *site) halt(p *plane) error {
	s.mutex.Lock()
	s.steps = append(s.steps, step{plane: p.name, left: time.Now()})
	s.mutex.Unlock()
	p.halted = true
	if p.endEngine != nil {
		p.endEngine()
	}
	return errors.Join(p.service.Terminate(grace), p.Halt(grace, s.ordered))
}

// boot starts it again, unless that was done before the machine's exchange broke off.
func (s *site) boot(ctx context.Context, t testing.TB, p *plane) error {
	if !p.halted {
		return nil
	}
	if err := errors.Join(p.service.Start(ctx), p.Boot(ctx)); err != nil {
		return err
	}
	s.mutex.Lock()
	s.steps[len(s.steps)-1].back = time.Now()
	s.mutex.Unlock()
	p.halted = false
	if !s.engines {
		return nil
	}
	return s.startEngine(t, p)
}

// taken returns the steps since it was called last.
func (s *site) taken() []step {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	all := s.steps
	s.steps = nil
	return all
}

// wanted asks for a release on all machines, and waits for the end.
func (s *site) wanted(t testing.TB, id, image string) upgrade.State {
	t.Helper()
	d := s.documents[image]
	spec := upgrade.Spec{
		ID: id, Action: hullmark.UpdateTry, Release: image, RootHash: upgradetest.RootHash(d), Documents: []hullmark.DocumentID{upgradetest.ID(d)},
		Sources: []string{"https://releases.example.com"}, Staging: 4, Unavailable: 1, Timeouts: upgrade.DefaultTimeouts(),
	}
	_, version, err := s.operator.Request(t.Context())
	must(t, err)
	must(t, s.operator.StoreRequest(t.Context(), upgrade.Request{Schema: upgrade.Schema, Spec: spec}, version))
	var last upgrade.State
	for end := time.Now().Add(30 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		state, _, err := s.operator.State(t.Context())
		if err != nil {
			continue // It asks through the balancer, too.
		}
		if last = state; state.Spec.ID == id && state.Phase.Over() {
			return state
		}
	}
	text, err := last.Encode()
	t.Fatalf("the upgrade does not end: %s, %v", text, err)
	return last
}

func planeName(i int) string { return fmt.Sprintf("cp-%d", i+1) }

// makeMachines makes TPMs, and boots the machines.
func (s *site) makeMachines(t testing.TB, planes, workers int) {
	t.Helper()
	releases := map[hullmark.DocumentID]hullmark.RootHash{}
	for _, image := range images {
		s.documents[image] = nodetest.Document(t, image)
		releases[upgradetest.ID(s.documents[image])] = nodetest.RootHash(image)
	}
	for i := range planes + workers {
		name, role := planeName(i), hullmark.ControlPlane
		if i >= planes {
			name, role = fmt.Sprintf("w-%d", i+1-planes), hullmark.Worker
		}
		node := nodetest.New(t, s.cluster.ID())
		node.Boot(t, images[0])
		node.Prepare(t)
		node.Addresses = []string{fmt.Sprintf("192.0.2.%d", 101+i)}
		_, _ = rand.Read(node.Disk.UUID[:]) // never fails
		m := &machine{Machine: upgradetest.NewMachine(name, role, upgradetest.ID(s.documents[images[0]]), releases), node: node}
		m.EKID = node.ID
		s.machines[name] = m
	}
}
