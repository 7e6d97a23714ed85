package enroll

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// sweep forgets the machines that this key vouched for and that are gone. It goes on nothing but what it is sure of:
//   - the Machine is not in the cache, nor in the API;
//   - this process saw it before, or misses it for a while: a management cluster that is restored or moved gets its Machines one by one;
//   - its Node is gone, which core removes with a Machine: a restored management cluster does not know all that run;
//   - the Cluster has Machines, and is not paused or deleted by now, as by a move.
func (r *run) sweep(ctx context.Context) error {
	there := providersOf(r.machines)
	var gone []measurements.Voucher
	for _, v := range r.vouchers {
		if v.ProviderID == "" { // No voucher of ours is so: somebody else has the key, too.
			continue
		}
		missing, since := r.missing(v.EKID, len(there[v.ProviderID]) > 0)
		switch {
		case missing && (since.IsZero() || r.now().Sub(since) >= settle):
			gone = append(gone, v)
		case missing:
			r.waits = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	sure, err := r.sure(ctx)
	if err != nil || sure == nil {
		return err
	}
	for _, v := range gone {
		if len(sure[v.ProviderID]) > 0 {
			continue
		}
		_, runs, err := r.workload.Node(r.asking, v.Name)
		if err != nil {
			return err
		}
		if runs {
			r.waits = true
			continue
		}
		if err := r.workload.Forget(r.asking, v); err != nil {
			return err
		}
		delete(r.vouchers, v.Name)
		r.forgetSighting(v.EKID)
		r.Events.Eventf(r.cluster, nil, corev1.EventTypeNormal, "Forgotten", "ForgetMachine", "node %s, machine %s, is gone: its voucher and its record are removed", v.Name, v.EKID)
	}
	return nil
}

// sure reads past the cache which provider IDs Machines have; nil if the Cluster is to be left alone. The Cluster is read after the
// Machines: whoever moves it pauses it before he deletes them.
func (r *run) sure(ctx context.Context) (map[string][]client.ObjectKey, error) {
	machines, err := machinesOf(ctx, r.Live, r.cluster)
	if err != nil {
		return nil, err
	}
	cluster := &clusterv1.Cluster{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(r.cluster), cluster); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if cluster.UID != r.cluster.UID || r.leaves(cluster) || len(machines) == 0 {
		return nil, nil
	}
	return providersOf(machines), nil
}

// providersOf returns which Machines have a provider ID.
func providersOf(machines []clusterv1.Machine) map[string][]client.ObjectKey {
	known := map[string][]client.ObjectKey{}
	for i := range machines {
		if id := machines[i].Spec.ProviderID; id != "" {
			known[id] = append(known[id], client.ObjectKeyFromObject(&machines[i]))
		}
	}
	return known
}

// sightings returns those of the Cluster; the mutex is held.
func (r *run) sightings() *sightings {
	key := client.ObjectKeyFromObject(r.cluster)
	if r.seen == nil {
		r.seen = map[client.ObjectKey]*sightings{}
	}
	if r.seen[key] == nil {
		r.seen[key] = &sightings{machines: map[hullmark.EKID]time.Time{}}
	}
	return r.seen[key]
}

// missing notes whether a machine's Machine is there, and returns since when it is not; the zero time if it was before.
func (r *run) missing(node hullmark.EKID, there bool) (missing bool, since time.Time) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	s := r.sightings()
	if there {
		s.machines[node] = time.Time{}
		return false, time.Time{}
	}
	since, known := s.machines[node]
	if !known {
		since = r.now()
		s.machines[node] = since
	}
	return true, since
}

func (r *run) forgetSighting(node hullmark.EKID) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.sightings().machines, node)
}

// looksAgain reports whether identities that were vouched for are due to be read.
func (r *run) looksAgain() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.now().Sub(r.sightings().identities) >= sweepEvery
}

func (r *run) looked() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.sightings().identities = r.now()
}

// unsee forgets a Cluster that is gone.
func (r *Reconciler) unsee(cluster client.ObjectKey) {
	if r.Disconnect != nil {
		r.Disconnect(cluster)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.seen, cluster)
}
