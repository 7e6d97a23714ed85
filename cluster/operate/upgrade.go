package operate

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/upgrade"
)

// upgradePause lies between two looks at an upgrade.
const upgradePause = 3 * time.Second

// NewUpgrade completes what is to happen to a cluster's nodes: another release, of which there is a document for each kind of machine and
// which was published at its sources, or a restart if there are no documents. The error is ErrUsage.
func NewUpgrade(s upgrade.Spec, documents []measurements.Document) (upgrade.Spec, error) {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	s.ID, s.Action = hex.EncodeToString(id[:]), hullmark.UpdateRestart
	for _, d := range documents {
		digest, err := d.Digest()
		if err != nil {
			return s, err
		}
		root := hullmark.RootHash(d.Image.RootHash)
		if s.RootHash != (hullmark.RootHash{}) && root != s.RootHash {
			return s, as(ErrUsage, fmt.Errorf("the documents are of several images: %s has another root hash than the first", imageName(d)))
		}
		s.Action, s.RootHash, s.Release = hullmark.UpdateTry, root, cmp.Or(s.Release, d.Name)
		s.Documents = append(s.Documents, digest)
	}
	if err := s.Check(); err != nil {
		return s, as(ErrUsage, err)
	}
	return s, nil
}

// PlanUpgrade says what an upgrade would do to the cluster, and what stands against it. Nothing is changed.
func (a *API) PlanUpgrade(ctx context.Context, s upgrade.Spec) (plan upgrade.Plan, err error) {
	err = a.persist(ctx, func() error {
		plan, _, err = a.planUpgrade(ctx, s)
		return err
	})
	return plan, err
}

func (a *API) planUpgrade(ctx context.Context, s upgrade.Spec) (upgrade.Plan, upgrade.Version, error) {
	request, version, err := a.upgrades.Request(ctx)
	if err != nil {
		return upgrade.Plan{}, "", err
	}
	last, _, err := a.upgrades.State(ctx)
	if err != nil {
		return upgrade.Plan{}, "", err
	}
	view, err := a.upgrades.Look(ctx, upgrade.Need{AllPods: true, Servers: true})
	if err != nil {
		return upgrade.Plan{}, "", err
	}
	plan := upgrade.MakePlan(s, view, request, last, upgrade.ByVersions)
	a.checkRequestedAPIs(ctx, &plan, view)
	return plan, version, nil
}

// ApplyUpgrade plans, and lets the cluster begin unless something stands against it: then the error is ErrDenied, and the plan says what.
// The cluster goes on by itself.
func (a *API) ApplyUpgrade(ctx context.Context, s upgrade.Spec) (plan upgrade.Plan, err error) {
	err = a.persist(ctx, func() error {
		if err := a.checkNewest(ctx); err != nil {
			return err
		}
		var version upgrade.Version
		if plan, version, err = a.planUpgrade(ctx, s); err != nil {
			return err
		}
		if n := len(plan.Against); n > 0 {
			return as(ErrDenied, fmt.Errorf("%d things stand against it; the first is %w", n, plan.Against[0]))
		}
		err = a.upgrades.StoreRequest(ctx, upgrade.Request{Schema: upgrade.Schema, Spec: s}, version)
		if errors.Is(err, upgrade.ErrConflict) {
			return as(ErrDenied, errors.New("somebody else begins an upgrade at this moment: look at it (hullmark upgrade status)"))
		}
		return err
	})
	return plan, err
}

// ErrNoUpgrade says that there is none to show or to change.
var ErrNoUpgrade = errors.New("the cluster was never upgraded; hullmark upgrade plan says what an upgrade would do")

// Upgrade returns what was asked for last, and how far it is. The state is of an earlier upgrade until a control plane has begun. The error
// is ErrNoUpgrade if there was none.
func (a *API) Upgrade(ctx context.Context) (r upgrade.Request, s upgrade.State, err error) {
	err = a.persist(ctx, func() error {
		r, s, err = a.upgrade(ctx)
		return err
	})
	return r, s, err
}

func (a *API) upgrade(ctx context.Context) (upgrade.Request, upgrade.State, error) {
	if err := a.renew(); err != nil {
		return upgrade.Request{}, upgrade.State{}, err
	}
	request, version, err := a.upgrades.Request(ctx)
	if err == nil && version == "" {
		err = ErrNoUpgrade
	}
	if err != nil {
		return upgrade.Request{}, upgrade.State{}, err
	}
	state, _, err := a.upgrades.State(ctx)
	return request, state, err
}

// PauseUpgrade has the upgrade begin with no further node, or go on.
func (a *API) PauseUpgrade(ctx context.Context, paused bool) error {
	return a.editUpgrade(ctx, func(r *upgrade.Request) { r.Paused = paused })
}

// AbortUpgrade ends the upgrade: nodes that are away come back first, and those that it has cordoned take pods again.
func (a *API) AbortUpgrade(ctx context.Context) error {
	return a.editUpgrade(ctx, func(r *upgrade.Request) { r.Aborted = true })
}

// editUpgrade changes what is wanted of an upgrade that is not over.
func (a *API) editUpgrade(ctx context.Context, edit func(*upgrade.Request)) error {
	return a.persist(ctx, func() error {
		for {
			request, version, err := a.upgrades.Request(ctx)
			if err != nil {
				return err
			}
			last, _, err := a.upgrades.State(ctx)
			if err != nil {
				return err
			}
			if upgrade.UnderWay(request, last) == nil {
				return as(ErrDenied, errors.New("no upgrade is under way (hullmark upgrade status)"))
			}
			edit(&request)
			if err := a.upgrades.StoreRequest(ctx, request, version); !errors.Is(err, upgrade.ErrConflict) {
				return err
			}
		}
	})
}

// FollowUpgrade tells of each change until the upgrade is over, whatever becomes of the API server meanwhile, and returns its last state.
// Only one that does not answer to begin with is an error, as of Upgrade.
func (a *API) FollowUpgrade(ctx context.Context, tell func(upgrade.Change)) (upgrade.State, error) {
	var last upgrade.State
	if _, _, err := a.Upgrade(ctx); err != nil && !isForbidden(err) {
		return last, err
	}
	err := a.watchUpgrade(ctx, func(r upgrade.Request, s upgrade.State) bool {
		if s.Spec.ID != r.Spec.ID {
			return false
		}
		for _, c := range upgrade.Changes(last, s) {
			tell(c)
		}
		last = s
		return s.Phase.Over()
	})
	return last, err
}

// watchUpgrade looks at the upgrade until that is enough. An API server that does not answer may be one that restarts.
func (a *API) watchUpgrade(ctx context.Context, enough func(upgrade.Request, upgrade.State) bool) error {
	silent := false
	for {
		request, state, err := a.upgrade(ctx)
		switch {
		case err == nil && enough(request, state):
			return nil
		case err == nil:
			silent = false
		case !unanswered(err):
			return err
		case !silent:
			silent = true
			a.Progress.say("the API server does not answer: a control plane may be restarting")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(upgradePause):
		}
	}
}

// unanswered reports whether the API server did not answer.
func unanswered(err error) bool { return hasCode(err, joinservice.CodeUnreachable) || isForbidden(err) }

// isForbidden reports whether the API server refuses everybody, as one does that has just started.
func isForbidden(err error) bool { return hasCode(err, joinservice.CodeForbidden) }

func hasCode(err error, code string) bool {
	var condition *hullmark.Condition
	return errors.As(err, &condition) && condition.Code == code
}

// nodeOf returns a node's part of a state.
func nodeOf(s upgrade.State, name string) (upgrade.NodeState, bool) {
	i := slices.IndexFunc(s.Nodes, func(n upgrade.NodeState) bool { return n.Name == name })
	if i < 0 {
		return upgrade.NodeState{}, false
	}
	return s.Nodes[i], true
}
