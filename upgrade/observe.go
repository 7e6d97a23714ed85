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

// observing is the part of a turn that brings nodes on which were begun with.
type observing struct{ *turn }

// observe brings a node on by what is seen of it.
func (t observing) observe(n *NodeState) {
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
func (t observing) observeIdle(n *NodeState, m Machine) {
	node, s := t.node(n), t.state.Spec
	switch {
	case t.view.there(s, m):
		n.Note = "it runs the release already"
		t.finish(n)
	case s.Action == hullmark.UpdateRestart && node.Ready && node.boot() != n.BootID && n.BootID != "":
		n.Note = "it has restarted by itself since"
		t.finish(n)
	case n.Phase != NodeWaiting && s.Action == hullmark.UpdateTry && !staged(m, n):
		t.enter(n, NodeWaiting) // Somebody staged something else.
	}
}

// finish ends a node with which nothing is left to do. A cordon of an upgrade whose state somebody has deleted is taken back.
func (t observing) finish(n *NodeState) {
	if t.node(n).CordonedBy != "" {
		t.release(n, NodeDone)
	} else {
		t.enter(n, NodeDone)
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
func (t observing) overtaken(n *NodeState) *hullmark.Condition {
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

func (t observing) observeStaging(n *NodeState, m Machine) {
	s := t.state.Spec
	why := refused(m, n)
	switch {
	case t.view.there(s, m):
		t.finish(n)
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
func (t observing) again(n *NodeState, why *hullmark.Condition, within Duration) bool {
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

func (t observing) observeDraining(n *NodeState) {
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
func (t observing) giveUp(n *NodeState, why *hullmark.Condition) {
	if t.state.Spec.Drain.Skip {
		n.Failed, n.Note = kept(why), "it was left out"
		t.release(n, NodeSkipped)
		return
	}
	t.fail(n, why)
}

// sendAway has a drained node restart, and reports whether it may: what held when its drain began has to hold still.
func (t observing) sendAway(n *NodeState) bool {
	n.Note = ""
	if n.Role == hullmark.ControlPlane {
		if n.Note = t.gate(n); n.Note != "" {
			return false
		}
	}
	t.direct(n)
	n.BootID, n.Drained = t.node(n).boot(), t.now
	t.enter(n, NodeAway)
	return true
}

func (t observing) observeAway(n *NodeState, m Machine) {
	s, node, u := t.state.Spec, t.node(n), m.Update
	booted := node.Ready && node.boot() != n.BootID
	followed := u != nil && u.Serial >= n.Serial
	why := refused(m, n)
	switch {
	case booted && (t.view.there(s, m) || s.Action == hullmark.UpdateRestart && followed && why == nil):
		n.Back, n.Away, n.Note = t.now, n.Waited, ""
		// Where engines changed meanwhile, their clocks know better, if they agree.
		if d := Duration(t.now.Sub(n.Drained)); d > n.Away && d <= s.Timeouts.Away {
			n.Away = d
		}
		t.release(n, NodeDone)
	case booted && s.Action == hullmark.UpdateRestart && !followed:
		n.BootID = node.boot() // It restarted by itself before it heard of it, and will again.
	case why != nil && node.boot() == n.BootID && t.again(n, why, s.Timeouts.Away):
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
func (t observing) whereabouts(n *NodeState, m Machine) string {
	node, ok := t.view.Nodes[n.Name]
	words := []string{"there is no Node of it"}
	if ok {
		words = []string{"the Node is not Ready"}
		if node.Ready {
			words = []string{"the Node is Ready"}
		}
		if node.boot() == n.BootID {
			words = append(words, "in the boot from before")
		}
	}
	if u := m.Update; u != nil {
		words = append(words, fmt.Sprintf("slot %s runs, %s starts by itself, %s", u.Running, u.Default, u.Phase))
	}
	return strings.Join(words, ", ")
}

// observeReleasing waits until nothing is left of what was done to the node.
func (t observing) observeReleasing(n *NodeState, m Machine) {
	node, ok := t.view.Nodes[n.Name]
	if ok && node.CordonedBy != "" || t.pending(n, m) {
		return
	}
	next := n.Next
	n.Next, n.Withdraw = "", false
	t.enter(n, next)
}

// pending reports whether a direction that is to be withdrawn is there still, and the node has not followed it.
func (t observing) pending(n *NodeState, m Machine) bool {
	followed := m.Update != nil && m.Update.Serial >= n.Serial
	return n.Withdraw && !followed && t.view.Directions[n.EKID].Serial == n.Serial
}
