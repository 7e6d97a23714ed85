package upgrade

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
)

// retryPause lies between two directions of a node that refuses one for a reason that passes. Its timeout bounds them.
const retryPause = Duration(time.Minute)

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
		t.observe(&t.state.Nodes[i])
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

// observe brings a node on by what is seen of it.
func (t *turn) observe(n *NodeState) {
	if n.Phase.over() {
		return
	}
	n.Waited += Duration(t.elapsed)
	m, ok := t.machine(n)
	if !ok {
		n.Note = "its record was removed"
		n.Next = ""
		t.enter(n, NodeGone)
		return
	}
	switch n.Phase {
	case NodeWaiting, NodeStaged, NodeAttended:
		t.observeIdle(n, m)
	case NodeStaging:
		t.observeStaging(n, m)
	case NodeDraining:
		t.observeDraining(n)
	case NodeAway:
		t.observeAway(n, m)
	case NodeReleasing:
		t.observeReleasing(n, m)
	}
}

// observeIdle ends a node that has what is wanted already.
func (t *turn) observeIdle(n *NodeState, m Machine) {
	node, s := t.node(n), t.state.Spec
	switch {
	case s.there(m):
		n.Note = "it runs the release already"
		t.enter(n, NodeDone)
	case s.Action == hullmark.UpdateRestart && node.Ready && node.BootID != n.BootID && n.BootID != "":
		n.Note = "it has restarted by itself since"
		t.enter(n, NodeDone)
	case n.Phase != NodeWaiting && s.Action == hullmark.UpdateTry && !staged(m, n):
		t.enter(n, NodeWaiting) // Somebody staged something else.
	}
}

// staged reports whether a machine has the release in its other slot.
func staged(m Machine, n *NodeState) bool {
	u := m.Update
	return u != nil && u.Phase == hullmark.UpdateStaged && u.Document == n.Document
}

// refused returns why a node does not follow its last direction; nil as long as it may.
func refused(m Machine, n *NodeState) *hullmark.Condition {
	u := m.Update
	if u == nil || u.Serial < n.Serial || u.Failed == nil || u.Phase == hullmark.UpdateStaging || u.Phase == hullmark.UpdateTrial {
		return nil
	}
	return u.Failed
}

// overtaken is the condition of a node that somebody else has directed since.
func (t *turn) overtaken(n *NodeState) *hullmark.Condition {
	d := t.view.Directions[n.EKID]
	if d.Serial <= n.Serial {
		return nil
	}
	return &hullmark.Condition{
		Code: "direction-overtaken", Step: stepName, Title: "somebody else has directed " + n.Name + " since",
		Expected: fmt.Sprintf("direction %d", n.Serial), Got: fmt.Sprintf("direction %d: %s", d.Serial, d.Action),
		Next: "find out who; then plan again (hullmark upgrade plan)",
	}
}

func (t *turn) observeStaging(n *NodeState, m Machine) {
	s := t.state.Spec
	why := refused(m, n)
	switch {
	case s.there(m):
		t.enter(n, NodeDone)
	case staged(m, n) && m.Update.Serial >= n.Serial:
		n.Note = ""
		t.enter(n, NodeStaged)
	case why != nil && t.again(n, why, s.Timeouts.Stage):
	case why != nil:
		t.fail(n, why)
	case t.overtaken(n) != nil:
		t.fail(n, t.overtaken(n))
	case n.Waited > s.Timeouts.Stage:
		t.fail(n, &hullmark.Condition{
			Code: "stage-timeout", Step: stepName, Title: n.Name + " has not written the release into its other slot in time", Expected: "within " + time.Duration(s.Timeouts.Stage).String(),
			Got: cmp.Or(n.Note, progressOf(m)), Next: "look at the node (hullmark node status), and at the sources; then plan again",
		})
	}
}

// again directs a node once more, after a pause, that refuses its direction for a reason that passes, and reports whether there is time
// for that.
func (t *turn) again(n *NodeState, why *hullmark.Condition, within Duration) bool {
	if !why.Retry || n.Waited > within {
		return false
	}
	n.Note = cut("not yet: " + why.Root().Title)
	if n.Waited >= cmp.Or(n.Retry, retryPause) {
		t.direct(n)
		n.Tries++
		n.Retry = n.Waited + retryPause
	}
	return true
}

// progressOf says how far a machine is with what it writes.
func progressOf(m Machine) string {
	u := m.Update
	if u == nil || u.Phase != hullmark.UpdateStaging {
		return "nothing is known of it"
	}
	return fmt.Sprintf("%d MB are there", (u.Fetched+u.Copied+u.Kept)/1e6)
}

// direct chooses the serial of a node's next direction.
func (t *turn) direct(n *NodeState) {
	last := n.Serial
	if m, ok := t.machine(n); ok && m.Update != nil {
		last = max(last, m.Update.Serial)
	}
	n.Serial = max(last, t.view.Directions[n.EKID].Serial) + 1
}

func (t *turn) observeDraining(n *NodeState) {
	s, node := t.state.Spec, t.node(n)
	pods, looked := t.view.Pods[n.Name]
	losses := s.Drain.losses(pods)
	switch {
	case t.state.Phase == Stopping:
		t.release(n, NodeWaiting)
	case !looked || !node.Unschedulable: // It was not seen cordoned yet.
	case len(losses) > 0:
		t.giveUp(n, &hullmark.Condition{
			Code: "pods-lost", Step: stepName, Title: n.Name + " is not drained, because pods would be lost: " + list(losses),
			Next: "end them yourself, or say that they may be lost (--force, --delete-emptydir-data)",
		})
	case len(left(pods)) == 0 && t.sendAway(n):
	case n.Waited <= s.Timeouts.Drain:
	case len(left(pods)) == 0:
		t.fail(n, stalled(n.Name+" is drained, and may not restart: "+n.Note))
	default:
		t.giveUp(n, &hullmark.Condition{
			Code: "drain-timeout", Step: stepName, Title: n.Name + " was not drained in time: " + holdUp(pods, t.view.Budgets), Expected: "within " + time.Duration(s.Timeouts.Drain).String(),
			Next: "let the budgets allow it (more replicas, healthy ones, or another budget), or end the pods yourself; then plan again",
		})
	}
}

// giveUp leaves a node out that cannot be drained, or stops at it, as the spec says.
func (t *turn) giveUp(n *NodeState, why *hullmark.Condition) {
	if t.state.Spec.Drain.Skip {
		n.Failed, n.Note = kept(why), "it was left out"
		t.release(n, NodeSkipped)
		return
	}
	t.fail(n, why)
}

// sendAway has a drained node restart, and reports whether it may: what held when its drain began has to hold still.
func (t *turn) sendAway(n *NodeState) bool {
	n.Note = ""
	if n.Role == hullmark.ControlPlane {
		if n.Note = t.gate(n); n.Note != "" {
			return false
		}
	}
	t.direct(n)
	n.BootID, n.Drained = t.node(n).BootID, t.now
	t.enter(n, NodeAway)
	return true
}

func (t *turn) observeAway(n *NodeState, m Machine) {
	s, node, u := t.state.Spec, t.node(n), m.Update
	booted := node.Ready && node.BootID != n.BootID
	followed := u != nil && u.Serial >= n.Serial
	why := refused(m, n)
	switch {
	case booted && (s.there(m) || s.Action == hullmark.UpdateRestart && followed && why == nil):
		n.Back, n.Away, n.Note = t.now, n.Waited, ""
		// Where engines changed meanwhile, their clocks know better, if they agree.
		if d := Duration(t.now.Sub(n.Drained)); d > n.Away && d <= s.Timeouts.Away {
			n.Away = d
		}
		t.release(n, NodeDone)
	case booted && s.Action == hullmark.UpdateRestart && !followed:
		n.BootID = node.BootID // It restarted by itself before it heard of it, and will again.
	case why != nil && node.BootID == n.BootID && t.again(n, why, s.Timeouts.Away):
	case why != nil:
		t.fail(n, why)
	case t.overtaken(n) != nil:
		t.fail(n, t.overtaken(n))
	case n.Waited > s.Timeouts.Away:
		n.Withdraw = true
		t.fail(n, &hullmark.Condition{
			Code: "node-lost", Step: stepName, Title: n.Name + " was told to restart, and is not back", Expected: "within " + time.Duration(s.Timeouts.Away).String(), Got: t.whereabouts(n, m),
			Next: "look at the machine's console, and ask it (hullmark node status); a control plane may need hullmark recover",
		})
	}
}

// whereabouts says what is known of a node that is away.
func (t *turn) whereabouts(n *NodeState, m Machine) string {
	node, ok := t.view.Nodes[n.Name]
	words := []string{"there is no Node of it"}
	if ok {
		words = []string{"the Node is not Ready"}
		if node.Ready {
			words = []string{"the Node is Ready"}
		}
		if node.BootID == n.BootID {
			words = append(words, "in the boot from before")
		}
	}
	if u := m.Update; u != nil {
		words = append(words, fmt.Sprintf("slot %s runs, %s starts by itself, %s", u.Running, u.Default, u.Phase))
	}
	return strings.Join(words, ", ")
}

// observeReleasing waits until nothing is left of what was done to the node.
func (t *turn) observeReleasing(n *NodeState, m Machine) {
	node, ok := t.view.Nodes[n.Name]
	if ok && node.CordonedBy != "" || t.pending(n, m) {
		return
	}
	next := n.Next
	n.Next, n.Withdraw = "", false
	t.enter(n, next)
}

// pending reports whether a direction that is to be withdrawn is there still, and the node has not followed it.
func (t *turn) pending(n *NodeState, m Machine) bool {
	followed := m.Update != nil && m.Update.Serial >= n.Serial
	return n.Withdraw && !followed && t.view.Directions[n.EKID].Serial == n.Serial
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
