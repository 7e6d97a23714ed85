package firstboot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
)

// workingPause lies between two looks at whether another action on the slots has ended.
const workingPause = 50 * time.Millisecond

// commitTrial makes the release of a trial, whose node is Ready, the one that starts by itself.
func (f *finishing) commitTrial(ctx context.Context) error {
	if !(updater{f.agent}).onTrial() {
		return nil
	}
	f.progress("trial", "asking "+healthTarget+" whether the release is healthy")
	if err := f.start(ctx, healthTarget); err != nil {
		return &hullmark.Condition{
			Code: "check-failed", Step: StepUpdate, Title: "a check of the release's health failed: " + err.Error(), Retry: true,
			Next: "read why in the journal of the trial (hullmark node logs)",
		}
	}
	// An order that runs ends first: it may have kept the release, or ended its trial.
	if err := f.agent.updates.alone(ctx); err != nil {
		return err
	}
	defer f.agent.updates.working.Unlock()
	if !(updater{f.agent}).onTrial() {
		return nil
	}
	return updater{f.agent}.commit(ctx)
}

// alone waits until it holds working. An error is of a machine that is to restart.
func (u *updates) alone(ctx context.Context) error {
	for !u.working.TryLock() {
		if u.leaving.Load() {
			return refusedRelease("update-busy", "the machine is about to restart", "", "", "wait for the restart")
		}
		if err := sleep(ctx, workingPause); err != nil {
			return err
		}
	}
	return nil
}

// commit makes the slot that runs the one that starts by itself, unless its trial is over.
func (a updater) commit(ctx context.Context) error {
	n, err := a.readNote()
	if err != nil {
		return err
	}
	s, _ := a.updateStatus()
	if s.Default != "" && (n.Phase != hullmark.UpdateTrial || n.Trial == trialEnded) {
		return refusedRelease("no-trial", "the trial of the release that runs is over", "", "", "wait for the restart into the release from before")
	}
	if err := a.Slots.Commit(ctx); err != nil {
		return fmt.Errorf("commit the release: %w", err)
	}
	a.disarm()
	err = errors.Join(a.keepNote(func(n *updateNote) { n.committed(s.Release()) }), a.lookAtSlots(ctx))
	a.Status.Say("the release is committed")
	return err
}
