package upgrade

import (
	"context"
	"errors"
	"time"
)

// elect makes this engine the one that acts, or keeps it so, with a term above last. It returns errNotHeld while another one is.
func (e *Engine) elect(ctx context.Context, last uint64) error {
	now := e.Now()
	if e.holds() && now.Sub(e.lease.renewed) < leaseRenewal {
		return nil
	}
	lease, version, err := e.Cluster.Lease(ctx)
	if err != nil {
		return err
	}
	switch {
	case lease.Holder == e.Name && version != "":
	case lease.Holder != "" && !e.expired(version):
		e.lease.until = time.Time{}
		return errNotHeld
	default:
		lease = Lease{Holder: e.Name, Term: max(lease.Term, last) + 1}
	}
	if _, err = e.Cluster.StoreLease(ctx, lease, version); err != nil {
		e.lease.until = time.Time{}
		if errors.Is(err, ErrConflict) {
			return errNotHeld
		}
		return err
	}
	e.lease.term, e.lease.renewed, e.lease.until = lease.Term, now, now.Add(leaseHold)
	return nil
}

// holds reports whether this engine acts by now, by its own clock.
func (e *Engine) holds() bool { return e.Now().Before(e.lease.until) }

// expired reports whether a Lease was seen in this version for as long as one lasts. Times that others wrote are not compared: clocks may
// differ by hours.
func (e *Engine) expired(version Version) bool {
	now := e.Now()
	if e.lease.version != version {
		e.lease.version, e.lease.since = version, now
	}
	return now.Sub(e.lease.since) >= leaseDuration
}

// release gives the Lease up, so that nobody has to wait for its end.
func (e *Engine) release(ctx context.Context) error {
	if e.lease.until.IsZero() {
		return nil
	}
	e.lease.until = time.Time{}
	ctx, cancel := context.WithTimeout(ctx, leaseRenewal)
	defer cancel()
	lease, version, err := e.Cluster.Lease(ctx)
	if err != nil || lease.Holder != e.Name || lease.Term != e.lease.term {
		return err
	}
	_, err = e.Cluster.StoreLease(ctx, Lease{Term: lease.Term}, version)
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}
