package firstboot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/internal/agenttest"
)

// updating is a machine whose release is changed. Its disk's manifest, its slots and its firmware's variables outlive a boot; agents are of
// one boot each.
type updating struct {
	t     *testing.T
	stage *stage
	slots *agenttest.Slots
	order map[hullmark.UpdateAction]order
	root  map[string]hullmark.RootHash
	// runs is what the kernel's command line says, if that is another release than the slot holds.
	runs hullmark.RootHash
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

// begin makes the machine anew.
func (u *updating) begin() {
	s := u.stage
	s.agent.StateDir = agenttest.NewStateDir(u.t)
	s.disk.StateDir = s.agent.StateDir
	u.slots = agenttest.NewSlots(u.root["old"])
}

// boot starts the machine: what firmware starts, and an agent whose ticket has opened the disk.
func (u *updating) boot() (release hullmark.RootHash, err error) {
	release = u.slots.Boot()
	if u.runs != (hullmark.RootHash{}) {
		release = u.runs
	}
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
	return release, updater{fresh}.settle()
}

// staged is a machine that has the release in its other slot.
func (u *updating) staged(t *testing.T) updater {
	t.Helper()
	u.begin()
	if _, err := u.boot(); err != nil {
		t.Fatal(err)
	}
	a := updater{u.stage.agent}
	if err := a.obey(t.Context(), u.order[hullmark.UpdateStage]); err != nil {
		t.Fatal(err)
	}
	return a
}

// A host that starts the slot of a trial once more, before the release from before has run, gets nothing of it: whether the trial could say
// why it ended, or stood still.
func TestTrialIsOneBoot(t *testing.T) {
	for name, end := range map[string]func(updater){
		"it said why it ended": func(a updater) {
			a.noteTrial(t.Context(), &hullmark.Condition{Code: "check-failed", Title: "unhealthy"})
		},
		"it stood still": func(updater) {},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpdating(t)
			if err := u.staged(t).obey(t.Context(), u.order[hullmark.UpdateTry]); !errors.Is(err, errReboot) {
				t.Fatal(err)
			}
			if release, err := u.boot(); release != u.root["new"] || err != nil {
				t.Fatalf("the trial: %s, %v", release, err)
			}
			end(updater{u.stage.agent})
			u.slots.SetNext()
			if release, err := u.boot(); release != u.root["new"] || !errors.Is(err, errReboot) {
				t.Errorf("the host starts it once more: %s, %v", release, err)
			}
			if release, err := u.boot(); release != u.root["old"] || err != nil {
				t.Errorf("the release from before: %s, %v", release, err)
			}
			if s, _ := (updater{u.stage.agent}).updateStatus(); s.Phase != hullmark.UpdateFailed || s.Failed == nil || s.Failed.Code != codeTrialFailed {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A trial that ran out of time is not kept by who asks for that before the machine restarts.
func TestTrialThatIsOver(t *testing.T) {
	u := newUpdating(t)
	if err := u.staged(t).obey(t.Context(), u.order[hullmark.UpdateTry]); !errors.Is(err, errReboot) {
		t.Fatal(err)
	}
	if _, err := u.boot(); err != nil {
		t.Fatal(err)
	}
	a := updater{u.stage.agent}
	a.noteTrial(t.Context(), a.tooLate())
	var c *hullmark.Condition
	if err := a.obey(t.Context(), order{UpdateDirection: hullmark.UpdateDirection{Action: hullmark.UpdateCommit}}); !errors.As(err, &c) || c.Code != "no-trial" {
		t.Errorf("it is kept: %v", err)
	}
	if u.slots.SetNext(); u.slots.Boot() != u.root["new"] || u.slots.Boot() != u.root["old"] {
		t.Error("the release from before does not start by itself")
	}
}

// A host that writes on the disk chooses which slot starts by itself. The node does not take that for its own commit, and says so.
func TestHostChoosesTheSlot(t *testing.T) {
	for name, before := range map[string]func(*updating, updater){
		"a release that was never tried": func(*updating, updater) {},
		"one that has failed": func(u *updating, a updater) {
			if err := a.obey(context.Background(), u.order[hullmark.UpdateTry]); !errors.Is(err, errReboot) {
				t.Fatal(err)
			}
			_, _ = u.boot()
			updater{u.stage.agent}.noteTrial(context.Background(), &hullmark.Condition{Code: "check-failed", Title: "unhealthy"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpdating(t)
			before(u, u.staged(t))
			u.slots.SetDefault("b")
			for range 2 {
				if release, err := u.boot(); release != u.root["new"] || err != nil {
					t.Fatalf("%s, %v", release, err)
				}
			}
			s, _ := updater{u.stage.agent}.updateStatus()
			if s.Phase != hullmark.UpdateIdle || s.Failed == nil || s.Failed.Code != "release-not-asked" || !strings.Contains(s.Failed.Expected, u.root["old"].String()[:16]) {
				t.Errorf("%+v, %v", s, s.Failed)
			}
		})
	}
}

// What runs is what the measured command line says, whatever a host writes into the slot afterwards.
func TestHostRewritesTheSlotThatRuns(t *testing.T) {
	u := newUpdating(t)
	if err := u.staged(t).obey(t.Context(), u.order[hullmark.UpdateTry]); !errors.Is(err, errReboot) {
		t.Fatal(err)
	}
	u.runs = hullmark.RootHash{3} // an older release, in the slot of the one that was asked for, which is put there once that runs
	if _, err := u.boot(); !errors.Is(err, errReboot) {
		t.Errorf("a release that nobody asked for is tried: %v", err)
	}
}

// Who may write directions once gives none after which the node follows no other.
func TestDirectionThatLeaps(t *testing.T) {
	u := newUpdating(t)
	u.begin()
	if _, err := u.boot(); err != nil {
		t.Fatal(err)
	}
	a := director{updater{u.stage.agent}}
	for _, c := range []struct{ serial, want uint64 }{{1<<53 - 1, 0}, {3, 3}, {3, 3}, {2, 3}, {1<<33 + 3, 3}, {4, 4}} {
		a.follow(t.Context(), order{UpdateDirection: hullmark.UpdateDirection{Serial: c.serial, Action: hullmark.UpdateCommit}})
		a.updates.working.Lock() // until what was begun is done
		n, err := a.readNote()
		a.updates.working.Unlock()
		if err != nil || n.Serial != c.want {
			t.Errorf("after direction %d: %d, %v", c.serial, n.Serial, err)
		}
	}
}

// A worker holds no policy. It goes by the newest that an order came with: whoever has an older one, in which a release was accepted that
// is withdrawn since, or a lower security version, brings it back to nothing.
func TestOlderPolicyThanAnEarlierOrders(t *testing.T) {
	u := newUpdating(t)
	older := u.order[hullmark.UpdateStage]
	for action, o := range u.order {
		files := u.stage.signed(t, set{version: 2, number: 1, keyset: "held", documents: []string{string(o.document)}})
		o.policy = files[len(files)-1].GetContent()
		u.order[action] = o
	}
	a := u.staged(t)
	var c *hullmark.Condition
	if err := a.obey(t.Context(), older); !errors.As(err, &c) || c.Code != "policy-older" {
		t.Errorf("an older policy: %v", err)
	}
	if err := a.obey(t.Context(), u.order[hullmark.UpdateTry]); !errors.Is(err, errReboot) {
		t.Errorf("the positive control: %v", err)
	}
	if _, err := u.boot(); err != nil {
		t.Fatal(err)
	}
	a = updater{u.stage.agent}
	if err := a.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := a.readNote(); n.Policy != 2 || err != nil {
		t.Errorf("after the commit the newest policy is %d, %v", n.Policy, err)
	}
}

// Between the order to try a release and the restart no other order is obeyed: one to stage would empty the slot that is about to start.
func TestOrderBeforeTheRestart(t *testing.T) {
	u := newUpdating(t)
	a := u.staged(t)
	if err := a.obey(t.Context(), u.order[hullmark.UpdateTry]); !errors.Is(err, errReboot) {
		t.Fatal(err)
	}
	var c *hullmark.Condition
	if err := a.obey(t.Context(), u.order[hullmark.UpdateStage]); !errors.As(err, &c) || c.Code != "update-busy" {
		t.Errorf("another order: %v", err)
	}
	if n, err := a.readNote(); n.Phase != hullmark.UpdateTrial || err != nil {
		t.Errorf("%+v, %v", n, err)
	}
}

// A direction that comes while the node does what its operator wants is not lost: it is noted once it is begun.
func TestDirectionWhileBusy(t *testing.T) {
	u := newUpdating(t)
	a := director{u.staged(t)}
	d := order{UpdateDirection: hullmark.UpdateDirection{Serial: 7, Action: hullmark.UpdateCommit}}
	noted := func() uint64 {
		a.updates.working.Lock()
		defer a.updates.working.Unlock()
		n, err := a.readNote()
		if err != nil {
			t.Fatal(err)
		}
		return n.Serial
	}
	a.updates.working.Lock()
	a.follow(t.Context(), d)
	a.updates.working.Unlock()
	if got := noted(); got != 0 {
		t.Errorf("direction %d is noted, and nobody follows it", got)
	}
	a.follow(t.Context(), d)
	if got := noted(); got != 7 {
		t.Errorf("direction %d is noted", got)
	}
}
