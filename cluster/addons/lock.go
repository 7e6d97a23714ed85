package addons

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/hullmark/hullmark/joinservice/registry"
)

const (
	// lockName is the Lease that one run at a time holds. It says what is unfinished, too.
	lockName = "addons"
	// lockDuration is how long it is a run's that does not renew it, and lockPace how often that is done.
	lockDuration = 30 * time.Second
	lockPace     = 10 * time.Second
)

// Annotations of the Lease.
const (
	// unfinished names the run whose changes are neither all made nor all put back.
	unfinished = "addons.hullmark/unfinished"
	// latest names the last run whose changes are all made, and were not put back.
	latest = "addons.hullmark/latest"
)

// leases is the resource of Leases.
var leases = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// errLost says that the Lease became another's, or could not be renewed in time: whatever goes on may meet another run.
var errLost = errors.New("the API server was not reached for so long that another run may have begun; next: hullmark addons rollback")

// lock is the Lease while this run holds it.
type lock struct {
	leases dynamic.ResourceInterface
	run    string

	mutex sync.Mutex
	lease *object // as it was written last

	// stop ends the goroutine that renews, which closes stopped then.
	stop    context.CancelFunc
	stopped chan struct{}
}

// acquire takes the cluster's one place for a run. It waits for one that is gone, and gives up at once on one that is alive.
func (a *Addons) acquire(ctx context.Context, c *client, run string) (*lock, error) {
	l := &lock{leases: c.objects.Resource(leases).Namespace(registry.Namespace), run: run}
	var seen string
	for since := time.Now(); ; {
		lease, err := l.leases.Get(ctx, lockName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return l, l.create(ctx)
		case err != nil:
			return nil, fmt.Errorf("read who changes add-ons: %w", err)
		case holder(lease) == "", seen == lease.GetResourceVersion() && time.Since(since) > lockDuration:
			l.lease = lease
			return l, l.write(ctx, run, nil)
		case seen != "" && seen != lease.GetResourceVersion():
			return nil, busy(holder(lease))
		case seen == "":
			seen = lease.GetResourceVersion()
			a.say("waiting %v to see whether run %s, which holds the Lease %s/%s, is alive", lockDuration, holder(lease), registry.Namespace, lockName)
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func busy(holder string) error {
	return fmt.Errorf("%w: run %s changes add-ons, and one does at a time; next: wait until it has ended", ErrRefused, holder)
}

func holder(lease *object) string { return nested(lease, "spec", "holderIdentity") }

func (l *lock) create(ctx context.Context) error {
	o := &object{Object: map[string]any{"spec": map[string]any{}}}
	o.SetAPIVersion("coordination.k8s.io/v1")
	o.SetKind("Lease")
	o.SetName(lockName)
	o.SetNamespace(registry.Namespace)
	o.SetLabels(ownLabels)
	l.fill(o, l.run)
	made, err := l.leases.Create(ctx, o, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return busy("another")
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: the cluster has no namespace %s, so it is none of Hullmark's; next: name another API server (--server)", ErrRefused, registry.Namespace)
	}
	l.lease = made
	return err
}

// fill writes who holds the Lease. The time is for people: nobody compares it with a clock.
func (l *lock) fill(o *object, run string) {
	spec := map[string]any{
		"holderIdentity": run, "leaseDurationSeconds": int64(lockDuration / time.Second),
		"renewTime": metav1.NowMicro().UTC().Format(metav1.RFC3339Micro),
	}
	_ = unstructured.SetNestedMap(o.Object, spec, "spec") // its content is a map
}

// write replaces the Lease with these annotations more, empty ones away. It is refused if another run did so meanwhile.
func (l *lock) write(ctx context.Context, run string, notes map[string]string) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	next := l.lease.DeepCopy()
	l.fill(next, run)
	all := next.GetAnnotations()
	for name, value := range notes {
		if all = with(all, name, value); value == "" {
			delete(all, name)
		}
	}
	next.SetAnnotations(all)
	written, err := l.leases.Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return busy("another")
	}
	if err == nil {
		l.lease = written
	}
	return err
}

// keep renews the Lease until close, and ends the context that it returns once it may be another's.
func (l *lock) keep(ctx context.Context) context.Context {
	ctx, lose := context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop, l.stopped = stop, make(chan struct{})
	go func() {
		defer close(l.stopped)
		for renewed := time.Now(); sleep(renewing, lockPace) == nil; {
			call, cancel := context.WithTimeout(renewing, lockPace)
			err := l.write(call, l.run, nil)
			cancel()
			if err == nil {
				renewed = time.Now()
			} else if errors.Is(err, ErrRefused) || time.Since(renewed) > lockDuration-lockPace {
				lose(errLost)
				return
			}
		}
	}()
	return ctx
}

// note writes annotations of the Lease, empty ones away.
func (l *lock) note(ctx context.Context, notes map[string]string) error {
	if err := l.write(ctx, l.run, notes); err != nil {
		return fmt.Errorf("note which run is unfinished: %w", err)
	}
	return nil
}

// noted reads an annotation of the Lease.
func (l *lock) noted(name string) string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.lease.GetAnnotations()[name]
}

// close gives the Lease up, whatever has become of ctx.
func (l *lock) close(ctx context.Context) {
	if l.stop != nil {
		l.stop()
		<-l.stopped
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockPace)
	defer cancel()
	_ = l.write(ctx, "", nil) // A Lease that nobody renews ends by itself.
}
