package bootstrap

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// owner is the Machine or the MachinePool that a config is for.
type owner struct {
	client.Object
	cluster      string
	pool         bool
	controlPlane bool
}

// deleting reports that the owner is about to go.
func (o *owner) deleting() bool { return !o.GetDeletionTimestamp().IsZero() }

// findOwner returns the owner that core has entered in the config, or nil if there is none, or none any more.
func findOwner(ctx context.Context, c client.Reader, config *v1alpha1.HullmarkConfig) (*owner, error) {
	for _, ref := range config.OwnerReferences {
		if groupOf(ref.APIVersion) != clusterv1.GroupVersion.Group {
			continue
		}
		var found *owner
		key := client.ObjectKey{Namespace: config.Namespace, Name: ref.Name}
		switch ref.Kind {
		case "Machine":
			m := &clusterv1.Machine{}
			if err := c.Get(ctx, key, m); err != nil {
				return nil, client.IgnoreNotFound(err)
			}
			found = &owner{Object: m, cluster: m.Spec.ClusterName, controlPlane: util.IsControlPlaneMachine(m)}
		case "MachinePool":
			p := &clusterv1.MachinePool{}
			if err := c.Get(ctx, key, p); err != nil {
				return nil, client.IgnoreNotFound(err)
			}
			found = &owner{Object: p, cluster: p.Spec.ClusterName, pool: true}
		default: // a MachineSet enters itself until its Machine is there
			continue
		}
		if found.GetUID() == ref.UID {
			return found, nil
		}
	}
	return nil, nil
}

// findCluster returns the Cluster of a name, or nil if there is none.
func findCluster(ctx context.Context, c client.Reader, namespace, name string) (*clusterv1.Cluster, error) {
	if name == "" {
		return nil, nil
	}
	cluster := &clusterv1.Cluster{}
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cluster)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return cluster, err
}

// groupOf returns the group of an apiVersion, or an empty one of what is none.
func groupOf(apiVersion string) string {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return ""
	}
	return gv.Group
}
