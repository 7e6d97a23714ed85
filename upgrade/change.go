package upgrade

import (
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
)

// Change is one that people are told of.
type Change struct {
	// Time is that of the state which has it, Node whose it is; empty if it is the upgrade's.
	Time time.Time
	Node string
	Text string
}

// Changes says what differs between two states of an upgrade, for people.
func Changes(before, after State) (changes []Change) {
	if before.Spec.ID != after.Spec.ID {
		before = State{}
	}
	old := map[hullmark.EKID]NodeState{}
	for _, n := range before.Nodes {
		old[n.EKID] = n
	}
	for _, n := range after.Nodes {
		was := old[n.EKID]
		if was.Phase == n.Phase || was.Phase == "" && (n.Phase == NodeWaiting || n.Phase == NodeGone) {
			continue
		}
		changes = append(changes, Change{Time: n.entered(after), Node: n.Name, Text: n.says()})
	}
	if after.Phase != before.Phase {
		changes = append(changes, Change{Time: after.Ended, Text: after.says()})
	}
	if after.Waits != before.Waits && after.Waits != "" {
		changes = append(changes, Change{Text: "waits: " + after.Waits})
	}
	return changes
}

// entered is when the node came into its phase, as far as that is known.
func (n NodeState) entered(s State) time.Time {
	switch {
	case n.Phase.over():
		return n.Ended
	case n.Phase == NodeAway:
		return n.Drained
	case n.Phase == NodeReleasing:
		return n.Back
	}
	return time.Time{}
}

// says is a node's phase in words.
func (n NodeState) says() string {
	text := map[NodePhase]string{
		NodeWaiting: "waits for its turn", NodeStaging: "writes the release", NodeStaged: "has the release",
		NodeAttended: "waits for its operator", NodeDraining: "is cordoned and drained", NodeAway: "was told to restart", NodeReleasing: "takes pods again",
		NodeDone: "is done", NodeSkipped: "was skipped", NodeGone: "is gone", NodeFailed: "failed",
	}[n.Phase]
	if n.Phase == NodeReleasing && n.Next == NodeDone {
		text = "is back, and takes pods again"
	}
	if n.Phase == NodeDone && n.Away > 0 {
		text += fmt.Sprintf("; it was away for %v", time.Duration(n.Away).Round(time.Second))
	}
	if n.Note != "" {
		text += ": " + n.Note
	}
	if n.Failed != nil && n.Phase.over() {
		text += ": " + n.Failed.Error()
	}
	return text
}

// says is an upgrade's phase in words.
func (s State) says() string {
	switch s.Phase {
	case Running:
		return "goes on"
	case Paused:
		return "is paused: nodes that were begun with go on to their ends"
	case Stopping:
		return "stops: nodes that were begun with come to their ends first"
	case Aborted:
		return "was aborted"
	case Failed:
		if s.Failed != nil {
			return "stopped: " + s.Failed.Error()
		}
		return "stopped"
	}
	return "is done"
}
