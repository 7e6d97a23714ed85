// Package controlplane is Hullmark's control plane provider for Cluster API: it makes a control plane's Machines, begins the cluster on the
// first of them with a cluster file that somebody lent, keeps a kubeconfig of short life, and replaces Machines without a risk for etcd.
//
// It fulfils the contract v1beta2 for a ControlPlane (Cluster API book, "Contract rules for ControlPlane"). It cannot admit a machine:
// each but the first joins by the cluster's join service, by a rule that the cluster's root signed.
package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice/etcd"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// What it may do. Secrets and ConfigMaps are read one by one, never listed or watched. An infrastructure provider's machines may be of any
// kind of the group.
//
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=hullmarkcontrolplanes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=hullmarkcontrolplanes/status,verbs=patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=hullmarkcontrolplanes/finalizers,verbs=update
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=hullmarkconfigs,verbs=get;list;create;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=*,verbs=get;create;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinepools,verbs=list
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines/status,verbs=patch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// retry is when what is not watched is looked at again: an identity, a Secret, a Node, a member of etcd.
	retry = 20 * time.Second
	// steady is when a control plane with which nothing is wrong is looked at again.
	steady = 5 * time.Minute
)

// Custody opens what was sealed to this manager.
type Custody interface {
	// Recipient is the age recipient that cluster files are sealed to.
	Recipient() string
	// OpenCluster opens the lent cluster file of a Secret. Update changes the Secret.
	OpenCluster(ctx context.Context, key client.ObjectKey) (*cluster.File, error)
}

// Reconciler keeps control planes as their specs say. It has many methods, in a file for each subject: all are steps of one reconciliation,
// over what was seen at its beginning.
type Reconciler struct {
	// Client writes, and reads what is watched from the cache. What a step rests on is read by Live.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Events tells of what was made, removed or refused.
	Events events.EventRecorder
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter of the control planes to care for; empty: all.
	WatchFilter string
	// Custody opens lent cluster files.
	Custody Custody
	// Begin begins a cluster on its first machine; nil: operate.Init.
	Begin func(context.Context, *cluster.File, operate.InitOptions) error
	// Connect reaches a cluster that runs, at its API server's HOST:PORT; nil: by the file's administrator.
	Connect func(file *cluster.File, server string) (Workload, error)
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	// retry and strayWait are others than usual; 0: the usual ones.
	retry, strayWait time.Duration

	jobs   jobs
	silent silences
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

func (r *Reconciler) begin(ctx context.Context, file *cluster.File, o operate.InitOptions) error {
	if r.Begin != nil {
		return r.Begin(ctx, file, o)
	}
	return operate.Init(ctx, file, o)
}

func (r *Reconciler) connect(file *cluster.File, server string) (Workload, error) {
	if r.Connect != nil {
		return r.Connect(file, server)
	}
	return connect(file, server)
}

// scope is one control plane with what it depends on, as seen at the beginning of a reconciliation, and what came of it.
type scope struct {
	plane   *v1alpha1.HullmarkControlPlane
	cluster *clusterv1.Cluster
	// machines are its own, the oldest first, and foreign the names of the Cluster's other Machines of control planes.
	machines []*machine
	foreign  []string
	// server is where its API is reached; empty if nobody knows.
	server string
	// file is the lent cluster file; nil before somebody lent it.
	file *cluster.File
	// workload is the cluster that runs, and seen how it is; nil if it does not run or answer, and seenErr says why.
	workload Workload
	seen     *View
	seenErr  error

	// asked says that the cluster's API was asked; if not, whether it answers is not known.
	asked bool

	// etcd are the members of etcd, strays those that are no Machine's, and etcdErr why they are not known, once askedEtcd.
	etcd      []etcd.Member
	strays    []stray
	etcdErr   error
	askedEtcd bool

	// verdicts by the types of conditions that a step has set.
	verdicts map[string]verdict
	// again is when to look again, and retry when if something is waited for.
	again, retry time.Duration
}

// verdict is what a condition says.
type verdict struct {
	status bool
	// unknown says that nobody knows.
	unknown bool
	reason  string
	message string
}

// say sets what a condition is to be.
func (s *scope) say(kind string, status bool, reason, format string, args ...any) {
	s.verdicts[kind] = verdict{status: status, reason: reason, message: fmt.Sprintf(format, args...)}
}

// sayUnknown says of a condition that nobody knows.
func (s *scope) sayUnknown(kind string, reason, format string, args ...any) {
	s.verdicts[kind] = verdict{unknown: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

// soon has the control plane looked at again after at most d.
func (s *scope) soon(d time.Duration) {
	if s.again == 0 || d < s.again {
		s.again = max(d, min(time.Second, s.retry))
	}
}

func (s *scope) initialized() bool {
	return ptr.Deref(s.plane.Status.Initialization.ControlPlaneInitialized, false)
}

func (s *scope) replicas() int { return int(ptr.Deref(s.plane.Spec.Replicas, 1)) }

// Reconcile brings one control plane a step further to what its spec asks for. Each step can be cut off and done again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	plane := &v1alpha1.HullmarkControlPlane{}
	if err := r.Client.Get(ctx, req.NamespacedName, plane); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.WatchFilter != "" && !labels.HasWatchLabel(plane, r.WatchFilter) {
		return ctrl.Result{}, nil
	}
	owner, err := util.GetOwnerCluster(ctx, r.Client, plane.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("owner: %w", err)
	}
	if owner == nil {
		return ctrl.Result{}, r.alone(ctx, plane)
	}
	isPaused, changed, err := paused.EnsurePausedCondition(ctx, r.Client, owner, plane)
	if isPaused {
		r.jobs.cancel(plane.UID)
	}
	if err != nil || isPaused || changed { // A change of it wakes this again.
		return ctrl.Result{}, err
	}
	if plane.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(plane, v1alpha1.ControlPlaneFinalizer) {
		before := plane.DeepCopy()
		controllerutil.AddFinalizer(plane, v1alpha1.ControlPlaneFinalizer)
		if err := r.Client.Patch(ctx, plane, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return ctrl.Result{}, fmt.Errorf("add the finalizer: %w", err)
		}
	}
	s := &scope{plane: plane, cluster: owner, verdicts: map[string]verdict{}, retry: cmp.Or(r.retry, retry)}
	before := plane.DeepCopy()
	err = r.step(ctx, s)
	if plane.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(plane, v1alpha1.ControlPlaneFinalizer) {
		return ctrl.Result{}, err // It is gone.
	}
	r.conclude(s)
	if !equality.Semantic.DeepEqual(before.Status, plane.Status) {
		// One write, so that nobody sees a part of it.
		written := r.Client.Status().Patch(ctx, plane, client.MergeFrom(before))
		if err == nil {
			err = client.IgnoreNotFound(written)
		}
	}
	return ctrl.Result{RequeueAfter: s.again}, err
}

// alone is what becomes of a control plane without a Cluster: nothing, but that it may go.
func (r *Reconciler) alone(ctx context.Context, plane *v1alpha1.HullmarkControlPlane) error {
	before := plane.DeepCopy()
	s := &scope{plane: plane, verdicts: map[string]verdict{}}
	if !plane.DeletionTimestamp.IsZero() {
		return r.letGo(ctx, s)
	}
	s.say(v1alpha1.BegunCondition, false, v1alpha1.WaitingForClusterReason, "no Cluster refers to it by its spec.controlPlaneRef yet")
	r.conclude(s)
	if equality.Semantic.DeepEqual(before.Status, plane.Status) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Status().Patch(ctx, plane, client.MergeFrom(before)))
}

// step does what can be done now. An error means that the API of the management cluster did not do its part; it is tried again.
func (r *Reconciler) step(ctx context.Context, s *scope) error {
	if err := r.lookAtMachines(ctx, s); err != nil {
		return err
	}
	if !s.plane.DeletionTimestamp.IsZero() || !s.cluster.DeletionTimestamp.IsZero() {
		return r.remove(ctx, s)
	}
	waits, err := r.lookAtInfrastructure(ctx, s)
	if err != nil || waits {
		return err
	}
	// Machines that a controller before this one began to make are finished, whatever the spec says by now.
	if err := r.finishMachines(ctx, s); err != nil {
		return err
	}
	if err := r.propagate(ctx, s); err != nil {
		return err
	}
	if !s.initialized() {
		if err := r.beginCluster(ctx, s); err != nil || !s.initialized() {
			return err
		}
	}
	return r.run(ctx, s)
}

// lookAtInfrastructure finds where the API is, and reports whether there is something to wait for before Machines are made.
func (r *Reconciler) lookAtInfrastructure(ctx context.Context, s *scope) (waits bool, err error) {
	if !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false) {
		s.say(v1alpha1.BegunCondition, false, v1alpha1.WaitingForInfrastructureReason, "the infrastructure of Cluster %s is not provisioned yet", s.cluster.Name)
		return true, nil
	}
	if s.cluster.Spec.ControlPlaneEndpoint.IsZero() {
		s.say(v1alpha1.BegunCondition, false, v1alpha1.WaitingForEndpointReason, "Cluster %s has no control plane endpoint yet: set its spec.controlPlaneEndpoint, or wait for its infrastructure",
			s.cluster.Name)
		return true, nil
	}
	server, problem, err := r.findServer(ctx, s.cluster)
	if problem != nil {
		s.say(v1alpha1.BegunCondition, s.initialized(), v1alpha1.SpecRefusedReason, "%v", problem)
		s.seenErr = problem
		s.soon(s.retry)
		return true, nil
	}
	s.server = server
	return false, err
}
