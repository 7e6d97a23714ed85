package update

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/disks"
	"github.com/hullmark/hullmark/firstboot/install"
	"github.com/hullmark/hullmark/image/slot"
)

// Helper answers requests about one disk, or about the medium that the machine has booted from: the other end of Client.
type Helper struct {
	// Disk is nil on a machine that has booted from a medium, Medium on all others.
	Disk      *Disk
	Medium    *install.Medium
	Disks     disks.System
	Variables Variables
	// Open opens the places where a release was published, whose raw disk has that digest; OpenSources in all but tests.
	Open func(places []string, disk [sha256.Size]byte) ([]Source, error)
}

// tellPause lies between two answers that only say how far a request is.
const tellPause = time.Second

// Answer does what a request asks for, and sends at least one answer, of which the last says how it ended.
func (h Helper) Answer(ctx context.Context, q Request, send func(Answer) error) error {
	if err := h.do(ctx, q, send); err != nil {
		return Fail(err, send)
	}
	return send(Answer{Done: true})
}

// Fail sends the answer that a request failed.
func Fail(err error, send func(Answer) error) error {
	return send(Answer{Failed: hullmark.AsCondition(err, "UPDATE", "slot-failed")})
}

func (h Helper) do(ctx context.Context, q Request, send func(Answer) error) error {
	if h.Medium != nil {
		return h.onMedium(ctx, q, send)
	}
	switch q.Op {
	case OpConfig:
		config, err := h.Disk.Config()
		if err != nil {
			return err
		}
		return send(Answer{Config: config})
	case OpLook:
		slots := h.look()
		return send(Answer{Slots: &slots})
	case OpStage:
		return h.stage(ctx, q, send)
	case OpTry:
		return h.Disk.Try(h.Disk.running.Other(), h.Variables)
	case OpCommit:
		return h.Disk.SetDefault(h.Disk.running)
	case OpExplain:
		return h.Variables.Explain(q.Text)
	}
	return fmt.Errorf("operation %.20q is unknown", q.Op)
}

// look says what is known: a slot on which nothing could start has no root hash, and a disk on which no slot starts by itself no default.
func (h Helper) look() Slots {
	s := Slots{Running: h.Disk.running.String(), Text: h.Variables.Explained()}
	if first, err := h.Disk.Default(); err == nil {
		s.Default = first.String()
	}
	for n, root := range map[slot.Slot]*hullmark.RootHash{slot.A: &s.A, slot.B: &s.B} {
		if c, err := h.Disk.Content(n); err == nil {
			*root = hullmark.RootHash(c.Root)
		}
	}
	return s
}

// stage says now and then how far it is.
func (h Helper) stage(ctx context.Context, q Request, send func(Answer) error) error {
	sources, err := h.Open(q.Sources, q.Disk)
	if err != nil {
		return err
	}
	var told time.Time
	_, err = h.Disk.Stage(ctx, q.release(), sources, func(f Fetched) {
		if time.Since(told) >= tellPause {
			told = time.Now()
			_ = send(Answer{Fetched: &f}) // Who asked may have gone: the context ends then.
		}
	})
	return err
}
