package joinservice_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// room is what a site's service does before a control plane joins.
type room struct {
	mutex sync.Mutex
	did   []string
	// member and node are what the removals return.
	member, node error
}

func (r *room) note(what string, err error) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.did = append(r.did, what)
	return err
}

func (r *room) take() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	did := r.did
	r.did = nil
	return did
}

// secret is a file that only its owner reads; each call of Files reads it anew.
const secret = "/etc/kubernetes/pki/sa.key"

// rotated is a file that a rotation exchanges.
const rotated = "/var/lib/hullmark/keyset.json"

// controlPlanes makes the site's machine a control plane by its rule, and lets the service make room for it.
func (s *site) controlPlanes(t *testing.T) *room {
	t.Helper()
	r := &room{}
	s.service.RemoveNode = func(_ context.Context, name string) error { return r.note("node "+name, r.node) }
	s.service.Timeouts.Renew = time.Millisecond
	s.service.ControlPlanes = joinservice.ControlPlanes{
		Lease: s.records,
		RemoveMember: func(_ context.Context, name string, address netip.Addr) error {
			return r.note("member "+name+" "+address.String(), r.member)
		},
		Files: func() ([]*wire.File, error) {
			return []*wire.File{{Path: secret, Content: []byte("key"), Mode: 0o600}}, nil
		},
		Rotated: func() ([]*wire.File, error) {
			return []*wire.File{{Path: rotated, Content: []byte("keyset"), Mode: 0o600}}, nil
		},
	}
	s.accept(t, func(p *measurements.Policy) {
		p.Members[0].Role, p.Members[0].Name = hullmark.ControlPlane, "control-plane-2"
	}, "image")
	return r
}

// file returns a file that Proceed brought, or nothing.
func (s *site) file(path string) string {
	for _, f := range s.node.Proceed().GetFiles() {
		if f.GetPath() == path {
			return string(f.GetContent())
		}
	}
	return ""
}

func (s *site) free(t *testing.T) {
	t.Helper()
	waitFor(t, func() bool { _, held, _ := s.records.Holder(); return !held })
}

// The Node that an earlier machine, or disk, left under a worker's name goes before its token is made; one that is Ready stays,
// and the worker waits.
func TestNodeOfAnEarlierWorker(t *testing.T) {
	s := newSite(t)
	r := &room{node: &hullmark.Condition{Code: "node-alive", Title: "the Node is Ready", Next: "wait", Retry: true}}
	s.service.RemoveNode = func(_ context.Context, name string) error { return r.note("node "+name, r.node) }
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	if told := s.node.Denied(); told == nil || told.Code != "node-alive" || !told.Retry || s.node.Proceed() != nil || len(s.records.Tokens()) != 0 {
		t.Errorf("told %+v, tokens %v", told, s.records.Tokens())
	}
	r.node, s.node.Unjoined = nil, true
	s.reboot()
	s.join(t)
	if did := r.take(); !slices.Equal(did, []string{"node worker-1", "node worker-1"}) {
		t.Errorf("before Proceed the service did %q", did)
	}
	s.reboot()
	s.node.Unjoined = false
	s.join(t)
	if did := r.take(); len(did) > 0 {
		t.Errorf("for a node that comes back the service did %q", did)
	}
}

func TestControlPlaneJoinsAndComesBack(t *testing.T) {
	s := newSite(t)
	r := s.controlPlanes(t)
	m := s.join(t)
	if m.Role != hullmark.ControlPlane || m.State != joinservice.MachineReady || m.Record.Committed != 1 {
		t.Errorf("the record is %+v", m)
	}
	if did := r.take(); !slices.Equal(did, []string{"member control-plane-2 192.0.2.7", "node control-plane-2"}) {
		t.Errorf("before Proceed the service did %q", did)
	}
	documents := string(s.node.Proceed().GetKubeadmDocuments())
	if s.node.Ticket().Kind != hullmark.Join || !strings.Contains(documents, "advertiseAddress: 192.0.2.7") || !strings.Contains(documents, "tlsBootstrapToken: 0") {
		t.Errorf("ticket %s, documents %s", s.node.Ticket().Kind, documents)
	}
	id := s.policy.Policy().Documents[0].Document.String()
	for _, path := range []string{secret, "/etc/kubernetes/discovery.conf", "/var/lib/hullmark/policy", "/var/lib/hullmark/documents/" + id + ".json"} {
		if s.file(path) == "" {
			t.Errorf("Proceed does not bring %s", path)
		}
	}
	s.free(t)
	s.onTime(t)
	if len(s.records.Tokens()) != 0 {
		t.Error("the token outlived the join")
	}
	s.reboot()
	if s.join(t); len(r.take()) != 0 || len(s.node.Proceed().GetFiles()) != 1 || s.settings(t).ControlPlaneEndpoint != s.service.Settings.ControlPlaneEndpoint {
		t.Error("a control plane that came back was made room for, or brought more than its settings")
	}
	s.onTime(t)
	if s.node.Ticket().Kind != hullmark.Rejoin {
		t.Errorf("it came back with a ticket to %s", s.node.Ticket().Kind)
	}
}

// settings are those that Proceed brings a control plane.
func (s *site) settings(t *testing.T) joinservice.Settings {
	t.Helper()
	settings, err := joinservice.ParseSettings([]byte(s.file("/var/lib/hullmark/settings.json")))
	if err != nil {
		t.Fatal(err)
	}
	return settings
}

// A pool's JoinConfiguration, files and hooks reach its nodes; the latter two at each boot.
func TestPoolReachesItsNodes(t *testing.T) {
	s := newSite(t)
	template, err := kubeadm.JoinTemplate(kubeadm.Normal)
	if err != nil {
		t.Fatal(err)
	}
	join := strings.Replace(string(template), "imagePullPolicy: IfNotPresent", "imagePullPolicy: Never\n  kubeletExtraArgs: [{name: node-labels, value: example.com/disks=many}]", 1)
	s.accept(t, func(p *measurements.Policy) {
		p.Members[0].Pool = "storage"
		p.Pools = []measurements.Pool{{
			Name: "storage", Join: join, Hooks: []string{"site-metrics.service"},
			Files: []measurements.PlacedFile{{Path: "/etc/kubernetes/storage.yaml", Mode: "0600", Content: "rack: 7\n"}},
		}}
	}, "image")
	s.join(t)
	documents := string(s.node.Proceed().GetKubeadmDocuments())
	for _, want := range []string{"value: example.com/disks=many", "imagePullPolicy: Never", "name: worker-1", "tlsBootstrapToken: 000001.", "kubeConfigPath: /etc/kubernetes/discovery.conf"} {
		if !strings.Contains(documents, want) {
			t.Errorf("%q is missing in\n%s", want, documents)
		}
	}
	for _, when := range []string{"joined", "came back"} {
		p := s.node.Proceed()
		if s.file("/etc/kubernetes/storage.yaml") != "rack: 7\n" || !slices.Equal(p.GetHooks(), []string{"site-metrics.service"}) {
			t.Errorf("when it %s, the node was brought %v, %q", when, p.GetFiles(), p.GetHooks())
		}
		s.reboot()
		s.join(t)
	}
}

// A policy's new endpoint goes to the control planes that come back; others are told what the service's own one serves, which
// is that of its settings.
func TestEndpointMovesWithTheControlPlanes(t *testing.T) {
	s := newSite(t)
	s.controlPlanes(t)
	s.join(t)
	s.reboot()
	s.accept(t, func(p *measurements.Policy) {
		p.Endpoint = &measurements.Endpoint{Address: "api.example.net:6443", Names: []string{"203.0.113.7"}}
	}, "image")
	s.join(t)
	p, settings := s.node.Proceed(), s.settings(t)
	if p.GetEndpoint() != "api.example.net:6443" || !slices.Equal(p.GetNames(), []string{"203.0.113.7"}) {
		t.Errorf("the control plane is told %s, %q", p.GetEndpoint(), p.GetNames())
	}
	if settings.ControlPlaneEndpoint != p.GetEndpoint() || !slices.Equal(settings.Names, p.GetNames()) || settings.Profile != s.service.Settings.Profile {
		t.Errorf("its settings are %+v", settings)
	}

	w := newSite(t)
	w.join(t)
	w.reboot()
	w.accept(t, func(p *measurements.Policy) { p.Endpoint = &measurements.Endpoint{Address: "api.example.net:6443"} }, "image")
	w.join(t)
	if p := w.node.Proceed(); p.GetEndpoint() != w.service.Settings.ControlPlaneEndpoint || len(p.GetNames())+len(p.GetFiles()) != 0 {
		t.Errorf("the worker is told %s, %q, with %d files", p.GetEndpoint(), p.GetNames(), len(p.GetFiles()))
	}
}

// After a rotation a control plane gets its keys from a service that has them: one that has not lets no control plane join or
// come back, and formats no disk.
func TestRotatedKeysReachControlPlanes(t *testing.T) {
	rotate := func(p *measurements.Policy) { p.Rotation = 1 }
	s := newSite(t)
	s.controlPlanes(t)
	s.accept(t, rotate, "image")
	s.denied(t, "keys-outdated", true, "lacks keys that the operator has exchanged", "rotation 1", "rotation 0")
	if len(s.records.Tokens()) != 0 {
		t.Error("a machine that was denied got a token")
	}
	s.service.ControlPlanes.Rotation = 1
	s.join(t)
	s.free(t)
	if s.file(secret) != "key" || s.file(rotated) != "" {
		t.Error("one that joins did not get the files that all get")
	}
	s.reboot()
	s.join(t)
	if s.file(rotated) != "keyset" || s.file("/var/lib/hullmark/policy") != string(s.policy.Signed().Envelope) || s.file(secret) != "" || s.settings(t).ControlPlaneEndpoint == "" {
		t.Errorf("one that comes back got %v", s.node.Proceed().GetFiles())
	}
	s.reboot()
	s.accept(t, func(p *measurements.Policy) { p.Rotation = 2 }, "image")
	s.denied(t, "keys-outdated", true, "lacks keys that the operator has exchanged", "rotation 2", "rotation 1")
	s.service.ControlPlanes.Rotation = 3
	s.denied(t, "keys-unsigned", true, "holds other keys than those that the signed policy commits to", "rotation 2", "rotation 3")
	s.service.ControlPlanes.Rotation, s.service.ControlPlanes.Keys = 2, hullmark.KeysDigest{1}
	s.denied(t, "keys-unsigned", true, "holds other keys than those that the signed policy commits to", hullmark.KeysDigest{1}.String())
	s.accept(t, func(p *measurements.Policy) { p.Keys = hullmark.KeysDigest{1} }, "image")
	s.join(t)

	// A worker's new disk would get an old key, and a disk of the new generation none; one that has its key comes back.
	w := newSite(t)
	w.accept(t, rotate, "image")
	w.denied(t, "keys-outdated", true, "lacks keys that the operator has exchanged", "rotation 1", "rotation 0")
	w.service.ControlPlanes.Rotation = 1
	w.join(t)
	w.reboot()
	w.service.ControlPlanes.Rotation = 0
	if w.join(t); w.file(rotated) != "" {
		t.Error("a worker got a control plane's keys")
	}
	w.reboot()
	w.node.Disk.Generation = 2
	w.denied(t, "keys-outdated", true, "lacks keys that the operator has exchanged", "rotation 1", "rotation 0")
	w.service.ControlPlanes.Rotation = 1
	w.denied(t, "generation-missing", false, "the keyset has no generation 2")
}

// A service that answers without records may be told of no rotation, so it gives no keys: they could be old.
func TestNoKeysInAnOutage(t *testing.T) {
	s := outage(t, true)
	s.accept(t, func(p *measurements.Policy) { p.Rotation = 1 }, "image")
	if err := s.dial(t); err != nil || s.outcome() != joinservice.OutcomeReady || s.file(rotated) != "" {
		t.Errorf("outcome %s: %v; the keyset is %q", s.outcome(), err, s.file(rotated))
	}
}

// Its disk is ready, but its kubeadm never finished: it gets everything once more.
func TestControlPlaneResumesItsJoin(t *testing.T) {
	s := newSite(t)
	r := s.controlPlanes(t)
	s.node.Fail = &hullmark.Condition{Code: "kubeadm-failed", Step: "KUBEADM", Title: "no", Next: "n"}
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.outcome() == joinservice.OutcomeNodeFailed })
	s.free(t) // for the next one, at once
	s.node.Fail, s.node.Unjoined = nil, true
	s.reboot()
	s.join(t)
	if did := r.take(); len(did) != 4 || s.file(secret) != "key" || s.node.Ticket().Kind != hullmark.Rejoin {
		t.Errorf("the service did %q, the ticket is to %s", did, s.node.Ticket().Kind)
	}
	s.free(t)
}

// What stands in the way is said before Proceed, and nothing of the join stays: no token, no place, nothing committed.
func TestControlPlaneIsNotLetIn(t *testing.T) {
	for name, c := range map[string]struct {
		spoil, mend func(*testing.T, *site, *room)
		code        string
		retry       bool
		says        []string
	}{
		"etcd has no quorum": {
			spoil: func(_ *testing.T, _ *site, r *room) {
				r.member = &hullmark.Condition{Code: "etcd-no-quorum", Title: "too few members answer", Next: "n", Retry: true}
			},
			mend: func(_ *testing.T, _ *site, r *room) { r.member = nil },
			code: "etcd-no-quorum", retry: true, says: []string{"too few members answer"},
		},
		"a member of its name runs": {
			spoil: func(_ *testing.T, _ *site, r *room) {
				r.member = &hullmark.Condition{Code: "etcd-member-alive", Title: "the member runs", Next: "n"}
			},
			mend: func(_ *testing.T, _ *site, r *room) { r.member = nil },
			code: "etcd-member-alive", says: []string{"the member runs"},
		},
		"a Node of its name is Ready": {
			spoil: func(_ *testing.T, _ *site, r *room) {
				r.node = &hullmark.Condition{Code: "node-alive", Title: "the Node is Ready", Next: "n", Retry: true}
			},
			mend: func(_ *testing.T, _ *site, r *room) { r.node = nil },
			code: "node-alive", retry: true, says: []string{"the Node is Ready"},
		},
		"another one joins": {
			spoil: func(t *testing.T, s *site, _ *room) {
				if _, err := s.records.Acquire(t.Context(), hullmark.EKID{1}); err != nil {
					t.Fatal(err)
				}
			},
			mend: func(t *testing.T, s *site, _ *room) {
				if err := s.records.Release(t.Context(), joinservice.Term{EKID: hullmark.EKID{1}, Number: 1}); err != nil {
					t.Fatal(err)
				}
			},
			code: "busy", retry: true, says: []string{"another control plane joins"},
		},
		"its files do not fit into a message": {
			spoil: func(_ *testing.T, s *site, _ *room) {
				s.service.ControlPlanes.Files = func() ([]*wire.File, error) {
					return []*wire.File{{Path: secret, Content: make([]byte, wire.MaxFile+1), Mode: 0o600}}, nil
				}
			},
			mend: func(_ *testing.T, s *site, _ *room) {
				s.service.ControlPlanes.Files = func() ([]*wire.File, error) { return nil, nil }
			},
			code: "material-too-large", says: []string{"does not fit into a message", secret, "at most 1048576 are allowed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			r := s.controlPlanes(t)
			c.spoil(t, s, r)
			if err := s.dial(t); err != nil {
				t.Fatal(err)
			}
			s.told(t, c.code, c.retry, c.says...)
			m, state := s.machine(t), joinservice.MachineFailed
			if c.retry {
				state = joinservice.MachineWaiting
			}
			if m.State != state || m.Condition == nil || *m.Condition != *s.node.Denied() {
				t.Errorf("the node was told %v, which was recorded as %s %v", s.node.Denied(), m.State, m.Condition)
			}
			if len(s.records.Tokens()) != 0 || m.Record.Committed != 0 {
				t.Errorf("tokens %v, record %+v", s.records.Tokens(), m.Record)
			}
			if holder, held, _ := s.records.Holder(); held && holder == s.node.ID {
				t.Error("it keeps the place")
			}
			c.mend(t, s, r)
			s.join(t)
		})
	}
}

// The place is renewed while the exchange runs, and kept, until its time is over, for a node that goes on without its verifier.
func TestPlaceOfTheControlPlaneThatJoins(t *testing.T) {
	s := newSite(t)
	s.controlPlanes(t)
	s.node.Hold = make(chan struct{})
	ctx, cut := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.node.Dial(ctx, s.address, s.cluster.ID()) }()
	waitFor(t, func() bool {
		holder, held, renewals := s.records.Holder()
		return held && holder == s.node.ID && renewals > 5
	})
	waitFor(t, func() bool { return s.node.Proceed() != nil })
	cut()
	waitFor(t, func() bool { return s.outcome() != "" })
	close(s.node.Hold)
	if err := <-ended; err == nil || s.outcome() != joinservice.OutcomeEnded {
		t.Fatalf("the exchange ended with %v and outcome %s", err, s.outcome())
	}
	_, held, renewals := s.records.Holder()
	if !held {
		t.Error("the place was given up, although kubeadm may still run")
	}
	time.Sleep(20 * time.Millisecond)
	if _, _, later := s.records.Holder(); later != renewals {
		t.Error("the place is renewed although the exchange ended")
	}
}
