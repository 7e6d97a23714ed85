package upgrade

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
)

// MaxState is the largest encoded state, in bytes: an object of the API has a MiB for all of it.
const MaxState = 1<<20 - 16<<10

// Phase is how far an upgrade is.
type Phase string

// The phases of an upgrade; the last three are ends.
const (
	// Running begins with nodes as their turns come, Paused with no further one.
	Running Phase = "running"
	Paused  Phase = "paused"
	// Stopping waits for nodes that are away, and makes those that it has cordoned take pods again.
	Stopping Phase = "stopping"
	// Done has seen every node, Failed stopped at one, and Aborted was ended by its operator.
	Done    Phase = "done"
	Failed  Phase = "failed"
	Aborted Phase = "aborted"
)

// Over reports whether nothing follows.
func (p Phase) Over() bool { return p == Done || p == Failed || p == Aborted }

// NodePhase is how far a node is.
type NodePhase string

// The phases of a node, in their order.
const (
	// NodeWaiting is not begun, or was given back.
	NodeWaiting NodePhase = "waiting"
	// NodeStaging writes the release into its other slot, and NodeStaged has it there.
	NodeStaging NodePhase = "staging"
	NodeStaged  NodePhase = "staged"
	// NodeAttended waits until its operator lets it restart: no other control plane could let it in again.
	NodeAttended NodePhase = "attended"
	// NodeDraining is cordoned, and its pods are evicted.
	NodeDraining NodePhase = "draining"
	// NodeAway was told to restart, and is not back.
	NodeAway NodePhase = "away"
	// NodeReleasing is made to take pods again; NodeState.Next follows.
	NodeReleasing NodePhase = "releasing"
	// NodeDone has what was wanted, NodeSkipped was left out, NodeGone was removed, and at NodeFailed the upgrade stopped.
	NodeDone    NodePhase = "done"
	NodeSkipped NodePhase = "skipped"
	NodeGone    NodePhase = "gone"
	NodeFailed  NodePhase = "failed"
)

// over reports whether nothing is left to do with the node.
func (p NodePhase) over() bool {
	return slices.Contains([]NodePhase{NodeDone, NodeSkipped, NodeGone, NodeFailed}, p)
}

// unsettled reports whether the node is cordoned, or away: it has to be brought to an end whatever becomes of the upgrade.
func (p NodePhase) unsettled() bool {
	return p == NodeDraining || p == NodeAway || p == NodeReleasing
}

var nodePhases = []NodePhase{
	NodeWaiting, NodeStaging, NodeStaged, NodeAttended, NodeDraining, NodeAway, NodeReleasing, NodeDone, NodeSkipped, NodeGone, NodeFailed,
}

var phases = []Phase{Running, Paused, Stopping, Done, Failed, Aborted}

// State is how far an upgrade is. Engines alone write it, each time in the place of the one that they read.
type State struct {
	Schema string `json:"schema"`
	// Spec is the one that is carried out: a later request does not change it.
	Spec Spec `json:"spec"`
	// Term is that of the Lease of the engine that wrote it. It never falls.
	Term  uint64 `json:"term"`
	Phase Phase  `json:"phase"`
	// Aborted says that a Stopping upgrade was ended by its operator.
	Aborted bool `json:"aborted,omitempty"`
	// Began and Ended are by the clocks of the control planes that were the engine's then; nothing is decided by them.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended,omitzero"`
	// Waits says what the next node waits for, and Waited since when nothing goes on, added up over engines.
	Waits  string   `json:"waits,omitempty"`
	Waited Duration `json:"waited,omitempty"`
	// Failed is why a Failed upgrade stopped.
	Failed *hullmark.Condition `json:"failed,omitempty"`
	// Nodes are in the order in which they go.
	Nodes []NodeState `json:"nodes"`
}

// NodeState is how far a node is.
type NodeState struct {
	Name string        `json:"name"`
	EKID hullmark.EKID `json:"ekid"`
	Role hullmark.Role `json:"role"`
	Pool string        `json:"pool,omitempty"`
	// Phase is how far it is, and Next what follows NodeReleasing.
	Phase NodePhase `json:"phase"`
	Next  NodePhase `json:"next,omitempty"`
	// Waited is how long it is in the phase, added up over engines: clocks of control planes may differ by hours.
	Waited Duration `json:"waited,omitempty"`
	// Document is the one of the release for its kind of machine, Serial that of the last direction. Tries is how often it was told to
	// stage, or once more what it had refused, and Retry how long it has to have waited before it is told again; zero is a minute.
	Document hullmark.DocumentID `json:"document,omitzero"`
	Serial   uint64              `json:"serial,omitempty"`
	Tries    int                 `json:"tries,omitempty"`
	Retry    Duration            `json:"retry,omitempty"`
	// BootID is that of the boot which it is to end.
	BootID string `json:"bootID,omitempty"`
	// Withdraw says that its direction is to be taken back while it has not followed it.
	Withdraw bool `json:"withdraw,omitempty"`
	// Began, Drained, Back and Ended are when it was begun with, told to restart, back, and at an end.
	Began   time.Time `json:"began,omitzero"`
	Drained time.Time `json:"drained,omitzero"`
	Back    time.Time `json:"back,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Away is how long it was away, and Before how long in the upgrade before.
	Away   Duration `json:"away,omitempty"`
	Before Duration `json:"before,omitempty"`
	// Note says what else is to be said of the phase, and Failed why it failed.
	Note   string              `json:"note,omitempty"`
	Failed *hullmark.Condition `json:"failed,omitempty"`
}

// Encode returns the state as JSON. It fails for one that ParseState refuses.
func (s State) Encode() ([]byte, error) {
	s.Schema = Schema
	if s.Nodes == nil {
		s.Nodes = []NodeState{}
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("encode the upgrade's state: %w", err)
	}
	text, err := json.Marshal(s)
	if err == nil && len(text) > MaxState {
		text, err = json.Marshal(s.brief())
	}
	if err == nil && len(text) > MaxState {
		err = fmt.Errorf("%d bytes, want at most %d", len(text), MaxState)
	}
	if err != nil {
		return nil, fmt.Errorf("encode the upgrade's state: %w", err)
	}
	return text, nil
}

// brief leaves out what nodes say of themselves, which may be too much for one object; the first failure is the upgrade's own, and stays.
func (s State) brief() State {
	s = s.copy()
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Failed != nil || n.Note != "" {
			n.Failed, n.Note = nil, "ask the node: there is no room here for what it says"
		}
	}
	return s
}

// ParseState strictly reads what Encode writes.
func ParseState(text []byte) (s State, err error) {
	if err = hullmark.DecodeStrict(text, MaxState, &s); err == nil {
		err = s.check()
	}
	if err != nil {
		return State{}, fmt.Errorf("read the upgrade's state: %w", err)
	}
	return s, nil
}

func (s State) check() error {
	if s.Schema != Schema {
		return fmt.Errorf("schema %.80q, want %q: another release made it", s.Schema, Schema)
	}
	if err := s.Spec.Check(); err != nil {
		return err
	}
	if !slices.Contains(phases, s.Phase) || len(s.Nodes) > MaxNodes || s.Nodes == nil || len(s.Waits) > maxCause || s.Waited < 0 {
		return fmt.Errorf("phase %.20q, %d nodes: want one that exists, and a list of at most %d", s.Phase, len(s.Nodes), MaxNodes)
	}
	seen := map[hullmark.EKID]bool{}
	for _, n := range s.Nodes {
		if err := n.check(); err != nil {
			return fmt.Errorf("node %.80q: %w", n.Name, err)
		}
		if seen[n.EKID] {
			return fmt.Errorf("node %.80q: its machine is there twice", n.Name)
		}
		seen[n.EKID] = true
	}
	return nil
}

func (n NodeState) check() error {
	if !hullmark.ValidNodeName(n.Name) || !n.Role.Valid() {
		return fmt.Errorf("role %.20q: want a DNS label for a name, and a role that exists", n.Role)
	}
	if !slices.Contains(nodePhases, n.Phase) || (n.Phase == NodeReleasing) != (n.Next != "") || n.Next != "" && !slices.Contains(nodePhases, n.Next) {
		return fmt.Errorf("phase %.20q, next %.20q: want ones that exist, and a next one for %s alone", n.Phase, n.Next, NodeReleasing)
	}
	if n.Waited < 0 || n.Retry < 0 || n.Away < 0 || n.Before < 0 || n.Tries < 0 {
		return fmt.Errorf("a time or a number below zero")
	}
	if len(n.BootID) > maxText || len(n.Pool) > maxText || len(n.Note) > maxCause {
		return fmt.Errorf("a text of more than %d bytes", maxCause)
	}
	return nil
}

const (
	// maxCause bounds what others say that is kept in a state, in bytes.
	maxCause = 512
	// maxBootID bounds what a kubelet calls its boot, in bytes; Linux gives each a UUID.
	maxBootID = 64
)

// cut cuts a text that others wrote, and leaves out of it what is none: JSON would make more bytes of that.
func cut(text string) string {
	const end = "…"
	text = strings.ToValidUTF8(text, "")
	if len(text) <= maxCause {
		return text
	}
	return strings.ToValidUTF8(text[:maxCause-len(end)], "") + end
}

// kept is of a condition what a state keeps: its root, cut.
func kept(c *hullmark.Condition) *hullmark.Condition {
	root := c.Root()
	return &hullmark.Condition{
		Code: cut(root.Code), Step: cut(root.Step), Title: cut(root.Title), Expected: cut(root.Expected), Got: cut(root.Got), Next: cut(root.Next), Retry: root.Retry,
	}
}
