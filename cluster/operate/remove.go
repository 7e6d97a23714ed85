package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// RemoveOptions are what whoever removes a machine vouches for.
type RemoveOptions struct {
	// Force removes it although it is Ready, or a control plane.
	Force bool
	// Gone says that nobody else can have the machine's certificates: its name is free at once.
	Gone bool
}

// Removed is what was removed, and what the machine has still.
type Removed struct {
	// Machine is its last record. Of a machine that was removed before, and whose name is free now, there is only the name.
	Machine joinservice.Machine
	// Freed says that only the name of a machine that was removed before was freed.
	Freed bool
	// CertificateEnds is when its last certificate ends; the zero value if it has none.
	CertificateEnds time.Time
	// Member is the name of the policy's rule that admits it still, and Group says that a group's does.
	Member string
	Group  bool
}

// Remove forgets a machine, by its node's name or its EKID: its record, its name and its Node object. The error is
// ErrDenied for a node that is Ready, and for a control plane, without Force.
func (a *API) Remove(ctx context.Context, which string, o RemoveOptions) (removed Removed, err error) {
	err = a.persist(ctx, func() error {
		if err := a.checkNewest(ctx); err != nil {
			return err
		}
		removed, err = a.remove(ctx, which, o)
		return err
	})
	return removed, err
}

func (a *API) remove(ctx context.Context, which string, o RemoveOptions) (Removed, error) {
	machine, err := a.find(ctx, which)
	if errors.Is(err, errNoRecord) {
		machine, err = a.findCounted(ctx, which, err)
	}
	if errors.Is(err, errNoRecord) && o.Gone {
		return Removed{Machine: joinservice.Machine{Name: which}, Freed: true}, a.free(ctx, which, err)
	}
	if err != nil {
		return Removed{}, err
	}
	if !o.Force {
		if err := a.refuseReady(ctx, machine.Name); err != nil {
			return Removed{}, err
		}
		if machine.Role == hullmark.ControlPlane {
			return Removed{}, as(ErrDenied, fmt.Errorf("node %s is a control plane, whose member of etcd is not removed with it: remove that first, then go on (--force)", machine.Name))
		}
	}
	policy, err := a.file.Cluster.OpenPolicy()
	if err != nil {
		return Removed{}, err
	}
	removed := Removed{Machine: machine}
	if member, ok := policy.Member(machine.EKID); ok {
		removed.Member = member.Name
	}
	_, removed.Group = policy.Recorded(machine.Name, machine.EKID, machine.Voucher)
	removed.CertificateEnds, err = a.client.Delete(ctx, machine, o.Gone)
	return removed, err
}

// free ends the rest of a removed machine's name; missing is the error if none rests.
func (a *API) free(ctx context.Context, name string, missing error) error {
	switch _, rests, err := a.client.Resting(ctx, name); {
	case err != nil:
		return err
	case !rests:
		return missing
	}
	return a.client.Free(ctx, name)
}

// Reset lets a machine whose state disk is gone format another one, once, and gives the recorded disk's data up: that is signed into
// the policy and pushed.
func (a *API) Reset(ctx context.Context, which string) error {
	return a.persist(ctx, func() error {
		machine, err := a.find(ctx, which)
		if err != nil {
			return err
		}
		reset := measurements.Reset{EKID: machine.EKID, OldUUID: machine.Record.Disk}
		return a.signAndPush(ctx, func(policy *measurements.Policy) (string, []measurements.Document, error) {
			if slices.Contains(policy.Resets, reset) {
				return "", nil, nil
			}
			// Earlier ones stay: a backup of etcd from before them still has the records of the disks that they gave up.
			policy.Resets = append(slices.Clone(policy.Resets), reset)
			return fmt.Sprintf("node %s may format another disk than %s, whose data is given up", machine.Name, machine.Record.Disk), nil, nil
		})
	})
}
