package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/upgrade"
)

const (
	// attendWait is how long one attempt to recover a node waits for it, and attendReady how long the cluster has to notice that it is back
	// before it is dialled again.
	attendWait  = 20 * time.Second
	attendReady = 2 * time.Minute
)

// AttendOptions say how a control plane is recovered while it is upgraded.
type AttendOptions struct {
	// Node is where the machine answers its operator.
	Node
	// Confirm is asked before a disk is used, as by Recover.
	Confirm func() error
}

// Attend lets a control plane restart for the upgrade that is under way, which no other control plane could let in again, and recovers it:
// once for the release that it tries, and once more if it falls back. It returns when the node's turn is over; the error says why it
// failed. A call that was interrupted can be repeated.
func (a *API) Attend(ctx context.Context, name string, o AttendOptions) error {
	machine, err := a.find(ctx, name)
	if err != nil {
		return err
	}
	// A root that does not sign is found before the node restarts. One whose key is elsewhere is not asked again for the attempts below.
	if _, err := a.file.Cluster.Operator(channel.VerbRecover, machine.EKID); err != nil {
		return err
	}
	if err := a.awaitTurn(ctx, name); err != nil {
		return err
	}
	err = a.editUpgrade(ctx, func(r *upgrade.Request) {
		if !slices.Contains(r.Attended, name) {
			r.Attended = append(r.Attended, name)
		}
	})
	if err != nil {
		return err
	}
	a.Progress.say("%s may restart; it is recovered when it does", name)
	target := Target{Node: o.Node}
	target.Wait, target.Anchor.EKID = attendWait, &machine.EKID
	for wait := time.Duration(0); ; {
		if over, err := a.turnOver(ctx, name, wait); over {
			return err
		}
		err := Recover(ctx, a.file, RecoverOptions{Target: target, Confirm: o.Confirm})
		switch {
		case err == nil:
			wait = attendReady
		case errors.Is(err, ErrUnreachable):
			wait = 0
		case errors.Is(err, ErrMismatch), errors.Is(err, ErrDenied), errors.Is(err, ErrUsage):
			return err
		default:
			a.Progress.say("%s: %v", name, err) // It falls back, and is recovered once more.
			wait = upgradePause
		}
	}
}

// awaitTurn waits until the upgrade comes to a node, or refuses one to which it does not come.
func (a *API) awaitTurn(ctx context.Context, name string) (err error) {
	said := ""
	watched := a.watchUpgrade(ctx, func(r upgrade.Request, s upgrade.State) bool {
		n, ok := nodeOf(s, name)
		switch {
		case s.Spec.ID != r.Spec.ID:
			return false // No control plane has begun yet.
		case !ok || s.Phase.Over():
			err = as(ErrDenied, fmt.Errorf("the upgrade has nothing to do with %s (hullmark upgrade status)", name))
		case n.Phase == upgrade.NodeWaiting || n.Phase == upgrade.NodeStaging || n.Phase == upgrade.NodeStaged:
			if s.Waits != said {
				said = s.Waits
				a.Progress.say("not yet: %s", s.Waits)
			}
			return false
		}
		return true
	})
	return errors.Join(watched, err)
}

// turnOver waits for a time until the upgrade is through with a node, and reports whether it is, and why it failed if it did. While the API
// server does not answer it is not.
func (a *API) turnOver(ctx context.Context, name string, wait time.Duration) (over bool, err error) {
	for began := time.Now(); ; {
		_, state, err := a.upgrade(ctx)
		switch {
		case err == nil:
			over, err = turnOf(state, name)
		case ctx.Err() != nil || !unanswered(err):
			over = true
		default:
			err = nil
		}
		if over || time.Since(began) >= wait {
			return over, err
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-time.After(upgradePause):
		}
	}
}

// turnOf reports whether an upgrade is through with a node, and why it failed if it did.
func turnOf(s upgrade.State, name string) (over bool, err error) {
	n, _ := nodeOf(s, name)
	switch n.Phase {
	case upgrade.NodeDone:
		return true, nil
	case upgrade.NodeFailed, upgrade.NodeSkipped:
		if n.Failed != nil {
			return true, n.Failed
		}
		return true, fmt.Errorf("%s: %s", name, n.Note)
	}
	if s.Phase.Over() {
		return true, fmt.Errorf("the upgrade is over, and %s is %s (hullmark upgrade status)", name, n.Phase)
	}
	return false, nil
}
