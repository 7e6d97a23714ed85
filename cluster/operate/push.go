package operate

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// ErrNoPolicy says that there is nothing to show or to push.
var ErrNoPolicy = errors.New("the cluster has no policy yet; init makes the first, or hullmark policy add")

// PushPolicy brings the cluster file's policy and its documents to the cluster, whose join services check both and take them up.
// The error is ErrNoPolicy before the first, and ErrDenied if another copy of the cluster file was used since (APIOptions.NewestLost).
func (a *API) PushPolicy(ctx context.Context) error {
	return a.persist(ctx, func() error { return a.push(ctx, a.Done) })
}

// push sends the policy once.
func (a *API) push(ctx context.Context, done Progress) error {
	c := a.file.Cluster
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	if policy.Version == 0 {
		return ErrNoPolicy
	}
	seen, err := a.newest(ctx)
	if err != nil {
		return err
	}
	c = a.file.Cluster // It may have taken up what an operator changed.
	if policy, err = c.OpenPolicy(); err != nil {
		return err
	}
	if err := a.bindOperators(ctx, policy, seen.envelope); err != nil {
		return err
	}
	err = a.client.PushPolicy(ctx, c.Revision.String(), seen.version, c.Policy, c.Documents)
	if errors.Is(err, registry.ErrPushedMeanwhile) {
		return errors.Join(err, a.bindAsPushed(ctx))
	}
	if err != nil {
		return err
	}
	done.say("policy version %d is in the cluster, with %d documents", policy.Version, len(c.Documents))
	return nil
}

// pushSigned pushes what a change before it signed.
func (a *API) pushSigned(ctx context.Context) error {
	if err := a.PushPolicy(ctx); err != nil {
		return signedOnly(err)
	}
	return nil
}

// checkNewest refuses a cluster file of which another copy brought the cluster its policy: what that one changed is not in this one.
// The error is ErrDenied then.
func (a *API) checkNewest(ctx context.Context) error {
	_, err := a.newest(ctx)
	return err
}

// inForce is the policy that the cluster has: in its signed form, which nobody has verified and which is nil if there is none, and the
// version of its object.
type inForce struct {
	envelope []byte
	version  joinservice.Version
}

// newest is checkNewest, and returns what it looked at: a push takes the place of nothing else. A file that was lent is no copy of the
// newest (cluster.CheckCopy), and nothing is read for it.
func (a *API) newest(ctx context.Context) (inForce, error) {
	if a.file.Cluster.Lease != nil {
		return inForce{version: registry.AnyVersion}, nil
	}
	envelope, by, version, err := a.client.PushedBy(ctx)
	if err != nil || envelope == nil {
		return inForce{version: version}, err
	}
	if err := a.takeChanges(ctx, envelope); err != nil {
		return inForce{}, err
	}
	err = a.file.Cluster.CheckCopy(envelope, by, a.NewestLost)
	if errors.Is(err, cluster.ErrOlderCopy) {
		return inForce{}, as(ErrDenied, err)
	}
	return inForce{envelope, version}, err
}

// takeChanges takes up in the cluster file what an operator changed of its policy.
func (a *API) takeChanges(ctx context.Context, inForce []byte) error {
	changer, err := a.file.Cluster.Changes(inForce)
	if err != nil || changer == "" {
		return err
	}
	envelope, documents, err := a.client.Newest(ctx, nil)
	if err != nil {
		return err
	}
	if !bytes.Equal(envelope, inForce) {
		return registry.ErrPushedMeanwhile
	}
	if err := a.file.Update(func(c *cluster.Cluster) error { return c.TakeChanges(envelope, documents) }); err != nil {
		return err
	}
	a.Done.say("the cluster file takes up what operator %s changed", changer)
	return nil
}

// signAndPush edits the policy in the cluster file, unless it says already what it should, and brings it to the cluster.
func (a *API) signAndPush(ctx context.Context, edit Edit) error {
	if err := a.checkNewest(ctx); err != nil {
		return err
	}
	policy, err := a.file.Cluster.OpenPolicy()
	if err != nil {
		return err
	}
	changed, _, err := edit(&policy)
	if err != nil {
		return err
	}
	if changed != "" {
		if _, err := Change(a.file, edit); err != nil {
			return err
		}
		a.Done.say("%s", changed)
	}
	if err := a.push(ctx, a.Done); err != nil {
		return signedOnly(err)
	}
	return nil
}

// signedOnly says of a push that failed that what it was to bring is not lost, and not to be signed again.
func signedOnly(err error) error {
	const title = "the change is signed in the cluster file; if it is not in force in the cluster, hullmark policy push brings it there"
	var c *hullmark.Condition
	if !errors.As(err, &c) {
		return fmt.Errorf("%s: %w", title, err)
	}
	return &hullmark.Condition{Code: c.Code, Step: c.Step, Title: title, Next: c.Next, Retry: c.Retry, Because: c}
}

// Edit changes a policy and says what it changed; nothing if the policy said it already. Documents that the policy accepts anew
// come with it.
type Edit func(*measurements.Policy) (changed string, documents []measurements.Document, err error)

// Change edits the policy in the cluster file, raises its version and signs it. It says what it changed. A cluster that runs gets
// the policy by PushPolicy.
func Change(file *cluster.File, edit Edit) (changed string, err error) {
	policy, changed, documents, err := edited(file.Cluster, edit)
	if err != nil {
		return "", err
	}
	return changed, file.Update(func(c *cluster.Cluster) error { return c.SetPolicy(policy, documents...) })
}

// ChangeByOperator is Change by an operator who may change the policy, in his file. The cluster gets it by PushChange.
func ChangeByOperator(file *cluster.OperatorFile, edit Edit) (changed string, err error) {
	policy, changed, documents, err := edited(file.Grant.Known, edit)
	if err != nil {
		return "", err
	}
	return changed, file.Update(func(g *cluster.Grant) error { return g.ChangePolicy(policy, documents...) })
}

// edited is the policy that is held, edited, with the next version.
func edited(c *cluster.Cluster, edit Edit) (policy measurements.Policy, changed string, documents []measurements.Document, err error) {
	if policy, err = c.OpenPolicy(); err != nil {
		return policy, "", nil, err
	}
	changed, documents, err = edit(&policy)
	policy.Version++
	return policy, changed, documents, err
}

// PutPolicy signs a policy that was edited as a whole. It has to have another version than the one in force, and a higher one.
func PutPolicy(file *cluster.File, next measurements.Policy) error {
	policy, err := file.Cluster.OpenPolicy()
	if err != nil {
		return err
	}
	if next.Version == policy.Version {
		return fmt.Errorf("version %d is in force already; want a higher version", next.Version)
	}
	return file.Update(func(c *cluster.Cluster) error { return c.SetPolicy(next) })
}
