package infrastructure

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

// Options say how the provider works. Folder and Processes are required.
type Options struct {
	// Folder is where networks and machines are kept. It is made if absent. One controller works there at a time.
	Folder string
	// Processes start what runs on the host.
	Processes Processes
	// WatchFilter, if not empty, is the value of the label cluster.x-k8s.io/watch-filter of the objects that this controller deals with.
	WatchFilter string
	// Grace is how long a guest may take to switch itself off when its machine is deleted; defaultGrace if zero.
	Grace time.Duration
	// Poll is how often the processes are looked at: nobody tells the controller when one ends. defaultPoll if zero.
	Poll time.Duration
}

const (
	defaultGrace = time.Minute
	defaultPoll  = 10 * time.Second
	// soon is when something is looked at that is about to change.
	soon = time.Second
	// cutTime is how long hullmark may take, after the grace, to end a machine whose guest did not.
	cutTime = 15 * time.Second
)

// host is what both reconcilers work on.
type host struct {
	client client.Client
	// secrets reads past the cache: no other Secret than those that are asked for has to be readable.
	secrets   client.Reader
	folders   *folders
	processes Processes
	filter    string
	grace     time.Duration
	poll      time.Duration
}

// ignores reports whether an object is another controller's. Its Cluster's events lead to it all the same.
func (h *host) ignores(o client.Object) bool {
	return h.filter != "" && o.GetLabels()[clusterv1.WatchLabel] != h.filter
}

func newHost(c client.Client, secrets client.Reader, o Options) (*host, error) {
	// A machine's hardware address depends on how its folder is written.
	root, err := filepath.Abs(o.Folder)
	if err != nil || o.Folder == "" {
		return nil, fmt.Errorf("provider's folder %q: %w", o.Folder, err)
	}
	return &host{
		client: c, secrets: secrets, folders: &folders{root: root}, processes: o.Processes,
		filter: o.WatchFilter, grace: cmp.Or(o.Grace, defaultGrace), poll: cmp.Or(o.Poll, defaultPoll),
	}, nil
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=hullmarkclusters;hullmarkmachines,verbs=get;list;watch;patch;update
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=hullmarkclusters/status;hullmarkmachines/status,verbs=get;patch;update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

// Setup adds the reconcilers of HullmarkCluster and HullmarkMachine to a manager, whose scheme has to know their types and core's.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
	h, err := newHost(mgr.GetClient(), mgr.GetAPIReader(), o)
	if err != nil {
		return err
	}
	if err := (&clusterReconciler{h}).setup(ctx, mgr, o.WatchFilter); err != nil {
		return fmt.Errorf("reconciler of %s: %w", infrav1.ClusterKind, err)
	}
	if err := (&machineReconciler{h}).setup(mgr, o.WatchFilter); err != nil {
		return fmt.Errorf("reconciler of %s: %w", infrav1.MachineKind, err)
	}
	return nil
}

func (r *clusterReconciler) setup(ctx context.Context, mgr ctrl.Manager, filter string) error {
	ofCluster := util.ClusterToInfrastructureMapFunc(ctx, infrav1.GroupVersion.WithKind(infrav1.ClusterKind), mgr.GetClient(), &infrav1.HullmarkCluster{})
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.HullmarkCluster{}, builder.WithPredicates(
			predicates.ResourceHasFilterLabel(mgr.GetScheme(), mgr.GetLogger(), filter),
			predicates.ResourceIsNotExternallyManaged(mgr.GetScheme(), mgr.GetLogger()),
		)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(ofCluster), builder.WithPredicates(predicates.ResourceHasFilterLabel(mgr.GetScheme(), mgr.GetLogger(), filter))).
		Complete(r)
}

func (r *machineReconciler) setup(mgr ctrl.Manager, filter string) error {
	ofCluster, err := util.ClusterToTypedObjectsMapper(mgr.GetClient(), &infrav1.HullmarkMachineList{}, mgr.GetScheme())
	if err != nil {
		return err
	}
	ofMachine := util.MachineToInfrastructureMapFunc(infrav1.GroupVersion.WithKind(infrav1.MachineKind))
	watched := builder.WithPredicates(predicates.ResourceHasFilterLabel(mgr.GetScheme(), mgr.GetLogger(), filter))
	return ctrl.NewControllerManagedBy(mgr).
		For(&infrav1.HullmarkMachine{}, watched).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(ofMachine), watched).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(ofCluster), watched).
		Complete(r)
}

// object is a HullmarkCluster or a HullmarkMachine.
type object interface {
	client.Object
	conditions.Setter
}

// setReady sets an object's condition Ready.
func setReady(o object, status metav1.ConditionStatus, reason, message string) {
	conditions.Set(o, metav1.Condition{Type: infrav1.ReadyCondition, Status: status, Reason: reason, Message: message})
}

func notReady(o object, reason, format string, args ...any) {
	setReady(o, metav1.ConditionFalse, reason, fmt.Sprintf(format, args...))
}

// save writes what a reconciler changed of an object, once, at its end.
func save(ctx context.Context, helper *patch.Helper, o object) error {
	return helper.Patch(ctx, o, patch.WithStatusObservedGeneration{}, patch.WithOwnedConditions{Conditions: []string{infrav1.ReadyCondition, clusterv1.PausedCondition}})
}

func after(d time.Duration) ctrl.Result { return ctrl.Result{RequeueAfter: d} }
