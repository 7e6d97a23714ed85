package firstboot

import (
	"context"
	"sync"
	"time"
)

// turn is what an exchange needs to run: the operator calls and the node dials at the same time, but one TPM and one disk serve
// one exchange. Whoever has its ticket keeps the turn; only a failure before the fuse gives it back. The zero value is free.
type turn struct {
	mu         sync.Mutex
	held, kept bool
	// changed is closed, and replaced, when held or kept changes.
	changed chan struct{}
}

// take waits for the turn, for at most the timeout and not at all once somebody has a ticket, and reports whether it was got.
func (t *turn) take(ctx context.Context, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		got, kept, changed := t.try()
		if got || kept {
			return got
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (t *turn) try() (got, kept bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		t.held = true
		return true, false, nil
	}
	return false, t.kept, t.waitLocked()
}

// keep says that the holder has its ticket.
func (t *turn) keep() { t.set(true, true) }

// giveBack lets another exchange take the turn.
func (t *turn) giveBack() { t.set(false, false) }

func (t *turn) set(held, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.kept = held, kept
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// isKept reports whether somebody has a ticket.
func (t *turn) isKept() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept
}

// ticketless waits until nobody has a ticket; it returns an error only when ctx ends.
func (t *turn) ticketless(ctx context.Context) error {
	for {
		t.mu.Lock()
		kept, changed := t.kept, t.waitLocked()
		t.mu.Unlock()
		if !kept {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitLocked returns the channel that the next change closes; mu is held.
func (t *turn) waitLocked() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}
