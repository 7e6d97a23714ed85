//go:build long

package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
	"github.com/hullmark/hullmark/upgrade/kube"
)

// env is one real API for all tests.
var env *testenv.Environment

func TestMain(m *testing.M) {
	code, err := withAPI(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withAPI(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "testenv-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Minute) // The bundle may have to be compiled.
	defer cancel()
	if env, err = testenv.Start(ctx, dir); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	if err := env.Apply(ctx, registry.Manifest()); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// site is the real API with machines that are played, and the two releases of its tests.
type site struct {
	*upgradetest.Live
	admin           *rest.Config
	operator        *kube.Cluster
	present, wanted measurements.Document
	releases        map[hullmark.DocumentID]hullmark.RootHash
	names           []string
	engines         sync.WaitGroup
}

// newSite has control planes and workers, which run the present release; the policy accepts both.
func newSite(t *testing.T, planes, workers int) *site {
	t.Helper()
	s := &site{present: upgradetest.Document(1, 1), wanted: upgradetest.Document(2, 1), releases: map[hullmark.DocumentID]hullmark.RootHash{}}
	var err error
	if s.admin, err = env.Config("testenv", "system:masters"); err != nil {
		t.Fatal(err)
	}
	if s.Live, err = upgradetest.NewLive(s.admin); err != nil {
		t.Fatal(err)
	}
	if s.operator, err = kube.New(s.admin); err != nil {
		t.Fatal(err)
	}
	s.push(t)
	for i := range planes + workers {
		name, role := fmt.Sprintf("cp-%d", i+1), hullmark.ControlPlane
		if i >= planes {
			name, role = fmt.Sprintf("w-%d", i+1-planes), hullmark.Worker
		}
		s.add(t, name, role)
	}
	ctx, cancel := context.WithCancel(t.Context())
	played := make(chan struct{})
	go func() { defer close(played); s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-played
		s.engines.Wait()
		s.clear(t)
	})
	return s
}

func (s *site) add(t *testing.T, name string, role hullmark.Role) {
	t.Helper()
	host, _, err := net.SplitHostPort(env.Address)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(t.Context(), upgradetest.NewMachine(name, role, upgradetest.ID(s.present), s.releases), host); err != nil {
		t.Fatal(err)
	}
	s.names = append(s.names, name)
}

// push gives the cluster a policy that accepts both releases.
func (s *site) push(t *testing.T) {
	t.Helper()
	policy, documents := measurements.Policy{Version: 1}, map[hullmark.DocumentID][]byte{}
	for _, d := range []measurements.Document{s.present, s.wanted} {
		encoded, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		documents[upgradetest.ID(d)] = encoded
		s.releases[upgradetest.ID(d)] = upgradetest.RootHash(d)
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: upgradetest.ID(d)})
	}
	env.Cluster.Policy = nil
	if err := env.Cluster.SetPolicy(policy, s.present, s.wanted); err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.PushPolicy(t.Context(), "", registry.AnyVersion, env.Cluster.Policy, documents); err != nil {
		t.Fatal(err)
	}
}

// clear removes what a test has left.
func (s *site) clear(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	for _, name := range s.names {
		if err := s.Remove(ctx, name); err != nil {
			t.Log(err)
		}
		node := hullmark.EKIDOf([]byte(name))
		_ = s.Call(ctx, http.MethodDelete, "/api/v1/namespaces/hullmark/configmaps/"+registry.DirectionObject(node), nil, nil)
	}
	for _, name := range []string{registry.UpgradeRequest, registry.UpgradeState} {
		_ = s.Call(ctx, http.MethodDelete, "/api/v1/namespaces/hullmark/configmaps/"+name, nil, nil)
	}
	_ = s.Call(ctx, http.MethodDelete, "/apis/apps/v1/namespaces/default/replicasets/web", nil, nil)
	_ = s.Call(ctx, http.MethodDelete, "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web", nil, nil)
}

// speed is how much faster engines' clocks go, so that Leases end soon.
const speed = 8

// engine is one with the engine's own account, which turns until ctx ends. It looks more often than a real one.
func (s *site) engine(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	config, err := env.Config(registry.UpgradeUser)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(env.Address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Probe(config, uint16(number)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	e := &upgrade.Engine{
		Cluster: cluster, Name: name, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now: func() time.Time { return began.Add(speed * time.Since(began)) },
	}
	s.engines.Go(func() {
		said := ""
		for ctx.Err() == nil {
			if _, err := e.Turn(ctx); err != nil && ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				t.Logf("%s: %.200s", name, said)
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
}

func (s *site) spec(id string) upgrade.Spec {
	return upgrade.Spec{
		ID: id, Action: hullmark.UpdateTry, Release: "2", RootHash: upgradetest.RootHash(s.wanted), Documents: []hullmark.DocumentID{upgradetest.ID(s.wanted)},
		Sources: []string{"https://releases.example.com"}, Staging: 8, Unavailable: 1, Timeouts: upgrade.DefaultTimeouts(),
	}
}

// want asks for an upgrade.
func (s *site) want(t *testing.T, r upgrade.Request) {
	t.Helper()
	for {
		_, version, err := s.operator.Request(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.operator.StoreRequest(t.Context(), r, version); err == nil {
			return
		} else if !errors.Is(err, upgrade.ErrConflict) {
			t.Fatal(err)
		}
	}
}

// until waits until the upgrade is as it should be.
func (s *site) until(t *testing.T, what, id string, holds func(upgrade.State) bool) upgrade.State {
	t.Helper()
	var last upgrade.State
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		state, _, err := s.operator.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range upgrade.Changes(last, state) {
			t.Logf("%s  %s  %s", time.Now().Format(time.TimeOnly), c.Node, c.Text)
		}
		if last = state; state.Spec.ID == id && holds(state) {
			return state
		}
	}
	text, err := last.Encode()
	t.Fatalf("%s did not come: %s, %v", what, text, err)
	return last
}

func over(s upgrade.State) bool { return s.Phase.Over() }

func phase(s upgrade.State, name string) upgrade.NodePhase {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n.Phase
		}
	}
	return ""
}

// Three control planes and five workers, with pods that a budget keeps together: each control plane's engine ends when its machine
// restarts, and another one goes on.
func TestUpgradeByTheAPI(t *testing.T) {
	s := newSite(t, 3, 5)
	s.deploy(t, 3)
	var mutex sync.Mutex
	stops := map[string]context.CancelFunc{}
	boots := map[string]int{}
	s.Change("cp-1", func(*upgradetest.Machine) {
		s.Watch = func(machines map[string]*upgradetest.Machine) {
			mutex.Lock()
			defer mutex.Unlock()
			away := map[hullmark.Role]int{}
			for name, m := range machines {
				if !m.Ready {
					away[m.Role]++
				}
				if stop := stops[name]; m.Role == hullmark.ControlPlane && !m.Ready && stop != nil {
					stop()
					delete(stops, name)
				}
				if m.Role == hullmark.ControlPlane && m.Ready && stops[name] == nil && boots[name] < m.Boots {
					ctx, cancel := context.WithCancel(t.Context())
					stops[name], boots[name] = cancel, m.Boots
					s.engine(t, ctx, fmt.Sprintf("%s.%d", name, m.Boots))
				}
			}
			for role, n := range away {
				if n > 1 {
					t.Errorf("%d of role %s are away", n, role)
				}
			}
		}
	})
	s.want(t, upgrade.Request{Schema: upgrade.Schema, Spec: s.spec("00000000000000a1")})
	last := s.until(t, "the end", "00000000000000a1", over)
	mutex.Lock()
	for _, stop := range stops {
		stop()
	}
	mutex.Unlock()
	if last.Phase != upgrade.Done || last.Term < 2 {
		t.Errorf("it ended as %s, in term %d: %+v", last.Phase, last.Term, last.Failed)
	}
	for _, name := range s.names {
		s.Change(name, func(m *upgradetest.Machine) {
			if m.Release() != upgradetest.RootHash(s.wanted) || !m.Committed() || m.Boots != 2 {
				t.Errorf("%s runs %s, in its boot %d", name, m.Release(), m.Boots)
			}
		})
	}
	s.uncordoned(t)
}

// deploy runs pods that a ReplicaSet makes anew, and of which a budget lets one go at a time.
func (s *site) deploy(t *testing.T, replicas int) {
	t.Helper()
	if err := s.Deploy(t.Context(), replicas); err != nil {
		t.Fatal(err)
	}
	s.eventually(t, "the budget", func(v upgrade.View) bool { return v.Budgets["default/web"].Allowed == 1 })
}

// eventually waits until the cluster is as it should be.
func (s *site) eventually(t *testing.T, what string, holds func(upgrade.View) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		view, err := s.operator.Look(t.Context(), upgrade.Need{AllPods: true, Servers: true})
		if err != nil {
			t.Fatal(err)
		}
		if holds(view) {
			return
		}
	}
	t.Fatalf("%s did not come", what)
}

func (s *site) uncordoned(t *testing.T) {
	t.Helper()
	view, err := s.operator.Look(t.Context(), upgrade.Need{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range view.Nodes {
		if n.Unschedulable || n.CordonedBy != "" {
			t.Errorf("%s is cordoned still", n.Name)
		}
	}
}

// A budget that lets no pod go stops the upgrade in time, and is named; a node that falls back stops it, too.
func TestUpgradeStopsByTheAPI(t *testing.T) {
	s := newSite(t, 3, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.engine(t, ctx, "one")
	s.deploy(t, 1)
	if err := s.Call(t.Context(), http.MethodPatch, "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web", map[string]any{"spec": map[string]any{"maxUnavailable": 0}}, nil); err != nil {
		t.Fatal(err)
	}
	s.eventually(t, "the budget", func(v upgrade.View) bool { return v.Budgets["default/web"].Allowed == 0 })
	spec := s.spec("00000000000000b1")
	spec.Timeouts.Drain = upgrade.Duration(speed * 5 * time.Second)
	s.want(t, upgrade.Request{Schema: upgrade.Schema, Spec: spec})
	last := s.until(t, "the end", spec.ID, over)
	if c := last.Failed; last.Phase != upgrade.Failed || c == nil || c.Code != "drain-timeout" {
		t.Fatalf("it ended as %s: %+v", last.Phase, c)
	}
	t.Log(last.Failed.Error())
	s.uncordoned(t)
	if err := s.Call(t.Context(), http.MethodDelete, "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web", nil, nil); err != nil {
		t.Fatal(err)
	}
	s.Change("w-2", func(m *upgradetest.Machine) { m.Manner = upgradetest.FallsBack })
	spec.ID = "00000000000000b2"
	s.want(t, upgrade.Request{Schema: upgrade.Schema, Spec: spec})
	last = s.until(t, "the end", spec.ID, over)
	if last.Phase != upgrade.Failed || last.Failed.Code != "trial-failed" || phase(last, "w-2") != upgrade.NodeFailed {
		t.Errorf("it ended as %s: %+v", last.Phase, last.Failed)
	}
	// Whichever worker has the release first goes first: w-1 ended before w-2 failed, or never began.
	if p := phase(last, "w-1"); p != upgrade.NodeDone && p != upgrade.NodeWaiting {
		t.Errorf("w-1 is %s", p)
	}
	s.uncordoned(t)
}

// The API server goes away in the middle, a node is removed and another added, somebody else has cordoned one, and it is paused.
func TestUpgradeGoesOnByTheAPI(t *testing.T) {
	s := newSite(t, 3, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.engine(t, ctx, "one")
	s.engine(t, ctx, "two")
	if err := s.Call(t.Context(), http.MethodPatch, "/api/v1/nodes/w-2", map[string]any{"spec": map[string]any{"unschedulable": true}}, nil); err != nil {
		t.Fatal(err)
	}
	r := upgrade.Request{Schema: upgrade.Schema, Spec: s.spec("00000000000000c1")}
	s.want(t, r)
	s.until(t, "the second control plane", r.Spec.ID, func(state upgrade.State) bool { return phase(state, "cp-2") == upgrade.NodeAway })
	if err := env.StopAPI(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	if err := env.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Paused = true
	s.want(t, r)
	s.until(t, "the pause", r.Spec.ID, func(state upgrade.State) bool {
		return state.Phase == upgrade.Paused && phase(state, "cp-2") == upgrade.NodeDone
	})
	if err := s.Remove(t.Context(), "w-1"); err != nil {
		t.Fatal(err)
	}
	s.names = append(s.names[:3:3], s.names[4:]...)
	s.add(t, "w-9", hullmark.Worker)
	r.Paused = false
	s.want(t, r)
	last := s.until(t, "the end", r.Spec.ID, over)
	if last.Phase != upgrade.Done || phase(last, "w-1") != upgrade.NodeGone || phase(last, "w-9") != upgrade.NodeDone {
		t.Errorf("it ended as %s: %+v", last.Phase, last.Nodes)
	}
	view, err := s.operator.Look(t.Context(), upgrade.Need{})
	if err != nil {
		t.Fatal(err)
	}
	if n := view.Nodes["w-2"]; !n.Unschedulable || n.CordonedBy != "" {
		t.Errorf("somebody else's cordon is %+v", n)
	}
}

// What an API server says of itself, and what kubelets say of it.
func TestServersAreAsked(t *testing.T) {
	s := newSite(t, 1, 0)
	config, err := env.Config(registry.UpgradeUser)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (error, bool) {
		t.Helper()
		view, err := cluster.Look(t.Context(), upgrade.Need{Servers: true})
		if err != nil {
			t.Fatal(err)
		}
		err, asked := view.Servers["cp-1"]
		return err, asked
	}
	if err, asked := ask(); asked {
		t.Errorf("its kubelet says nothing, and it is: %v", err)
	}
	const pods = "/api/v1/namespaces/kube-system/pods"
	for _, name := range []string{"kube-apiserver-cp-1", "etcd-cp-1"} {
		if err := s.Call(t.Context(), http.MethodPost, pods, map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name}, "spec": map[string]any{"nodeName": "cp-1", "containers": []any{map[string]any{"name": "a", "image": "a"}}},
		}, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Call(context.Background(), http.MethodDelete, pods+"/"+name, nil, nil) })
	}
	s.eventually(t, "ready pods", func(v upgrade.View) bool { err, asked := v.Servers["cp-1"]; return asked && err == nil })
	s.Change("cp-1", func(m *upgradetest.Machine) { m.Ready = false })
	if err := s.Call(t.Context(), http.MethodPatch, pods+"/etcd-cp-1/status", map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False"}}}}, nil); err != nil {
		t.Fatal(err)
	}
	if err, asked := ask(); err == nil || !asked {
		t.Errorf("its member of etcd is not Ready, and it is: %v", err)
	}
	_, port, err := net.SplitHostPort(env.Address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Probe(config, uint16(number)); err != nil {
		t.Fatal(err)
	}
	if err, asked := ask(); err != nil || !asked {
		t.Errorf("it is ready, and says: %v", err)
	}
	if err := cluster.Probe(config, 1); err != nil {
		t.Fatal(err)
	}
	if err, asked := ask(); err == nil || !asked {
		t.Error("nobody listens there, and it is ready")
	}
}
