package upgrade_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
)

var all = []string{"cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3", "w-4", "w-5"}

func TestUpgradeOfACluster(t *testing.T) {
	s := newSite(t, 3, 5)
	s.fill()
	s.Want(request(s.spec()))
	last := s.over(t, upgrade.Done)
	s.updated(t, s.wanted, all...)
	var order []string
	slices.SortStableFunc(last.Nodes, func(a, b upgrade.NodeState) int { return a.Drained.Compare(b.Drained) })
	for _, n := range last.Nodes {
		order = append(order, n.Name)
		if n.Phase != upgrade.NodeDone || time.Duration(n.Away) < 3*time.Minute || n.Back.Before(n.Drained) || n.Ended.Before(n.Back) {
			t.Errorf("%+v", n)
		}
	}
	if !slices.Equal(order, all) {
		t.Errorf("they went in the order %v", order)
	}
	if s.Evictions == 0 {
		t.Error("no pod was evicted: this drained nothing")
	}
}

// fill runs pods on all workers: some that a budget keeps together, and what no drain touches.
func (s *site) fill() {
	s.Budgets["shop/web"] = &upgradetest.Budget{Desired: 2}
	for i, node := range []string{"w-1", "w-2", "w-3"} {
		s.Run(node, upgrade.Pod{Namespace: "shop", Name: "web-" + string(rune('a'+i)), Controlled: true, Budgets: []string{"shop/web"}})
	}
	for _, node := range all {
		s.Run(node, upgrade.Pod{Namespace: "kube-system", Name: "flannel-" + node, DaemonSet: true, Controlled: true, EmptyDir: true})
		s.Run(node, upgrade.Pod{Namespace: "kube-system", Name: "static-" + node, Mirror: true})
	}
}

func TestBatchesByPool(t *testing.T) {
	s := newSite(t, 3, 5)
	s.Unavailable = 3
	spec := s.spec()
	spec.Pools = map[string]int{"a": 3}
	s.Want(request(spec))
	most := map[string]int{}
	s.until(t, "the end", func(state upgrade.State) bool {
		away := map[string]int{}
		for _, n := range state.Nodes {
			if n.Phase == upgrade.NodeAway {
				away[n.Pool]++
				most[n.Pool] = max(most[n.Pool], away[n.Pool])
			}
		}
		if len(away) > 1 {
			t.Errorf("nodes of several pools are away: %v", away)
		}
		return state.Phase.Over()
	})
	if most[""] != 1 || most["a"] != 3 || most["b"] != 1 {
		t.Errorf("away at most: %v", most)
	}
	s.kept(t)
	s.updated(t, s.wanted, all...)
}

func TestRestart(t *testing.T) {
	s := newSite(t, 3, 5)
	s.Want(request(restart(s.spec())))
	boots := map[string]string{}
	for name, m := range s.Machines {
		boots[name] = m.BootID
	}
	s.until(t, "the second control plane", func(state upgrade.State) bool { return phases(state)["cp-2"] == upgrade.NodeAway })
	s.Machines["w-5"].Reboot(s.Now(), hullmark.UpdateRestart) // by itself
	s.add("w-6", hullmark.Worker, "b")
	last := s.until(t, "the end", func(state upgrade.State) bool { return state.Phase.Over() })
	for name, boot := range boots {
		if m := s.Machines[name]; m.BootID == boot || m.Boots != 2 || !m.Ready {
			t.Errorf("%s is in boot %s, its %d.", name, m.BootID, m.Boots)
		}
	}
	if n := nodeOf(t, last, "w-6"); s.Machines["w-6"].Boots != 1 || !strings.Contains(n.Note, "joined") {
		t.Errorf("a node that joined meanwhile restarted, too: %+v", n)
	}
	if n := nodeOf(t, last, "w-5"); !strings.Contains(n.Note, "by itself") {
		t.Errorf("a node that restarted meanwhile: %+v", n)
	}
	s.updated(t, s.present, all...)
}

// restart is a spec without a release.
func restart(s upgrade.Spec) upgrade.Spec {
	return upgrade.Spec{ID: s.ID, Action: hullmark.UpdateRestart, Reason: "certificates", Staging: 1, Unavailable: 1, Timeouts: s.Timeouts}
}

func TestNodeThatFallsBackStopsTheUpgrade(t *testing.T) {
	s := newSite(t, 3, 5)
	s.fill()
	s.Machines["w-2"].Manner = upgradetest.FallsBack
	s.Want(request(s.spec()))
	last := s.over(t, upgrade.Failed)
	if last.Failed == nil || last.Failed.Code != "trial-failed" {
		t.Errorf("it stopped by %+v", last.Failed)
	}
	s.updated(t, s.wanted, "cp-1", "cp-2", "cp-3", "w-1")
	s.updated(t, s.present, "w-2", "w-3", "w-4", "w-5")
	if of := phases(last); of["w-2"] != upgrade.NodeFailed || of["w-3"] != upgrade.NodeWaiting {
		t.Errorf("the nodes are %v", of)
	}
	// Once the release is mended, or the machine, the next upgrade goes on where this one stopped.
	s.Machines["w-2"].Manner = upgradetest.Good
	spec := s.spec()
	spec.ID = "00000000000000aa"
	s.Want(request(spec))
	last = s.over(t, upgrade.Done)
	s.updated(t, s.wanted, all...)
	if n := nodeOf(t, last, "cp-1"); n.Before == 0 || n.Away != 0 {
		t.Errorf("how long it was away is forgotten: %+v", n)
	}
}

func TestNodeThatNeverComesBack(t *testing.T) {
	for name, role := range map[string]hullmark.Role{"w-1": hullmark.Worker, "cp-1": hullmark.ControlPlane} {
		s := newSite(t, 3, 5)
		s.Machines[name].Manner = upgradetest.Vanishes
		s.Want(request(s.spec()))
		last := s.over(t, upgrade.Failed)
		if last.Failed == nil || last.Failed.Code != "node-lost" || !strings.Contains(last.Failed.Got, "not Ready") {
			t.Errorf("%s: it stopped by %+v", role, last.Failed)
		}
		if n := nodeOf(t, last, name); time.Duration(n.Waited) > time.Minute || n.Ended.Sub(n.Drained) < time.Hour {
			t.Errorf("%+v", n)
		}
	}
}

// A node that was off when it was directed must not restart whenever it comes back.
func TestDirectionIsWithdrawn(t *testing.T) {
	s := newSite(t, 3, 1)
	s.Want(request(s.spec()))
	s.until(t, "the worker's release", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeStaged })
	s.Machines["w-1"].Manner = upgradetest.Deaf
	last := s.over(t, upgrade.Failed)
	if last.Failed.Code != "node-lost" || !strings.Contains(last.Failed.Got, "in the boot from before") {
		t.Errorf("it stopped by %+v", last.Failed)
	}
	if d := s.Direction(s.Machines["w-1"]); d.Serial != 0 {
		t.Errorf("the direction %+v stands", d)
	}
	withdrawn := nodeOf(t, last, "w-1").Serial
	s.Machines["w-1"].Manner = upgradetest.Good
	if s.Tick(time.Hour); s.Machines["w-1"].Boots != 1 {
		t.Error("it restarted afterwards")
	}
	spec := s.spec()
	spec.ID = "00000000000000aa"
	s.Want(request(spec))
	// The machine may have followed it at the last moment: no direction has its serial again.
	s.until(t, "a direction", func(upgrade.State) bool { return s.Direction(s.Machines["w-1"]).Serial != 0 })
	if next := s.Direction(s.Machines["w-1"]).Serial; next <= withdrawn {
		t.Errorf("direction %d follows %d", next, withdrawn)
	}
	s.over(t, upgrade.Done)
}

// A machine that restarts by itself, before it hears that it is to restart, restarts twice: it is done after the second time.
func TestRestartsMeet(t *testing.T) {
	s := newSite(t, 3, 1)
	m := s.Machines["w-1"]
	s.Want(request(restart(s.spec())))
	m.Pace.Ask = 10 * time.Minute
	s.until(t, "the drained worker", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeAway })
	m.Reboot(s.Now(), hullmark.UpdateRestart)
	s.until(t, "the worker", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeDone })
	if !m.Ready || m.Boots != 3 {
		t.Errorf("it is done in boot %d, Ready: %t", m.Boots, m.Ready)
	}
}

// Somebody stages another release into the slot: it is staged once more before the node is cordoned.
func TestSlotIsWrittenByOthers(t *testing.T) {
	s := newSite(t, 3, 1)
	m := s.Machines["w-1"]
	s.Want(request(s.spec()))
	s.until(t, "the worker's release", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeStaged })
	m.Slot(upgradetest.ID(s.present))
	last := s.over(t, upgrade.Done)
	if n := nodeOf(t, last, "w-1"); n.Tries != 2 {
		t.Errorf("%+v", n)
	}
	s.updated(t, s.wanted, "w-1")
}

// An engine whose evictions take longer than it may act stops in between.
func TestEvictionsThatTakeLong(t *testing.T) {
	s := newSite(t, 3, 2)
	for _, name := range []string{"a", "b", "c"} {
		s.Run("cp-1", upgrade.Pod{Namespace: "x", Name: name, Controlled: true})
	}
	s.Want(request(s.spec()))
	s.until(t, "the drain", func(state upgrade.State) bool { return phases(state)["cp-1"] == upgrade.NodeDraining })
	evicted := 0
	s.Before = func(call string) error {
		if strings.HasPrefix(call, "evict") {
			evicted++
			s.Tick(30 * time.Second)
		}
		return nil
	}
	for evicted == 0 {
		turned(t, s.engines[0])
		s.Tick(2 * time.Second)
	}
	if evicted != 1 {
		t.Errorf("%d evictions in one turn", evicted)
	}
	s.Before = nil
	s.over(t, upgrade.Done)
}

func TestNodeThatRefusesIsNotCordoned(t *testing.T) {
	s := newSite(t, 3, 2)
	s.Machines["w-2"].Manner = upgradetest.Refuses
	s.Want(request(s.spec()))
	last := s.over(t, upgrade.Failed)
	if last.Failed.Code != "update-refused" || nodeOf(t, last, "w-2").Drained != (time.Time{}) {
		t.Errorf("it stopped by %+v: %s", last.Failed, show(last))
	}
}

func TestStagingIsTriedAgainIfItsReasonPasses(t *testing.T) {
	s := newSite(t, 3, 1)
	s.Machines["w-1"].Manner = upgradetest.InterruptedOnce
	s.Want(request(s.spec()))
	if last := s.over(t, upgrade.Done); nodeOf(t, last, "w-1").Tries != 2 {
		t.Errorf("%s", show(last))
	}
	s = newSite(t, 3, 1)
	s.Machines["w-1"].Manner = upgradetest.Interrupted
	s.Want(request(s.spec()))
	if last := s.over(t, upgrade.Failed); last.Failed.Code != "stage-timeout" || last.Failed.Got != "not yet: not yet" || nodeOf(t, last, "w-1").Tries < 10 {
		t.Errorf("%s", show(last))
	}
}

// A node that refuses to restart for a reason that passes is asked again, and stays cordoned meanwhile.
func TestTrialIsAskedForAgainIfItsReasonPasses(t *testing.T) {
	for _, role := range []hullmark.Role{hullmark.ControlPlane, hullmark.Worker} {
		s := newSite(t, 3, 1)
		name := map[hullmark.Role]string{hullmark.ControlPlane: "cp-2", hullmark.Worker: "w-1"}[role]
		s.Machines[name].Manner = upgradetest.Hesitates
		s.Want(request(s.spec()))
		s.over(t, upgrade.Done)
		s.updated(t, s.wanted, "cp-1", "cp-2", "cp-3", "w-1")
	}
}

// To another minor release of Kubernetes control planes go first, and workers do not even write it before: they would refuse.
func TestMinorRelease(t *testing.T) {
	s := newSite(t, 3, 3)
	s.version(1, 35, 1, 36)
	for _, name := range []string{"w-1", "w-2", "w-3"} {
		s.Machines[name].Manner = upgradetest.Skewed
	}
	e := s.engine()
	e.Judge = upgrade.ByVersions
	s.engines = []*upgrade.Engine{e}
	if p := s.plan(t, s.spec(), upgrade.ByVersions); len(p.Against) > 0 {
		t.Errorf("against it: %v", codes(p))
	}
	s.Want(request(s.spec()))
	s.until(t, "the last control plane", func(state upgrade.State) bool {
		of := phases(state)
		if of["cp-3"] != upgrade.NodeReleasing && of["cp-3"] != upgrade.NodeDone && of["w-1"] != upgrade.NodeWaiting {
			t.Fatalf("a worker is %s, and the control planes are %v", of["w-1"], of)
		}
		return of["cp-3"] == upgrade.NodeDone
	})
	// The cluster records its release some time after its last control plane.
	s.until(t, "a worker's staging", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeStaging })
	s.Tick(3 * time.Minute)
	for _, name := range []string{"w-1", "w-2", "w-3"} {
		s.Machines[name].Manner = upgradetest.Good
	}
	last := s.over(t, upgrade.Done)
	s.updated(t, s.wanted, "cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3")
	if n := nodeOf(t, last, "w-1"); n.Tries < 2 || n.Note != "" {
		t.Errorf("%+v", n)
	}
	// Two at a time are too many, and back is none.
	for _, versions := range [][4]int{{1, 34, 1, 36}, {1, 36, 1, 35}} {
		s := newSite(t, 3, 1)
		s.version(versions[0], versions[1], versions[2], versions[3])
		if got := codes(s.plan(t, s.spec(), upgrade.ByVersions)); !slices.Contains(got, "kubernetes-step") {
			t.Errorf("%v: against it %v", versions, got)
		}
	}
}

// version says of the two releases which Kubernetes they bring.
func (s *site) version(fromMajor, fromMinor, toMajor, toMinor int) {
	etcd := hullmark.Version{Major: 3, Minor: 6, Patch: 8}
	for d, version := range map[*measurements.Document]hullmark.Version{&s.present: {Major: fromMajor, Minor: fromMinor, Patch: 1}, &s.wanted: {Major: toMajor, Minor: toMinor, Patch: 1}} {
		before := upgradetest.ID(*d)
		d.Image.Versions = hullmark.Versions{Kubernetes: version, Etcd: etcd}
		delete(s.Documents, before)
		id := upgradetest.ID(*d)
		s.Documents[id], s.releases[id] = *d, upgradetest.RootHash(*d)
		for i := range s.Policy.Documents {
			if s.Policy.Documents[i].Document == before {
				s.Policy.Documents[i].Document = id
			}
		}
		for _, m := range s.Machines {
			if m.Document == before {
				m.Document = id
			}
		}
	}
}

func TestStagingTakesTooLong(t *testing.T) {
	s := newSite(t, 3, 1)
	s.Machines["w-1"].Pace.Stage = 5 * time.Hour
	s.Want(request(s.spec()))
	if last := s.over(t, upgrade.Failed); last.Failed.Code != "stage-timeout" {
		t.Errorf("it stopped by %+v", last.Failed)
	}
}

func TestSomebodyElsesCordon(t *testing.T) {
	s := newSite(t, 3, 3)
	s.fill()
	s.SetCordon("w-1", true)
	s.SetCordon("cp-2", true)
	s.Want(request(s.spec()))
	s.over(t, upgrade.Done)
	for _, name := range []string{"w-1", "cp-2"} {
		if cordoned, by := s.Cordoned(name); !cordoned || by != "" {
			t.Errorf("%s: cordoned %t, by %q", name, cordoned, by)
		}
	}
	for _, name := range []string{"w-2", "cp-1"} {
		if cordoned, _ := s.Cordoned(name); cordoned {
			t.Errorf("%s is cordoned still", name)
		}
	}
}

func TestBudgetThatBlocks(t *testing.T) {
	s := newSite(t, 3, 3)
	s.fill()
	s.Budgets["shop/web"].Desired = 3
	s.Want(request(s.spec()))
	last := s.over(t, upgrade.Failed)
	if c := last.Failed; c.Code != "drain-timeout" || !strings.Contains(c.Title, "PodDisruptionBudget shop/web") || !strings.Contains(c.Title, "shop/web-") {
		t.Errorf("it stopped by %+v", c)
	}
	if n := nodeOf(t, last, "w-1"); n.Phase != upgrade.NodeFailed || n.Ended.Sub(n.Began) < 15*time.Minute {
		t.Errorf("%+v", n)
	}
	if s.Machines["w-1"].Boots != 1 {
		t.Error("a node that was not drained restarted")
	}
	spec := s.spec()
	spec.ID, spec.Drain.Skip = "00000000000000aa", true
	s.Want(request(spec))
	last = s.over(t, upgrade.Done)
	for _, name := range []string{"w-1", "w-2", "w-3"} {
		if n := nodeOf(t, last, name); n.Phase == upgrade.NodeDone && s.Machines[name].Boots == 1 || n.Phase == upgrade.NodeSkipped && n.Failed == nil {
			t.Errorf("%+v", n)
		}
	}
	if phases(last)["w-1"] != upgrade.NodeSkipped {
		t.Errorf("%s", show(last))
	}
}

func TestPodsThatWouldBeLost(t *testing.T) {
	bare, scratch := upgrade.Pod{Namespace: "shop", Name: "bare"}, upgrade.Pod{Namespace: "shop", Name: "scratch", Controlled: true, EmptyDir: true}
	for _, c := range []struct {
		pod   upgrade.Pod
		drain upgrade.Drain
	}{{bare, upgrade.Drain{Force: true}}, {scratch, upgrade.Drain{DeleteEmptyDir: true}}} {
		s := newSite(t, 3, 2)
		s.Run("w-1", c.pod)
		s.Want(request(s.spec()))
		if last := s.over(t, upgrade.Failed); last.Failed.Code != "pods-lost" || !strings.Contains(last.Failed.Title, c.pod.String()) || s.Evictions != 0 {
			t.Errorf("%s: it stopped by %+v, after %d evictions", c.pod, last.Failed, s.Evictions)
		}
		spec := s.spec()
		spec.ID, spec.Drain = "00000000000000aa", c.drain
		s.Want(request(spec))
		if s.over(t, upgrade.Done); s.Evictions == 0 {
			t.Errorf("%s was not evicted", c.pod)
		}
	}
	ended := bare
	ended.Finished = true
	s := newSite(t, 3, 1)
	s.Run("w-1", ended)
	s.Want(request(s.spec()))
	s.over(t, upgrade.Done)
}

func TestNodesComeAndGo(t *testing.T) {
	s := newSite(t, 3, 3)
	s.Want(request(s.spec()))
	s.until(t, "a worker away", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeAway })
	s.Remove("w-1")
	s.Remove("w-3")
	s.add("w-9", hullmark.Worker, "a")
	last := s.over(t, upgrade.Done)
	s.updated(t, s.wanted, "w-2", "w-9")
	if of := phases(last); of["w-1"] != upgrade.NodeGone || of["w-3"] != upgrade.NodeGone {
		t.Errorf("the nodes are %v", of)
	}
}

// While a control plane is not there, none other goes.
func TestControlPlaneWaitsForTheOthers(t *testing.T) {
	s := newSite(t, 3, 1)
	s.Want(request(s.spec()))
	s.until(t, "the first control plane", func(state upgrade.State) bool { return phases(state)["cp-1"] == upgrade.NodeAway })
	s.Down["cp-1"] = true
	state := s.until(t, "the gate", func(state upgrade.State) bool { return state.Waits != "" && state.Waited > 0 })
	if !strings.Contains(state.Waits, "cp-1") || !strings.Contains(state.Waits, "connection refused") {
		t.Errorf("it waits for %q", state.Waits)
	}
	if boots := s.Machines["cp-2"].Boots; boots != 1 {
		t.Errorf("cp-2 booted %d times", boots)
	}
	delete(s.Down, "cp-1")
	s.over(t, upgrade.Done)
}

// One that goes down while the other is drained keeps it from restarting, too.
func TestControlPlaneIsLookedAtOnceMore(t *testing.T) {
	s := newSite(t, 3, 1)
	s.Run("cp-1", upgrade.Pod{Namespace: "a", Name: "b", Controlled: true})
	s.Want(request(s.spec()))
	s.until(t, "the drain", func(state upgrade.State) bool { return phases(state)["cp-1"] == upgrade.NodeDraining })
	s.Down["cp-3"] = true
	last := s.over(t, upgrade.Failed)
	if last.Failed.Code != "upgrade-stalled" || !strings.Contains(last.Failed.Title, "cp-3") || s.Machines["cp-1"].Boots != 1 {
		t.Errorf("it stopped by %+v, and cp-1 booted %d times", last.Failed, s.Machines["cp-1"].Boots)
	}
}

func TestNothingGoesOn(t *testing.T) {
	s := newSite(t, 3, 2)
	s.Machines["w-1"].Manner = upgradetest.Vanishes
	s.Machines["w-1"].Reboot(s.Now(), hullmark.UpdateRestart)
	s.Tick(time.Minute)
	s.Want(request(s.spec()))
	last := s.until(t, "the end", func(state upgrade.State) bool { return state.Phase.Over() })
	if last.Phase != upgrade.Failed || last.Failed.Code != "upgrade-stalled" || !strings.Contains(last.Failed.Title, "w-1 is not Ready") {
		t.Errorf("it ended as %s: %+v", last.Phase, last.Failed)
	}
	spec := s.spec()
	spec.ID, spec.Except = "00000000000000aa", []string{"w-1"}
	s.Want(request(spec))
	if last := s.until(t, "the end", func(state upgrade.State) bool { return state.Phase.Over() }); last.Phase != upgrade.Done {
		t.Errorf("without it: %s", show(last))
	}
	s.updated(t, s.wanted, "cp-1", "cp-2", "cp-3", "w-2")
}

func TestSomebodyElseDirects(t *testing.T) {
	s := newSite(t, 3, 1)
	s.Machines["w-1"].Pace.Stage = time.Hour
	s.Want(request(s.spec()))
	s.until(t, "the worker's staging", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeStaging })
	view, err := s.Look(t.Context(), upgrade.Need{})
	if err != nil {
		t.Fatal(err)
	}
	m := s.Machines["w-1"]
	if err := s.Direct(t.Context(), m.EKID, hullmark.UpdateDirection{Serial: 77, Action: hullmark.UpdateRestart}, view.Directions[m.EKID].Version); err != nil {
		t.Fatal(err)
	}
	if last := s.over(t, upgrade.Failed); last.Failed.Code != "direction-overtaken" {
		t.Errorf("it stopped by %+v", last.Failed)
	}
}

func TestKindsOfMachines(t *testing.T) {
	s := newSite(t, 3, 2)
	oldKind, newKind := upgradetest.Document(1, 2), upgradetest.Document(2, 2)
	for _, d := range []hullmark.DocumentID{upgradetest.ID(oldKind), upgradetest.ID(newKind)} {
		s.releases[d] = map[hullmark.DocumentID]hullmark.RootHash{upgradetest.ID(oldKind): upgradetest.RootHash(oldKind), upgradetest.ID(newKind): upgradetest.RootHash(newKind)}[d]
	}
	s.Documents[upgradetest.ID(oldKind)] = oldKind
	s.Machines["w-2"].Document = upgradetest.ID(oldKind)
	s.Want(request(s.spec()))
	if last := s.over(t, upgrade.Failed); last.Failed.Code != "document-missing" {
		t.Errorf("it stopped by %+v", last.Failed)
	}
	s.Documents[upgradetest.ID(newKind)] = newKind
	s.Policy.Documents = append(s.Policy.Documents, s.Policy.Documents[0])
	s.Policy.Documents[len(s.Policy.Documents)-1].Document = upgradetest.ID(newKind)
	spec := s.spec()
	spec.ID, spec.Documents = "00000000000000aa", append(spec.Documents, upgradetest.ID(newKind))
	s.Want(request(spec))
	s.over(t, upgrade.Done)
	if s.Machines["w-2"].Document != upgradetest.ID(newKind) || s.Machines["w-1"].Document != upgradetest.ID(s.wanted) {
		t.Error("a machine was tried by the document of another kind")
	}
}

func TestJudgeStopsAMove(t *testing.T) {
	s := newSite(t, 3, 2)
	e := s.engine()
	e.Judge = func(m upgrade.Move) error {
		if m.Role == hullmark.Worker && len(m.Others) == 4 && m.From.Image.Version == "1" && m.To.Image.Version == "2" {
			return &hullmark.Condition{Code: "version-skew", Title: "too new", Next: "wait"}
		}
		return nil
	}
	s.engines = []*upgrade.Engine{e}
	s.Want(request(s.spec()))
	if last := s.over(t, upgrade.Failed); last.Failed.Code != "version-skew" {
		t.Errorf("it stopped by %+v", last.Failed)
	}
}

// blind cannot look at the cluster.
type blind struct{ upgrade.Cluster }

func (blind) Look(context.Context, upgrade.Need) (upgrade.View, error) {
	return upgrade.View{}, errors.New("ConfigMap hullmark/node.x: mend it")
}

// What keeps an engine from looking is in the state, and nothing is done meanwhile.
func TestEngineThatCannotLook(t *testing.T) {
	s := newSite(t, 3, 1)
	s.Want(request(s.spec()))
	e := s.engine()
	e.Cluster = blind{s.Cluster}
	if _, err := e.Turn(t.Context()); err == nil {
		t.Error("nobody is told")
	}
	s.until(t, "the start", func(state upgrade.State) bool { return state.Phase == upgrade.Running })
	s.engines = nil // The one that acted ends.
	turned(t, e)
	s.Tick(41 * time.Second)
	if _, err := e.Turn(t.Context()); err == nil {
		t.Error("nobody is told")
	}
	if state := s.Last(); !strings.Contains(state.Waits, "mend it") {
		t.Errorf("people see %q", state.Waits)
	}
	s.over(t, upgrade.Done)
}

// Whoever deletes the state, or what was asked for, leaves no node cordoned.
func TestObjectsAreDeleted(t *testing.T) {
	s := newSite(t, 3, 3)
	s.Want(request(s.spec()))
	s.until(t, "a worker away", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeAway })
	s.DropState()
	s.over(t, upgrade.Done)
	s.updated(t, s.wanted, "cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3")

	s = newSite(t, 3, 3)
	s.Want(request(s.spec()))
	s.until(t, "a worker away", func(state upgrade.State) bool { return phases(state)["w-1"] == upgrade.NodeAway })
	s.DropRequest()
	s.over(t, upgrade.Aborted)
	s.updated(t, s.wanted, "w-1")
	s.updated(t, s.present, "w-2", "w-3")
}
