package operate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/measurements"
)

// Rotation is a kind of key that can be exchanged while a cluster lives.
type Rotation string

// The kinds of keys, as cluster.Cluster explains them. Those of cluster.CANames are exchanged in three steps.
const (
	RotateKeyset       Rotation = "keyset"
	RotateOnlineCA     Rotation = "online-ca"
	RotateKubeletCA             = Rotation(cluster.KubeletCA)
	RotateEtcdCA                = Rotation(cluster.EtcdCA)
	RotateFrontProxyCA          = Rotation(cluster.FrontProxyCA)
	RotateKubernetesCA          = Rotation(cluster.KubernetesCA)
	RotateRoot         Rotation = "root"
)

// rotations are all kinds, in the order in which people are told them.
var rotations = []Rotation{RotateKeyset, RotateOnlineCA, RotateKubeletCA, RotateEtcdCA, RotateFrontProxyCA, RotateKubernetesCA, RotateRoot}

// Rotations names all kinds, for people, with separator between them, and last before the last one.
func Rotations(separator, last string) string {
	var names []string
	for _, r := range rotations {
		names = append(names, string(r))
	}
	return strings.Join(names[:len(names)-1], separator) + last + names[len(names)-1]
}

// Valid reports whether r is one of the kinds.
func (r Rotation) Valid() bool { return slices.Contains(rotations, r) }

// inSteps reports whether it is a CA that is exchanged in steps.
func (r Rotation) inSteps() bool { return slices.Contains(cluster.CANames(), cluster.CAName(r)) }

// RotateOptions say what is needed beside the cluster file.
type RotateOptions struct {
	// Access reaches the cluster's keeper, if it has one.
	Access func(cluster.Keeper) keys.Access
	// Except are names of nodes that the CA of kubelets need not wait for, or of workers for which the Kubernetes CA need not.
	Except []string
	// Root is the root to hand over to (--next-root-public-key), if its key is elsewhere; nil makes one in the cluster file.
	Root *cluster.RemoteRoot
}

// Rotated is how far an exchange of keys has come.
type Rotated struct {
	// Begun says that an exchange of roots which was begun before is in the cluster now, and nothing else was exchanged.
	Begun bool
	// Ended says that the exchange of a CA, all of whose steps were taken before, has ended now, and nothing else was exchanged.
	Ended bool
	// Next is what the operator has to do once control planes have booted with the new keys; it may be empty.
	Next string
}

// keeperTime bounds the asking of a keeper that does not answer.
const keeperTime = time.Minute

// Rotate exchanges keys in the cluster file, once, or takes the exchange of a CA one step on, and brings the policy
// that says so to the cluster. Control planes get new keys at their next boot. A keeper's errors carry its condition.
func (a *API) Rotate(ctx context.Context, what Rotation, o RotateOptions) (Rotated, error) {
	if len(o.Except) > 0 && what != RotateKubeletCA && what != RotateKubernetesCA {
		return Rotated{}, as(ErrUsage, fmt.Errorf("%s: --except is for %s and %s alone", what, RotateKubeletCA, RotateKubernetesCA))
	}
	if o.Root != nil && what != RotateRoot {
		return Rotated{}, as(ErrUsage, fmt.Errorf("%s: --next-root-public-key is for %s alone", what, RotateRoot))
	}
	if what.inSteps() {
		if err := checkLent(a.file.Cluster, cluster.CAName(what)); err != nil {
			return Rotated{}, err
		}
	}
	begun, err := a.catchUp(ctx)
	if err != nil || begun && what == RotateRoot {
		return Rotated{Begun: begun}, err
	}
	if what.inSteps() {
		return a.rotateCA(ctx, cluster.CAName(what), o.Except)
	}
	if err := a.replace(ctx, what, o); err != nil {
		return Rotated{}, err
	}
	a.Done.say("the cluster file holds the new keys; the keyset's newest generation is %d", a.file.Cluster.Keys.Current())
	return Rotated{}, a.pushSigned(ctx)
}

// replace changes the cluster file, with its keeper if it has one.
func (a *API) replace(ctx context.Context, what Rotation, o RotateOptions) error {
	ctx, cancel := context.WithTimeout(ctx, keeperTime)
	defer cancel()
	return a.file.Update(func(c *cluster.Cluster) error {
		switch what {
		case RotateKeyset:
			return c.RotateKeyset(ctx, o.Access)
		case RotateOnlineCA:
			return c.RotateOnlineCA()
		case RotateRoot:
			if o.Root != nil {
				return c.RotateRootTo(*o.Root)
			}
			return c.RotateRoot()
		}
		return as(ErrUsage, fmt.Errorf("%q: want %s", what, Rotations(", ", " or ")))
	})
}

// catchUp pushes what an earlier call could not push: nothing is changed while nobody could be told. It reports whether the cluster
// had other roots than the cluster file until then, of which somebody was to be told.
func (a *API) catchUp(ctx context.Context) (begun bool, err error) {
	err = a.persist(ctx, func() error {
		otherwise, err := a.otherRoots(ctx)
		if err != nil {
			return err
		}
		begun = begun || otherwise
		return a.push(ctx, nil)
	})
	return begun, err
}

// otherRoots reports whether the policy that was pushed last is of other roots than the cluster file's. Before the first none is.
func (a *API) otherRoots(ctx context.Context) (bool, error) {
	policy, err := a.file.Cluster.OpenPolicy()
	if err != nil {
		return false, err
	}
	envelope, err := a.client.Pushed(ctx)
	if err != nil || envelope == nil {
		return false, err
	}
	pushed, err := measurements.OpenPolicy(envelope, a.file.Cluster.ID())
	return err != nil || !slices.EqualFunc(pushed.CrossCertificates, policy.CrossCertificates, bytes.Equal), nil
}

// ForgetRoot gives up the oldest root that nodes' configurations may still name, and pushes the policy that says so. It reports that
// a change of roots which was begun before is in the cluster now, and nothing else was changed. The error is ErrDenied while a
// machine that except does not name is known to name that root.
func (a *API) ForgetRoot(ctx context.Context, except []string) (begun bool, err error) {
	if begun, err = a.catchUp(ctx); begun || err != nil {
		return begun, err
	}
	oldest, err := a.file.Cluster.OldestRoot()
	if err != nil {
		return false, err
	}
	if err := a.persist(ctx, func() error { return a.checkUnused(ctx, oldest, except) }); err != nil {
		return false, err
	}
	if err := a.file.Update((*cluster.Cluster).ForgetRoot); err != nil {
		return false, err
	}
	a.Done.say("root %s is given up: nodes whose configuration names it are refused", oldest)
	return false, a.pushSigned(ctx)
}

// checkUnused refuses to give a root up that a machine's configuration named at its last ticket, unless that machine may be refused.
func (a *API) checkUnused(ctx context.Context, root hullmark.ClusterRoot, except []string) error {
	present := a.file.Cluster.ID()
	if root == present {
		return nil // ForgetRoot says so.
	}
	policy, err := a.file.Cluster.OpenPolicy()
	if err != nil {
		return err
	}
	machines, err := a.client.List(ctx)
	if err != nil {
		return err
	}
	using := map[string]string{}
	for _, m := range machines {
		if namedRoot(m, policy, present) == root {
			using[m.Name] = m.Name
		}
	}
	return leaveOut(using, except, "no machine of that name is known to name root "+root.String(), func(left []string) error {
		return errors.New("the configurations of these machines named root " + root.String() + " at their last tickets: " + strings.Join(left, ", ") +
			"; next: give each one that names root " + present.String() + ", and reboot it; or name those that may be refused from now on (--except)")
	})
}

// leaveOut takes those that except names out of what stands in the way, by name; if any are left, refused makes an error of their
// texts, which is ErrDenied. A name that does not stand in the way is ErrUsage: none is why.
func leaveOut(inTheWay map[string]string, except []string, none string, refused func(left []string) error) error {
	for _, name := range except {
		if inTheWay[name] == "" {
			return as(ErrUsage, fmt.Errorf("--except %s: %s", name, none))
		}
		delete(inTheWay, name)
	}
	if len(inTheWay) == 0 {
		return nil
	}
	var left []string
	for _, name := range slices.Sorted(maps.Keys(inTheWay)) {
		left = append(left, inTheWay[name])
	}
	return as(ErrDenied, refused(left))
}
