//go:build long

package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/internal/testenv"
)

const (
	team  = "team"
	infra = "infrastructure.cluster.x-k8s.io"
	boot  = "bootstrap.cluster.x-k8s.io"
	plane = "controlplane.cluster.x-k8s.io"
)

// TestClusterctl goes the way of a person with the real clusterctl, core and API servers: init of two management clusters from a
// repository in a folder, a cluster of the ClusterClass, generate cluster from the template, and move of the cluster from the one to the other.
func TestClusterctl(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Minute) // programs may have to be compiled
	defer cancel()
	from, to := startManagement(ctx, t), startManagement(ctx, t)
	b := newBench(ctx, t, from.api.Programs()+"/kubectl")
	from.bench, to.bench = b, b
	for name, m := range map[string]management{"the first": from, "the second": to} {
		b.clusterctl(ctx, t, "init", "--kubeconfig", m.kubeconfig, "--core", "cluster-api", "--bootstrap", Name, "--control-plane", Name, "--infrastructure", Name)
		t.Run("init of "+name, func(t *testing.T) { checkInit(ctx, t, m) })
		m.startManagers(ctx, t)
		go m.playInfrastructure(ctx, from)
	}
	if t.Failed() {
		return
	}
	if err := from.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}}); err != nil {
		t.Fatal(err)
	}
	t.Run("refused changes", func(t *testing.T) { refuse(ctx, t, from) })
	t.Run("refused objects", func(t *testing.T) { refuseNew(ctx, t, from) })
	t.Run("topology", func(t *testing.T) { topology(ctx, t, from) })
	t.Run("generate cluster", func(t *testing.T) { generate(ctx, t, from) })
	if t.Failed() {
		return
	}
	t.Run("move", func(t *testing.T) { move(ctx, t, from, to) })
}

// checkInit: all providers are in the inventory; what was installed is what was written; the managers' pods are admitted to their
// namespaces, which are restricted; core may use our kinds.
func checkInit(ctx context.Context, t *testing.T, m management) {
	var installed []string
	for _, p := range m.list(ctx, t, schema.GroupVersionKind{Group: "clusterctl.cluster.x-k8s.io", Version: "v1alpha3", Kind: "Provider"}) {
		installed = append(installed, p.GetNamespace()+"/"+p.GetName())
	}
	slices.Sort(installed)
	if want := []string{
		"capi-system/cluster-api", "hullmark-bootstrap-system/bootstrap-hullmark", "hullmark-control-plane-system/control-plane-hullmark",
		"hullmark-infrastructure-system/infrastructure-hullmark",
	}; !slices.Equal(installed, want) {
		t.Errorf("providers %q, want %q", installed, want)
	}
	for _, p := range Providers() {
		for _, crd := range as[apiextensionsv1.CustomResourceDefinition](t, p, "CustomResourceDefinition") {
			got := &apiextensionsv1.CustomResourceDefinition{}
			if err := m.client.Get(ctx, client.ObjectKeyFromObject(&crd), got); err != nil {
				t.Fatal(err)
			}
			// clusterctl takes "$$" for "$", which is in descriptions alone.
			if want := rules(crd); len(want) == 0 || !slices.Equal(rules(*got), want) {
				t.Errorf("%s: clusterctl changed its patterns or rules: %q, want %q", crd.Name, rules(*got), want)
			}
			verbs := []string{"create", "get", "list", "watch", "patch", "delete"}
			for _, verb := range verbs {
				kubectl, err := m.api.Kubectl(ctx, "auth", "can-i", verb, crd.Spec.Names.Plural+"."+crd.Spec.Group, "--as=system:serviceaccount:capi-system:capi-manager")
				if err != nil {
					t.Fatal(err)
				}
				if out, err := kubectl.Output(); err != nil || strings.TrimSpace(string(out)) != "yes" {
					t.Errorf("core may not %s %s: %s, %v", verb, crd.Name, out, err)
				}
			}
		}
	}
	for _, role := range []string{"bootstrap", "control-plane"} {
		system := "hullmark-" + role + "-system"
		eventually(ctx, t, "pod of "+role, func() error {
			pods := &corev1.PodList{}
			if err := m.client.List(ctx, pods, client.InNamespace(system)); err != nil || len(pods.Items) == 1 {
				return err
			}
			d := &appsv1.Deployment{}
			err := m.client.Get(ctx, client.ObjectKey{Namespace: system, Name: "hullmark-" + role + "-manager"}, d)
			return errors.Join(err, fmt.Errorf("%d pods: %+v", len(pods.Items), d.Status.Conditions))
		})
	}
	d := &appsv1.Deployment{}
	if err := m.client.Get(ctx, client.ObjectKey{Namespace: "hullmark-control-plane-system", Name: "hullmark-control-plane-manager"}, d); err != nil {
		t.Fatal(err)
	}
	if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--keeper="+keeperURL) || strings.Contains(strings.Join(args, " "), "$") {
		t.Errorf("the control plane's arguments %q", args)
	}
}

// rules are all patterns and CEL rules of a CRD, in the order of its fields.
func rules(crd apiextensionsv1.CustomResourceDefinition) (all []string) {
	var walk func(path string, s apiextensionsv1.JSONSchemaProps)
	walk = func(path string, s apiextensionsv1.JSONSchemaProps) {
		if s.Pattern != "" {
			all = append(all, path+": "+s.Pattern)
		}
		for _, v := range s.XValidations {
			all = append(all, path+": "+v.Rule)
		}
		if s.Items != nil && s.Items.Schema != nil {
			walk(path+"[]", *s.Items.Schema)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			walk(path+"."+name, s.Properties[name])
		}
	}
	for _, v := range crd.Spec.Versions {
		walk(v.Name, *v.Schema.OpenAPIV3Schema)
	}
	return all
}

// generate makes a cluster of the template, and applies it: each object is taken as it is by the CRDs, and core and the bootstrap provider
// bring its machines to their Nodes. Infrastructure, the control plane and the Nodes are played.
func generate(ctx context.Context, t *testing.T, m management) {
	listed := m.clusterctl(ctx, t, "generate", "cluster", "prod", "--kubeconfig", m.kubeconfig, "--infrastructure", Name, "--list-variables")
	required, _, _ := strings.Cut(listed, "Optional")
	for _, name := range []string{"HULLMARK_CLUSTER_ROOT", "HULLMARK_IMAGE", "KUBERNETES_VERSION"} {
		if !strings.Contains(required, name) {
			t.Errorf("%s is not among the required variables: %s", name, listed)
		}
	}
	text := m.clusterctl(ctx, t, "generate", "cluster", "prod", "--kubeconfig", m.kubeconfig, "--infrastructure", Name, "--target-namespace", team,
		"--kubernetes-version", "v1.36.3", "--control-plane-machine-count", "1", "--worker-machine-count", "2")
	made := m.createAll(ctx, t, text, func(o *unstructured.Unstructured) bool {
		if kinds[ControlPlane.Label] == 0 {
			unstructured.RemoveNestedField(o.Object, "spec", "controlPlaneRef")
			return o.GroupVersionKind().Group != plane
		}
		return true
	})
	if want := []string{
		"Cluster prod", "HullmarkCluster prod", "HullmarkConfigTemplate prod-workers", "HullmarkControlPlane prod-control-plane",
		"HullmarkMachineTemplate prod-control-plane", "HullmarkMachineTemplate prod-workers", "MachineDeployment prod-workers",
	}; !slices.Equal(made, want) {
		t.Errorf("%q, want %q", made, want)
	}
	kubeconfig, err := m.api.Kubeconfig("test", "system:masters") // the API plays the workload cluster's, too
	if err != nil {
		t.Fatal(err)
	}
	if err := m.client.Create(ctx, secretOf(team, "prod", "prod-kubeconfig", nil, "value", kubeconfig)); err != nil {
		t.Fatal(err)
	}
	makeControlPlaneMachine(ctx, t, m)
	eventually(ctx, t, "all machines have Nodes", func() error { return m.settled(ctx, 3) })
}

// makeControlPlaneMachine makes the first machine as a control plane provider does, and has the Cluster own the template of it.
func makeControlPlaneMachine(ctx context.Context, t *testing.T, m management) {
	t.Helper()
	labels := map[string]any{clusterv1.ClusterNameLabel: "prod", clusterv1.MachineControlPlaneLabel: ""}
	metadata := func() map[string]any {
		return map[string]any{"namespace": team, "name": "prod-control-plane-0", "labels": maps.Clone(labels)}
	}
	ref := func(group, kind string) map[string]any {
		return map[string]any{"apiGroup": group, "kind": kind, "name": "prod-control-plane-0"}
	}
	owned := metadata()
	if kinds[ControlPlane.Label] > 0 {
		owner := m.list(ctx, t, schema.GroupVersionKind{Group: plane, Version: "v1alpha1", Kind: "HullmarkControlPlane"}, client.InNamespace(team))[0]
		owned["ownerReferences"] = []any{map[string]any{
			"apiVersion": owner.GetAPIVersion(), "kind": owner.GetKind(), "name": owner.GetName(), "uid": string(owner.GetUID()), "controller": true, "blockOwnerDeletion": true,
		}}
	}
	template := &unstructured.Unstructured{}
	template.SetGroupVersionKind(schema.GroupVersionKind{Group: infra, Version: "v1alpha1", Kind: "HullmarkMachineTemplate"})
	cluster := &clusterv1.Cluster{}
	if err := errors.Join(
		m.client.Get(ctx, client.ObjectKey{Namespace: team, Name: "prod-control-plane"}, template), m.client.Get(ctx, client.ObjectKey{Namespace: team, Name: "prod"}, cluster),
	); err != nil {
		t.Fatal(err)
	}
	template.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: cluster.UID}})
	if err := m.client.Update(ctx, template); err != nil {
		t.Fatal(err)
	}
	for _, object := range []map[string]any{
		{"apiVersion": boot + "/v1alpha1", "kind": "HullmarkConfig", "metadata": metadata(), "spec": map[string]any{
			"clusterRoot": strings.Repeat("5f", 32), "pool": "control-plane", "stateDisk": map[string]any{"serial": "state"},
		}},
		{"apiVersion": infra + "/v1alpha1", "kind": "HullmarkMachine", "metadata": metadata(), "spec": map[string]any{"image": "/images/hullmark.raw"}},
		{"apiVersion": clusterv1.GroupVersion.String(), "kind": "Machine", "metadata": owned, "spec": map[string]any{
			"clusterName": "prod", "version": "v1.36.3", "bootstrap": map[string]any{"configRef": ref(boot, "HullmarkConfig")}, "infrastructureRef": ref(infra, "HullmarkMachine"),
		}},
	} {
		if err := m.client.Create(ctx, &unstructured.Unstructured{Object: object}, client.FieldValidation("Strict")); err != nil {
			t.Fatalf("%v: %v", object["kind"], err)
		}
	}
}

// settled is an error unless all machines have Nodes, and the provider says of all configs that their Secrets are there.
func (m management) settled(ctx context.Context, want int) error {
	machines := &clusterv1.MachineList{}
	if err := m.client.List(ctx, machines, client.InNamespace(team)); err != nil || len(machines.Items) != want {
		return fmt.Errorf("%d machines, want %d (%v)", len(machines.Items), want, err)
	}
	for _, one := range machines.Items {
		if _, is := one.Labels[clusterv1.MachineControlPlaneLabel]; !is && !strings.HasPrefix(one.Name, "workers-prod-") {
			return fmt.Errorf("worker %s: its Node would not have its name", one.Name)
		}
		config := &unstructured.Unstructured{}
		config.SetGroupVersionKind(schema.GroupVersionKind{Group: boot, Version: "v1alpha1", Kind: "HullmarkConfig"})
		if err := m.client.Get(ctx, client.ObjectKey{Namespace: team, Name: one.Spec.Bootstrap.ConfigRef.Name}, config); err != nil {
			return err
		}
		created, _, err := unstructured.NestedBool(config.Object, "status", "initialization", "dataSecretCreated")
		if !created || !one.Status.NodeRef.IsDefined() {
			return fmt.Errorf("%s: dataSecretCreated %v (%v), nodeRef %+v, conditions %+v of %v", one.Name, created, err, one.Status.NodeRef, one.Status.Conditions, config.Object["status"])
		}
	}
	return nil
}

// move brings the cluster to the other management cluster, with what somebody lent to it: a dry run changes nothing; then everything
// is there once, with the owners that it had, and nothing is made anew by the controllers there.
func move(ctx context.Context, t *testing.T, from, to management) {
	takeAlong := map[string]string{"clusterctl.cluster.x-k8s.io/move": ""}
	for _, s := range []*corev1.Secret{
		secretOf(team, "prod", "prod-lent", takeAlong, "cluster", []byte("a sealed cluster file")),
		secretOf(team, "prod", "prod-enroller", takeAlong, "enroller.key", []byte("a sealed key")),
		// By its cluster's name alone clusterctl takes no Secret but those that it knows. The docs say so.
		secretOf(team, "prod", "prod-left", nil, "cluster", []byte("without the label")),
	} {
		if err := from.client.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	before := from.inventory(ctx, t)
	args := []string{"move", "--kubeconfig", from.kubeconfig, "--to-kubeconfig", to.kubeconfig, "--namespace", team}
	from.clusterctl(ctx, t, append(args, "--dry-run")...)
	if moved := to.inventory(ctx, t); len(moved) > 0 || !slices.Equal(names(from.inventory(ctx, t)), names(before)) {
		t.Fatalf("a dry run moved %q", names(moved))
	}
	from.clusterctl(ctx, t, args...)
	if left := names(from.inventory(ctx, t)); !slices.Equal(left, []string{"Secret prod-left"}) {
		t.Errorf("left behind: %q", left)
	}
	delete(before, "Secret prod-left")
	// Core says anew that the control plane is initialized; until then its first machine holds the lock again.
	after := to.inventory(ctx, t)
	delete(after, "ConfigMap prod-lock")
	checkMoved(t, before, after)
	eventually(ctx, t, "the other management cluster goes on with all machines", func() error { return to.settled(ctx, 3) })
	eventually(ctx, t, "the lock is free", func() error {
		err := to.client.Get(ctx, client.ObjectKey{Namespace: team, Name: "prod-lock"}, &corev1.ConfigMap{})
		if err == nil {
			return errors.New("it is held")
		}
		return client.IgnoreNotFound(err)
	})
	// A controller that makes something anew does it before it says that all is well, or at once after.
	time.Sleep(5 * time.Second)
	checkMoved(t, before, to.inventory(ctx, t))
	cluster := &clusterv1.Cluster{}
	if err := to.client.Get(ctx, client.ObjectKey{Namespace: team, Name: "prod"}, cluster); err != nil || cluster.Spec.Paused != nil && *cluster.Spec.Paused {
		t.Errorf("the Cluster is paused: %+v, %v", cluster.Spec, err)
	}
}

// inventory is all that belongs to the team, by kind and name.
func (m management) inventory(ctx context.Context, t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	groups := map[schema.GroupVersion][]string{
		{Version: "v1"}: {"Secret", "ConfigMap"}, clusterv1.GroupVersion: {"Cluster", "Machine", "MachineSet", "MachineDeployment"},
	}
	for _, p := range Providers() {
		for _, crd := range as[apiextensionsv1.CustomResourceDefinition](t, p, "CustomResourceDefinition") {
			v := schema.GroupVersion{Group: crd.Spec.Group, Version: "v1alpha1"}
			groups[v] = append(groups[v], crd.Spec.Names.Kind)
		}
	}
	for v, kinds := range groups {
		for _, kind := range kinds {
			for _, o := range m.list(ctx, t, v.WithKind(kind), client.InNamespace(team)) {
				if o.GetName() != "kube-root-ca.crt" {
					all[kind+" "+o.GetName()] = &o
				}
			}
		}
	}
	return all
}

func names(all map[string]*unstructured.Unstructured) []string {
	return slices.Sorted(maps.Keys(all))
}

// checkMoved wants the same objects, with what they say and who owns them, by the new UIDs of the owners.
func checkMoved(t *testing.T, before, after map[string]*unstructured.Unstructured) {
	t.Helper()
	if !slices.Equal(names(after), names(before)) {
		t.Fatalf("there is %q, and before there was %q", names(after), names(before))
	}
	for name, old := range before {
		moved := after[name]
		for _, field := range []string{"spec", "data", "type"} {
			if got, want := moved.Object[field], old.Object[field]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s is %v, was %v", name, field, got, want)
			}
		}
		if !maps.Equal(moved.GetLabels(), old.GetLabels()) {
			t.Errorf("%s: labels %v, were %v", name, moved.GetLabels(), old.GetLabels())
		}
		owners := moved.GetOwnerReferences()
		if len(owners) != len(old.GetOwnerReferences()) {
			t.Errorf("%s: owners %+v, were %+v", name, owners, old.GetOwnerReferences())
			continue
		}
		for _, was := range old.GetOwnerReferences() {
			owner := after[was.Kind+" "+was.Name]
			is := slices.IndexFunc(owners, func(o metav1.OwnerReference) bool {
				return o.Kind == was.Kind && o.Name == was.Name && reflect.DeepEqual(o.Controller, was.Controller)
			})
			if is < 0 || owner == nil || owners[is].UID != owner.GetUID() {
				t.Errorf("%s: owners %+v, want %s %s of %+v", name, owners, was.Kind, was.Name, owner)
			}
		}
	}
}

// playInfrastructure does, in a management cluster, what machines and their infrastructure provider do: networks run, machines with a
// node configuration do too, and become Nodes of the workload's API. It plays that a control plane is initialized, as well.
func (m management) playInfrastructure(ctx context.Context, workload management) {
	_ = testenv.Poll(ctx, 200*time.Millisecond, func() error {
		m.each(ctx, infra, "HullmarkCluster", func(o *unstructured.Unstructured) { m.say(ctx, o, "provisioned", "") })
		m.each(ctx, plane, "HullmarkControlPlane", func(o *unstructured.Unstructured) {
			// Core makes no workers before it knows the control plane's version.
			m.say(ctx, o, "controlPlaneInitialized", `,"version":"v1.36.3","versions":[{"version":"v1.36.3","replicas":1}]`)
		})
		m.each(ctx, infra, "HullmarkMachine", func(o *unstructured.Unstructured) {
			by := metav1.GetControllerOf(o)
			machine := &clusterv1.Machine{}
			if by == nil || m.client.Get(ctx, client.ObjectKey{Namespace: team, Name: by.Name}, machine) != nil || machine.Spec.Bootstrap.DataSecretName == nil {
				return
			}
			id := "hullmark-qemu://" + team + "/" + o.GetName()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.GetName()}, Spec: corev1.NodeSpec{ProviderID: id}}
			if err := workload.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
				return
			}
			if set, _, _ := unstructured.NestedString(o.Object, "spec", "providerID"); set == "" {
				if m.client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"providerID":%q}}`, id))) != nil {
					return
				}
			}
			m.say(ctx, o, "provisioned", "")
		})
		return errors.New("until the test ends")
	})
}

// each calls f for each of the team's objects of a kind. What fails is tried again.
func (m management) each(ctx context.Context, group, kind string, f func(*unstructured.Unstructured)) {
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1alpha1", Kind: kind})
	if m.client.List(ctx, all, client.InNamespace(team)) != nil {
		return
	}
	for i := range all.Items {
		f(&all.Items[i])
	}
}

// say sets a field of the contract to true, unless it is, and more of the status with it.
func (m management) say(ctx context.Context, o *unstructured.Unstructured, field, more string) {
	if set, _, _ := unstructured.NestedBool(o.Object, "status", "initialization", field); !set {
		_ = m.client.Status().Patch(ctx, o, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":{"initialization":{%q:true}%s}}`, field, more)))
	}
}
