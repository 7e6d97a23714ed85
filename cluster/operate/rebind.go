package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// RebindOptions are what whoever rebinds a node vouches for.
type RebindOptions struct {
	// Force goes on although the node is Ready.
	Force bool
	// Gone says that the old machine is switched off for good: nobody but its disk has its certificate.
	Gone bool
}

// Rebind hands a node and its state disk over to another machine, in the policy, in the cluster file and in the record, which is
// returned. Where an earlier call came to its end, and nobody heard of it, nothing is left to do. The error is ErrDenied for a node that
// is Ready without Force, and for two machines that the cluster could not tell apart without Gone.
func (a *API) Rebind(ctx context.Context, rebind measurements.Rebind, o RebindOptions) (joinservice.Machine, error) {
	var machine joinservice.Machine
	var done bool
	err := a.persist(ctx, func() (err error) {
		if machine, err = a.find(ctx, rebind.Old.String()); errors.Is(err, errNoRecord) && a.isRebound(rebind) {
			done = true
			machine, err = a.find(ctx, rebind.New.String())
		}
		return err
	})
	if err != nil || done {
		return machine, err
	}
	if !o.Force {
		if err := a.refuseReady(ctx, machine.Name); err != nil {
			return machine, err
		}
	}
	if err := o.checkGone(machine, time.Now()); err != nil {
		return machine, err
	}
	if err := a.signAndPush(ctx, rebindRule(rebind)); err != nil {
		return machine, err
	}
	if err := a.file.Update(func(c *cluster.Cluster) error {
		c.Rebind(rebind.Old, rebind.New)
		return nil
	}); err != nil {
		return machine, err
	}
	if err := a.client.Rebind(ctx, machine, rebind.New); err != nil {
		return machine, fmt.Errorf("the policy is changed, but the record is not handed over; run the command again: %w", err)
	}
	return machine, nil
}

// isRebound reports whether the policy has handed the old machine's rule over. Its record is the last thing that goes.
func (a *API) isRebound(rebind measurements.Rebind) bool {
	policy, err := a.file.Cluster.OpenPolicy()
	if err != nil {
		return false
	}
	changed, _, err := rebindRule(rebind)(&policy)
	return err == nil && changed == ""
}

// checkGone refuses two machines that the cluster could not tell apart.
func (o RebindOptions) checkGone(machine joinservice.Machine, now time.Time) error {
	if o.Gone || !now.Before(machine.CertificateEnds) {
		return nil
	}
	return as(ErrDenied, fmt.Errorf("machine %s may have a certificate for the name %s until %s: switch it off for good and say so (--gone), or wait until then",
		machine.EKID, machine.Name, machine.CertificateEnds.Local().Format(time.RFC3339)))
}

// rebindRule hands the old machine's rule over, unless that is done.
func rebindRule(rebind measurements.Rebind) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if rebind.Old == rebind.New {
			return "", nil, as(ErrUsage, errors.New("--from and --to are the same machine"))
		}
		old, isMember := policy.Member(rebind.Old)
		newer, isTaken := policy.Member(rebind.New)
		signed := slices.Contains(policy.Rebinds, rebind)
		switch {
		case !isMember && isTaken && signed:
			return "", nil, nil // An earlier run came so far.
		case !isMember:
			return "", nil, fmt.Errorf("the policy names no machine %s; one of a group needs a rule of its own first, under the name that it has (hullmark policy add member)", rebind.Old)
		case isTaken:
			return "", nil, fmt.Errorf("machine %s is %s already; remove that rule first (hullmark policy remove member %s)", rebind.New, newer.Name, newer.Name)
		}
		*policy = policy.Without(rebind.Old)
		old.EKID = rebind.New
		policy.Members = append(policy.Members, old)
		if !signed {
			policy.Rebinds = append(slices.Clone(policy.Rebinds), rebind)
		}
		return fmt.Sprintf("%s (%s) goes over from machine %s to %s", old.Name, old.Role, rebind.Old, rebind.New), nil, nil
	}
}
