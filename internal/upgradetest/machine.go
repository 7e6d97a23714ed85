// Package upgradetest plays a cluster for tests of upgrades: machines that follow directions, well or not, pods that are evicted, and all
// of it in memory as an upgrade.Cluster, or beside a real API.
package upgradetest

import (
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
)

// Manner is how a machine goes about what it is directed to do.
type Manner int

// The manners.
const (
	// Good follows, and is healthy in the release that it tries.
	Good Manner = iota
	// FallsBack tries the release, and comes back in the one from before.
	FallsBack
	// Vanishes restarts, and never comes back.
	Vanishes
	// Refuses accepts no release.
	Refuses
	// Deaf is Ready, and asks nobody what to do.
	Deaf
	// Interrupted is cut off each time that it writes a release, for a reason that passes.
	Interrupted
	// InterruptedOnce is cut off the first time.
	InterruptedOnce
	// Hesitates refuses to try a release the first time, for a reason that passes.
	Hesitates
	// Skewed stages no release, as long as its cluster has recorded another Kubernetes.
	Skewed
)

// Pace is how long what a machine does takes.
type Pace struct{ Ask, Stage, Boot, Trial time.Duration }

// UsualPace is that of a machine.
func UsualPace() Pace {
	return Pace{Ask: 40 * time.Second, Stage: 90 * time.Second, Boot: 3 * time.Minute, Trial: 30 * time.Minute}
}

// Machine plays one machine with a node's agent on it. What it says of itself is Recorded as of its last question.
type Machine struct {
	EKID   hullmark.EKID
	Name   string
	Role   hullmark.Role
	Manner Manner
	Pace   Pace
	// Ready and BootID are what its kubelet says, Document is the one that its registers match.
	Ready    bool
	BootID   string
	Document hullmark.DocumentID
	// Recorded is what its join service has of its slots.
	Recorded hullmark.UpdateStatus
	// Held, if set, reports whether a machine that boots waits for somebody.
	Held func() bool
	// Leaves, if set, is called when the machine is switched off, with the release that it tries, or runs on with.
	Leaves func(hullmark.DocumentID)
	// Boots counts, and Left is when the machine was switched off last.
	Boots int
	Left  time.Time

	slots       hullmark.UpdateStatus
	asks, until time.Time
	doing       hullmark.UpdateAction // what ends at until
	interrupted int
	releases    map[hullmark.DocumentID]hullmark.RootHash
}

// NewMachine returns a Ready machine that runs the release of a document in slot a. releases has the root hashes of all documents.
func NewMachine(name string, role hullmark.Role, document hullmark.DocumentID, releases map[hullmark.DocumentID]hullmark.RootHash) *Machine {
	m := &Machine{EKID: hullmark.EKIDOf([]byte(name)), Name: name, Role: role, Pace: UsualPace(), Document: document, releases: releases}
	m.slots = hullmark.UpdateStatus{Running: "a", Default: "a", A: releases[document], Phase: hullmark.UpdateIdle}
	m.Recorded = m.slots
	m.booted()
	return m
}

func (m *Machine) booted() {
	m.Boots++
	m.Ready, m.BootID = true, fmt.Sprintf("%s-boot-%d", m.Name, m.Boots)
}

// Step does what is due, by the direction that stands.
func (m *Machine) Step(now time.Time, d hullmark.UpdateDirection) {
	if m.doing != "" && !now.Before(m.until) && (m.Ready || m.Held == nil || !m.Held()) {
		m.finish()
	}
	if m.Manner == Deaf || !m.Ready || now.Before(m.asks) {
		return
	}
	m.asks = now.Add(m.Pace.Ask)
	if d.Serial > m.slots.Serial {
		m.follow(now, d)
	}
	if m.Ready {
		m.Recorded = m.slots
	}
}

func (m *Machine) follow(now time.Time, d hullmark.UpdateDirection) {
	s := &m.slots
	s.Serial, s.Failed = d.Serial, nil
	switch {
	case d.Action == hullmark.UpdateStage && m.Manner == Refuses:
		s.Phase, s.Document, s.Failed = hullmark.UpdateFailed, d.Document, refusal("the policy does not accept the document")
	case d.Action == hullmark.UpdateStage && m.Manner == Skewed:
		s.Failed = passing("version-skew")
	case d.Action == hullmark.UpdateTry && m.Manner == Hesitates && m.interrupted == 0:
		m.interrupted++
		s.Failed = passing("release-not-accepted")
	case d.Action == hullmark.UpdateStage:
		s.Phase, s.Document = hullmark.UpdateStaging, d.Document
		m.begin(d.Action, now.Add(m.Pace.Stage))
	case d.Action == hullmark.UpdateTry && (s.Phase != hullmark.UpdateStaged || s.Document != d.Document):
		s.Failed = refusal("the release is not staged")
	case d.Action == hullmark.UpdateTry, d.Action == hullmark.UpdateRestart:
		m.Recorded = m.slots
		m.Reboot(now, d.Action)
	default:
		s.Failed = refusal("not here")
	}
}

// passing is why something is refused that may be asked for again.
func passing(code string) *hullmark.Condition {
	return &hullmark.Condition{Code: code, Step: "UPDATE", Title: "not yet", Next: "wait", Retry: true}
}

func refusal(why string) *hullmark.Condition {
	return &hullmark.Condition{Code: "update-refused", Step: "UPDATE", Title: why, Next: "direct something else"}
}

func (m *Machine) begin(a hullmark.UpdateAction, until time.Time) { m.doing, m.until = a, until }

// Reboot switches the machine off; it is back after its pace, unless it vanishes.
func (m *Machine) Reboot(now time.Time, a hullmark.UpdateAction) {
	m.Ready, m.Left = false, now
	if m.Leaves != nil {
		next := m.Document
		if a == hullmark.UpdateTry {
			next = m.slots.Document
		}
		m.Leaves(next)
	}
	until := now.Add(m.Pace.Boot)
	if m.Manner == FallsBack && a == hullmark.UpdateTry {
		until = until.Add(m.Pace.Trial)
	}
	if m.Manner == Vanishes {
		until = now.Add(1000 * time.Hour)
	}
	m.begin(a, until)
}

// finish ends what takes its time.
func (m *Machine) finish() {
	s, done := &m.slots, m.doing
	m.doing = ""
	if done == hullmark.UpdateStage {
		m.staged()
		return
	}
	if m.booted(); done != hullmark.UpdateTry {
		return
	}
	if m.Manner == FallsBack {
		s.Phase, s.Failed = hullmark.UpdateFailed, &hullmark.Condition{Code: "trial-failed", Step: "UPDATE", Title: "the trial failed: the node was not Ready", Next: "mend the release"}
		return
	}
	s.Running = other(s.Running)
	s.Default, m.Document = s.Running, s.Document
	s.Phase, s.Document = hullmark.UpdateIdle, hullmark.DocumentID{}
}

func (m *Machine) staged() {
	s := &m.slots
	if m.Manner == Interrupted || m.Manner == InterruptedOnce && m.interrupted == 0 {
		m.interrupted++
		s.Phase, s.Failed = hullmark.UpdateFailed, passing("stage-interrupted")
		return
	}
	s.Phase = hullmark.UpdateStaged
	if other(s.Running) == "a" {
		s.A = m.releases[s.Document]
	} else {
		s.B = m.releases[s.Document]
	}
}

func other(slot string) string {
	if slot == "a" {
		return "b"
	}
	return "a"
}

// Slot puts another release into the slot that does not run, as somebody else's direction would.
func (m *Machine) Slot(d hullmark.DocumentID) {
	m.slots.Phase, m.slots.Document = hullmark.UpdateStaged, d
	m.Recorded = m.slots
}

// Shown is whether Kubernetes holds its node to be Ready: it notices that a node is gone only when that has been silent for a while.
func (m *Machine) Shown(now time.Time) bool {
	const silence = 40 * time.Second
	return m.Ready || !m.Left.IsZero() && now.Sub(m.Left) < min(silence, m.Pace.Boot)
}

// Release is what the machine runs.
func (m *Machine) Release() hullmark.RootHash { return m.slots.Release() }

// Committed reports whether what runs starts by itself.
func (m *Machine) Committed() bool { return m.slots.Running == m.slots.Default }
