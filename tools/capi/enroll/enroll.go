// Package enroll vouches for workers: when the infrastructure has made a Machine and reports the identity of its TPM, the controller
// signs a voucher (docs/operate.md, "Machines that nobody names") and gives it to the cluster that the machine is to join.
//
// It only ever adds attested workers to the groups whose policy names its key: join services judge each voucher, and each machine still
// has to prove by its TPM that it has this identity, and booted an accepted release.
//
// Nothing that counts is in this process alone: what was vouched for is in the cluster under the key's signature, and the identity of each
// Machine in an annotation of its config, which a move takes along.
package enroll

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
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
	"github.com/hullmark/hullmark/tools/capi/custody"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=hullmarkconfigs,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=hullmarkconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=*,verbs=get;list
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

const (
	// retry is when what is not watched is looked at again: an identity, a Secret, a cluster that does not answer.
	retry = 15 * time.Second
	// sweepEvery is when what has no cause is looked for: machines that are gone, and identities that changed.
	sweepEvery = 10 * time.Minute
	// settle is how long a Machine has to be gone that this process never saw: a management cluster that is being moved or restored gets
	// its Machines one by one.
	settle = 10 * time.Minute
	// patience is how long a Cluster's API is asked in one reconciliation. One that takes each answer's whole time, or says that it is to
	// be asked again in a day, would keep others' workers waiting: only so many Clusters are looked at at a time. Who was not done is
	// looked at again, the later the more often that was so.
	patience = 2 * time.Minute
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
	// EachVoucher calls do with each signed voucher, or with why it cannot be read. Nothing of them is kept: a cluster may say anything.
	EachVoucher(ctx context.Context, do func(signed []byte, err error)) error
	// Node reports whether there is a Node of that name, and what its provider ID is.
	Node(ctx context.Context, name string) (providerID string, there bool, err error)
	// Joined returns the machines that have come: their records hold their vouchers from now on.
	Joined(ctx context.Context) (map[hullmark.EKID]bool, error)
	// Forget removes a machine that is gone: its record, if it is of the worker that the voucher names, its place in its group, and its
	// voucher.
	Forget(ctx context.Context, v measurements.Voucher) error
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
	// Disconnect, if it is set, hears of a Cluster that is gone.
	Disconnect func(cluster client.ObjectKey)
	// Events tells of what was vouched for or refused.
	Events events.EventRecorder
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter of the Clusters to care for; empty: all.
	WatchFilter string
	// Validity is how long a voucher is good for; 0: Validity.
	Validity time.Duration
	// Now is the time; nil: time.Now.
	Now func() time.Time

	// patience is another than usual; 0: the usual one.
	patience time.Duration

	mutex sync.Mutex
	seen  map[client.ObjectKey]*sightings
}

// sightings are what this process saw of a Cluster's machines.
type sightings struct {
	// machines says of each that has a voucher since when its Machine is gone; the zero time if it was there in this process' life.
	machines map[hullmark.EKID]time.Time
	// identities is when all Machines' identities were read last.
	identities time.Time
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
	// asking is the context of all calls of the workload, which ends with the patience.
	asking context.Context
	key    ed25519.PrivateKey
	// root is the cluster's first root if the enroller's Secret says it, else empty.
	root string
	// vouchers are those of this key, by the name of their node.
	vouchers map[string]measurements.Voucher
	// machines are the Cluster's.
	machines []clusterv1.Machine
	// claims are those that claim an identity, and providers those that have a provider ID.
	claims    map[hullmark.EKID][]client.ObjectKey
	providers map[string][]client.ObjectKey
	// joined is what Workload.Joined said; nil before it was asked.
	joined map[hullmark.EKID]bool
	// waits says that something is to be looked at again soon.
	waits bool
}

// Reconcile vouches for the workers of one Cluster that have an identity and no voucher, and takes back the vouchers of machines that are
// gone. Each step can be cut off and done again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.unsee(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.leaves(cluster) {
		return ctrl.Result{}, nil
	}
	asking, cancel := context.WithTimeout(ctx, cmp.Or(r.patience, patience))
	defer cancel()
	run := &run{Reconciler: r, cluster: cluster, asking: asking}
	pools, err := run.refusePools(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	workers, err := run.workers(ctx)
	if err != nil || len(run.machines) == 0 && pools == 0 {
		return ctrl.Result{}, err
	}
	if v, err := run.open(ctx); v != nil || err != nil {
		for _, w := range workers {
			if v != nil && !conditions.IsTrue(w.config, bootstrapv1.VouchedCondition) { // A voucher that was given is not taken back by that.
				err = errors.Join(err, run.conclude(ctx, w.config, *v))
			}
		}
		return ctrl.Result{RequeueAfter: retry}, errors.Join(err, run.impatient())
	}
	defer clear(run.key)
	if err := run.sweep(ctx); err != nil {
		return ctrl.Result{}, err
	}
	if err := run.vouch(ctx, workers); err != nil {
		return ctrl.Result{}, err
	}
	if err := run.impatient(); err != nil {
		return ctrl.Result{}, err
	}
	if run.waits {
		return ctrl.Result{RequeueAfter: retry}, nil
	}
	return ctrl.Result{RequeueAfter: sweepEvery}, nil
}

// impatient is an error if the Cluster's API had all of its time, and was not done.
func (r *run) impatient() error {
	if r.asking.Err() == nil {
		return nil
	}
	return errors.New("the Cluster's API server takes long: it is asked again later, and others first")
}

// leaves reports whether a Cluster is left alone: it is another manager's, or it is paused, as while clusterctl moves it, or it goes, and
// takes its records and vouchers with it.
func (r *Reconciler) leaves(c *clusterv1.Cluster) bool {
	return r.WatchFilter != "" && !labels.HasWatchLabel(c, r.WatchFilter) || annotations.IsPaused(c, c) || !c.DeletionTimestamp.IsZero()
}

// machinesOf lists a Cluster's Machines. Those of other Clusters are not looked at: what they claim counts there, by another enroller's key
// and another root, and who may make them has no say here.
func machinesOf(ctx context.Context, reader client.Reader, cluster *clusterv1.Cluster) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := reader.List(ctx, list, client.InNamespace(cluster.Namespace)); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return m.Spec.ClusterName != cluster.Name }), nil
}

// workers reads the Cluster's Machines, and returns those that are workers of ours.
func (r *run) workers(ctx context.Context) (workers []worker, err error) {
	if r.machines, err = machinesOf(ctx, r.Client, r.cluster); err != nil {
		return nil, err
	}
	for i := range r.machines {
		m := &r.machines[i]
		ref := m.Spec.Bootstrap.ConfigRef
		if util.IsControlPlaneMachine(m) || !m.DeletionTimestamp.IsZero() || ref.APIGroup != bootstrapv1.GroupVersion.Group || ref.Kind != bootstrapv1.ConfigKind {
			continue
		}
		config := &bootstrapv1.HullmarkConfig{}
		if err := r.Client.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: ref.Name}, config); err != nil {
			if apierrors.IsNotFound(err) {
				r.waits = true
				continue
			}
			return nil, err
		}
		if annotations.HasPaused(m) || annotations.HasPaused(config) {
			continue
		}
		workers = append(workers, worker{m, config, NodeName(config.Spec.Pool, m)})
	}
	return workers, nil
}

// refusePools says of the configs of MachinePools that nobody vouches for their machines: no contract says which those are.
func (r *run) refusePools(ctx context.Context) (pools int, err error) {
	list := &bootstrapv1.HullmarkConfigList{}
	if err := r.Client.List(ctx, list, client.InNamespace(r.cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: r.cluster.Name}); err != nil {
		return 0, err
	}
	for i := range list.Items {
		by := metav1.GetControllerOf(&list.Items[i])
		if by == nil || by.Kind != "MachinePool" || !strings.HasPrefix(by.APIVersion, clusterv1.GroupVersion.Group+"/") {
			continue
		}
		pools++
		if err := r.conclude(ctx, &list.Items[i], verdict{
			bootstrapv1.NotVouchedReason, "machines of a MachinePool report no identities: name the CAs of their endorsement keys for their group, " +
				"or vouch for each (hullmark voucher sign); a MachineDeployment's Machines are vouched for",
		}); err != nil {
			return pools, err
		}
	}
	return pools, nil
}

// open opens the enroller's key, and reads what the cluster has. A verdict says what is missing.
func (r *run) open(ctx context.Context) (v *verdict, err error) {
	if !core.Initialized(r.cluster) {
		return &verdict{bootstrapv1.WaitingForControlPlaneReason, "there are no join services yet"}, nil
	}
	secret := client.ObjectKey{Namespace: r.cluster.Namespace, Name: custody.EnrollerName(r.cluster.Name)}
	if r.key, err = r.Keys.OpenEnroller(ctx, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return &verdict{bootstrapv1.WaitingForEnrollerReason, fmt.Sprintf(
				"Secret %s is not there: make a key with hullmark voucher new-key --recipient … --for %s/%s, name it in the policy, and put it there (docs/cluster-api.md)", secret, r.cluster.Namespace, r.cluster.Name)}, nil
		}
		return &verdict{bootstrapv1.EnrollerInvalidReason, fmt.Sprintf("%v: put a key there that is sealed to this manager", err)}, nil
	}
	defer func() {
		if v != nil || err != nil {
			clear(r.key)
		}
	}()
	if err := r.readRoot(ctx, secret); err != nil {
		return nil, err
	}
	if r.workload, err = r.Connect(ctx, client.ObjectKeyFromObject(r.cluster)); err == nil {
		err = r.readVouchers()
	}
	if err != nil {
		return &verdict{bootstrapv1.ClusterUnreachableReason, fmt.Sprintf("its API server: %v", err)}, nil
	}
	return nil, nil
}

// rootKey is the key of the enroller's Secret with the cluster's first root, for clusters whose root was exchanged: vouchers name that one,
// and node configurations may name the next.
const rootKey = "clusterRoot"

func (r *run) readRoot(ctx context.Context, key client.ObjectKey) error {
	secret := &corev1.Secret{}
	if err := r.Live.Get(ctx, key, secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.root = string(secret.Data[rootKey])
	return nil
}

// readVouchers reads those that were signed with this key. Others are another enroller's, and left alone, as is what is no voucher.
func (r *run) readVouchers() error {
	r.vouchers = map[string]measurements.Voucher{}
	public := ed25519.PublicKey(r.key[ed25519.PrivateKeySize-ed25519.PublicKeySize:])
	return r.workload.EachVoucher(r.asking, func(signed []byte, err error) {
		if err != nil {
			return
		}
		v, _, err := measurements.OpenVoucher(signed, func(enroller ed25519.PublicKey) bool { return public.Equal(enroller) })
		if err == nil {
			r.vouchers[v.Name] = v
		}
	})
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

// conclude writes a verdict into the condition Vouched of a config, and tells of it if it is another one than before.
func (r *run) conclude(ctx context.Context, config *bootstrapv1.HullmarkConfig, v verdict) error {
	before := config.DeepCopy()
	setVouched(config, v)
	if conditions.GetReason(before, bootstrapv1.VouchedCondition) == v.reason && conditions.GetMessage(before, bootstrapv1.VouchedCondition) == conditions.GetMessage(config, bootstrapv1.VouchedCondition) {
		return nil
	}
	// The bootstrap provider writes the same list: who was slower reads it again.
	err := r.Client.Status().Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
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
	r.Events.Eventf(config, nil, kind, v.reason, "Vouch", "%s", core.Note(v.message))
	return nil
}
