package main

import (
	"context"
	"errors"
	"time"

	"github.com/hullmark/hullmark"
)

const (
	// reconcilePause lies between two looks at what no exchange ended, reconcileRetry after one that the API did not answer: until all
	// records were read once, the other one of two control planes does not come back by this service.
	reconcilePause = 20 * time.Second
	reconcileRetry = 5 * time.Second
	// reconcileAge is how long a machine was not heard at least before its node is believed to be Ready:
	// Kubernetes takes 50 s to notice that a node is gone, whose machine may be joining anew.
	reconcileAge = 90 * time.Second
)

// reconcile ends the tokens, and records the ends, that exchanges could not: the API was down, or the replica ended.
func (a *app) reconcile(ctx context.Context) error {
	said := ""
	for {
		err := errors.Join(a.service.RevokeLeftOver(ctx), a.reconcileMachines(ctx))
		if text := errorText(err); text != said && ctx.Err() == nil {
			if err != nil {
				a.log.Warn("exchanges are not reconciled", "error", err.Error())
			}
			said = text
		}
		pause := reconcilePause
		if c := (*hullmark.Condition)(nil); errors.As(err, &c) && c.Retry {
			pause = reconcileRetry
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// reconcileMachines looks for machines whose exchange nobody recorded the end of although their nodes are Ready.
func (a *app) reconcileMachines(ctx context.Context) error {
	machines, err := a.registry.List(ctx)
	if err == nil {
		a.outage.note(machines)
	} else {
		if len(machines) > 0 { // Some could not be decoded: what was seen of all stays.
			a.outage.end()
		}
		a.outage.doubt(ctx)
	}
	for _, m := range machines {
		if !m.Unfinished() || time.Since(m.Seen) < reconcileAge {
			continue
		}
		ready, failed := a.registry.NodeReady(ctx, m.Name)
		if failed == nil && ready {
			failed = a.service.Reconcile(ctx, m)
		}
		err = errors.Join(err, failed)
	}
	return err
}
