package firstboot

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/firstboot/update"
)

// StepUpdate is what conditions of updates name as their step.
const StepUpdate = "UPDATE"

// Codes of conditions that an update ends with.
const (
	codeTrialFailed   = "trial-failed"
	codeTrialNotAsked = "trial-not-asked"
	codeNotAsked      = "release-not-asked"
)

// healthTarget is started in a trial once the node is Ready: units that it requires are the checks of whoever built the image
// (systemd.special(7), boot-complete.target).
const healthTarget = "boot-complete.target"

// Slots is the helper that alone writes the disk which the node boots from; update.Client is the real one.
type Slots interface {
	Look(ctx context.Context) (update.Slots, error)
	Stage(ctx context.Context, r update.Release, sources []string, tell func(update.Fetched)) error
	Try(ctx context.Context) error
	Commit(ctx context.Context) error
	Explain(ctx context.Context, text string) error
}

// updater looks at, changes and tells of the slots of the disk that the agent boots from.
type updater struct{ *Agent }

// updates is what the agent knows of the disk's slots. The zero value is of a machine without any.
type updates struct {
	mu     sync.Mutex
	status hullmark.UpdateStatus
	// text is what the boot before this one kept of a trial.
	text string
	// working is held by the one action that runs; once leaving is set, which says that the machine is to restart, for good.
	working sync.Mutex
	leaving atomic.Bool
	// over is closed when the trial of this boot has ended, well or not.
	over chan struct{}
	// disarmed says that it is closed.
	disarmed bool
}

// updateFile in the manifest is what the disk keeps of an update: an updateNote.
const updateFile = keptNotes + "update"

// updateNote is what outlives a restart. The disk's slots say by themselves what they hold.
type updateNote struct {
	Phase    hullmark.UpdatePhase `json:"phase"`
	Document hullmark.DocumentID  `json:"document,omitzero"`
	RootHash hullmark.RootHash    `json:"rootHash,omitzero"`
	Serial   uint64               `json:"serial,omitempty"`
	Failed   *hullmark.Condition  `json:"failed,omitempty"`
	// Trial is how far the one boot of UpdateTrial came.
	Trial trialBoot `json:"trial,omitempty"`
	// Committed is the release that the node runs for good; zero if an earlier release kept the note.
	Committed hullmark.RootHash `json:"committed,omitzero"`
	// Policy is the version of the newest policy that an order was judged by.
	Policy uint64 `json:"policy,omitempty"`
}

// trialBoot is how far the boot of a trial came.
type trialBoot string

// A trial that has opened the disk has begun, and has ended once it was said why it is not committed.
const (
	trialBegun trialBoot = "begun"
	trialEnded trialBoot = "ended"
)

// readNote returns what the open disk keeps; of one that keeps nothing, that there is no update.
func (a updater) readNote() (n updateNote, err error) {
	err = a.kept.look(func(m statedisk.Manifest) error {
		f, ok := m.Files[updateFile]
		if !ok { // Not what a disk says that is not mounted: that is an error.
			n.Phase = hullmark.UpdateIdle
			return nil
		}
		return json.Unmarshal(f.Content, &n)
	})
	return n, err
}

// keepNote changes what the disk keeps, and what the status says with it.
func (a updater) keepNote(edit func(*updateNote)) error {
	n, err := a.readNote()
	if err != nil {
		return err
	}
	before := n
	edit(&n)
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if n != before {
		err = a.kept.write(updateFile, text)
	}
	if err != nil {
		return fmt.Errorf("note the update: %w", err)
	}
	a.showNote(n)
	return nil
}

func (a updater) showNote(n updateNote) {
	a.changeUpdate(func(s *hullmark.UpdateStatus) {
		s.Phase, s.Document, s.Serial, s.Failed = n.Phase, n.Document, n.Serial, n.Failed
		s.Fetched, s.Copied, s.Kept = 0, 0, 0
	})
}

// changeUpdate changes what the agent says of its slots.
func (a updater) changeUpdate(edit func(*hullmark.UpdateStatus)) {
	a.updates.mu.Lock()
	defer a.updates.mu.Unlock()
	edit(&a.updates.status)
	a.Status.update(a.updates.status)
}

// updateStatus is what the agent says of its slots, and whether there are any.
func (a updater) updateStatus() (s hullmark.UpdateStatus, known bool) {
	a.updates.mu.Lock()
	defer a.updates.mu.Unlock()
	return a.updates.status, a.updates.status.Running != ""
}

// onTrial reports whether this boot is of a slot that does not start by itself.
func (a updater) onTrial() bool {
	s, known := a.updateStatus()
	return known && s.Running != s.Default
}

// lookAtSlots learns what the slots hold.
func (a updater) lookAtSlots(ctx context.Context) error {
	if a.Slots == nil {
		return nil
	}
	found, err := a.Slots.Look(ctx)
	if err != nil {
		return &hullmark.Condition{
			Code: "slots-unknown", Step: StepUpdate, Title: "the slots of the disk that the node boots from cannot be read: " + err.Error(),
			Next: "read the journal of hullmark-slots@ (hullmark node logs); until then the node takes no other release",
		}
	}
	if found.Medium {
		return nil
	}
	a.changeUpdate(func(s *hullmark.UpdateStatus) {
		s.Running, s.Default, s.A, s.B = found.Running, found.Default, found.A, found.B
		switch {
		case a.Release == hullmark.RootHash{}:
		case s.Running == "b":
			s.B = a.Release
		default:
			s.A = a.Release
		}
		if s.Phase == "" {
			s.Phase = hullmark.UpdateIdle
		}
		a.updates.text = found.Text
	})
	return nil
}

// settle compares what the disk, which was mounted just now, keeps of an update with the slot that runs. An error that wraps errReboot is
// of a trial that nobody asked for.
func (a updater) settle() error {
	s, known := a.updateStatus()
	if !known {
		return nil
	}
	n, err := a.readNote()
	if err != nil {
		return err
	}
	asked := n.Phase == hullmark.UpdateTrial && n.RootHash == s.Release()
	switch {
	case a.onTrial() && (!asked || n.Trial != "") && s.Default != "":
		return fmt.Errorf("%w: %w", errReboot, &hullmark.Condition{
			Code: codeTrialNotAsked, Step: StepUpdate, Title: "the machine started the slot of a release that the node was not asked to try, or that has failed before", Retry: true,
			Expected: "slot " + s.Default, Got: "slot " + s.Running, Next: "wait for the restart; if this repeats, look who writes the firmware's variables",
		})
	case a.onTrial() && asked: // It is the one boot of this trial.
		return a.keepNote(func(n *updateNote) { n.Trial = trialBegun })
	case a.onTrial():
		a.showNote(n)
		return nil
	case asked && n.Trial != trialEnded: // The commit was cut off behind its last write.
		return a.keepNote(func(n *updateNote) { n.committed(s.Release()) })
	}
	return a.keepNote(func(n *updateNote) { n.settled(s.Release(), a.updates.text) })
}

// settled is what is left of an update in a boot that is no trial. text is what the boot before kept in a firmware variable.
func (n *updateNote) settled(runs hullmark.RootHash, text string) {
	switch before := n.Committed; {
	case before != hullmark.RootHash{} && before != runs:
		n.committed(runs)
		n.Failed = notAsked(before, runs)
	case n.Phase == hullmark.UpdateStaging:
		n.Phase, n.Failed = hullmark.UpdateFailed, interrupted()
	case n.Phase == hullmark.UpdateTrial:
		n.Phase, n.Failed = hullmark.UpdateFailed, trialFailed(n.RootHash, n.Failed, text)
	}
	n.Committed = runs
}

// committed is what is left of an update that ended well.
func (n *updateNote) committed(runs hullmark.RootHash) {
	*n = updateNote{Phase: hullmark.UpdateIdle, Serial: n.Serial, Policy: n.Policy, Committed: runs}
}

// notAsked is the condition of a node whose machine starts another release than the one that it ran for good: the host writes the disk.
func notAsked(before, runs hullmark.RootHash) *hullmark.Condition {
	return &hullmark.Condition{
		Code: codeNotAsked, Step: StepUpdate, Title: "the machine starts a release by itself that the node was not asked to keep", Expected: before.String(), Got: runs.String(),
		Next: "if nobody gave the machine another disk, its host has; let the policy accept no release that is not to run (hullmark policy)",
	}
}

func interrupted() *hullmark.Condition {
	return &hullmark.Condition{
		Code: "stage-interrupted", Step: StepUpdate, Title: "the machine restarted while a release was written", Retry: true,
		Next: "stage it again (hullmark update stage): what is there is kept",
	}
}

// trialFailed is the condition of a node that is back in its slot from before. why is what the trial noted on the disk, text what it left
// in a firmware variable, where the host can write, too; either may be missing.
func trialFailed(release hullmark.RootHash, why *hullmark.Condition, text string) *hullmark.Condition {
	c := &hullmark.Condition{
		Code: codeTrialFailed, Step: StepUpdate, Title: fmt.Sprintf("the trial of release %.16s failed", release),
		Next: "mend the release and stage it anew, or try it once more (hullmark update try); nothing tries it again by itself",
	}
	switch {
	case why != nil:
		c.Title += fmt.Sprintf(": %s (%s)", why.Root().Title, why.Root().Code)
	case text != "":
		c.Title += fmt.Sprintf("; by a firmware variable: %.300q", text)
	default:
		c.Title += ": it did not get as far as its state disk, or hung; the machine's console says more"
	}
	return c
}

// armTrial gives the trial of this boot its time. It ends with the context, with disarm, or by a restart into the slot from before.
func (a updater) armTrial(ctx context.Context) {
	a.updates.mu.Lock()
	a.updates.over = make(chan struct{})
	over := a.updates.over
	a.updates.mu.Unlock()
	if !a.onTrial() {
		return
	}
	a.Status.Say("this boot is the trial of another release; it has %v", a.Timing.Trial)
	go func() {
		end := time.NewTimer(a.Timing.Trial)
		defer end.Stop()
		look := time.NewTicker(a.Timing.TrialDenied / 8)
		defer look.Stop()
		var last denial
		for {
			select {
			case <-ctx.Done():
				return
			case <-over:
				return
			case <-end.C:
				a.endTrial(ctx, a.tooLate())
				return
			case <-look.C:
				if last = last.then(a.Status.standing()); last.why != nil && time.Since(last.since) > a.Timing.TrialDenied {
					a.endTrial(ctx, last.why)
					return
				}
			}
		}
	}()
}

// denial is a condition of a trial that does not pass by itself, and since when one stands.
type denial struct {
	why   *hullmark.Condition
	since time.Time
}

// then follows what is shown: between two attempts that is nothing, which changes nothing.
func (d denial) then(shown *hullmark.Condition) denial {
	switch {
	case shown == nil:
		return d
	case shown.Retry:
		return denial{}
	case d.why == nil:
		d.since = time.Now()
	}
	d.why = shown
	return d
}

func (a updater) tooLate() *hullmark.Condition {
	late := &hullmark.Condition{
		Code: "trial-too-long", Step: StepUpdate, Title: "the release that is tried was not healthy in time", Expected: "a Ready node within " + a.Timing.Trial.String(),
		Next: "read the condition that stood, and the console of the trial",
	}
	if standing := a.Status.standing(); standing != nil {
		late.Title += fmt.Sprintf("; until then: %s (%s)", standing.Title, standing.Code)
	}
	return late
}

// endTrial restarts the machine into the slot from before.
func (a updater) endTrial(ctx context.Context, why *hullmark.Condition) {
	a.noteTrial(ctx, why)
	a.Status.Fail(why)
	fmt.Fprintln(a.Status.Console, "HULLMARK: the trial has failed: the machine restarts into the release from before")
	if err := a.Machine.Reboot(context.WithoutCancel(ctx)); err != nil {
		fmt.Fprintln(a.Status.Log, "restart:", err)
	}
}

// noteTrial keeps why the trial of this boot ends for the boot after it: on the disk if it is open, else in a firmware variable.
func (a updater) noteTrial(ctx context.Context, why *hullmark.Condition) {
	if !a.onTrial() || why == nil {
		return
	}
	root := why.Root()
	s, _ := a.updateStatus()
	err := a.keepNote(func(n *updateNote) {
		// Not of another release, which the host did not let run; and what ended it first is the reason.
		if n.Phase == hullmark.UpdateTrial && n.RootHash == s.Release() && n.Trial != trialEnded {
			n.Failed, n.Trial = root, trialEnded
		}
	})
	if err != nil { // It is not open, or not mounted yet.
		err = a.Slots.Explain(context.WithoutCancel(ctx), root.Code+": "+root.Title)
	}
	if err != nil {
		fmt.Fprintln(a.Status.Log, "note why the trial ends:", err)
	}
}

// disarm ends the watch over the trial.
func (a updater) disarm() {
	a.updates.mu.Lock()
	defer a.updates.mu.Unlock()
	if a.updates.over != nil && !a.updates.disarmed {
		a.updates.disarmed = true
		close(a.updates.over)
	}
}
