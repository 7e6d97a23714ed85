// Package enroll vouches for workers: when the infrastructure has made a Machine and reports the identity of its TPM, the controller
// signs a voucher (docs/operate.md, "Machines that nobody names") and gives it to the cluster that the machine is to join.
//
// It only ever adds attested workers to the groups whose policy names its key: join services judge each voucher, and each machine still
// has to prove by its TPM that it has this identity, and booted an accepted release.
package enroll

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=hullmarkconfigs,verbs=get;list;watch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=hullmarkconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=*,verbs=get
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

const (
	// retry is when what is not watched is looked at again: an identity, a Secret, a cluster that does not answer.
	retry = 15 * time.Second
	// sweepEvery is when vouchers of machines that are gone are looked for without a cause.
	sweepEvery = 10 * time.Minute
	// Validity is how long a machine has to come with a voucher for the first time, unless Validity of the Reconciler says otherwise.
	Validity = 24 * time.Hour
)

// Keys opens enrollers' keys (custody.Custody).
type Keys interface {
	OpenEnroller(ctx context.Context, secret client.ObjectKey) (ed25519.PrivateKey, error)
}

// Workload is the cluster that machines join.
type Workload interface {
	// PutVoucher stores a signed voucher, in the place of one that the machine has.
	PutVoucher(ctx context.Context, signed []byte) error
	// ListVouchers returns all signed vouchers. Those that cannot be read are named by the error, beside the others.
	ListVouchers(ctx context.Context) ([][]byte, error)
	// HasNode reports whether there is a Node of that name.
	HasNode(ctx context.Context, name string) (bool, error)
	// Joined reports whether a machine has come, so that its record holds the voucher from now on.
	Joined(ctx context.Context, node hullmark.EKID) (bool, error)
	// Forget removes a machine that is gone: its record, its place in its group, and its voucher.
	Forget(ctx context.Context, node hullmark.EKID) error
}

// Reconciler vouches for the workers of Clusters.
type Reconciler struct {
	// Client reads what is watched from the cache; Live reads from the API server.
	Client client.Client
	Live   client.Reader
	// Keys opens enrollers' keys.
	Keys Keys
	// Connect reaches a Cluster's own API.
	Connect func(ctx context.Context, cluster client.ObjectKey) (Workload, error)
	// Events tells of what was vouched for or refused.
	Events events.EventRecorder
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter of the Clusters to care for; empty: all.
	WatchFilter string
	// Validity is how long a voucher is good for; 0: Validity.
	Validity time.Duration
	// Now is the time; nil: time.Now.
	Now func() time.Time
}

// worker is a Machine that somebody has to vouch for.
type worker struct {
	machine *clusterv1.Machine
	config  *bootstrapv1.HullmarkConfig
	name    string // of its node
}

// verdict is what the condition Vouched of a config says.
type verdict struct{ reason, message string }

// run is one reconciliation of one Cluster.
type run struct {
	*Reconciler
	cluster  *clusterv1.Cluster
	workload Workload
	key      ed25519.PrivateKey
	// vouchers are those of this key, by the name of their node.
	vouchers map[string]measurements.Voucher
	// claims are the Machines that claim an identity.
	claims map[hullmark.EKID][]string
	// waits says that something is to be looked at again soon.
	waits bool
}

// Reconcile vouches for the workers of one Cluster that have an identity and no voucher, and takes back the vouchers of machines that are
// gone. Each step can be cut off and done again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	switch {
	case r.WatchFilter != "" && !labels.HasWatchLabel(cluster, r.WatchFilter),
		annotations.IsPaused(cluster, cluster), !cluster.DeletionTimestamp.IsZero():
		return ctrl.Result{}, nil // A Cluster that goes takes its records and vouchers with it.
	}
	workers, machines, err := r.workers(ctx, cluster)
	if err != nil || len(workers) == 0 && len(machines) == 0 {
		return ctrl.Result{}, err
	}
	run := &run{Reconciler: r, cluster: cluster}
	if v, err := run.open(ctx); v != nil || err != nil {
		for _, w := range workers {
			if v != nil && !conditions.IsTrue(w.config, bootstrapv1.VouchedCondition) { // A voucher that is there stays good.
				err = errors.Join(err, run.conclude(ctx, w, *v))
			}
		}
		return ctrl.Result{RequeueAfter: retry}, err
	}
	if err := run.vouch(ctx, workers, machines); err != nil {
		return ctrl.Result{}, err
	}
	if err := run.sweep(ctx); err != nil {
		return ctrl.Result{}, err
	}
	if run.waits {
		return ctrl.Result{RequeueAfter: retry}, nil
	}
	return ctrl.Result{RequeueAfter: sweepEvery}, nil
}

// workers returns a Cluster's Machines, and those of them that are workers of ours.
func (r *Reconciler) workers(ctx context.Context, cluster *clusterv1.Cluster) (workers []worker, machines []clusterv1.Machine, err error) {
	list := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}); err != nil {
		return nil, nil, err
	}
	for i := range list.Items {
		m := &list.Items[i]
		ref := m.Spec.Bootstrap.ConfigRef
		if util.IsControlPlaneMachine(m) || !m.DeletionTimestamp.IsZero() || ref.APIGroup != bootstrapv1.GroupVersion.Group || ref.Kind != bootstrapv1.ConfigKind {
			continue
		}
		config := &bootstrapv1.HullmarkConfig{}
		if err := r.Client.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: ref.Name}, config); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return nil, nil, err
		}
		workers = append(workers, worker{m, config, NodeName(config.Spec.Pool, m)})
	}
	return workers, list.Items, nil
}

// open opens the enroller's key, and reads what the cluster has. A verdict says what is missing.
func (r *run) open(ctx context.Context) (v *verdict, err error) {
	if !initialized(r.cluster) {
		return &verdict{bootstrapv1.WaitingForControlPlaneReason, "there are no join services yet"}, nil
	}
	secret := client.ObjectKey{Namespace: r.cluster.Namespace, Name: r.cluster.Name + "-enroller"}
	if r.key, err = r.Keys.OpenEnroller(ctx, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return &verdict{bootstrapv1.WaitingForEnrollerReason, fmt.Sprintf(
				"Secret %s is not there: make a key with hullmark voucher new-key --recipient, name it in the policy, and put it there (docs/cluster-api.md)", secret)}, nil
		}
		return &verdict{bootstrapv1.EnrollerInvalidReason, fmt.Sprintf("%v: put a key there that is sealed to this manager", err)}, nil
	}
	defer func() {
		if v != nil || err != nil {
			clear(r.key)
		}
	}()
	if r.workload, err = r.Connect(ctx, client.ObjectKeyFromObject(r.cluster)); err == nil {
		err = r.readVouchers(ctx)
	}
	if err != nil {
		return &verdict{bootstrapv1.ClusterUnreachableReason, fmt.Sprintf("its API server: %v", err)}, nil
	}
	return nil, nil
}

// initialized reports whether a Cluster's first control plane runs, as package bootstrap does.
func initialized(c *clusterv1.Cluster) bool {
	return ptr.Deref(c.Status.Initialization.ControlPlaneInitialized, false) || conditions.IsTrue(c, clusterv1.ClusterControlPlaneInitializedCondition)
}

// readVouchers reads those that were signed with this key. Others are another enroller's, and left alone.
func (r *run) readVouchers(ctx context.Context) error {
	all, err := r.workload.ListVouchers(ctx)
	if len(all) == 0 && err != nil {
		return err
	}
	r.vouchers = map[string]measurements.Voucher{}
	public := ed25519.PublicKey(r.key[ed25519.PrivateKeySize-ed25519.PublicKeySize:])
	for _, signed := range all {
		v, _, err := measurements.OpenVoucher(signed, func(enroller ed25519.PublicKey) bool { return public.Equal(enroller) })
		if err == nil {
			r.vouchers[v.Name] = v
		}
	}
	return nil
}

// vouch vouches for each worker that may be, and says of the others why not.
func (r *run) vouch(ctx context.Context, workers []worker, machines []clusterv1.Machine) error {
	defer clear(r.key)
	var missing []worker
	for _, w := range workers {
		if v, ok := r.vouchers[w.name]; ok && r.good(ctx, w, v) {
			if err := r.conclude(ctx, w, vouched(v)); err != nil {
				return err
			}
			continue
		}
		missing = append(missing, w)
	}
	if len(missing) == 0 {
		return nil
	}
	identities, err := r.identities(ctx, machines)
	if err != nil {
		return err
	}
	for _, w := range missing {
		v, err := r.vouchFor(ctx, w, identities[w.machine.Name])
		if err != nil {
			return err
		}
		r.waits = r.waits || v.reason != bootstrapv1.VouchedReason
		if err := r.conclude(ctx, w, v); err != nil {
			return err
		}
	}
	return nil
}

// good reports whether a worker needs no other voucher than the one that it has: it joined by it, or still may.
func (r *run) good(ctx context.Context, w worker, v measurements.Voucher) bool {
	if v.ProviderID != w.machine.Spec.ProviderID || v.Group != w.config.Spec.Pool {
		return false
	}
	if r.now().Before(v.NotAfter.Add(-r.validity() / 4)) {
		return true
	}
	joined, err := r.workload.Joined(ctx, v.EKID)
	return err != nil || joined // It is looked at again.
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

func (r *Reconciler) validity() time.Duration {
	if r.Validity > 0 {
		return r.Validity
	}
	return Validity
}

// identity is what the infrastructure reports of a machine.
type identity struct {
	ekid hullmark.EKID
	// missing says why there is none.
	missing error
}

// identities asks the infrastructure of all Machines for their identities, those of control planes among them: nobody may claim
// another's.
func (r *run) identities(ctx context.Context, machines []clusterv1.Machine) (map[string]identity, error) {
	known := make(map[string]identity, len(machines))
	r.claims = map[hullmark.EKID][]string{}
	for i := range machines {
		m := &machines[i]
		ekid, err := reportedBy(ctx, r.Live, m)
		if err != nil && !errors.As(err, new(errNoIdentity)) {
			return nil, fmt.Errorf("machine %s: %w", m.Name, err)
		}
		known[m.Name] = identity{ekid, err}
		if err == nil {
			r.claims[ekid] = append(r.claims[ekid], m.Name)
		}
	}
	return known, nil
}

// vouchFor signs a worker's voucher, and gives it to the cluster.
func (r *run) vouchFor(ctx context.Context, w worker, id identity) (verdict, error) {
	switch {
	case id.missing != nil:
		return verdict{bootstrapv1.WaitingForIdentityReason, id.missing.Error()}, nil
	case w.machine.Spec.ProviderID == "":
		return verdict{bootstrapv1.WaitingForIdentityReason, "its infrastructure has not named a provider ID yet"}, nil
	}
	others := slices.DeleteFunc(slices.Clone(r.claims[id.ekid]), func(name string) bool { return name == w.machine.Name })
	for _, v := range r.vouchers {
		if v.EKID == id.ekid && v.Name != w.name {
			others = append(others, "node "+v.Name)
		}
		if v.ProviderID == w.machine.Spec.ProviderID && v.Name != w.name {
			return verdict{bootstrapv1.IdentityTakenReason, fmt.Sprintf("provider ID %s is node %s's: make this Machine anew", v.ProviderID, v.Name)}, nil
		}
		if v.Name == w.name && v.EKID != id.ekid {
			return verdict{bootstrapv1.IdentityChangedReason, fmt.Sprintf(
				"its infrastructure reported machine %s before, and reports %s now: replace the Machine", v.EKID, id.ekid)}, nil
		}
	}
	if len(others) > 0 {
		return verdict{bootstrapv1.IdentityTakenReason, fmt.Sprintf("%s claims machine %s, too: delete whichever is wrong", strings.Join(slices.Compact(others), ", "), id.ekid)}, nil
	}
	root, err := hullmark.ParseClusterRoot(w.config.Spec.ClusterRoot)
	if err != nil {
		return verdict{bootstrapv1.NotVouchedReason, fmt.Sprintf("clusterRoot: %v", err)}, nil
	}
	v := measurements.Voucher{
		ClusterRoot: root, Group: w.config.Spec.Pool, EKID: id.ekid, Name: w.name, ProviderID: w.machine.Spec.ProviderID,
		NotAfter: r.now().Add(r.validity()).UTC().Truncate(time.Second),
	}
	signed, err := measurements.SignVoucher(r.key, v)
	if err != nil {
		return verdict{bootstrapv1.NotVouchedReason, err.Error()}, nil
	}
	if err := r.workload.PutVoucher(ctx, signed); err != nil {
		return verdict{bootstrapv1.ClusterUnreachableReason, err.Error()}, nil
	}
	r.vouchers[w.name] = v
	return vouched(v), nil
}

func vouched(v measurements.Voucher) verdict {
	return verdict{bootstrapv1.VouchedReason, fmt.Sprintf("machine %s may join as node %s of group %s, for the first time until %s", v.EKID, v.Name, v.Group, v.NotAfter.Format(time.RFC3339))}
}

// sweep forgets the machines that this key vouched for and that are gone. Machines are read past the cache, which may be behind. A voucher
// of a Node that is there is left: whoever deletes a Machine removes its Node, and a management cluster that was restored from a backup
// does not know all that run.
func (r *run) sweep(ctx context.Context) error {
	if len(r.vouchers) == 0 {
		return nil
	}
	list := &clusterv1.MachineList{}
	if err := r.Live.List(ctx, list, client.InNamespace(r.cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: r.cluster.Name}); err != nil {
		return err
	}
	left := map[string]bool{}
	for i := range list.Items {
		left[list.Items[i].Spec.ProviderID] = true
	}
	for name, v := range r.vouchers {
		if left[v.ProviderID] {
			continue
		}
		there, err := r.workload.HasNode(ctx, name)
		if err != nil {
			return err
		}
		if there {
			r.waits = true
			continue
		}
		if err := r.workload.Forget(ctx, v.EKID); err != nil {
			return err
		}
		r.Events.Eventf(r.cluster, nil, corev1.EventTypeNormal, "Forgotten", "ForgetMachine", "node %s, machine %s, is gone: its voucher and its record are removed", name, v.EKID)
	}
	return nil
}

// conclude writes a verdict into the condition Vouched of a worker's config, and tells of it if it is another one than before.
func (r *run) conclude(ctx context.Context, w worker, v verdict) error {
	before := w.config.DeepCopy()
	setVouched(w.config, v)
	if conditions.GetReason(before, bootstrapv1.VouchedCondition) == v.reason && conditions.GetMessage(before, bootstrapv1.VouchedCondition) == conditions.GetMessage(w.config, bootstrapv1.VouchedCondition) {
		return nil
	}
	// The bootstrap provider writes the same list: who was slower reads it again.
	err := r.Client.Status().Patch(ctx, w.config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		r.waits = true
		return nil
	}
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	kind := corev1.EventTypeNormal
	switch v.reason {
	case bootstrapv1.IdentityTakenReason, bootstrapv1.IdentityChangedReason, bootstrapv1.NotVouchedReason, bootstrapv1.EnrollerInvalidReason:
		kind = corev1.EventTypeWarning
	}
	r.Events.Eventf(w.config, nil, kind, v.reason, "Vouch", "%s", atMost(v.message, 1000))
	return nil
}

// atMost cuts a text to what the API takes.
func atMost(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}
