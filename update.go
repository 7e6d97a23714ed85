package hullmark

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
)

// DocumentID is the SHA-256 of an encoded measurement document. Policies and directions name a release by it.
type DocumentID [sha256.Size]byte

// String returns 64 lower-case hexadecimal digits.
func (d DocumentID) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes String's form.
func (d DocumentID) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *DocumentID) UnmarshalText(text []byte) error {
	if err := decodeHex(d[:], string(text)); err != nil {
		return fmt.Errorf("document digest: %w", err)
	}
	return nil
}

// RootHash is the dm-verity root hash of a release's root file system: what a slot holds is known by it.
type RootHash [sha256.Size]byte

// String returns 64 lower-case hexadecimal digits.
func (h RootHash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText writes String's form.
func (h RootHash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (h *RootHash) UnmarshalText(text []byte) error {
	if err := decodeHex(h[:], string(text)); err != nil {
		return fmt.Errorf("root hash: %w", err)
	}
	return nil
}

// UpdateAction is what a node is asked to do with its two slots.
type UpdateAction string

// The actions. Each is refused with a condition where it could not end well.
const (
	// UpdateStage writes a release into the slot that does not run.
	UpdateStage UpdateAction = "stage"
	// UpdateTry restarts the machine into the staged release, for one boot. It is committed by the node itself once it is healthy;
	// else the next boot is of the release from before.
	UpdateTry UpdateAction = "try"
	// UpdateCommit makes the release that runs on trial the one that starts by itself, without waiting for the checks of health
	// that are left.
	UpdateCommit UpdateAction = "commit"
	// UpdateRollback restarts the machine into the release of the other slot, which it ran before, as UpdateTry does; a trial that runs it
	// ends at once.
	UpdateRollback UpdateAction = "rollback"
	// UpdateRestart restarts the machine as it is: for a policy, certificates or arguments that count from the next boot on.
	UpdateRestart UpdateAction = "restart"
)

// UpdateActions are all actions.
func UpdateActions() []UpdateAction {
	return []UpdateAction{UpdateStage, UpdateTry, UpdateCommit, UpdateRollback, UpdateRestart}
}

// Valid reports whether a is one of the actions that exist.
func (a UpdateAction) Valid() bool { return slices.Contains(UpdateActions(), a) }

// UpdatePhase is how far a node is with the release that is not the one that starts by itself.
type UpdatePhase string

// The phases.
const (
	// UpdateIdle: there is none.
	UpdateIdle UpdatePhase = "idle"
	// UpdateStaging: it is being written.
	UpdateStaging UpdatePhase = "staging"
	// UpdateStaged: it is there, and can be tried.
	UpdateStaged UpdatePhase = "staged"
	// UpdateTrial: it is tried by this boot, or by the next one, which begins now.
	UpdateTrial UpdatePhase = "trial"
	// UpdateFailed: its trial has failed, or it could not be staged. It is not tried again unless somebody asks for it.
	UpdateFailed UpdatePhase = "failed"
)

// UpdateStatus is what a node says of its slots: in its status document, to its join service, and in its record.
type UpdateStatus struct {
	// Running is the slot of this boot, Default the one that starts by itself: a or b.
	Running string `json:"running"`
	Default string `json:"default"`
	// A and B are the root hashes of what the slots hold; zero of a slot on which nothing could start.
	A RootHash `json:"a,omitzero"`
	B RootHash `json:"b,omitzero"`
	// Phase is how far it is with the release of Document.
	Phase    UpdatePhase `json:"phase"`
	Document DocumentID  `json:"document,omitzero"`
	// Fetched, Copied and Kept are bytes while it is staging: what came from its source, what the slot that runs had of it, and what
	// was in its place already.
	Fetched int64 `json:"fetched,omitempty"`
	Copied  int64 `json:"copied,omitempty"`
	Kept    int64 `json:"kept,omitempty"`
	// Serial is that of the last direction that it has begun to follow.
	Serial uint64 `json:"serial,omitempty"`
	// Failed says why, of a release that has failed, and of an action that was refused.
	Failed *Condition `json:"failed,omitempty"`
}

// Release is the root hash of the release that runs.
func (s UpdateStatus) Release() RootHash {
	if s.Running == "b" {
		return s.B
	}
	return s.A
}

// Same reports whether o says the same.
func (s UpdateStatus) Same(o UpdateStatus) bool {
	if (s.Failed == nil) != (o.Failed == nil) || s.Failed != nil && *s.Failed != *o.Failed {
		return false
	}
	s.Failed, o.Failed = nil, nil
	return s == o
}

// UpdateDirection is what the cluster wants a node to do: its own, and no other node's.
type UpdateDirection struct {
	// Serial rises with each direction of a node. One that it has followed already is not followed again. See Follows.
	Serial uint64 `json:"serial"`
	// Action is what to do, and Document names the release to stage or to try.
	Action   UpdateAction `json:"action"`
	Document DocumentID   `json:"document,omitzero"`
	// Sources are where the release was published, as addresses; they are asked in this order, and none of them is trusted.
	Sources []string `json:"sources,omitempty"`
}

// Limits of a direction.
const (
	maxUpdateSources = 8
	maxUpdateSource  = 1024
	// maxUpdateSerial is the largest serial that a program which has numbers of IEEE 754 alone reads as it is (RFC 8259 §6).
	maxUpdateSerial = 1<<53 - 1
	// maxUpdateLeap is by how much a serial may be above the last one.
	maxUpdateLeap = 1 << 32
)

// Follows reports whether the direction comes after the one with the serial last. One that leaps does not: whoever writes directions once
// could else give one after which there is no other, and nobody could direct the node again.
func (d UpdateDirection) Follows(last uint64) bool {
	return d.Serial > last && d.Serial-last <= maxUpdateLeap
}

// Check reports what keeps a direction from being any node's.
func (d UpdateDirection) Check() error {
	if d.Serial == 0 || d.Serial > maxUpdateSerial || !d.Action.Valid() {
		return fmt.Errorf("direction %d: action %.20q: want a serial from 1 to %d, and one of %v", d.Serial, d.Action, maxUpdateSerial, UpdateActions())
	}
	if named := d.Document != (DocumentID{}); named != slices.Contains([]UpdateAction{UpdateStage, UpdateTry, UpdateRollback}, d.Action) {
		return fmt.Errorf("direction %d: %s: a document is for stage, try and rollback, and only for them", d.Serial, d.Action)
	}
	if d.Action == UpdateStage {
		if err := CheckSources(d.Sources); err != nil {
			return fmt.Errorf("direction %d: %w", d.Serial, err)
		}
	} else if len(d.Sources) > 0 {
		return fmt.Errorf("direction %d: %s: %d sources, which are to stage alone", d.Serial, d.Action, len(d.Sources))
	}
	return nil
}

// CheckSources wants what can be places where a release was published, 1 to 8 of them: whoever fetches asks no other.
func CheckSources(sources []string) error {
	if len(sources) == 0 || len(sources) > maxUpdateSources {
		return fmt.Errorf("%d sources: want 1 to %d addresses where the release was published", len(sources), maxUpdateSources)
	}
	for _, source := range sources {
		u, err := url.Parse(source)
		if err != nil || len(source) > maxUpdateSource || !slices.Contains([]string{"http", "https", "oci"}, u.Scheme) || u.Host == "" {
			return fmt.Errorf("source %.200q: want http://HOST/PATH, https://HOST/PATH or oci://HOST/NAME:TAG, at most %d characters", source, maxUpdateSource)
		}
	}
	return nil
}
