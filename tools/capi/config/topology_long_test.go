//go:build long

package config

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// classes is the namespace of the Cluster of a ClusterClass, where nobody plays infrastructure.
const classes = "classes"

// topology declares a Cluster by the ClusterClass, and changes it: what core's own topology reconciler makes of that reaches the control
// plane, the workers and their templates, and what our rules refuse is said in the Cluster's condition.
func topology(ctx context.Context, t *testing.T, m management) {
	declare(ctx, t, m)
	at := classCluster{m, ctx, t}
	at.eventually("a control plane", func() error {
		return want(at.object(plane, "HullmarkControlPlane", "byclass-control-plane"), map[string]any{
			"spec.replicas": int64(1), "spec.version": "v1.36.3", "spec.config.clusterRoot": strings.Repeat("5f", 32), "spec.config.pool": "control-plane",
			"spec.config.network.addresses": []any{"10.0.2.4/24"}, "spec.machineTemplate.spec.infrastructureRef.kind": "HullmarkMachineTemplate",
		})
	})
	at.eventually("a network", func() error {
		return want(at.object(infra, "HullmarkCluster", "byclass"), map[string]any{"spec.controlPlaneEndpoint.host": "10.0.2.4", "spec.controlPlaneEndpoint.port": int64(6443)})
	})
	at.eventually("workers", func() error { return at.workers(2, "v1.36.3", "/images/hullmark.raw") })
	at.eventually("the control plane's image", func() error { return at.controlPlaneImage("/images/hullmark.raw") })

	at.begun("v1.36.3")
	at.change(func(c *clusterv1.Cluster) { c.Spec.Topology.ControlPlane.Replicas = ptr.To[int32](3) })
	at.eventually("three with one address are refused", func() error { return at.refused("several would have one address") })
	at.change(func(c *clusterv1.Cluster) {
		c.Spec.Topology.Workers.MachineDeployments[0].Replicas = ptr.To[int32](3)
		set(c, "controlPlaneHasEndpoint", "false")
	})
	at.eventually("both are scaled", func() error {
		return errors.Join(at.workers(3, "v1.36.3", "/images/hullmark.raw"), want(at.object(plane, "HullmarkControlPlane", "byclass-control-plane"), map[string]any{
			"spec.replicas": int64(3), "spec.config.network": nil,
		}))
	})

	at.change(func(c *clusterv1.Cluster) { set(c, "kubernetes", `{"network":"wireguard"}`) })
	at.eventually("what it was begun with is not changed", func() error { return at.refused("the cluster was begun with the earlier kubernetes") })
	at.change(func(c *clusterv1.Cluster) {
		c.Spec.Topology.Variables = slices.DeleteFunc(c.Spec.Topology.Variables, func(v clusterv1.ClusterVariable) bool { return v.Name == "kubernetes" })
	})
	at.eventually("it is taken back", at.reconciled)
	at.upgrade()
}

// upgrade raises the version: the control plane gets it, and the image that has it, and the workers when the control plane has it.
func (c classCluster) upgrade() {
	c.change(func(o *clusterv1.Cluster) { o.Spec.Topology.Version = "v1.37.0" })
	c.eventually("a version without an image is told", func() error { return c.refused("variable images names no image for Kubernetes v1.37.0") })
	c.change(func(o *clusterv1.Cluster) {
		set(o, "images", `{"v1.36.3":"/images/hullmark.raw","v1.37.0":"/images/next.raw"}`)
	})
	c.eventually("the control plane is raised", func() error {
		return errors.Join(c.controlPlaneImage("/images/next.raw"), want(c.object(plane, "HullmarkControlPlane", "byclass-control-plane"), map[string]any{"spec.version": "v1.37.0"}))
	})
	if err := c.workers(3, "v1.36.3", "/images/hullmark.raw"); err != nil {
		c.t.Errorf("workers before the control plane is there: %v", err)
	}
	c.begun("v1.37.0")
	c.eventually("the workers are raised", func() error { return c.workers(3, "v1.37.0", "/images/next.raw") })
}

// declare makes the Cluster "byclass" and its ClusterClass of the flavour, and applies them as they are.
func declare(ctx context.Context, t *testing.T, m management) {
	t.Helper()
	if err := m.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: classes}}); err != nil {
		t.Fatal(err)
	}
	text := m.clusterctl(ctx, t, "generate", "cluster", "byclass", "--kubeconfig", m.kubeconfig, "--infrastructure", Name, "--flavor", "topology", "--target-namespace", classes,
		"--kubernetes-version", "v1.36.3", "--control-plane-machine-count", "1", "--worker-machine-count", "2")
	made := m.createAll(ctx, t, text, func(*unstructured.Unstructured) bool { return true })
	if want := []string{
		"Cluster byclass", "ClusterClass hullmark-qemu", "HullmarkClusterTemplate hullmark-qemu", "HullmarkConfigTemplate hullmark-qemu-worker",
		"HullmarkControlPlaneTemplate hullmark-qemu", "HullmarkMachineTemplate hullmark-qemu-control-plane", "HullmarkMachineTemplate hullmark-qemu-worker",
	}; !slices.Equal(made, want) {
		t.Errorf("%q, want %q", made, want)
	}
}

// classCluster is the Cluster of the ClusterClass.
type classCluster struct {
	management
	ctx context.Context
	t   *testing.T
}

func (c classCluster) eventually(what string, done func() error) {
	c.t.Helper()
	eventually(c.ctx, c.t, what, func() error {
		if err := done(); err != nil {
			return fmt.Errorf("%w; %v", err, c.refused(""))
		}
		return nil
	})
}

func (c classCluster) cluster() *clusterv1.Cluster {
	c.t.Helper()
	o := &clusterv1.Cluster{}
	if err := c.client.Get(c.ctx, client.ObjectKey{Namespace: classes, Name: "byclass"}, o); err != nil {
		c.t.Fatal(err)
	}
	return o
}

// change edits the Cluster. Core's webhook may have to see first what was changed before.
func (c classCluster) change(edit func(*clusterv1.Cluster)) {
	c.t.Helper()
	eventually(c.ctx, c.t, "change the Cluster", func() error {
		o := c.cluster()
		before := o.DeepCopy()
		edit(o)
		return c.client.Patch(c.ctx, o, client.MergeFrom(before))
	})
}

// set gives a variable of a topology a value in JSON.
func set(c *clusterv1.Cluster, name, value string) {
	variables := slices.DeleteFunc(slices.Clone(c.Spec.Topology.Variables), func(v clusterv1.ClusterVariable) bool { return v.Name == name })
	v := clusterv1.ClusterVariable{Name: name}
	v.Value.Raw = []byte(value)
	c.Spec.Topology.Variables = append(variables, v)
}

// refused is an error unless the Cluster says that its topology cannot be made, and why.
func (c classCluster) refused(why string) error {
	condition := conditions.Get(c.cluster(), clusterv1.ClusterTopologyReconciledCondition)
	if condition == nil || condition.Status != metav1.ConditionFalse || why == "" || !strings.Contains(condition.Message, why) {
		return fmt.Errorf("TopologyReconciled is %+v", condition)
	}
	return nil
}

func (c classCluster) reconciled() error {
	if o := c.cluster(); !conditions.IsTrue(o, clusterv1.ClusterTopologyReconciledCondition) {
		return fmt.Errorf("TopologyReconciled is %+v", conditions.Get(o, clusterv1.ClusterTopologyReconciledCondition))
	}
	return nil
}

// object returns one of the Cluster's objects, or an empty one.
func (c classCluster) object(group, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1alpha1", Kind: kind})
	if err := c.client.Get(c.ctx, client.ObjectKey{Namespace: classes, Name: name}, o); err != nil {
		return &unstructured.Unstructured{Object: map[string]any{"kind": kind, "error": err.Error()}}
	}
	return o
}

// begun says of the control plane what a controller says when the cluster runs a version.
func (c classCluster) begun(version string) {
	c.t.Helper()
	o := c.object(plane, "HullmarkControlPlane", "byclass-control-plane")
	patch := fmt.Appendf(nil, `{"status":{"initialization":{"controlPlaneInitialized":true},"version":%q,"versions":[{"version":%[1]q,"replicas":1}]}}`, version)
	if err := c.client.Status().Patch(c.ctx, o, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		c.t.Fatal(err)
	}
}

func (c classCluster) controlPlaneImage(image string) error {
	name, _, err := unstructured.NestedString(c.object(plane, "HullmarkControlPlane", "byclass-control-plane").Object, "spec", "machineTemplate", "spec", "infrastructureRef", "name")
	return errors.Join(err, want(c.object(infra, "HullmarkMachineTemplate", name), map[string]any{
		"spec.template.spec.image": image, "spec.template.spec.machine.cpus": int64(2), "spec.template.spec.machine.memoryMiB": int64(4096),
	}))
}

// workers is an error unless there is one MachineDeployment of so many, with templates that have what the topology says.
func (c classCluster) workers(replicas int32, version, image string) error {
	all := &clusterv1.MachineDeploymentList{}
	if err := c.client.List(c.ctx, all, client.InNamespace(classes)); err != nil || len(all.Items) != 1 {
		return fmt.Errorf("%d MachineDeployments (%v)", len(all.Items), err)
	}
	d := all.Items[0]
	spec := d.Spec.Template.Spec
	if ptr.Deref(d.Spec.Replicas, 0) != replicas || spec.Version != version || !strings.HasPrefix(d.Name, "workers-byclass-") {
		return fmt.Errorf("MachineDeployment %s: %d of version %s", d.Name, ptr.Deref(d.Spec.Replicas, 0), spec.Version)
	}
	return errors.Join(
		want(c.object(boot, "HullmarkConfigTemplate", spec.Bootstrap.ConfigRef.Name), map[string]any{
			"spec.template.spec.clusterRoot": strings.Repeat("5f", 32), "spec.template.spec.pool": "workers", "spec.template.spec.stateDisk.serial": "hullmark-state",
		}),
		want(c.object(infra, "HullmarkMachineTemplate", spec.InfrastructureRef.Name), map[string]any{
			"spec.template.spec.image": image, "spec.template.spec.machine.stateDisk": "16G",
		}),
	)
}

// want is an error unless an object's fields have these values; nil stands for none.
func want(o *unstructured.Unstructured, fields map[string]any) (all error) {
	for path, want := range fields {
		got, _, err := unstructured.NestedFieldNoCopy(o.Object, strings.Split(path, ".")...)
		if err != nil || !reflect.DeepEqual(got, want) {
			all = errors.Join(all, fmt.Errorf("%s %s: %s is %v, want %v (%v)", o.GetKind(), o.GetName(), path, got, want, o.Object["error"]))
		}
	}
	return all
}
