package upgrade

import (
	"cmp"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
)

// newState begins an upgrade; last is the state of the one before.
func newState(s Spec, last State, now time.Time) State {
	state := State{Schema: Schema, Spec: s, Phase: Running, Began: now, Nodes: []NodeState{}}
	for _, n := range last.Nodes {
		// Kept for now of those that are gone, too: the serials of their directions go on.
		state.Nodes = append(state.Nodes, NodeState{
			Name: n.Name, EKID: n.EKID, Role: n.Role, Phase: NodeGone, Serial: n.Serial, Before: cmp.Or(n.Away, n.Before),
		})
	}
	return state
}

// meet takes up nodes that were added, and puts all in their order.
func (t *turn) meet() {
	known := map[hullmark.EKID]int{}
	for i, n := range t.state.Nodes {
		known[n.EKID] = i
	}
	for _, m := range t.view.Machines {
		node, there := t.view.Nodes[m.Name]
		if !there || t.state.Spec.excepts(m.Name) {
			continue
		}
		i, ok := known[m.EKID]
		if !ok {
			i = len(t.state.Nodes)
			t.state.Nodes = append(t.state.Nodes, NodeState{EKID: m.EKID, Phase: NodeGone})
		}
		n := &t.state.Nodes[i]
		n.Name, n.Role, n.Pool = m.Name, m.Role, t.view.pool(m)
		if n.Phase == NodeGone {
			n.Phase, n.Note, n.BootID, n.Waited = NodeWaiting, "", node.boot(), 0
		}
		if !ok && !t.fresh && t.state.Spec.Action == hullmark.UpdateRestart {
			n.Note = "it joined since"
			t.enter(n, NodeDone)
		}
	}
	slices.SortStableFunc(t.state.Nodes, inOrder)
	if len(t.state.Nodes) > MaxNodes {
		// Those that were removed long ago are the first to be forgotten.
		t.state.Nodes = slices.DeleteFunc(t.state.Nodes, func(n NodeState) bool { return n.Phase == NodeGone && n.Began.IsZero() })
	}
}

// inOrder puts control planes first, then workers by pool; those that are gone come last.
func inOrder(a, b NodeState) int {
	rank := func(n NodeState) int {
		switch {
		case n.Phase == NodeGone:
			return 2
		case n.Role == hullmark.Worker:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Name, b.Name))
}
