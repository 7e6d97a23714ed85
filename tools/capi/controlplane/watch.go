package controlplane

import (
	"context"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// SetupWithManager has the manager run the reconciler. Control planes, their Machines and their Clusters are watched. What an
// infrastructure provider reports, and Secrets, are looked at now and then as long as they are waited for.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	r.jobs.wake = make(chan event.GenericEvent, 64)
	if err := mgr.Add(&r.jobs); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("hullmarkcontrolplane").
		For(&v1alpha1.HullmarkControlPlane{}).
		WithOptions(options).
		Owns(&clusterv1.Machine{}).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(planeOfCluster)).
		WatchesRawSource(source.Channel(r.jobs.wake, &handler.EnqueueRequestForObject{})).
		Complete(r)
}

// planeOfCluster returns the control plane that a Cluster refers to, if it is one of ours.
func planeOfCluster(_ context.Context, o client.Object) []ctrl.Request {
	c, ok := o.(*clusterv1.Cluster)
	if !ok || c.Spec.ControlPlaneRef.APIGroup != v1alpha1.GroupVersion.Group || c.Spec.ControlPlaneRef.Kind != v1alpha1.ControlPlaneKind {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.ControlPlaneRef.Name}}}
}
