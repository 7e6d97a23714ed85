package operate

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// GrantOperator names an operator in the policy of the cluster file, and returns what is in his file. Of one who may recover it asks the
// cluster which disks its control planes have, where there are several: the cluster file knows a single one's. A cluster that runs gets
// the policy by PushPolicy.
func GrantOperator(ctx context.Context, file *cluster.File, g cluster.Granting, o APIOptions) (grant *cluster.Grant, err error) {
	if slices.Contains(g.May, hullmark.MayRecover) {
		if g.Disks, err = controlPlaneDisks(ctx, file, o); err != nil {
			return nil, fmt.Errorf("which disks the control planes have: %w", err)
		}
	}
	err = file.Update(func(c *cluster.Cluster) (err error) {
		grant, err = c.GrantOperator(g)
		return err
	})
	return grant, err
}

// controlPlaneDisks returns the disks that several control planes have by their records.
func controlPlaneDisks(ctx context.Context, file *cluster.File, o APIOptions) (map[hullmark.EKID]hullmark.UUID, error) {
	policy, err := file.Cluster.OpenPolicy()
	if err != nil {
		return nil, err
	}
	planes := slices.DeleteFunc(slices.Clone(policy.Members), func(m measurements.Member) bool { return m.Role != hullmark.ControlPlane })
	if len(planes) < 2 {
		return nil, nil
	}
	api, err := Connect(file, o)
	if err != nil {
		return nil, err
	}
	machines, err := api.Machines(ctx)
	if err != nil {
		return nil, err
	}
	disks := map[hullmark.EKID]hullmark.UUID{}
	for _, m := range machines {
		disks[m.EKID] = m.Record.Disk
	}
	return disks, nil
}

// WithdrawOperator lets an operator do nothing any more.
func WithdrawOperator(name string) Edit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		left := slices.DeleteFunc(slices.Clone(policy.Operators), func(o hullmark.Operator) bool { return o.Name == name })
		if len(left) == len(policy.Operators) {
			return "", nil, fmt.Errorf("the policy names no operator %.80s; hullmark operator list says whom it names", name)
		}
		policy.Operators = left
		return "operator " + name + " may do nothing any more", nil, nil
	}
}

// TakePolicy puts the policy that the API holds, with its documents, into an operator's file, if the root signed it later than the one
// there. What he changed in it and did not push stays.
func (r *Reader) TakePolicy(ctx context.Context, file *cluster.OperatorFile) error {
	if file.Grant.Follows != nil {
		return nil
	}
	return r.persist(ctx, func() error {
		envelope, documents, err := r.client.Newest(ctx, file.Grant.Known.Policy)
		if err != nil || envelope == nil {
			return err
		}
		newer, err := file.Grant.Newer(envelope)
		if err != nil || !newer {
			return err
		}
		return file.Update(func(g *cluster.Grant) error { return g.Take(envelope, documents) })
	})
}

// PushChange brings the policy that an operator changed in his file to the cluster, in the place of the one from which it follows. If
// another is there by now, that is in his file then, without what he changed: the error is ErrDenied.
func (r *Reader) PushChange(ctx context.Context, file *cluster.OperatorFile) error {
	return r.persist(ctx, func() error {
		known := file.Grant.Known
		envelope, _, version, err := r.client.PushedBy(ctx)
		switch {
		case err != nil:
			return err
		case bytes.Equal(envelope, known.Policy):
		case !file.Grant.MayReplace(envelope):
			return r.dropChange(ctx, file)
		default:
			if err := r.client.PushPolicy(ctx, "operator "+file.Grant.Who.Name, version, known.Policy, known.Documents); err != nil {
				return err
			}
		}
		policy, err := known.OpenPolicy()
		if err != nil {
			return err
		}
		r.Done.say("policy version %d is in the cluster, with %d documents", policy.Version, len(known.Documents))
		return file.Update(func(g *cluster.Grant) error {
			g.Pushed()
			return nil
		})
	})
}

// dropChange takes the policy that the cluster has in the place of what an operator changed of another.
func (r *Reader) dropChange(ctx context.Context, file *cluster.OperatorFile) error {
	changed := file.Grant.Follows != nil
	envelope, documents, err := r.client.Newest(ctx, nil)
	if err != nil {
		return err
	}
	if err := file.Update(func(g *cluster.Grant) error { return g.Drop(envelope, documents) }); err != nil {
		return fmt.Errorf("the policy that the cluster has: %w", err)
	}
	policy, err := file.Grant.Known.OpenPolicy()
	if err != nil {
		return err
	}
	if !changed {
		return as(ErrDenied, fmt.Errorf("the file held no change, and an earlier policy than the cluster's, which has version %d; next: the file holds that now: change it, and push", policy.Version))
	}
	return as(ErrDenied, fmt.Errorf("somebody else changed the policy meanwhile: the cluster has version %d; next: the file holds that now, and not your change: make it again, and push", policy.Version))
}

// bindOperators lets those read the API who may look by a policy that is to be pushed, those change the policy there who may that, and no
// others: before the push, so that whoever is withdrawn is refused there even if that ends in between. pushed is the policy that was pushed
// last, nil if there is none. A cluster whose policy names no operators, and is to name none, is asked nothing.
func (a *API) bindOperators(ctx context.Context, policy measurements.Policy, pushed []byte) error {
	users := granted(policy, hullmark.MayLook)
	if len(users) == 0 && !mayHaveBound(pushed) {
		return nil
	}
	return a.client.BindOperators(ctx, users, granted(policy, hullmark.MayChange))
}

// bindAsPushed binds those who may look by the policy that somebody else pushed meanwhile: bindOperators was by another one, which is not
// in force. What no root of this cluster signed says nothing of operators.
func (a *API) bindAsPushed(ctx context.Context) error {
	envelope, err := a.client.Pushed(ctx)
	if err != nil || envelope == nil {
		return err
	}
	signer, err := measurements.PolicySigner(envelope)
	if err != nil {
		return nil
	}
	policy, err := measurements.OpenPolicy(envelope, signer)
	if err != nil {
		return nil
	}
	if roots, err := joinservice.RootsOf(policy, signer); err != nil || !slices.Contains(roots, a.file.Cluster.ID()) {
		return nil
	}
	return a.client.BindOperators(ctx, granted(policy, hullmark.MayLook), granted(policy, hullmark.MayChange))
}

// granted are the users of the API who have a permission by a policy.
func granted(policy measurements.Policy, permission hullmark.Permission) (users []string) {
	for _, o := range policy.Operators {
		if slices.Contains(o.May, permission) {
			users = append(users, o.User())
		}
	}
	return users
}

// mayHaveBound reports whether operators may be bound in the cluster: the policy that was pushed last names some, or cannot be read, or is
// not there.
func mayHaveBound(pushed []byte) bool {
	if pushed == nil { // as after a restored backup, which may have brought a binding back
		return true
	}
	signer, err := measurements.PolicySigner(pushed)
	if err != nil {
		return true
	}
	policy, err := measurements.OpenPolicy(pushed, signer)
	return err != nil || len(policy.Operators) > 0
}
