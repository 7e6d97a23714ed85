package controlplane

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// adopt makes a Machine this control plane's that was one of the same name: after kubectl delete --cascade=orphan, or a restore, in which a
// control plane made anew has another UID. Its HullmarkConfig and its infrastructure are the Machine's, and core sees to that.
func (r *Reconciler) adopt(ctx context.Context, s *scope, m *clusterv1.Machine) (bool, error) {
	if !adoptable(s, m) {
		return false, nil
	}
	// What is in the cache may be a control plane whose Machines were orphaned a moment ago.
	live := &v1alpha1.HullmarkControlPlane{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(s.plane), live); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if live.UID != s.plane.UID || !live.DeletionTimestamp.IsZero() {
		return false, nil
	}
	before := m.DeepCopy()
	m.OwnerReferences = slices.DeleteFunc(m.OwnerReferences, func(ref metav1.OwnerReference) bool { return namesPlane(s.plane, ref) })
	m.OwnerReferences = append(m.OwnerReferences, ownerOf(s.plane, true))
	// The list is written as a whole, so it has to be as it was read.
	if err := r.Client.Patch(ctx, m, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, wrap(client.IgnoreNotFound(err), "adopt Machine "+m.Name)
	}
	r.Events.Eventf(s.plane, nil, corev1.EventTypeNormal, "MachineAdopted", "AdoptMachine", "Machine %s had no owner, and is one of the control plane again", m.Name)
	return true, nil
}

// adoptable reports whether a Machine of this Cluster is of a control plane of this name, and nobody's. One that is being deleted is, too:
// somebody has to let it go. It has a name as they are made here, and so have its objects: with it must not go the member of etcd of a
// machine that joined outside, nor another Machine's infrastructure.
func adoptable(s *scope, m *clusterv1.Machine) bool {
	owner, config := metav1.GetControllerOf(m), m.Spec.Bootstrap.ConfigRef
	return s.plane.DeletionTimestamp.IsZero() && namedBy(s.plane.Name, m.Name) && m.Spec.ClusterName == s.cluster.Name &&
		config.APIGroup == bootstrapv1.GroupVersion.Group && config.Kind == bootstrapv1.ConfigKind && config.Name == m.Name && m.Spec.InfrastructureRef.Name == m.Name &&
		m.Labels[clusterv1.MachineControlPlaneNameLabel] == format.MustFormatValue(s.plane.Name) &&
		(owner == nil || namesPlane(s.plane, *owner))
}

// namesPlane reports whether a reference is to a control plane of this name: there is but one at a time, so that another UID is of one that
// is gone.
func namesPlane(plane *v1alpha1.HullmarkControlPlane, ref metav1.OwnerReference) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == v1alpha1.GroupVersion.Group && ref.Kind == v1alpha1.ControlPlaneKind && ref.Name == plane.Name
}
