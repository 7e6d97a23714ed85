package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// ErrNoPolicy says that there is nothing to show or to push.
var ErrNoPolicy = errors.New("the cluster has no policy yet; init makes the first, or hullmark policy add")

// PushPolicy brings the cluster file's policy and its documents to the cluster, whose join services check both and take them up.
// The error is ErrNoPolicy before the first.
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
	if err := a.checkSuperseded(ctx); err != nil {
		return err
	}
	pushed, err := a.client.Pushed(ctx)
	if err != nil {
		return err
	}
	if err := checkOlder(policy.Version, pushed, c.ID()); err != nil {
		return err
	}
	if err := a.bindOperators(ctx, policy, pushed); err != nil {
		return err
	}
	if err := a.client.PushPolicy(ctx, c.Policy, c.Documents); err != nil {
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

// checkSuperseded refuses a cluster file whose root has handed over to the one that signs by now: join services take nothing of
// the earlier one.
func (a *API) checkSuperseded(ctx context.Context) error {
	id := a.file.Cluster.ID()
	envelope, err := a.client.Pushed(ctx)
	if err != nil || envelope == nil {
		return err
	}
	// A policy that nobody signed is replaced like any other.
	signer, err := measurements.PolicySigner(envelope)
	if err != nil || signer == id {
		return nil
	}
	policy, err := measurements.OpenPolicy(envelope, signer)
	if err != nil {
		return nil
	}
	if roots, err := joinservice.RootsOf(policy, signer); err == nil && slices.Contains(roots, id) {
		return fmt.Errorf("the cluster's root is %s by now, and this cluster file is a copy from before it was exchanged; next: use the newest one", signer)
	}
	return nil
}

// checkOlder refuses the version of a policy that is older than the one that was pushed last, if the root signed that: join services take
// nothing of it, and the API would be told of operators who were withdrawn since.
func checkOlder(version uint64, pushed []byte, root hullmark.ClusterRoot) error {
	last, err := measurements.OpenPolicy(pushed, root)
	if err != nil || last.Version <= version {
		return nil // One that this root did not sign is replaced like any other.
	}
	return fmt.Errorf("the policy in the cluster has version %d, and this cluster file is a copy from before it, with version %d; next: use the newest one, or sign a policy with a higher version (hullmark policy sign)", last.Version, version)
}

// signAndPush edits the policy in the cluster file, unless it says already what it should, and brings it to the cluster.
func (a *API) signAndPush(ctx context.Context, edit Edit) error {
	if err := a.checkSuperseded(ctx); err != nil {
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
	policy, err := file.Cluster.OpenPolicy()
	if err != nil {
		return "", err
	}
	changed, documents, err := edit(&policy)
	if err != nil {
		return "", err
	}
	policy.Version++
	return changed, file.Update(func(c *cluster.Cluster) error { return c.SetPolicy(policy, documents...) })
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
