package upgrade_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/upgrade"
)

var errKilled = errors.New("killed")

// small is a cluster whose upgrade is short, so that it can be done once for each of its steps.
func small(t *testing.T) *site {
	t.Helper()
	s := newSite(t, 3, 2)
	for _, m := range s.Machines {
		m.Pace = upgradetest.Pace{Ask: 5 * time.Second, Stage: 10 * time.Second, Boot: 15 * time.Second, Trial: time.Minute}
	}
	s.Budgets["shop/web"] = &upgradetest.Budget{Desired: 1}
	s.Run("w-1", upgrade.Pod{Namespace: "shop", Name: "web-a", Controlled: true, Budgets: []string{"shop/web"}})
	s.Run("w-2", upgrade.Pod{Namespace: "shop", Name: "web-b", Controlled: true, Budgets: []string{"shop/web"}})
	s.Run("cp-1", upgrade.Pod{Namespace: "kube-system", Name: "coredns", Controlled: true})
	return s
}

var fewer = []string{"cp-1", "cp-2", "cp-3", "w-1", "w-2"}

// calls returns the calls of one upgrade that change something, but for renewals of the Lease.
func calls(t *testing.T) (made []string) {
	t.Helper()
	s := small(t)
	s.Before = func(call string) error {
		if call != "store lease" {
			made = append(made, call)
		}
		return nil
	}
	s.Want(request(s.spec()))
	s.over(t, upgrade.Done)
	if len(made) < 40 {
		t.Fatalf("an upgrade has %d calls: %v", len(made), made)
	}
	return made
}

// at calls do before the nth such call, once.
func (s *site) at(n int, do func(call string) error) {
	seen := 0
	s.Before = func(call string) error {
		if call == "store lease" {
			return nil
		}
		if seen++; seen-1 != n {
			return nil
		}
		s.Before = nil
		return do(call)
	}
}

// An engine that is killed at any call is followed by another one, which ends what it began.
func TestEngineIsKilledAnywhere(t *testing.T) {
	for i, name := range calls(t) {
		s := small(t)
		s.at(i, func(string) error { return errKilled })
		s.Want(request(s.spec()))
		e := s.engine()
		for range 2000 {
			_, err := e.Turn(t.Context())
			if errors.Is(err, errKilled) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			s.Tick(5 * time.Second)
		}
		if s.Before != nil {
			t.Fatalf("%s: nobody was killed", name)
		}
		s.over(t, upgrade.Done)
		s.updated(t, s.wanted, fewer...)
		if t.Failed() {
			t.Fatalf("killed at call %d, %s", i, name)
		}
	}
}

// An engine that stands still at any call, until another one has done everything, and then goes on, changes nothing more.
func TestEngineIsOvertakenAnywhere(t *testing.T) {
	for i, name := range calls(t) {
		s := small(t)
		first := s.engine()
		s.at(i, func(string) error {
			s.over(t, upgrade.Done)
			return nil
		})
		s.Want(request(s.spec()))
		for range 2000 {
			if _, err := first.Turn(t.Context()); err != nil && !errors.Is(err, upgrade.ErrConflict) {
				t.Fatal(err)
			}
			if s.Tick(5 * time.Second); s.Last().Phase.Over() {
				break
			}
		}
		s.engines = append(s.engines, first)
		for range 60 {
			s.turn(t)
		}
		s.kept(t)
		s.updated(t, s.wanted, fewer...)
		for name, m := range s.Machines {
			if m.Boots != 2 {
				t.Errorf("%s booted %d times", name, m.Boots)
			}
		}
		if t.Failed() {
			t.Fatalf("overtaken at call %d, %s", i, name)
		}
	}
}

// Of several engines one acts; when it stands still, another one does, and it finds that out.
func TestEnginesTakeTurns(t *testing.T) {
	s := small(t)
	s.Want(request(s.spec()))
	three := []*upgrade.Engine{s.engine(), s.engine(), s.engine()}
	s.engines = three
	turns := 0
	s.until(t, "the end", func(state upgrade.State) bool {
		if turns++; turns%7 != 0 || state.Phase.Over() {
			return state.Phase.Over()
		}
		lease, _, err := s.Lease(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.engines = slices.DeleteFunc(slices.Clone(three), func(e *upgrade.Engine) bool { return e.Name == lease.Holder })
		for range 12 {
			s.turn(t)
		}
		s.engines = three
		return s.Last().Phase.Over()
	})
	s.kept(t)
	s.updated(t, s.wanted, fewer...)
	if s.Last().Term < 3 {
		t.Errorf("the last term is %d: they hardly took turns", s.Last().Term)
	}
}

// Whenever an upgrade is aborted, no further node is begun with, those that are away come back, and nothing stays cordoned.
func TestAbortAnywhere(t *testing.T) {
	length := turnsOf(t)
	for at := range length {
		s := small(t)
		s.Want(request(s.spec()))
		s.engines = append(s.engines, s.engine())
		for range at {
			s.turn(t)
		}
		wanted := request(s.spec())
		wanted.Aborted = true
		s.Want(wanted)
		s.turn(t)
		before := s.Last()
		if before.Phase == upgrade.Done {
			continue
		}
		last := s.over(t, upgrade.Aborted)
		s.Tick(10 * time.Minute)
		for _, n := range last.Nodes {
			was := nodeOf(t, before, n.Name).Phase
			gone := was == upgrade.NodeAway || was == upgrade.NodeReleasing && nodeOf(t, before, n.Name).Next == upgrade.NodeDone || was == upgrade.NodeDone
			if m := s.Machines[n.Name]; (m.Boots > 1) != gone || !m.Ready || (n.Phase == upgrade.NodeDone) != gone {
				t.Errorf("%s was %s, is %s, and booted %d times", n.Name, was, n.Phase, m.Boots)
			}
		}
		if t.Failed() {
			t.Fatalf("aborted at turn %d of %d", at, length)
		}
	}
}

// turnsOf is how many turns one upgrade has.
func turnsOf(t *testing.T) (n int) {
	t.Helper()
	s := small(t)
	s.Want(request(s.spec()))
	s.until(t, "the end", func(state upgrade.State) bool { n++; return state.Phase.Over() })
	return n
}

// A paused upgrade brings to an end what it began with, begins with nothing, and goes on when it may.
func TestPauseAnywhere(t *testing.T) {
	for at := range turnsOf(t) {
		s := small(t)
		s.Want(request(s.spec()))
		s.engines = append(s.engines, s.engine())
		for range at {
			s.turn(t)
		}
		paused := request(s.spec())
		paused.Paused = true
		s.Want(paused)
		for range 40 {
			s.turn(t)
		}
		last := s.Last()
		if last.Phase != upgrade.Paused && last.Phase != upgrade.Done {
			t.Fatalf("paused at turn %d it is %s", at, last.Phase)
		}
		for name, phase := range phases(last) {
			if cordoned, _ := s.Cordoned(name); cordoned || phase == upgrade.NodeAway {
				t.Fatalf("paused at turn %d, %s is %s", at, name, phase)
			}
		}
		for range 40 {
			s.turn(t)
		}
		if now := phases(s.Last()); fmt.Sprint(now) != fmt.Sprint(phases(last)) {
			t.Fatalf("paused at turn %d it went on from %v to %v", at, phases(last), now)
		}
		s.Want(request(s.spec()))
		s.over(t, upgrade.Done)
		s.updated(t, s.wanted, fewer...)
	}
}

// A second request ends the first upgrade, and follows it.
func TestAnotherRequestWhileOneIsUnderWay(t *testing.T) {
	s := small(t)
	s.Want(request(s.spec()))
	s.until(t, "a control plane away", func(state upgrade.State) bool { return phases(state)["cp-2"] == upgrade.NodeAway })
	second := restart(s.spec())
	second.ID = "00000000000000bb"
	s.Want(request(second))
	first := s.until(t, "the end of the first", func(state upgrade.State) bool { return state.Phase.Over() })
	if first.Spec.ID != s.spec().ID || first.Phase != upgrade.Aborted || phases(first)["cp-2"] != upgrade.NodeDone || phases(first)["w-1"] == upgrade.NodeDone {
		t.Errorf("the first ended as %s", show(first))
	}
	last := s.until(t, "the end of the second", func(state upgrade.State) bool { return state.Spec.ID == second.ID && state.Phase.Over() })
	if last.Phase != upgrade.Done {
		t.Errorf("the second ended as %s", show(last))
	}
	s.kept(t)
}

// With one control plane, or two, nobody else could let it in: it is restarted while its operator is there alone, and then the workers go.
func TestControlPlanesThatNeedTheirOperator(t *testing.T) {
	for _, planes := range []int{1, 2} {
		s := newSite(t, planes, 2)
		s.Want(request(s.spec()))
		state := s.until(t, "the operator's turn", func(state upgrade.State) bool { return phases(state)["cp-1"] == upgrade.NodeAttended })
		if !strings.Contains(state.Waits, "hullmark upgrade attend cp-1 --node") || !strings.Contains(state.Waits, "hullmark recover") {
			t.Errorf("it waits for %q", state.Waits)
		}
		s.Tick(3 * time.Hour)
		for range 2000 {
			s.turn(t)
		}
		if state := s.Last(); phases(state)["cp-1"] != upgrade.NodeAttended || s.Machines["w-1"].Boots != 1 || s.Machines["cp-1"].Boots != 1 {
			t.Errorf("nobody was there, and it is %s", show(state))
		}
		attended := request(s.spec())
		for i := range planes {
			attended.Attended = append(attended.Attended, fmt.Sprintf("cp-%d", i+1))
		}
		s.Want(attended)
		s.over(t, upgrade.Done)
		s.updated(t, s.wanted, "cp-1", "w-1", "w-2")
	}
	// The operator may do it without the engine.
	s := newSite(t, 1, 1)
	s.Want(request(s.spec()))
	s.until(t, "the operator's turn", func(state upgrade.State) bool { return phases(state)["cp-1"] == upgrade.NodeAttended })
	s.SetCordon("cp-1", true) // as the twin wants it of who restarts
	s.Machines["cp-1"].Step(s.Now().Add(time.Hour), hullmark.UpdateDirection{Serial: 2, Action: hullmark.UpdateTry, Document: upgradetest.ID(s.wanted)})
	s.over(t, upgrade.Done)
	s.updated(t, s.wanted, "cp-1", "w-1")
}
