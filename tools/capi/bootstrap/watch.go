package bootstrap

import (
	"context"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// SetupWithManager has the manager run the reconciler. Configs, Machines, MachinePools and Clusters are watched: an owner or a Cluster
// wakes its configs when something changed that a decision rests on, not at each change of its status.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("hullmarkconfig").
		For(&v1alpha1.HullmarkConfig{}).
		WithOptions(options).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(r.configsOfMachine), builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&clusterv1.MachinePool{}, handler.EnqueueRequestsFromMapFunc(configsOfMachinePool), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.configsOfCluster), builder.WithPredicates(clusterChanged)).
		Complete(r)
}

// clusterChanged lets through what decisions rest on: spec (paused, endpoint) and deletion, which make a generation, and how far it is.
var clusterChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*clusterv1.Cluster)
	after, ok2 := e.ObjectNew.(*clusterv1.Cluster)
	return !ok || !ok2 || before.Generation != after.Generation ||
		core.Initialized(before) != core.Initialized(after) ||
		ptr.Deref(before.Status.Initialization.InfrastructureProvisioned, false) != ptr.Deref(after.Status.Initialization.InfrastructureProvisioned, false)
}}

// configsOfMachine returns a Machine's own config, and those that wait for it to give the init lock back.
func (r *Reconciler) configsOfMachine(ctx context.Context, o client.Object) []ctrl.Request {
	m, ok := o.(*clusterv1.Machine)
	if !ok {
		return nil
	}
	requests := requestFor(m.Namespace, m.Spec.Bootstrap.ConfigRef)
	if util.IsControlPlaneMachine(m) && !m.DeletionTimestamp.IsZero() {
		requests = append(requests, r.configsOfMachines(ctx, m.Namespace, m.Spec.ClusterName, client.HasLabels{clusterv1.MachineControlPlaneLabel})...)
	}
	return requests
}

func configsOfMachinePool(_ context.Context, o client.Object) []ctrl.Request {
	p, ok := o.(*clusterv1.MachinePool)
	if !ok {
		return nil
	}
	return requestFor(p.Namespace, p.Spec.Template.Spec.Bootstrap.ConfigRef)
}

// configsOfCluster returns the configs of all Machines and MachinePools of a Cluster.
func (r *Reconciler) configsOfCluster(ctx context.Context, o client.Object) []ctrl.Request {
	requests := r.configsOfMachines(ctx, o.GetNamespace(), o.GetName())
	pools := &clusterv1.MachinePoolList{}
	if err := r.Client.List(ctx, pools, client.InNamespace(o.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: o.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "MachinePools of a Cluster", "cluster", client.ObjectKeyFromObject(o))
	}
	for _, p := range pools.Items {
		requests = append(requests, configsOfMachinePool(ctx, &p)...)
	}
	return requests
}

func (r *Reconciler) configsOfMachines(ctx context.Context, namespace, cluster string, also ...client.ListOption) (requests []ctrl.Request) {
	machines := &clusterv1.MachineList{}
	options := append(also, client.InNamespace(namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster})
	if err := r.Client.List(ctx, machines, options...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Machines of a Cluster", "cluster", cluster)
	}
	for _, m := range machines.Items {
		requests = append(requests, requestFor(m.Namespace, m.Spec.Bootstrap.ConfigRef)...)
	}
	return requests
}

// requestFor returns the config that a reference names, if it is one of ours.
func requestFor(namespace string, ref clusterv1.ContractVersionedObjectReference) []ctrl.Request {
	if ref.APIGroup != v1alpha1.GroupVersion.Group || ref.Kind != v1alpha1.ConfigKind {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: namespace, Name: ref.Name}}}
}
