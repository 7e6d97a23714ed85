package upgrade

import (
	"time"

	"github.com/hullmark/hullmark"
)

// turn is one look of an engine at a cluster, from which the state that it is to have next follows: a pure function, so that the same look
// gives the same state to any engine.
type turn struct {
	view    View
	request Request
	state   *State
	// now is for people; elapsed is what is added to how long everything waited.
	now     time.Time
	elapsed time.Duration
	// fresh says that the upgrade begins with this look.
	fresh bool
	judge Judge
}

// advance brings the state on by what is seen.
func (t *turn) advance() {
	if t.state.Phase.Over() {
		return
	}
	t.meet()
	if t.obey(); t.state.Phase.Over() {
		return
	}
	for i := range t.state.Nodes {
		observing{t}.observe(&t.state.Nodes[i])
	}
	t.state.Waits = ""
	if t.state.Phase == Running {
		beginning{t}.begin()
	}
	t.end()
}

// obey does what the operator wants by now. A request for another upgrade ends this one.
func (t *turn) obey() {
	s := t.state
	aborted := t.request.Aborted || t.request.Spec.ID != s.Spec.ID
	switch {
	case aborted && s.Phase != Stopping:
		s.Phase, s.Aborted = Stopping, true
	case s.Phase == Running && t.request.Paused:
		s.Phase = Paused
	case s.Phase == Paused && !t.request.Paused:
		s.Phase = Running
	}
}

// enter takes a node to its next phase.
func (t *turn) enter(n *NodeState, p NodePhase) {
	n.Phase, n.Waited, n.Retry = p, 0, 0
	if p.over() {
		n.Ended = t.now
	}
}

// release lets a node that was cordoned take pods again, before its next phase.
func (t *turn) release(n *NodeState, next NodePhase) {
	t.enter(n, NodeReleasing)
	n.Next = next
}

// fail stops the upgrade at a node; one that is cordoned takes pods again first.
func (t *turn) fail(n *NodeState, why *hullmark.Condition) {
	n.Failed = kept(why)
	if n.Phase.unsettled() {
		t.release(n, NodeFailed)
	} else {
		t.enter(n, NodeFailed)
	}
	t.stop(n.Failed)
}

// stop ends the upgrade for a reason; the first counts.
func (t *turn) stop(why *hullmark.Condition) {
	if t.state.Failed == nil {
		t.state.Failed = kept(why)
	}
	t.state.Phase = Stopping
}

// machine returns what is recorded of a node.
func (t *turn) machine(n *NodeState) (Machine, bool) {
	m, ok := t.view.Machines[n.EKID]
	return m, ok
}

// node returns what Kubernetes has of a node; the zero value if it has none.
func (t *turn) node(n *NodeState) Node { return t.view.Nodes[n.Name] }

// direct chooses the serial of a node's next direction. A node is not believed that it has followed one to which none could lead.
func (t *turn) direct(n *NodeState) {
	last := max(n.Serial, t.view.Directions[n.EKID].Serial)
	if m, ok := t.machine(n); ok && m.Update != nil && (hullmark.UpdateDirection{Serial: m.Update.Serial}).Follows(last) {
		last = m.Update.Serial
	}
	n.Serial = last + 1
}

// end notes that nothing is left to do.
func (t *turn) end() {
	s := t.state
	over, unsettled := true, false
	for _, n := range s.Nodes {
		over, unsettled = over && n.Phase.over(), unsettled || n.Phase.unsettled()
	}
	switch {
	case s.Phase == Stopping && !unsettled:
		if s.Phase = Failed; s.Aborted {
			s.Phase = Aborted
		}
		for i := range s.Nodes {
			if n := &s.Nodes[i]; !n.Phase.over() {
				t.enter(n, NodeWaiting)
			}
		}
	case (s.Phase == Running || s.Phase == Paused) && over:
		s.Phase = Done
	default:
		return
	}
	s.Ended, s.Waits = t.now, ""
}
