package agenttest

import (
	"context"
	"errors"
	"sync"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/update"
)

// Slots is a disk with two slots, and firmware, in memory.
type Slots struct {
	// Refuse is what fails when it is asked for.
	Refuse update.Op

	mutex sync.Mutex
	holds update.Slots
	next  bool
	// sources are those of the last Stage.
	sources []string
}

// NewSlots is a disk that was installed with a release.
func NewSlots(release hullmark.RootHash) *Slots {
	return &Slots{holds: update.Slots{Running: "a", Default: "a", A: release}}
}

// Boot does what firmware does: the slot of BootNext once, else the one that starts by itself. It returns the release that starts.
func (s *Slots) Boot() hullmark.RootHash {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.holds.Running = s.holds.Default
	if s.next {
		s.holds.Running = map[string]string{"a": "b", "b": "a"}[s.holds.Default]
	}
	s.next = false
	if s.holds.Running == "b" {
		return s.holds.B
	}
	return s.holds.A
}

// SetNext has the next Boot be of the other slot, as a host can.
func (s *Slots) SetNext() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.next = true
}

// SetDefault has a slot start by itself, as a host can that writes on the disk.
func (s *Slots) SetDefault(slot string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.holds.Default = slot
}

// Sources returns those of the last Stage.
func (s *Slots) Sources() []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.sources
}

func (s *Slots) do(op update.Op, change func()) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if op == s.Refuse {
		return errors.New("no " + string(op))
	}
	change()
	return nil
}

// Look returns what the slots hold.
func (s *Slots) Look(context.Context) (holds update.Slots, err error) {
	err = s.do(update.OpLook, func() { holds = s.holds })
	return holds, err
}

// Stage puts a release into the slot that does not run.
func (s *Slots) Stage(_ context.Context, r update.Release, sources []string, tell func(update.Fetched)) error {
	return s.do(update.OpStage, func() {
		tell(update.Fetched{Fetched: 1})
		s.sources = sources
		if s.holds.Running == "b" {
			s.holds.A = hullmark.RootHash(r.RootHash)
		} else {
			s.holds.B = hullmark.RootHash(r.RootHash)
		}
	})
}

// Try has the next Boot be of the other slot.
func (s *Slots) Try(context.Context) error { return s.do(update.OpTry, func() { s.next = true }) }

// Commit makes the slot that runs the one that starts by itself.
func (s *Slots) Commit(context.Context) error {
	return s.do(update.OpCommit, func() { s.holds.Default = s.holds.Running })
}

// Explain keeps a text.
func (s *Slots) Explain(_ context.Context, text string) error {
	return s.do(update.OpExplain, func() { s.holds.Text = text })
}
