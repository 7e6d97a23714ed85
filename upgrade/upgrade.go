// Package upgrade moves a cluster from release to release, or restarts it, node by node: it cordons, drains, directs a node's slots, waits
// until it is back, and goes on, or stops at the first node that fell back.
//
// It decides and waits; Cluster is what it decides over. It holds no key and grants nothing: each node judges for itself, by the signed
// policy, what it is directed to do. Nothing is kept in memory that is not in the cluster's objects, so that an Engine can end at any
// moment, and another goes on (docs/upgrade.md).
package upgrade

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
)

// Schema names the format of a Request and of a State. An Engine leaves alone what it does not know.
const Schema = "hullmark.upgrade/v1"

// Limits of a request.
const (
	// MaxRequest is the largest encoded request, in bytes.
	MaxRequest = 64 << 10
	// MaxNodes is how many nodes an upgrade has at most: its state is one object.
	MaxNodes     = 1500
	maxDocuments = 64
	maxNames     = 256
	maxText      = 256
	maxParallel  = 1000
	maxTimeout   = 24 * time.Hour
)

// Duration is a time.Duration that JSON has as text: "30m0s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Spec says what is to happen to a cluster's nodes.
type Spec struct {
	// ID tells this upgrade from others: 16 hexadecimal digits.
	ID string `json:"id"`
	// Action is hullmark.UpdateTry, to another release, or hullmark.UpdateRestart, of the release that runs: for what counts from the next
	// boot on. Reason says what for, to people.
	Action hullmark.UpdateAction `json:"action"`
	Reason string                `json:"reason,omitempty"`
	// Release is what people call the release, RootHash what its slot holds, and Documents describe it: one for each kind of machine.
	Release   string                `json:"release,omitempty"`
	RootHash  hullmark.RootHash     `json:"rootHash,omitzero"`
	Documents []hullmark.DocumentID `json:"documents,omitempty"`
	// Sources are where nodes fetch it.
	Sources []string `json:"sources,omitempty"`
	// Except are the names of nodes that are left as they are.
	Except []string `json:"except,omitempty"`
	// Staging is how many nodes write the release into their other slot at a time.
	Staging int `json:"staging"`
	// Unavailable is how many workers of a pool may be away at a time, and Pools says it for pools by their names. Control planes go one
	// by one.
	Unavailable int            `json:"unavailable"`
	Pools       map[string]int `json:"pools,omitempty"`
	Drain       Drain          `json:"drain"`
	Timeouts    Timeouts       `json:"timeouts"`
}

// Drain says which pods may be lost for a drain, as the flags of kubectl drain do, and what follows one that does not end in time.
type Drain struct {
	// Force evicts pods that no controller makes anew.
	Force bool `json:"force,omitempty"`
	// DeleteEmptyDir evicts pods whose data in an emptyDir is lost.
	DeleteEmptyDir bool `json:"deleteEmptyDir,omitempty"`
	// Skip leaves a node out whose drain does not end in time; else the upgrade stops there.
	Skip bool `json:"skip,omitempty"`
}

// Timeouts bound how long one node may take.
type Timeouts struct {
	// Stage bounds the writing of a release, Drain that of a drain, and Away the time from the direction to restart until the node is back:
	// a trial takes up to half an hour before its node falls back, and then boots once more.
	Stage Duration `json:"stage"`
	Drain Duration `json:"drain"`
	Away  Duration `json:"away"`
}

// DefaultTimeouts are for machines that boot in minutes.
func DefaultTimeouts() Timeouts {
	return Timeouts{Stage: Duration(time.Hour), Drain: Duration(15 * time.Minute), Away: Duration(time.Hour)}
}

// Request is a Spec with what its operator wants by now.
type Request struct {
	Schema string `json:"schema"`
	Spec   Spec   `json:"spec"`
	// Paused begins with no further node, and Aborted ends the upgrade: nodes that are away come back first.
	Paused  bool `json:"paused,omitempty"`
	Aborted bool `json:"aborted,omitempty"`
	// Attended are control planes that may restart although no other can let them in: their operator is there, and recovers them.
	Attended []string `json:"attended,omitempty"`
}

var idPattern = regexp.MustCompile(`^[0-9a-f]{16}$`)

// Encode returns the request as JSON. It fails for one that ParseRequest refuses.
func (r Request) Encode() ([]byte, error) {
	r.Schema = Schema
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("encode upgrade: %w", err)
	}
	text, err := json.Marshal(r)
	if err == nil && len(text) > MaxRequest {
		err = fmt.Errorf("%d bytes, want at most %d", len(text), MaxRequest)
	}
	if err != nil {
		return nil, fmt.Errorf("encode upgrade: %w", err)
	}
	return text, nil
}

// ParseRequest strictly reads what Encode writes.
func ParseRequest(text []byte) (r Request, err error) {
	if err = hullmark.DecodeStrict(text, MaxRequest, &r); err == nil {
		err = r.check()
	}
	if err != nil {
		return Request{}, fmt.Errorf("read upgrade: %w", err)
	}
	return r, nil
}

func (r Request) check() error {
	if r.Schema != Schema {
		return fmt.Errorf("schema %.80q, want %q: another release made it", r.Schema, Schema)
	}
	return cmp.Or(r.Spec.Check(), checkNames("attended", r.Attended))
}

// Check reports what keeps a spec from being any cluster's.
func (s Spec) Check() error {
	if !idPattern.MatchString(s.ID) {
		return fmt.Errorf("id %.80q: want 16 hexadecimal digits", s.ID)
	}
	if len(s.Reason) > maxText || len(s.Release) > maxText {
		return fmt.Errorf("reason or release: want at most %d bytes", maxText)
	}
	return cmp.Or(s.checkRelease(), checkNames("except", s.Except), s.checkParallel(), s.Timeouts.check())
}

// checkRelease wants a release for a trial, and none for a restart.
func (s Spec) checkRelease() error {
	switch s.Action {
	case hullmark.UpdateRestart:
		if len(s.Documents) > 0 || len(s.Sources) > 0 || s.RootHash != (hullmark.RootHash{}) {
			return errors.New("a restart is of the release that runs: it has no documents and no sources")
		}
		return nil
	case hullmark.UpdateTry:
	default:
		return fmt.Errorf("action %.20q: want %s or %s", s.Action, hullmark.UpdateTry, hullmark.UpdateRestart)
	}
	if s.RootHash == (hullmark.RootHash{}) || len(s.Documents) == 0 || len(s.Documents) > maxDocuments {
		return fmt.Errorf("release: a root hash, and 1 to %d documents are wanted", maxDocuments)
	}
	for i, id := range s.Documents {
		if slices.Contains(s.Documents[:i], id) || id == (hullmark.DocumentID{}) {
			return fmt.Errorf("documents: %s is named twice, or is none", id)
		}
	}
	return hullmark.CheckSources(s.Sources)
}

func (s Spec) checkParallel() error {
	if len(s.Pools) > maxNames {
		return fmt.Errorf("pools: %d, want at most %d", len(s.Pools), maxNames)
	}
	if err := cmp.Or(checkAtATime("staging", s.Staging), checkAtATime("unavailable", s.Unavailable), checkNames("pools", slices.Collect(maps.Keys(s.Pools)))); err != nil {
		return err
	}
	for name, n := range s.Pools {
		if err := checkAtATime("pool "+name, n); err != nil {
			return err
		}
	}
	return nil
}

func checkAtATime(what string, n int) error {
	if n < 1 || n > maxParallel {
		return fmt.Errorf("%s: %d nodes at a time, want 1 to %d", what, n, maxParallel)
	}
	return nil
}

func (t Timeouts) check() error {
	for _, one := range []struct {
		what string
		d    Duration
	}{{"stage", t.Stage}, {"drain", t.Drain}, {"away", t.Away}} {
		if one.d < Duration(time.Second) || one.d > Duration(maxTimeout) {
			return fmt.Errorf("%s timeout: %v, want 1s to %v", one.what, time.Duration(one.d), maxTimeout)
		}
	}
	return nil
}

func checkNames(what string, names []string) error {
	if len(names) > maxNames {
		return fmt.Errorf("%s: %d names, want at most %d", what, len(names), maxNames)
	}
	for _, name := range names {
		if !hullmark.ValidNodeName(name) {
			return fmt.Errorf("%s: name %.80q: want a DNS label", what, name)
		}
	}
	return nil
}

// unavailable is how many workers of a pool may be away at a time.
func (s Spec) unavailable(pool string) int { return cmp.Or(s.Pools[pool], s.Unavailable) }

// excepts reports whether a node is left as it is.
func (s Spec) excepts(name string) bool { return slices.Contains(s.Except, name) }
