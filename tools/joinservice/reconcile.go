package main

import (
	"context"
	"errors"
	"time"
)

const (
	// reconcilePause lies between two looks at what no exchange ended.
	reconcilePause = 20 * time.Second
	// reconcileAge is how long a machine was not heard at least before its node is believed to be Ready:
	// Kubernetes takes 50 s to notice that a node is gone, whose machine may be joining anew.
	reconcileAge = 90 * time.Second
)

// reconcile ends the tokens, and records the ends, that exchanges could not: the API was down, or the replica ended.
func (a *app) reconcile(ctx context.Context) error {
	tick := time.NewTicker(reconcilePause)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		err := errors.Join(a.service.RevokeLeftOver(ctx), a.reconcileMachines(ctx))
		if text := errorText(err); text != said && ctx.Err() == nil {
			if err != nil {
				a.log.Warn("exchanges are not reconciled", "error", err.Error())
			}
			said = text
		}
	}
}

// reconcileMachines looks for machines whose exchange nobody recorded the end of although their nodes are Ready.
func (a *app) reconcileMachines(ctx context.Context) error {
	machines, err := a.registry.List(ctx)
	switch {
	case err == nil:
		a.outage.note(machines)
	case len(machines) > 0: // Some could not be decoded: what was seen of those stays.
		a.outage.end()
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
