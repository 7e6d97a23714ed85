package firstboot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/internal/agenttest"
)

// updating is a machine whose release is changed, and everything that goes wrong meanwhile. Its disk's manifest, its slots and its
// firmware's variables outlive a boot; agents are of one boot each.
type updating struct {
	t     *testing.T
	stage *stage
	slots *agenttest.Slots
	order map[hullmark.UpdateAction]order
	root  map[string]hullmark.RootHash
	// runs is what the kernel's command line says, if that is another release than the slot holds.
	runs hullmark.RootHash
	// faults are what happens at each choice, by its number: one that is not named is the good case. asked counts the choices.
	faults map[int]string
	asked  int
	trace  []string
}

// newUpdating is a machine with a release, and an order to stage and one to try another, which its policy accepts.
func newUpdating(t *testing.T) *updating {
	t.Helper()
	u := &updating{t: t, stage: newStage(t), root: map[string]hullmark.RootHash{"old": {1}, "new": {2}}}
	s := u.stage
	s.agent.config.ClusterRoot = hullmark.ClusterRootOf(s.root.RawSubjectPublicKeyInfo)
	registers, err := prover.ReadRegisters(s.tpm)
	if err != nil {
		t.Fatal(err)
	}
	document := fmt.Sprintf(`{"image":{"disk":"%064x","rootHash":"%s"},"svn":1,"registers":[{"register":"pcr7","values":{"sha256":"%s"}}]}`,
		1, u.root["new"], hex.EncodeToString(registers[7][:]))
	files := s.signed(t, set{version: 1, number: 1, keyset: "held", documents: []string{document}})
	id := hullmark.DocumentID(sha256.Sum256([]byte(document)))
	u.order = map[hullmark.UpdateAction]order{}
	for n, a := range []hullmark.UpdateAction{hullmark.UpdateStage, hullmark.UpdateTry} {
		u.order[a] = order{hullmark.UpdateDirection{Serial: uint64(n) + 1, Action: a, Document: id}, []byte(document), files[len(files)-1].GetContent()}
	}
	return u
}

// begin makes the machine anew, with these faults.
func (u *updating) begin(faults map[int]string) {
	s := u.stage
	s.agent.StateDir = agenttest.NewStateDir(u.t)
	s.disk.StateDir = s.agent.StateDir
	u.slots = agenttest.NewSlots(u.root["old"])
	u.faults, u.asked, u.trace = faults, 0, nil
}

// choose returns what happens here: the good case, or the fault that is to come at this choice.
func (u *updating) choose(what string, faults ...string) string {
	u.asked++
	if f, ok := u.faults[u.asked]; ok && slices.Contains(faults, f) {
		u.trace = append(u.trace, fmt.Sprintf("%d: %s: %s", u.asked, what, f))
		return f
	}
	return ""
}

// powerCut is what a cut unwinds with.
type powerCut struct{}

// boot starts the machine: what firmware starts, and an agent whose ticket has opened the disk.
func (u *updating) boot() (release hullmark.RootHash, err error) {
	switch u.choose("boot", "the host starts the other slot", "the firmware forgets") {
	case "the host starts the other slot":
		u.slots.SetNext()
	case "the firmware forgets":
		u.slots.Forget()
	}
	u.slots.Before, u.slots.After = nil, nil
	release = u.slots.Boot()
	if u.runs != (hullmark.RootHash{}) {
		release = u.runs
	}
	u.trace = append(u.trace, fmt.Sprintf("boot of slot %s", u.slots.Holds().Running))
	a, s := u.stage.agent, u.stage
	fresh := &Agent{
		OpenTPM: a.OpenTPM, Config: a.Config, Disk: a.Disk, Machine: a.Machine, Cluster: a.Cluster, StateDir: a.StateDir, RunDir: u.t.TempDir(),
		Timing: a.Timing, Status: a.Status, Slots: u.slots, Release: release, config: a.config, over: make(chan error, 1),
	}
	s.agent = fresh
	fresh.kept.stateDir, fresh.kept.keysPath = fresh.StateDir, filepath.Join(fresh.RunDir, keysFile)
	s.open(u.t)
	if err := (updater{fresh}).lookAtSlots(u.t.Context()); err != nil {
		u.t.Fatal(err)
	}
	cut := func(when string) func(update.Op) {
		return func(op update.Op) {
			if op == update.OpTry && u.slots.Holds().B != u.root["new"] {
				u.fail("the firmware is told to start a slot that does not hold the release")
			}
			if u.choose(when+" "+string(op), "power cut") != "" {
				panic(powerCut{})
			}
		}
	}
	u.slots.Before, u.slots.After = cut("before"), cut("after")
	return release, updater{fresh}.settle()
}

// do reports whether the power stayed on while something was done.
func (u *updating) do(what func(context.Context) error) (on bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(powerCut); !ok {
				panic(p)
			}
			on = false
		}
	}()
	return true, what(u.t.Context())
}

// live is the machine's life: an operator who stages and tries until the release has failed or is kept, through all faults. It ends when
// nothing is left to do, and returns what the last boot was of.
func (u *updating) live() hullmark.RootHash {
	for boots := 0; boots < 12; boots++ {
		release, err := u.boot()
		if errors.Is(err, errReboot) {
			continue
		}
		if err != nil {
			u.fail("settle: %v", err)
		}
		a := updater{u.stage.agent}
		if s, _ := a.updateStatus(); s.Phase == hullmark.UpdateStaging {
			u.fail("the machine restarted, and its status says that it is staging")
		}
		if a.onTrial() {
			if u.choose("the trial", "unhealthy", "power cut") != "" {
				a.noteTrial(u.t.Context(), &hullmark.Condition{Code: "check-failed", Title: "unhealthy"})
				continue
			}
			if on, err := u.do(a.commit); err != nil {
				u.fail("commit: %v", err)
			} else if !on {
				continue
			}
		}
		if u.work(a) {
			return release
		}
	}
	u.fail("twelve boots, and no end")
	return hullmark.RootHash{}
}

// work does what directions say in a Ready node, and reports whether nothing is left to do in this boot, or for good.
func (u *updating) work(a updater) (done bool) {
	for _, action := range []hullmark.UpdateAction{hullmark.UpdateStage, hullmark.UpdateTry} {
		s, _ := a.updateStatus()
		if s.Release() == u.root["new"] || s.Phase == hullmark.UpdateFailed && s.Failed.Code == codeTrialFailed {
			return true
		}
		if action == hullmark.UpdateStage && s.Phase == hullmark.UpdateStaged {
			continue
		}
		times := 1
		switch u.choose(string(action), "the direction comes twice", "the direction is lost") {
		case "the direction comes twice":
			times = 2
		case "the direction is lost":
			continue
		}
		for range times {
			on, err := u.do(func(ctx context.Context) error { return a.obey(ctx, u.order[action]) })
			if !on || errors.Is(err, errReboot) {
				return false
			}
			if condition := (*hullmark.Condition)(nil); errors.As(err, &condition) && condition.Code != "not-staged" && times == 1 {
				u.fail("%s: %v", action, err)
			}
		}
	}
	return false
}

func (u *updating) fail(format string, args ...any) {
	u.t.Helper()
	u.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(u.trace, "\n"))
}

// check wants the machine's end to be one of those that are right.
func (u *updating) check(last hullmark.RootHash) {
	h := u.slots.Holds()
	a := updater{u.stage.agent}
	s, _ := a.updateStatus()
	first := map[string]hullmark.RootHash{"a": h.A, "b": h.B}[h.Default]
	tried := slices.ContainsFunc(u.trace, func(line string) bool {
		return line == "boot of slot b" || strings.Contains(line, "forgets") || strings.Contains(line, string(update.OpTry)+": ") || strings.Contains(line, string(update.OpExplain)+": ")
	})
	unhealthy := slices.ContainsFunc(u.trace, func(line string) bool { return strings.Contains(line, "the trial: ") })
	switch {
	case h.Default == "" || first != last:
		u.fail("slot %q starts by itself, with %s; the last boot was of %s", h.Default, first, last)
	case last == u.root["new"] && s.Phase != hullmark.UpdateIdle:
		u.fail("the new release is kept, and the status says %+v", s)
	case last == u.root["old"] && (s.Phase != hullmark.UpdateFailed || s.Failed.Code != codeTrialFailed):
		u.fail("the old release is kept, and the status says %+v", s)
	case last == u.root["old"] && !tried:
		u.fail("the status says that a trial failed, and there was none")
	case last == u.root["new"] && unhealthy:
		u.fail("a release that was not healthy is kept")
	case last == u.root["old"]: // It has failed: whoever starts it once more gets nothing of it.
		u.faults = nil
		u.slots.SetNext()
		if release, err := u.boot(); !errors.Is(err, errReboot) || release == last {
			u.fail("a release that has failed started once more, and was let: %v", err)
		}
		if release, err := u.boot(); release != last || err != nil {
			u.fail("after that %s started: %v", release, err)
		}
	}
}

// everyPair is which of the pairs of faults are tried: one in so many.
var everyPair = 40

// TestUpdateThroughFaults goes through a machine's update with every fault at every place, and with every two of them (in its long form): power cuts before and
// after each operation on slots and variables (and so before and after each note on the disk in between), a host that starts the other
// slot, firmware that forgets, a direction that is lost or comes twice, a trial that is not healthy.
func TestUpdateThroughFaults(t *testing.T) {
	u := newUpdating(t)
	all := []string{"power cut", "the host starts the other slot", "the firmware forgets", "the direction comes twice", "the direction is lost", "unhealthy"}
	run := func(faults map[int]string) int {
		u.begin(faults)
		u.check(u.live())
		return u.asked
	}
	places, runs, pairs := run(nil), 1, 0
	for first := 1; first <= places; first++ {
		for _, f := range all {
			with := run(map[int]string{first: f})
			runs++
			if len(u.trace) == 0 || !slices.ContainsFunc(u.trace, func(line string) bool { return strings.HasPrefix(line, fmt.Sprintf("%d: ", first)) }) {
				continue // No such fault can come here.
			}
			for second := first + 1; second <= with; second++ {
				for _, g := range all {
					if pairs++; pairs%everyPair != 0 {
						continue
					}
					run(map[int]string{first: f, second: g})
					runs++
				}
			}
		}
	}
	t.Logf("%d places, %d runs", places, runs)
}
