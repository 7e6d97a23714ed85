package upgrade_test

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
)

// site is a cluster in memory, with the two releases of its tests.
type site struct {
	*upgradetest.Cluster
	present, wanted measurements.Document
	releases        map[hullmark.DocumentID]hullmark.RootHash
	engines         []*upgrade.Engine
	made            int
}

// newSite has some control planes, and workers in the pools a, of three, and b.
func newSite(t *testing.T, planes, workers int) *site {
	t.Helper()
	s := &site{present: upgradetest.Document(1, 1), wanted: upgradetest.Document(2, 1), releases: map[hullmark.DocumentID]hullmark.RootHash{}}
	for _, d := range []measurements.Document{s.present, s.wanted} {
		s.releases[upgradetest.ID(d)] = upgradetest.RootHash(d)
	}
	c, err := upgradetest.New(s.present, s.wanted)
	if err != nil {
		t.Fatal(err)
	}
	s.Cluster = c
	for i := range planes {
		s.add(fmt.Sprintf("cp-%d", i+1), hullmark.ControlPlane, "")
	}
	for i := range workers {
		pool := "a"
		if i >= 3 {
			pool = "b"
		}
		s.add(fmt.Sprintf("w-%d", i+1), hullmark.Worker, pool)
	}
	return s
}

func (s *site) add(name string, role hullmark.Role, pool string) *upgradetest.Machine {
	m := upgradetest.NewMachine(name, role, upgradetest.ID(s.present), s.releases)
	s.Add(m, pool)
	return m
}

// spec is of an upgrade to the wanted release.
func (s *site) spec() upgrade.Spec {
	return upgrade.Spec{
		ID: "0123456789abcdef", Action: hullmark.UpdateTry, Release: "2", RootHash: upgradetest.RootHash(s.wanted),
		Documents: []hullmark.DocumentID{upgradetest.ID(s.wanted)}, Sources: []string{"https://releases.example.com"},
		Staging: 4, Unavailable: 1, Timeouts: upgrade.DefaultTimeouts(),
	}
}

func request(s upgrade.Spec) upgrade.Request { return upgrade.Request{Schema: upgrade.Schema, Spec: s} }

// engine makes another engine, as a process that starts does.
func (s *site) engine() *upgrade.Engine {
	s.made++
	return &upgrade.Engine{Cluster: s.Cluster, Name: fmt.Sprintf("engine-%d", s.made), Now: s.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// turn lets each engine look once, and some time pass.
func (s *site) turn(t *testing.T) {
	t.Helper()
	for _, e := range s.engines {
		if _, err := e.Turn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Tick(5 * time.Second)
}

// until turns until something holds, for a day at most.
func (s *site) until(t *testing.T, what string, holds func(upgrade.State) bool) upgrade.State {
	t.Helper()
	if len(s.engines) == 0 {
		s.engines = append(s.engines, s.engine())
	}
	for end := s.Now().Add(24 * time.Hour); s.Now().Before(end); {
		if s.turn(t); holds(s.Last()) {
			return s.Last()
		}
	}
	t.Fatalf("%s did not come; the state is %s", what, show(s.Last()))
	return upgrade.State{}
}

// over turns until the upgrade is over, in a phase.
func (s *site) over(t *testing.T, want upgrade.Phase) upgrade.State {
	t.Helper()
	last := s.until(t, "the end", func(state upgrade.State) bool { return state.Phase.Over() })
	if last.Phase != want {
		t.Fatalf("it ended as %s, want %s: %s", last.Phase, want, show(last))
	}
	s.kept(t)
	return last
}

// kept looks for broken promises, and for what an upgrade that is over must not leave.
func (s *site) kept(t *testing.T) {
	t.Helper()
	for _, broken := range s.Broken {
		t.Error(broken)
	}
	for name := range s.Machines {
		if _, by := s.Cordoned(name); by != "" {
			t.Errorf("%s is cordoned still", name)
		}
	}
}

func show(s upgrade.State) string {
	text, err := s.Encode()
	if err != nil {
		return fmt.Sprintf("%+v", s)
	}
	return string(text)
}

// phases are those of nodes, by name.
func phases(s upgrade.State) map[string]upgrade.NodePhase {
	of := map[string]upgrade.NodePhase{}
	for _, n := range s.Nodes {
		of[n.Name] = n.Phase
	}
	return of
}

// nodeOf is a node's state.
func nodeOf(t *testing.T, s upgrade.State, name string) upgrade.NodeState {
	t.Helper()
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	t.Fatalf("the state has no %s: %s", name, show(s))
	return upgrade.NodeState{}
}

// updated wants machines to run a release for good.
func (s *site) updated(t *testing.T, d measurements.Document, names ...string) {
	t.Helper()
	for _, name := range names {
		if m := s.Machines[name]; m.Release() != upgradetest.RootHash(d) || !m.Committed() || !m.Ready {
			t.Errorf("%s runs %s, committed: %t, Ready: %t", name, m.Release(), m.Committed(), m.Ready)
		}
	}
}
