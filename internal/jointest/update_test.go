package jointest

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// directions are what a test wants a node to do.
type directions struct {
	mutex sync.Mutex
	last  hullmark.UpdateDirection
}

// Direction returns the last one.
func (d *directions) Direction(context.Context, hullmark.EKID) (hullmark.UpdateDirection, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.last, nil
}

func (d *directions) say(action hullmark.UpdateAction, document hullmark.DocumentID, sources ...string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.last = hullmark.UpdateDirection{Serial: d.last.Serial + 1, Action: action, Document: document, Sources: sources}
}

// fleet is a site of one worker with slots, which is Ready, and a second release that the policy accepts.
type fleet struct {
	*Site
	directions *directions
	next       measurements.Document
	nextID     hullmark.DocumentID
	// trial is how long one may take.
	trial time.Duration
	end   func()
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	s := New(t, hullmark.Worker)
	s.Slots = agenttest.NewSlots(nodetest.RootHash("image"))
	f := &fleet{Site: s, trial: time.Minute, directions: &directions{}, next: nodetest.Document(t, "next")}
	encoded, err := f.next.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f.nextID = sha256.Sum256(encoded)
	signed := s.Service.Policy.Signed()
	s.Cluster.Policy, s.Cluster.Documents = signed.Envelope, signed.Documents
	f.accept(t, true)
	s.Service.Directions = f.directions
	f.boot(t)
	return f
}

// accept puts a policy in force that accepts the second release, or not any more.
func (f *fleet) accept(t *testing.T, accept bool) {
	t.Helper()
	p, err := f.Cluster.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	p.Version++
	p.Documents = p.Documents[:1]
	if accept {
		p.Documents = append(p.Documents, measurements.Accepted{Document: f.nextID})
	}
	if err := f.Cluster.SetPolicy(p, f.next); err != nil {
		t.Fatal(err)
	}
	if taken, err := f.Service.Policy.Offer(f.policy()); !taken || err != nil {
		t.Fatal(taken, err)
	}
}

// boot boots what the slots say, with the timing of a test.
func (f *fleet) boot(t *testing.T) {
	t.Helper()
	release := f.Slots.Boot()
	for _, image := range []string{"image", "next"} {
		if nodetest.RootHash(image) == release {
			f.Image = image
		}
	}
	if f.end != nil {
		f.end()
		f.Machine = &agenttest.System{Fail: f.Machine.Fail, Offline: f.Machine.Offline}
		f.Reboot(t, f.Cluster.ID())
	}
	f.Agent.Slots = f.Slots
	f.Agent.Timing.Direction, f.Agent.Timing.Report = 100*time.Millisecond, 100*time.Millisecond
	f.Agent.Timing.Trial, f.Agent.Timing.TrialDenied = f.trial, 2*time.Second
	f.Agent.Timing.DeniedPause = 200 * time.Millisecond
	f.Serve(t)
	f.end = f.Boot(t)
}

// ready waits until the node is Ready, and its record says what is wanted.
func (f *fleet) ready(t *testing.T, what string, wanted func(hullmark.UpdateStatus) bool) {
	t.Helper()
	f.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	f.recorded(t, what, wanted)
}

func (f *fleet) recorded(t *testing.T, what string, wanted func(hullmark.UpdateStatus) bool) {
	t.Helper()
	var m joinservice.Machine
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var err error
		if m, _, err = f.Records.Load(t.Context(), f.EKID); err != nil {
			t.Fatal(err)
		}
		if m.Update != nil && wanted(*m.Update) {
			return
		}
	}
	t.Fatalf("the record has %+v, want %s; the agent's log:\n%s", m.Update, what, f.Log)
}

// restarts waits until the agent has the machine restart.
func (f *fleet) restarts(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f.Machine.Has("reboot"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the machine does not restart; the agent's log:\n%s", f.Log)
		}
	}
}

// staged directs the node to stage the second release, and waits until its record says that it has.
func (f *fleet) staged(t *testing.T) {
	t.Helper()
	f.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	f.directions.say(hullmark.UpdateStage, f.nextID, "https://one.example.com", "https://two.example.com")
	f.recorded(t, "staged", func(s hullmark.UpdateStatus) bool {
		return s.Phase == hullmark.UpdateStaged && s.Document == f.nextID && s.B == nodetest.RootHash("next")
	})
}

// tried directs it to try that, too, and boots it.
func (f *fleet) tried(t *testing.T) {
	t.Helper()
	f.staged(t)
	f.directions.say(hullmark.UpdateTry, f.nextID)
	f.restarts(t)
	f.boot(t)
}

// back waits for a failed trial to restart, and for the record of the boot after it.
func (f *fleet) back(t *testing.T, reason string) {
	t.Helper()
	f.restarts(t)
	f.boot(t)
	f.ready(t, "a failed trial: "+reason, func(s hullmark.UpdateStatus) bool {
		return s.Running == "a" && s.Default == "a" && s.Phase == hullmark.UpdateFailed && s.Failed != nil &&
			s.Failed.Code == "trial-failed" && strings.Contains(s.Failed.Title, reason)
	})
}

// A release is staged and tried by direction, and committed by its own node; a direction that was followed is not followed again.
func TestUpdate(t *testing.T) {
	f := newFleet(t)
	f.tried(t)
	f.ready(t, "committed", func(s hullmark.UpdateStatus) bool {
		return s.Running == "b" && s.Default == "b" && s.Phase == hullmark.UpdateIdle && s.Failed == nil && s.Serial == 2
	})
	if !f.Machine.Has("start boot-complete.target") {
		t.Errorf("the health of the release was not asked for: %v", f.Machine.Did())
	}
	time.Sleep(time.Second)
	if f.Machine.Has("reboot") {
		t.Error("a direction was followed twice")
	}
	// Back to the release from before, which is in slot a.
	first, err := measurements.Parse(f.Cluster.Documents[f.first(t)])
	if err != nil {
		t.Fatal(err)
	}
	if hullmark.RootHash(first.Image.RootHash) != nodetest.RootHash("image") {
		t.Fatal("another document")
	}
	f.directions.say(hullmark.UpdateRollback, f.first(t))
	f.restarts(t)
	f.boot(t)
	f.ready(t, "rolled back", func(s hullmark.UpdateStatus) bool {
		return s.Running == "a" && s.Default == "a" && s.Phase == hullmark.UpdateIdle
	})
}

// first is the document of the release that the machine was installed with.
func (f *fleet) first(t *testing.T) hullmark.DocumentID {
	t.Helper()
	p, err := f.Cluster.OpenPolicy()
	if err != nil {
		t.Fatal(err)
	}
	return p.Documents[0].Document
}

func TestTrialFails(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*fleet)
		reason string
	}{
		"a check of the image's own":    {func(f *fleet) { f.Machine.Fail = "start boot-complete.target" }, "check-failed"},
		"a kubelet that does not start": {func(f *fleet) { f.Machine.Fail = "start kubelet.service" }, "step-failed"},
		"never Ready":                   {func(f *fleet) { f.Kubernetes.NotReady = errors.New("it never is") }, "it never is"},
		"no network in time":            {func(f *fleet) { f.trial = 3 * time.Second; f.Machine.SetOffline(1 << 20) }, "trial-too-long"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.staged(t)
			f.directions.say(hullmark.UpdateTry, f.nextID)
			f.restarts(t)
			c.spoil(f)
			f.boot(t)
			f.restarts(t)
			f.Machine.Fail, f.Kubernetes.NotReady = "", nil
			f.Machine.SetOffline(0)
			f.back(t, c.reason)
			// It is not tried again: not by a direction that was followed, nor by a host that starts its slot.
			f.Slots.SetNext()
			f.boot(t)
			f.restarts(t)
			if !strings.Contains(f.Console.String(), "trial-not-asked") {
				t.Errorf("the console says\n%s", f.Console)
			}
		})
	}
}

// A trial whose registers nobody accepts goes back soon, and says why by a firmware variable: its disk was never open.
func TestTrialIsDenied(t *testing.T) {
	f := newFleet(t)
	f.staged(t)
	f.directions.say(hullmark.UpdateTry, f.nextID)
	f.restarts(t)
	f.accept(t, false)
	f.boot(t)
	f.back(t, joinservice.CodeMismatch)
}

func TestStageIsRefused(t *testing.T) {
	f := newFleet(t)
	f.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	refused := func(code string) func(hullmark.UpdateStatus) bool {
		return func(s hullmark.UpdateStatus) bool {
			return s.Failed != nil && s.Failed.Code == code && s.Serial == f.directions.last.Serial && s.Phase != hullmark.UpdateStaged
		}
	}
	f.directions.say(hullmark.UpdateTry, f.nextID)
	f.recorded(t, "not staged", refused("not-staged"))
	f.directions.say(hullmark.UpdateStage, f.first(t), "https://one.example.com")
	f.recorded(t, "the release that runs", refused("release-runs"))
	f.Slots.Refuse = update.OpStage
	f.directions.say(hullmark.UpdateStage, f.nextID, "https://one.example.com")
	f.recorded(t, "a source without it", refused("stage-failed"))
	if f.Machine.Has("reboot") {
		t.Error("the machine restarted")
	}
}
