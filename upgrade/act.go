package upgrade

import (
	"context"
	"errors"

	"github.com/hullmark/hullmark"
)

// act does what a stored state says. Whatever of it was done already is left: so it does not matter which engine begins, and how often one
// ends in the middle. An engine that was overtaken while it waited for an answer fails at each change, because what it saw was changed
// since.
func (e *Engine) act(ctx context.Context, view View, s State) error {
	var failed error
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if !e.holds() {
			return errNotHeld
		}
		// A node that cannot be changed now does not keep the others waiting.
		failed = errors.Join(failed, e.actOn(ctx, view, s.Spec, n))
	}
	return failed
}

func (e *Engine) actOn(ctx context.Context, view View, s Spec, n *NodeState) error {
	switch n.Phase {
	case NodeStaging:
		return e.direct(ctx, view, n, hullmark.UpdateDirection{Serial: n.Serial, Action: hullmark.UpdateStage, Document: n.Document, Sources: s.Sources})
	case NodeDraining:
		return e.drain(ctx, view, s, n)
	case NodeAway:
		return e.direct(ctx, view, n, hullmark.UpdateDirection{Serial: n.Serial, Action: s.Action, Document: n.Document})
	case NodeReleasing:
		return errors.Join(e.withdraw(ctx, view, n), e.uncordon(ctx, view, n))
	}
	return nil
}

// direct gives a node its direction, unless it has this one or a later one.
func (e *Engine) direct(ctx context.Context, view View, n *NodeState, d hullmark.UpdateDirection) error {
	last := view.Directions[n.EKID]
	if last.Serial >= d.Serial {
		return nil
	}
	return e.Cluster.Direct(ctx, n.EKID, d, last.Version)
}

// withdraw takes a direction back that the node has not followed: it would restart for it whenever it comes back. The object stays, so
// that an engine which was overtaken cannot write the direction once more.
func (e *Engine) withdraw(ctx context.Context, view View, n *NodeState) error {
	last := view.Directions[n.EKID]
	if !n.Withdraw || last.Serial != n.Serial {
		return nil
	}
	return e.Cluster.Direct(ctx, n.EKID, hullmark.UpdateDirection{}, last.Version)
}

// uncordon lets a node take pods again which an upgrade has cordoned, and no other.
func (e *Engine) uncordon(ctx context.Context, view View, n *NodeState) error {
	node, ok := view.Nodes[n.Name]
	if !ok || node.CordonedBy == "" {
		return nil
	}
	return e.Cluster.Uncordon(ctx, node)
}

// drain cordons a node, unless it is, and evicts pods. Until it was seen cordoned none is evicted: it could come back.
func (e *Engine) drain(ctx context.Context, view View, s Spec, n *NodeState) error {
	node, ok := view.Nodes[n.Name]
	if !ok {
		return nil
	}
	if !node.Unschedulable {
		return e.Cluster.Cordon(ctx, node, s.ID)
	}
	pods := view.Pods[n.Name]
	if len(s.Drain.losses(pods)) > 0 {
		return nil
	}
	evicted := 0
	for _, p := range left(pods) {
		if p.Ending {
			continue
		}
		if evicted++; evicted > maxEvictions || !e.holds() {
			return nil
		}
		if err := e.Cluster.Evict(ctx, p); err != nil && !errors.Is(err, ErrBudget) {
			return err
		}
	}
	return nil
}
