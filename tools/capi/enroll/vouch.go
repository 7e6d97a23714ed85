package enroll

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// vouch vouches for each worker that may be, and says of the others why not.
func (r *run) vouch(ctx context.Context, workers []worker) error {
	var good, missing []worker
	look := r.looksAgain()
	for _, w := range workers {
		if v, ok := r.vouchers[w.name]; ok && r.good(ctx, w, v) {
			good = append(good, w)
			look = look || conditions.GetReason(w.config, bootstrapv1.VouchedCondition) == bootstrapv1.IdentityChangedReason
			continue
		}
		missing = append(missing, w)
	}
	var identities map[client.ObjectKey]identity
	if look || len(missing) > 0 {
		var err error
		if identities, err = r.identities(ctx); err != nil {
			return err
		}
		r.looked()
	}
	for _, w := range good {
		v := r.vouchers[w.name]
		verdict := vouched(v)
		if id, known := identities[client.ObjectKeyFromObject(w.machine)]; known && id.missing == nil && id.ekid != v.EKID {
			verdict = changed(v.EKID.String(), id.ekid)
		}
		if err := r.conclude(ctx, w.config, verdict); err != nil {
			return err
		}
	}
	var down *verdict
	for _, w := range missing {
		if down != nil { // One that does not answer is not asked for each: other Clusters wait.
			if err := r.conclude(ctx, w.config, *down); err != nil {
				return err
			}
			continue
		}
		v, err := r.vouchFor(ctx, w, identities[client.ObjectKeyFromObject(w.machine)])
		if apierrors.IsConflict(err) { // Its config is another one by now.
			r.waits = true
			continue
		}
		if err != nil {
			return err
		}
		r.waits = r.waits || v.reason != bootstrapv1.VouchedReason
		if v.reason == bootstrapv1.ClusterUnreachableReason {
			down = &v
		}
		if err := r.conclude(ctx, w.config, v); err != nil {
			return err
		}
	}
	return nil
}

// good reports whether a worker needs no other voucher than the one that it has: it joined by it, or still may.
func (r *run) good(ctx context.Context, w worker, v measurements.Voucher) bool {
	if v.ProviderID != w.machine.Spec.ProviderID || v.Group != w.config.Spec.Pool || v.ClusterRoot.String() != r.rootOf(w) {
		return false
	}
	if known, ok := w.config.Annotations[VouchedAnnotation]; !ok || known != v.EKID.String() {
		return false
	}
	if r.now().Before(v.NotAfter.Add(-r.validity() / 4)) {
		return true
	}
	if r.joined == nil {
		joined, err := r.workload.Joined(r.asking)
		if err != nil {
			r.waits = true
			return true // It is looked at again.
		}
		if r.joined = joined; joined == nil {
			r.joined = map[hullmark.EKID]bool{}
		}
	}
	return r.joined[v.EKID]
}

// rootOf is the root that a worker's voucher names.
func (r *run) rootOf(w worker) string {
	if r.root != "" {
		return r.root
	}
	return w.config.Spec.ClusterRoot
}

// vouchFor signs a worker's voucher, and gives it to the cluster.
func (r *run) vouchFor(ctx context.Context, w worker, id identity) (verdict, error) {
	switch {
	case id.missing != nil:
		return verdict{bootstrapv1.WaitingForIdentityReason, id.missing.Error()}, nil
	case w.machine.Spec.ProviderID == "":
		return verdict{bootstrapv1.WaitingForIdentityReason, "its infrastructure has not named a provider ID yet"}, nil
	}
	root, err := hullmark.ParseClusterRoot(r.rootOf(w))
	if err != nil {
		return verdict{bootstrapv1.NotVouchedReason, fmt.Sprintf("clusterRoot: %v", err)}, nil
	}
	v := measurements.Voucher{
		Schema: measurements.VoucherSchema, ClusterRoot: root, Group: w.config.Spec.Pool, EKID: id.ekid, Name: w.name, ProviderID: w.machine.Spec.ProviderID,
		NotAfter: r.now().Add(r.validity()).UTC().Truncate(time.Second),
	}
	if err := v.Check(); err != nil {
		return verdict{bootstrapv1.NotVouchedReason, err.Error()}, nil
	}
	if refused, err := r.judge(ctx, w, v); refused != nil || err != nil {
		if err != nil {
			return verdict{bootstrapv1.ClusterUnreachableReason, err.Error()}, nil
		}
		return *refused, nil
	}
	// First of all, so that whoever is cut off here, or moved, vouches for no other machine.
	if err := r.fix(ctx, w, v.EKID); err != nil {
		return verdict{}, err
	}
	signed, err := measurements.SignVoucher(r.key, v)
	if err != nil {
		return verdict{bootstrapv1.NotVouchedReason, err.Error()}, nil
	}
	if err := r.workload.PutVoucher(r.asking, signed); err != nil {
		return verdict{bootstrapv1.ClusterUnreachableReason, err.Error()}, nil
	}
	r.vouchers[w.name] = v
	r.missing(v.EKID, true)
	return vouched(v), nil
}

// judge says why a voucher is not given. The error is one of the cluster's API.
func (r *run) judge(ctx context.Context, w worker, v measurements.Voucher) (*verdict, error) {
	self := client.ObjectKeyFromObject(w.machine)
	if known, ok := w.config.Annotations[VouchedAnnotation]; ok && known != v.EKID.String() {
		refused := changed(known, v.EKID)
		return &refused, nil
	}
	held, has := r.vouchers[w.name]
	same := has && held.EKID == v.EKID && held.ProviderID == v.ProviderID // Who came first keeps what he has, whoever claims it since.
	if others := without(r.claims[v.EKID], self); len(others) > 0 && !same {
		return taken("%s claims machine %s, too: delete whichever is wrong", others, v.EKID), nil
	}
	if others := without(r.providers[v.ProviderID], self); len(others) > 0 && !same {
		return taken("%s has the provider ID %s, too: delete whichever is wrong", others, v.ProviderID), nil
	}
	for _, other := range r.vouchers {
		if other.Name != w.name && (other.EKID == v.EKID || other.ProviderID == v.ProviderID) {
			return &verdict{bootstrapv1.IdentityTakenReason, fmt.Sprintf("machine %s, provider ID %s, is node %s: delete this Machine, or wait until that node is forgotten", other.EKID, other.ProviderID, other.Name)}, nil
		}
	}
	if same {
		return nil, nil
	}
	provider, there, err := r.workload.Node(r.asking, w.name)
	switch {
	case err != nil:
		return nil, err
	case there && (provider != "" && provider != v.ProviderID || has && held.EKID != v.EKID):
		return &verdict{bootstrapv1.IdentityTakenReason, fmt.Sprintf("there is a Node %s of another machine, provider ID %s: delete it if that machine is gone, or make this Machine under another name", w.name, quoted(provider))}, nil
	case has && held.ProviderID != v.ProviderID && len(r.providers[held.ProviderID]) > 0:
		return taken("%s has the node's name "+w.name+" by its voucher (provider ID %s): make this Machine under another name", r.providers[held.ProviderID], held.ProviderID), nil
	case has && held.EKID != v.EKID:
		// An earlier Machine of this name, which this one does not know of.
		return nil, r.workload.Forget(r.asking, held)
	}
	return nil, nil
}

func without(keys []client.ObjectKey, self client.ObjectKey) []client.ObjectKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k client.ObjectKey) bool { return k == self })
}

// taken names at most three Machines of many.
func taken(format string, machines []client.ObjectKey, what any) *verdict {
	var names []string
	for i, k := range machines {
		if i == 3 {
			names = append(names, fmt.Sprintf("%d more", len(machines)-i))
			break
		}
		names = append(names, k.String())
	}
	return &verdict{bootstrapv1.IdentityTakenReason, fmt.Sprintf("Machine "+format, strings.Join(names, ", "), what)}
}

// quoted is what a Node says of itself, cut.
func quoted(provider string) string { return fmt.Sprintf("%.200q", provider) }

func changed(before string, now hullmark.EKID) verdict {
	return verdict{bootstrapv1.IdentityChangedReason, fmt.Sprintf("its infrastructure reported machine %.64s before, and reports %s now: replace the Machine", before, now)}
}

func vouched(v measurements.Voucher) verdict {
	return verdict{bootstrapv1.VouchedReason, fmt.Sprintf("machine %s may join as node %s of group %s, for the first time until %s", v.EKID, v.Name, v.Group, v.NotAfter.Format(time.RFC3339))}
}

// VouchedAnnotation, of a HullmarkConfig, is the identity that its Machine was vouched for with: another one needs another Machine.
const VouchedAnnotation = "bootstrap.cluster.x-k8s.io/hullmark-ekid"

// fix writes the identity into the config.
func (r *run) fix(ctx context.Context, w worker, ekid hullmark.EKID) error {
	if w.config.Annotations[VouchedAnnotation] == ekid.String() {
		return nil
	}
	before := w.config.DeepCopy()
	if w.config.Annotations == nil {
		w.config.Annotations = map[string]string{}
	}
	w.config.Annotations[VouchedAnnotation] = ekid.String()
	return r.Client.Patch(ctx, w.config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}
