package registry

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

const (
	// leaseName is the Lease of the one control plane that joins; its holder is that machine's identity.
	leaseName = "control-plane-join"
	// leaseDuration is how long a Lease is another's that nobody renews.
	leaseDuration = 2 * time.Minute
)

// watched is what this process knows of a Lease's age: since when it has not
// changed. Times that others wrote are not compared: clocks may differ by hours.
type watched struct {
	duration time.Duration
	now      func() time.Time

	mutex   sync.Mutex
	version string
	since   time.Time
}

// expired reports whether this version was seen for as long as a Lease lasts.
func (w *watched) expired(version string) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.version != version {
		w.version, w.since = version, w.now()
	}
	return w.now().Sub(w.since) >= w.duration
}

// Acquire takes the cluster's one place for a control plane that joins; see joinservice.Lease.
func (r *Leases) Acquire(ctx context.Context, node hullmark.EKID) (joinservice.Term, error) {
	lease, err := r.lease(ctx)
	if apierrors.IsNotFound(err) {
		term := joinservice.Term{EKID: node, Number: 1}
		_, err := r.writeLease(ctx, &coordinationv1.Lease{ObjectMeta: meta("lease", leaseName)}, term, node.String())
		if apierrors.IsAlreadyExists(err) {
			err = placeTaken("another machine")
		}
		return term, err
	}
	if err != nil {
		return joinservice.Term{}, err
	}
	holder, number := held(lease)
	if holder != "" && holder != node.String() && !r.joining.expired(lease.ResourceVersion) {
		return joinservice.Term{}, placeTaken(holder)
	}
	term := joinservice.Term{EKID: node, Number: number + 1}
	_, err = r.writeLease(ctx, lease, term, node.String())
	if apierrors.IsConflict(err) {
		err = placeTaken("another machine")
	}
	return term, err
}

// Renew keeps the place; see joinservice.Lease.
func (r *Leases) Renew(ctx context.Context, t joinservice.Term) error {
	return r.rewriteLease(ctx, t, t.EKID.String())
}

// Release gives the place up at once; see joinservice.Lease.
func (r *Leases) Release(ctx context.Context, t joinservice.Term) error {
	return r.rewriteLease(ctx, t, "")
}

// rewriteLease writes the Lease if it is of this term still.
func (r *Leases) rewriteLease(ctx context.Context, t joinservice.Term, holder string) error {
	lease, err := r.lease(ctx)
	if apierrors.IsNotFound(err) {
		return joinservice.ErrConflict
	}
	if err != nil {
		return err
	}
	if current, number := held(lease); current != t.EKID.String() || number != t.Number {
		return joinservice.ErrConflict
	}
	_, err = r.writeLease(ctx, lease, t, holder)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return joinservice.ErrConflict
	}
	return err
}

func (r *Leases) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	return call(ctx, r.connection, "read which control plane joins", func(ctx context.Context) (*coordinationv1.Lease, error) {
		return r.leases.get(ctx, leaseName)
	})
}

// writeLease creates the object, or replaces it in the version that was read.
func (r *Leases) writeLease(ctx context.Context, lease *coordinationv1.Lease, t joinservice.Term, holder string) (*coordinationv1.Lease, error) {
	now, seconds := metav1.NowMicro(), int32(r.joining.duration/time.Second)
	lease.Spec.HolderIdentity, lease.Spec.LeaseTransitions = &holder, &t.Number
	lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &seconds, &now
	return call(ctx, r.connection, "record which control plane joins", func(ctx context.Context) (*coordinationv1.Lease, error) {
		if lease.ResourceVersion == "" {
			return r.leases.create(ctx, lease)
		}
		return r.leases.update(ctx, leaseName, lease)
	})
}

// held returns the holder, empty if there is none, and the number of its term.
func held(lease *coordinationv1.Lease) (holder string, number int32) {
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.LeaseTransitions != nil {
		number = *lease.Spec.LeaseTransitions
	}
	return holder, number
}

// placeTaken is the condition of a control plane that has to wait for another.
func placeTaken(holder string) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "busy", Title: "another control plane joins, and one does at a time", Got: brief(holder), Retry: true,
		Next: "wait: the node tries again by itself; a machine that died meanwhile keeps its place for " + leaseDuration.String(),
	}
}

// RemoveStaleNode deletes the Node of a name that a machine is about to join
// under: it is an earlier one's. One that is Ready is left, with a condition.
func (r *Leases) RemoveStaleNode(ctx context.Context, name string) error {
	node, err := call(ctx, r.connection, "read the Node "+name, func(ctx context.Context) (*corev1.Node, error) {
		return r.nodes.get(ctx, name)
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if isReady(node) {
		return &hullmark.Condition{
			Code: "node-alive", Title: "the Node " + name + " is Ready, although its machine is only about to join", Retry: true,
			Next: "wait until Kubernetes notices that it is gone; if it stays, another machine runs under this name",
		}
	}
	_, err = call(ctx, r.connection, "delete the Node "+name, func(ctx context.Context) (struct{}, error) {
		// If it has become Ready since, it is another version.
		only := metav1.Preconditions{UID: &node.UID, ResourceVersion: &node.ResourceVersion}
		return struct{}{}, r.nodes.deleteOnly(ctx, name, only)
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return &hullmark.Condition{
			Code: "node-alive", Title: fmt.Sprintf("the Node %s was changed just now", name), Retry: true, Next: "wait: the node tries again by itself",
		}
	}
	return err
}
