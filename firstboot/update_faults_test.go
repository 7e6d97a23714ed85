package firstboot

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/internal/explore/search"
)

// first is a machine as it was before its update. Its other slot has a release from before that is accepted no more.
func first(left faults) life {
	return life{Slots: update.Slots{Default: "a", A: rootOf("old"), B: rootOf("older")}, Past: map[hullmark.UpdateAction]uint64{}, Left: left}
}

// machine is what is explored.
func (u *explored) machine(most int) search.Machine[life] {
	return search.Machine[life]{Run: u.boot, Most: most, Key: func(l life) string {
		l.Slots.Running = ""
		text, err := json.Marshal(l)
		if err != nil {
			u.t.Fatal(err)
		}
		return string(text)
	}}
}

// boot is one boot: what the host did before, what firmware starts, and an agent, or one after the other.
func (u *explored) boot(from life, b *search.Boot) (life, bool) {
	u.life, u.b = from, b
	u.Past = maps.Clone(from.Past)
	u.doing, u.sick, u.open, u.ready, u.checked, u.kept, u.busy, u.beside = "", "", false, false, false, false, false, false
	u.start()
	for _, file := range []string{filepath.Join(u.stage.agent.RunDir, readyMark), filepath.Join(u.stage.agent.RunDir, keysFile), filepath.Join(u.stage.agent.StateDir, statedisk.ManifestFile)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			u.t.Fatal(err)
		}
	}
	ends, killed := u.until(u.firstRun)
	for killed {
		ends, killed = u.until(u.laterRun)
	}
	u.keepNote()
	return u.life, ends
}

// keepNote takes what the state disk keeps into the next boot.
func (u *explored) keepNote() {
	k := &u.stage.agent.kept
	if _, err := k.opened(); err != nil { // It was by an earlier agent of this boot, if at all.
		if err := k.resume(); errors.Is(err, os.ErrNotExist) {
			return // Nothing was written.
		} else if err != nil {
			u.t.Fatal(err)
		}
	}
	n, err := updater{u.stage.agent}.readNote()
	if err != nil {
		u.t.Fatal(err)
	}
	text, err := json.Marshal(n)
	if err != nil {
		u.t.Fatal(err)
	}
	u.Note = string(text)
}

// until runs an agent until it ends, its machine restarts, or nothing is left to do.
func (u *explored) until(run func() bool) (ends, killed bool) {
	defer func() {
		switch p := recover().(type) {
		case nil, powerCut:
		case agentKilled:
			ends, killed = false, true
		default:
			panic(p)
		}
		u.busy = false
	}()
	return run(), false
}

// start is what the host does, and then firmware: a slot that holds nothing does not start.
func (u *explored) start() {
	u.Slots.Running = u.Slots.Default
	switch u.fault(&u.Left.Host, "off", "the host starts the other slot", "the firmware forgets", "an old copy is in the other slot", "the other slot is a copy of this one", "all is an old copy") {
	case "the host starts the other slot":
		u.Next = true
	case "the firmware forgets":
		u.Next, u.Told, u.Tried = false, false, u.Tried || u.Next
	case "an old copy is in the other slot":
		u.put("older")
	case "the other slot is a copy of this one":
		u.put(u.running())
	case "all is an old copy":
		u.Slots, u.Next = update.Slots{Default: "a", Running: "a", A: rootOf("old"), B: rootOf("older")}, false
	}
	if u.Next && u.other() != "" {
		u.Slots.Running = map[string]string{"a": "b", "b": "a"}[u.Slots.Default]
	}
	u.Next = false
	u.b.Say("boot of slot %s: %s", u.Slots.Running, u.running())
}

// agent is one that begins.
func (u *explored) agent() updater {
	a := u.stage.agent
	fresh := &Agent{
		OpenTPM: a.OpenTPM, Config: a.Config, Disk: a.Disk, Machine: systemOf{u.stage.machine, u}, Cluster: clusterOf{u.stage.cluster, u}, StateDir: a.StateDir, RunDir: a.RunDir,
		Timing: a.Timing, Status: a.Status, Slots: u, Release: rootOf(u.running()), Versions: versions(u.t, kubernetesOf(u.running())), config: a.config, over: make(chan error, 1),
	}
	fresh.kept.stateDir, fresh.kept.keysPath = fresh.StateDir, filepath.Join(fresh.RunDir, keysFile)
	u.stage.agent = fresh
	if err := (updater{fresh}).lookAtSlots(u.t.Context()); err != nil {
		u.t.Fatal(err)
	}
	return updater{fresh}
}

// firstRun is a boot's first agent, from its ticket on.
func (u *explored) firstRun() (ends bool) {
	a := u.agent()
	if r := u.running(); r != "old" && (r != "new" || u.Withdrawn) {
		if !a.onTrial() {
			u.b.Fail("a release is kept that gets no ticket")
		}
		a.endTrial(u.t.Context(), &hullmark.Condition{Code: "measurement-mismatch", Title: "no ticket"})
		return false
	}
	if u.Note != "" {
		u.stage.keep(updateFile, u.Note)
	}
	if u.Withdrawn {
		u.stage.keep(policyCache, u.cached())
	}
	u.stage.open(u.t)
	u.open = true
	if err := a.settle(); err != nil {
		return u.restarts(a, err)
	}
	if a.onTrial() && (u.Asked != u.running() || u.Begun) {
		u.b.Fail("a release runs that nobody asked for")
	}
	if u.Begun = a.onTrial(); !u.Begun {
		u.Asked, u.Told = "", false
	}
	u.look(a)
	if !u.journey(a) {
		return false
	}
	return u.work(a)
}

// laterRun is an agent that begins after another in the same boot.
func (u *explored) laterRun() (ends bool) {
	a := u.agent()
	if err := setup(a).checkTPM(u.t.Context()); err != nil {
		return u.restarts(a, err)
	}
	if !a.onTrial() { // The agent before it may have been about to restart the machine.
		u.Asked, u.Told, u.Begun = "", false, false
	}
	u.look(a)
	return u.work(a)
}

// restarts ends a boot as Run does.
func (u *explored) restarts(a updater, err error) (ends bool) {
	if !errors.Is(err, errReboot) {
		u.b.Fail("the boot goes on with an error: %v", err)
	}
	c := (*hullmark.Condition)(nil)
	if !errors.As(err, &c) {
		return false
	}
	if c.Code == codeTrialNotAsked && u.Asked == u.running() && u.Told && !u.Begun {
		u.b.Fail("a trial that was asked for is refused")
	}
	u.ends(a, func() { a.noteTrial(u.t.Context(), c) })
	return false
}

// ends ends a trial.
func (u *explored) ends(a updater, how func()) {
	how()
	if _, err := a.kept.opened(); err == nil && a.onTrial() && u.Asked == u.running() {
		u.Asked = ""
	}
}

// journey takes the node to Ready, and reports whether it came there.
func (u *explored) journey(a updater) bool {
	if a.onTrial() {
		switch u.sick = u.fault(&u.Left.Sick, "the trial", "the node is not Ready", "a check fails", "its time is over"); u.sick {
		case "its time is over":
			u.ends(a, func() { a.endTrial(u.t.Context(), a.tooLate()) })
			return false
		case "a check fails":
			u.Left.Order = 0 // An operator may waive it: that is explored without.
		}
	}
	f := &finishing{conversation: &conversation{agent: a.Agent, stream: deaf{}}, proceed: &wire.Proceed{NodeName: "node-1", Role: string(hullmark.Worker)}}
	steps := slices.DeleteFunc(f.steps(), func(s Step) bool { return s.Name != StepReady })
	if err := (Journal{Status: a.Status}).Run(u.t.Context(), steps...); err != nil {
		u.ends(a, func() { a.noteTrial(u.t.Context(), hullmark.AsCondition(err, StepReady, "failed")) })
		return false
	}
	if err := f.markReady(); err != nil {
		u.t.Fatal(err)
	}
	return !restarting(a)
}

// restarting reports whether the machine is to restart.
func restarting(a updater) bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

// look wants the status to say what is.
func (u *explored) look(a updater) hullmark.UpdateStatus {
	s, _ := a.updateStatus()
	switch {
	case s.Phase == hullmark.UpdateStaging:
		u.b.Fail("the status says that the node is staging, and it is not")
	case s.Phase == hullmark.UpdateTrial && !a.onTrial():
		u.b.Fail("the status says that a release is tried, and none is")
	case s.Phase == hullmark.UpdateFailed && s.Failed != nil && s.Failed.Code == codeTrialFailed && !u.Tried:
		u.b.Fail("the status says that a trial failed, and there was none")
	}
	return s
}

// work is what a Ready node is asked to do, until nothing is left, or the machine restarts.
func (u *explored) work(a updater) (ends bool) {
	for range 12 {
		s := u.look(a)
		kept := s.Release() == rootOf("new")
		failed := s.Phase == hullmark.UpdateFailed && s.Failed != nil && s.Failed.Code == codeTrialFailed
		if kept || failed || u.Withdrawn {
			u.atEnd(a, s, kept)
			if u.fault(&u.Left.Host, "at the end", "the host starts the other slot") != "" {
				u.Next = true
				return false
			}
			if u.Withdrawn {
				if d, ok := u.lied(); !ok {
					return true
				} else if u.followed(a, d) {
					return false
				}
				continue
			}
			if !failed || u.fault(&u.Left.Again, "it has failed", "it is asked for again") == "" {
				return true
			}
			if nameOf(s.B) == "new" || nameOf(s.A) == "new" {
				s.Phase, s.Failed = hullmark.UpdateStaged, nil
			}
		}
		if o, ok := u.directed(a, s); ok {
			if u.followed(a, o) {
				return false
			}
		}
	}
	u.b.Fail("the node is asked again and again")
	return false
}

// atEnd wants a good end.
func (u *explored) atEnd(a updater, s hullmark.UpdateStatus, kept bool) {
	switch {
	case s.Running != s.Default:
		u.b.Fail("at the end, a release is on trial")
	case kept && s.Phase != hullmark.UpdateIdle && !u.Withdrawn:
		u.b.Fail("the new release is kept, and the status says that it is %s", s.Phase)
	case kept && s.Failed != nil && s.Failed.Code == codeNotAsked:
		u.b.Fail("the new release is kept, and the status says that nobody asked for it")
	case u.Asked != "":
		u.b.Fail("at the end, a trial that was asked for was not begun")
	}
}

// followed does what a direction says, and reports whether the machine restarts.
func (u *explored) followed(a updater, d told) bool {
	n, err := a.readNote()
	if err != nil {
		u.t.Fatal(err)
	}
	if !(director{a}).take(d.order) {
		return false
	}
	if d.Serial <= u.Past[d.Action] || d.Serial < n.Serial {
		u.b.Fail("a direction is followed twice")
	}
	u.Past[d.Action] = d.Serial
	before := u.Asked
	if d.Action == hullmark.UpdateTry || d.Action == hullmark.UpdateRollback {
		u.Asked, u.Begun = d.release, false
	}
	if d.Action == hullmark.UpdateStage {
		u.Tried = false
	}
	u.doing = d.release
	err = a.obeyAlone(context.Background(), d.order)
	if errors.Is(err, errReboot) {
		return true
	}
	u.Asked, u.doing = before, ""
	return false
}

// updateScenarios are the faults that may come together: in `make explore`, and in its full form.
var updateScenarios = []struct {
	name        string
	small, full faults
}{
	{"updates", faults{Cut: 1, Kill: 1, Host: 1, Sick: 1, Again: 1}, faults{Cut: 2, Kill: 1, Host: 2, Sick: 1, Again: 1}},
	{"directions", faults{Cut: 1, Message: 1, Lie: 1, Withdraw: 1}, faults{Cut: 1, Host: 1, Message: 2, Lie: 1, Withdraw: 1}},
	{"operators", faults{Cut: 1, Host: 1, Sick: 1, Order: 1}, faults{Cut: 1, Kill: 1, Host: 1, Sick: 1, Order: 2, Again: 1}},
}

// TestUpdateThroughFaults goes through all that may happen to a machine while its release is changed, one fault of each kind a time.
func TestUpdateThroughFaults(t *testing.T) {
	u := newExplored(t)
	for name, left := range map[string]faults{
		"cuts and hosts": {Cut: 1, Host: 1, Sick: 1}, "lies": {Lie: 1, Withdraw: 1}, "operators": {Sick: 1, Order: 1}, "messages": {Message: 2}, "agents": {Kill: 1, Host: 1},
	} {
		r := u.machine(0).Explore(name, first(left))
		t.Logf("%s: %d states, %d boots, up to %d events, %d ends, %.1f s", name, r.States, r.Steps, r.Events, r.Ends, r.Seconds)
		if r.Violation != "" {
			t.Errorf("%s: %s:\n%s", name, r.Violation, strings.Join(r.Trace, "\n"))
		}
	}
}
