package upgrade

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
)

// beginning is the part of a turn that begins with nodes whose turns have come.
type beginning struct{ *turn }

// begin begins with as many nodes as may be begun with, and says what the next one waits for if that is none.
func (t beginning) begin() {
	before := t.moving()
	t.beginStaging()
	if t.state.Phase != Running {
		return
	}
	if planes := t.unfinished(func(n *NodeState) bool { return n.Role == hullmark.ControlPlane }); len(planes) > 0 {
		t.beginPlane(planes[0])
	} else {
		t.beginWorkers()
	}
	t.stall(before)
}

// moving is how many nodes something is done with.
func (t *turn) moving() (n int) {
	for _, s := range t.state.Nodes {
		if s.Phase.unsettled() || s.Phase == NodeStaging {
			n++
		}
	}
	return n
}

// stall stops an upgrade in which nothing goes on for as long as a node may be away. An operator who is waited for may take his time.
func (t beginning) stall(before int) {
	s := t.state
	attended := slices.ContainsFunc(s.Nodes, func(n NodeState) bool { return n.Phase == NodeAttended })
	if before > 0 || t.moving() > 0 || attended || s.Waits == "" {
		s.Waited = 0
		return
	}
	if s.Waited += Duration(t.elapsed); s.Waited > s.Spec.Timeouts.Away {
		t.stop(stalled("nothing goes on: " + s.Waits))
	}
}

func stalled(why string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "upgrade-stalled", Step: stepName, Title: why, Next: "bring about what it waits for, or leave the node out (--except); then plan again",
	}
}

// unfinished returns the nodes of a kind that are not over, in their order.
func (t *turn) unfinished(kind func(*NodeState) bool) (nodes []*NodeState) {
	for i := range t.state.Nodes {
		if n := &t.state.Nodes[i]; kind(n) && !n.Phase.over() {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// beginStaging has nodes write the release, as many at a time as the spec says, before any of them is cordoned. A node that is not Ready
// asks nobody what to do.
func (t beginning) beginStaging() {
	s := t.state.Spec
	if s.Action != hullmark.UpdateTry {
		return
	}
	if err := t.view.accepted(s); err != nil {
		t.stop(hullmark.AsCondition(err, stepName, "document-not-accepted"))
		return
	}
	staging := len(t.unfinished(func(n *NodeState) bool { return n.Phase == NodeStaging }))
	for _, n := range t.unfinished(func(n *NodeState) bool { return n.Phase == NodeWaiting }) {
		if staging >= s.Staging || t.state.Phase != Running {
			return
		}
		if t.node(n).Ready && t.stage(n) {
			staging++
		}
	}
}

// stage has one node write the release, and reports whether it may.
func (t beginning) stage(n *NodeState) bool {
	m, ok := t.machine(n)
	if !ok {
		return false
	}
	if why := t.view.obstacle(t.state.Spec, m, t.judge); why != nil {
		t.refuse(n, why)
		return false
	}
	id, err := t.view.documentFor(t.state.Spec, m)
	if err != nil {
		return false
	}
	if n.Document = id; n.Began.IsZero() {
		n.Began = t.now
	}
	t.direct(n)
	n.Tries++
	n.Note = ""
	t.enter(n, NodeStaging)
	return true
}

// refuse stops at a node that cannot be begun with; what passes by itself, once other nodes have gone on, is waited for.
func (t beginning) refuse(n *NodeState, why *hullmark.Condition) {
	if !why.Retry {
		t.fail(n, why)
		return
	}
	if n.Note = cut("not yet: " + why.Root().Title); t.state.Waits == "" {
		t.state.Waits = cut(n.Name + ": " + why.Error())
	}
}

// ready reports whether a node's turn may begin: it has the release, if there is one, and runs.
func (t beginning) ready(n *NodeState) (why string) {
	node, ok := t.view.Nodes[n.Name]
	switch {
	case !ok:
		return n.Name + " has no Node"
	case !node.Ready:
		return n.Name + " is not Ready"
	case t.state.Spec.Action == hullmark.UpdateTry && n.Phase == NodeWaiting:
		return n.Name + " has not begun to write the release"
	case n.Phase == NodeStaging:
		return n.Name + " writes the release"
	}
	return ""
}

// beginPlane begins with the next control plane; one at a time.
func (t beginning) beginPlane(n *NodeState) {
	s := t.state
	if n.Phase.unsettled() {
		return
	}
	if why := t.ready(n); why != "" {
		s.Waits = cmp.Or(s.Waits, why)
		return
	}
	m, ok := t.machine(n)
	if !ok {
		return
	}
	// What is in the cluster may have changed since it staged.
	if why := t.view.obstacle(s.Spec, m, t.judge); why != nil {
		t.refuse(n, why)
		return
	}
	if !t.view.unattended() && !slices.Contains(t.request.Attended, n.Name) {
		if n.Phase != NodeAttended {
			t.enter(n, NodeAttended)
		}
		s.Waits = "the operator of " + n.Name + ", which no other control plane could let in again: " + Attend(n.Name)
		return
	}
	if s.Waits = t.gate(n); s.Waits != "" {
		return
	}
	t.drain(n)
}

// Attend is what the operator does for a control plane that no other could let in again.
func Attend(name string) string {
	return "hullmark upgrade attend " + name + " --node ADDRESS (or hullmark update there, and then hullmark recover)"
}

// gate says what keeps a control plane from going away now; empty if nothing does. All others have to be there, each with an API server
// that is ready, which it is only if its own member of etcd answers with a quorum.
func (t *turn) gate(n *NodeState) string {
	for _, m := range t.view.planes() {
		if m.EKID == n.EKID {
			continue
		}
		i := slices.IndexFunc(t.state.Nodes, func(other NodeState) bool { return other.EKID == m.EKID })
		err, asked := t.view.Servers[m.Name]
		switch {
		case i >= 0 && t.state.Nodes[i].Phase.unsettled():
			return "the control plane " + m.Name + " is not back"
		case !t.view.Nodes[m.Name].Ready:
			return "the control plane " + m.Name + " is not Ready"
		case !asked:
			return "the API server of " + m.Name + " was not asked yet"
		case err != nil:
			return cut(fmt.Sprintf("the API server of %s is not ready: %v", m.Name, err))
		}
	}
	return ""
}

// beginWorkers begins with workers of the first pool that is not at an end.
func (t beginning) beginWorkers() {
	workers := t.unfinished(func(n *NodeState) bool { return n.Role == hullmark.Worker })
	if len(workers) == 0 {
		return
	}
	pool := workers[0].Pool
	away, most := t.unavailable(pool), t.state.Spec.unavailable(pool)
	for _, n := range workers {
		if n.Pool != pool || n.Phase.unsettled() {
			continue
		}
		why := t.ready(n)
		if why == "" && len(away) >= most {
			why = fmt.Sprintf("%d of the pool %s may be away at a time, and %s", most, poolName(pool), list(away))
		}
		if why != "" {
			if t.state.Waits == "" {
				t.state.Waits = cut(why)
			}
			continue
		}
		if m, ok := t.machine(n); ok {
			if c := t.view.obstacle(t.state.Spec, m, t.judge); c != nil {
				t.refuse(n, c)
				return
			}
		}
		t.drain(n)
		away = append(away, n.Name+" is")
	}
}

// unavailable says which workers of a pool are away, or not Ready, those that are left out of the upgrade, too.
func (t beginning) unavailable(pool string) (names []string) {
	for _, m := range t.view.Machines {
		node, ok := t.view.Nodes[m.Name]
		if m.Role != hullmark.Worker || !ok || t.view.pool(m) != pool {
			continue
		}
		i := slices.IndexFunc(t.state.Nodes, func(n NodeState) bool { return n.EKID == m.EKID })
		switch {
		case i >= 0 && t.state.Nodes[i].Phase.unsettled():
			names = append(names, m.Name+" is")
		case !node.Ready && !t.state.Spec.excepts(m.Name):
			names = append(names, m.Name+" is not Ready")
		}
	}
	slices.Sort(names)
	return names
}

// poolName is a pool's name for people.
func poolName(pool string) string {
	if pool == "" {
		return "without a name"
	}
	return pool
}

// drain cordons a node, and has its pods evicted.
func (t beginning) drain(n *NodeState) {
	if n.Began.IsZero() {
		n.Began = t.now
	}
	t.enter(n, NodeDraining)
}
