package upgrade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
)

const (
	// leaseDuration is how long a Lease is another's that nobody renews, leaseRenewal how old it gets before its holder renews it, and
	// leaseHold how long after it began to do so the holder acts by it: less, so that no two act.
	leaseDuration = 40 * time.Second
	leaseRenewal  = 10 * time.Second
	leaseHold     = 25 * time.Second
	// idlePause lies between two looks where nothing is to be done, and pause where something is; with pausePerNode the API server of a
	// large cluster is asked less often.
	idlePause    = 15 * time.Second
	pause        = 4 * time.Second
	pausePerNode = 20 * time.Millisecond
	// longestElapsed bounds what one turn adds to how long everything waited: a process, or a machine, may have stood still.
	longestElapsed = time.Minute
	// storePause lies between two states of which only times differ.
	storePause = 20 * time.Second
	// maxEvictions is how many pods of a node are evicted in one turn.
	maxEvictions = 32
)

// Engine carries upgrades out. Several may run at once, one of which acts: the holder of the Lease. The others wait for it to end.
type Engine struct {
	Cluster Cluster
	// Name tells this engine from others, of an earlier process of its own node, too.
	Name string
	// Judge refuses moves; nil refuses none.
	Judge Judge
	// Now is the clock. It is monotonic, but for what people are told.
	Now func() time.Time
	// Log hears of each change.
	Log *slog.Logger

	lease held
	// stored is when this engine stored the state of the version.
	stored  time.Time
	version Version
}

// held is what an engine knows of the Lease.
type held struct {
	term uint64
	// renewed is when its renewal began, until is how long the engine may act by it.
	renewed, until time.Time
	// version is the last one that was seen of another's, since when.
	version Version
	since   time.Time
}

// errNotHeld says that another engine acts, or may.
var errNotHeld = errors.New("another engine acts")

// Run turns until ctx ends, and gives the Lease up then.
func (e *Engine) Run(ctx context.Context) error {
	said := ""
	for {
		wait, err := e.Turn(ctx)
		if text := fmt.Sprint(err); err != nil && text != said && ctx.Err() == nil {
			e.Log.Warn("upgrade", "error", text)
			said = text
		}
		if err == nil {
			said = ""
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), e.release(context.WithoutCancel(ctx)))
		case <-time.After(wait):
		}
	}
}

// Turn looks once, stores what follows, and does it. It returns when the next turn is due. A request that was deleted ends its upgrade.
func (e *Engine) Turn(ctx context.Context) (wait time.Duration, err error) {
	request, version, err := e.Cluster.Request(ctx)
	if err != nil {
		return idlePause, err
	}
	state, stateVersion, err := e.Cluster.State(ctx)
	if err != nil {
		return idlePause, err
	}
	idle := stateVersion == "" || state.Phase.Over()
	if idle && (version == "" || state.Spec.ID == request.Spec.ID) {
		return idlePause, e.release(ctx)
	}
	if err := e.elect(ctx, state.Term); err != nil {
		if errors.Is(err, errNotHeld) {
			return idlePause, nil
		}
		return idlePause, err
	}
	wait = pause + time.Duration(len(state.Nodes))*pausePerNode
	err = e.turn(ctx, request, state, stateVersion)
	if errors.Is(err, ErrConflict) || errors.Is(err, errNotHeld) {
		return wait, nil // Somebody else was faster: look again.
	}
	return wait, err
}

// turn is one of the engine that acts.
func (e *Engine) turn(ctx context.Context, request Request, state State, version Version) error {
	if state.Term > e.lease.term {
		e.lease.until = time.Time{}
		return errNotHeld
	}
	next, fresh := state.copy(), false
	if version == "" || state.Phase.Over() {
		next, fresh = newState(request.Spec, state, e.Now().UTC()), true
	}
	next.Term = e.lease.term
	view, err := e.Cluster.Look(ctx, need(next))
	if err != nil {
		return errors.Join(err, e.sayBlind(ctx, state, next, version, err))
	}
	t := turn{view: view, request: request, state: &next, now: e.Now().UTC().Truncate(time.Second), elapsed: e.elapsed(version), fresh: fresh, judge: e.Judge}
	t.advance()
	if err := e.store(ctx, state, next, version); err != nil {
		return err
	}
	return e.act(ctx, view, next)
}

// sayBlind lets people see that the engine cannot see the cluster: they look at the state.
func (e *Engine) sayBlind(ctx context.Context, last, next State, version Version, why error) error {
	if version == "" || last.Phase.Over() {
		return nil
	}
	next.Waits = cut("the cluster cannot be looked at: " + why.Error())
	return e.store(ctx, last, next, version)
}

// elapsed is how long ago this engine stored the state of this version; of another engine's nothing is known.
func (e *Engine) elapsed(version Version) time.Duration {
	if version == "" || e.version != version {
		return 0
	}
	return min(max(e.Now().Sub(e.stored), 0), longestElapsed)
}

// copy shares no list with the state.
func (s State) copy() State {
	s.Nodes = slices.Clone(s.Nodes)
	return s
}

// need is what has to be looked at for a state.
func need(s State) (n Need) {
	for _, node := range s.Nodes {
		if node.Phase == NodeDraining {
			n.Pods = append(n.Pods, node.Name)
		}
		if node.Role == hullmark.ControlPlane && !node.Phase.over() {
			n.Servers = true
		}
	}
	return n
}

// store replaces the state; if only times have changed, now and then. What it says is done only then: an engine that has lost the Lease
// fails here, because the other one has written its term.
func (e *Engine) store(ctx context.Context, last, next State, version Version) error {
	if e.version == version && version != "" && same(last, next) && e.Now().Sub(e.stored) < storePause {
		return nil
	}
	if !e.holds() {
		return errNotHeld
	}
	stored, err := e.Cluster.StoreState(ctx, next, version)
	if err != nil {
		e.version = ""
		return err
	}
	e.version, e.stored = stored, e.Now()
	for _, c := range Changes(last, next) {
		e.Log.Info("upgrade", "id", next.Spec.ID, "node", c.Node, "change", c.Text)
	}
	return nil
}

// same reports whether two states differ in nothing but how long everything waited.
func same(a, b State) bool {
	for _, s := range []*State{&a, &b} {
		*s = s.copy()
		s.Waited = 0
		for i := range s.Nodes {
			s.Nodes[i].Waited = 0
		}
	}
	return reflect.DeepEqual(a, b)
}
