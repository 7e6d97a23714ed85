//go:build long

package bootstrap

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

// TestContract makes a Cluster of a control plane Machine, a MachineDeployment and a MachinePool, with core, and holds what is there
// then to the contract, field by field.
func TestContract(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "contract")
	start(t, params{namespaces: []string{p.namespace}})
	p.machine("cp", true)
	infra := stubObject("StubMachineTemplate")
	infra.SetNamespace(p.namespace)
	infra.SetName("workers")
	infra.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{}}}
	p.create(infra)
	p.create(&v1alpha1.HullmarkConfigTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "workers"},
		Spec:       v1alpha1.HullmarkConfigTemplateSpec{Template: v1alpha1.HullmarkConfigTemplateResource{Spec: spec(nil)}},
	})
	labels := map[string]string{clusterv1.ClusterNameLabel: "c", "set": "workers"}
	template := clusterv1.MachineTemplateSpec{ObjectMeta: clusterv1.ObjectMeta{Labels: labels}, Spec: clusterv1.MachineSpec{
		ClusterName: "c", Version: "v1.36.3", Bootstrap: configRef("HullmarkConfigTemplate", "workers"), InfrastructureRef: coretest.Ref("StubMachineTemplate", "workers"),
	}}
	p.create(&clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "workers", Labels: labels}, Spec: clusterv1.MachineDeploymentSpec{
		ClusterName: "c", Replicas: ptr.To[int32](2), Selector: metav1.LabelSelector{MatchLabels: labels}, Template: template,
		// Core's webhook would enter these.
		Rollout: clusterv1.MachineDeploymentRolloutSpec{Strategy: clusterv1.MachineDeploymentRolloutStrategy{
			Type: clusterv1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: clusterv1.MachineDeploymentRolloutStrategyRollingUpdate{
				MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			},
		}},
	}})
	pool := stubObject("StubMachinePool")
	pool.SetNamespace(p.namespace)
	pool.SetName("pool")
	p.create(pool)
	p.create(&v1alpha1.HullmarkConfig{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "pool"}, Spec: spec(nil)})
	template.Spec.Bootstrap, template.Spec.InfrastructureRef = configRef(v1alpha1.ConfigKind, "pool"), coretest.Ref("StubMachinePool", "pool")
	p.create(&clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "pool", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
		Spec:       clusterv1.MachinePoolSpec{ClusterName: "c", Replicas: ptr.To[int32](3), Template: template},
	})
	var configs v1alpha1.HullmarkConfigList
	p.eventually("four data Secrets", func() error {
		if err := admin.List(t.Context(), &configs, client.InNamespace(p.namespace)); err != nil {
			return err
		}
		ready := slices.DeleteFunc(slices.Clone(configs.Items), func(c v1alpha1.HullmarkConfig) bool { return !conditions.IsTrue(&c, v1alpha1.ReadyCondition) })
		if len(ready) != 4 {
			return fmt.Errorf("%d of %d configs are ready", len(ready), len(configs.Items))
		}
		return nil
	})
	for _, c := range configs.Items {
		checkContract(p, &c)
	}
	p.eventually("owners know their Secrets", func() error {
		var machines clusterv1.MachineList
		if err := admin.List(t.Context(), &machines, client.InNamespace(p.namespace)); err != nil {
			return err
		}
		if len(machines.Items) != 3 {
			return fmt.Errorf("%d Machines", len(machines.Items))
		}
		for _, m := range machines.Items {
			if ptr.Deref(m.Spec.Bootstrap.DataSecretName, "") != m.Spec.Bootstrap.ConfigRef.Name || !ptr.Deref(m.Status.Initialization.BootstrapDataSecretCreated, false) ||
				!conditions.IsTrue(&m, clusterv1.MachineBootstrapConfigReadyCondition) || !m.Status.NodeRef.IsDefined() {
				return fmt.Errorf("%s: %+v %+v", m.Name, m.Spec.Bootstrap, m.Status.Conditions)
			}
		}
		mp := &clusterv1.MachinePool{}
		p.get("pool", mp)
		if ptr.Deref(mp.Spec.Template.Spec.Bootstrap.DataSecretName, "") != "pool" || !ptr.Deref(mp.Status.Initialization.BootstrapDataSecretCreated, false) {
			return fmt.Errorf("pool: %+v", mp.Status)
		}
		return nil
	})
	if p.get("c-lock", &corev1.ConfigMap{}) {
		t.Error("the init lock is held though the control plane runs")
	}
	followPool(p)
	seen := &eventsv1.EventList{}
	p.eventually("events", func() error {
		if err := admin.List(t.Context(), seen, client.InNamespace(p.namespace)); err != nil {
			return err
		}
		for _, e := range seen.Items {
			if e.Regarding.Name == "cp" && e.Reason == v1alpha1.AvailableReason {
				return nil
			}
		}
		return errors.New("none of the control plane's config")
	})
}

// checkContract holds a config and its Secret to the contract ("Contract rules for BootstrapConfig", v1beta2).
func checkContract(p place, c *v1alpha1.HullmarkConfig) {
	p.Helper()
	s := &corev1.Secret{}
	if !p.get(c.Name, s) {
		p.Fatalf("%s: no Secret", c.Name)
	}
	by := metav1.GetControllerOf(s)
	owner := metav1.GetControllerOf(c)
	node, err := hullmark.ParseNodeConfig(s.Data["value"])
	for what, ok := range map[string]bool{
		"status.dataSecretName":                   c.Status.DataSecretName == s.Name,
		"status.initialization.dataSecretCreated": ptr.Deref(c.Status.Initialization.DataSecretCreated, false),
		"status.observedGeneration":               c.Status.ObservedGeneration == c.Generation,
		"condition Ready":                         conditions.IsTrue(c, "Ready"),
		"condition DataSecretAvailable":           conditions.IsTrue(c, "DataSecretAvailable"),
		"condition Paused":                        conditions.IsFalse(c, "Paused"),
		"label of the Secret":                     s.Labels["cluster.x-k8s.io/cluster-name"] == "c",
		"controller owner of the Secret":          by != nil && by.UID == c.UID && by.Kind == "HullmarkConfig",
		"key value":                               err == nil && node.ClusterRoot.String() == testRoot,
		"key format":                              string(s.Data["format"]) == "hullmark-node-config",
		"no other key":                            len(s.Data) == 2,
		"type":                                    s.Type == "cluster.x-k8s.io/secret",
		"endpoint of the Cluster":                 slices.Equal(node.Endpoints, []string{"api.example:7444"}),
		"owner of the config":                     owner != nil && (owner.Kind == "Machine" || owner.Kind == "MachinePool"),
		"no finalizer":                            len(c.Finalizers) == 0,
		"nothing secret": !slices.ContainsFunc([]string{"token", "password", "PRIVATE"}, func(word string) bool {
			return strings.Contains(string(s.Data["value"]), word)
		}),
	} {
		if !ok {
			p.Errorf("%s: %s: %+v, Secret %+v", c.Name, what, c, s)
		}
	}
}

// followPool: a MachinePool's Secret follows its spec, a Machine's does not.
func followPool(p place) {
	p.Helper()
	for _, name := range []string{"pool", "cp"} {
		change(p, &v1alpha1.HullmarkConfig{}, name, func(c *v1alpha1.HullmarkConfig) { c.Spec.StateDisk.Serial = "later" })
	}
	disk := func(name string) string {
		s := &corev1.Secret{}
		p.get(name, s)
		n, err := hullmark.ParseNodeConfig(s.Data["value"])
		if err != nil {
			p.Fatal(err)
		}
		return n.StateDisk.Serial
	}
	p.eventually("both are dealt with", func() error {
		cp := p.config("cp")
		if disk("pool") != "later" || cp.Status.ObservedGeneration != cp.Generation || !strings.Contains(conditions.GetMessage(cp, "Ready"), "replace the Machine") {
			return fmt.Errorf("pool %s, cp %+v", disk("pool"), cp.Status)
		}
		return nil
	})
	if disk("cp") != "state" {
		p.Error("a Machine's Secret was changed")
	}
}

func TestPausedForLong(t *testing.T) {
	t.Parallel()
	// Core does nothing in a paused Cluster: only the config is paused at first.
	p := newPlace(t, "paused")
	start(t, params{namespaces: []string{p.namespace}})
	p.machine("cp", true, func(_ *clusterv1.Machine, c *v1alpha1.HullmarkConfig, _ *unstructured.Unstructured) {
		c.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	})
	isPaused := func(want bool) {
		t.Helper()
		p.eventually(fmt.Sprintf("paused %v", want), func() error {
			if c := p.config("cp"); conditions.IsTrue(c, "Paused") != want || !conditions.Has(c, "Paused") {
				return fmt.Errorf("%+v", c.Status.Conditions)
			}
			return nil
		})
	}
	isPaused(true)
	p.eventually("the Machine owns it", func() error {
		if metav1.GetControllerOf(p.config("cp")) == nil {
			return errors.New("not yet")
		}
		return nil
	})
	change(p, &clusterv1.Cluster{}, "c", func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
	change(p, &v1alpha1.HullmarkConfig{}, "cp", func(c *v1alpha1.HullmarkConfig) { c.Annotations = nil })
	p.eventually("it says that the Cluster is", func() error {
		if m := conditions.GetMessage(p.config("cp"), "Paused"); !strings.Contains(m, "Cluster spec.paused") || strings.Contains(m, "annotation") {
			return errors.New(m)
		}
		return nil
	})
	if p.get("cp", &corev1.Secret{}) || p.get("c-lock", &corev1.ConfigMap{}) {
		t.Error("something was made while paused")
	}
	change(p, &clusterv1.Cluster{}, "c", func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	isPaused(false)
	p.reason("cp", v1alpha1.AvailableReason)
}

// TestFilterAndNamespace: a manager cares for its namespace and its label, and for nothing else.
func TestFilterAndNamespace(t *testing.T) {
	t.Parallel()
	one, other := newPlace(t, "filter-one"), newPlace(t, "filter-other")
	start(t, params{namespaces: []string{one.namespace}, filter: "blue"})
	label := func(value string) func(*clusterv1.Machine, *v1alpha1.HullmarkConfig, *unstructured.Unstructured) {
		return func(_ *clusterv1.Machine, c *v1alpha1.HullmarkConfig, _ *unstructured.Unstructured) {
			c.Labels[clusterv1.WatchLabel] = value
		}
	}
	other.machine("blue", true, label("blue"))
	one.machine("green", true, label("green"))
	one.machine("none", true)
	one.machine("blue", true, label("blue"))
	one.reason("blue", v1alpha1.AvailableReason)
	for _, c := range []*v1alpha1.HullmarkConfig{other.config("blue"), one.config("green"), one.config("none")} {
		if len(c.Status.Conditions) > 0 {
			t.Errorf("%s/%s was cared for: %+v", c.Namespace, c.Name, c.Status)
		}
	}
	start(t, params{namespaces: []string{other.namespace}})
	other.reason("blue", v1alpha1.AvailableReason)
}

// TestThreeControlPlanes: one of three may initialize; when it goes, whenever that is, another takes its place.
func TestThreeControlPlanes(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "three")
	start(t, params{namespaces: []string{p.namespace}})
	names := []string{"a", "b", "d"}
	for _, n := range names {
		p.machine(n, true, held)
	}
	p.machine("worker", false)
	// holder waits for exactly one of those that are left to have a Secret, and the others to wait for it.
	holder := func() (first string) {
		t.Helper()
		p.eventually("one of "+strings.Join(names, ", "), func() error {
			first = ""
			for _, n := range names {
				switch r := conditions.GetReason(p.config(n), "Ready"); r {
				case v1alpha1.AvailableReason:
					first += n
				case v1alpha1.WaitingForInitLockReason:
				default:
					return fmt.Errorf("%s: %s", n, r)
				}
			}
			for _, n := range names {
				if m := conditions.GetMessage(p.config(n), "Ready"); n != first && !strings.HasPrefix(m, "Machine "+first+" ") {
					return fmt.Errorf("%s: %s", n, m)
				}
			}
			if len(first) != 1 {
				return fmt.Errorf("%q have Secrets", first)
			}
			return nil
		})
		return first
	}
	p.reason("worker", v1alpha1.WaitingForControlPlaneReason)
	first := holder()
	// It dies after it got its Secret, perhaps in the middle of init.
	if err := admin.Delete(t.Context(), p.machineNamed(first)); err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == first })
	second := holder()
	// The second finishes: its Node appears.
	u := stubObject("StubMachine")
	change(p, u, second, func(u *unstructured.Unstructured) { u.SetLabels(nil) })
	for _, n := range append(names, "worker") {
		p.reason(n, v1alpha1.AvailableReason)
	}
	p.eventually("the lock is freed", func() error {
		if p.get("c-lock", &corev1.ConfigMap{}) {
			return errors.New("still there")
		}
		return nil
	})
}

// TestClusterDeleted: everything goes, lock and Secrets too, though the first control plane was in the middle of init.
func TestClusterDeleted(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "deleted")
	start(t, params{namespaces: []string{p.namespace}})
	p.machine("a", true, held)
	p.machine("b", true, held)
	p.machine("worker", false)
	p.reason("worker", v1alpha1.WaitingForControlPlaneReason)
	p.eventually("one has the lock", func() error {
		if !p.get("a", &corev1.Secret{}) && !p.get("b", &corev1.Secret{}) {
			return errors.New("no Secret")
		}
		return nil
	})
	c := &clusterv1.Cluster{}
	p.get("c", c)
	if err := admin.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	p.eventually("all is gone", func() error {
		for name, o := range map[string]client.Object{
			"c": &clusterv1.Cluster{}, "c-lock": &corev1.ConfigMap{}, "a": &corev1.Secret{}, "b": &corev1.Secret{}, "worker": &corev1.Secret{},
		} {
			if p.get(name, o) {
				return fmt.Errorf("%T %s is there", o, name)
			}
		}
		var left v1alpha1.HullmarkConfigList
		if err := admin.List(t.Context(), &left, client.InNamespace(p.namespace)); err != nil || len(left.Items) > 0 {
			return fmt.Errorf("%d configs, %w", len(left.Items), err)
		}
		return nil
	})
}

// TestNameTakenAndStatusLost: somebody's Secret is left as it is; ours gives the status back.
func TestNameTakenAndStatusLost(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "taken")
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "cp"}, Data: map[string][]byte{"value": []byte("theirs")}}
	p.create(theirs)
	start(t, params{namespaces: []string{p.namespace}})
	p.machine("cp", true)
	p.reason("cp", v1alpha1.SecretNameTakenReason)
	after := &corev1.Secret{}
	if p.get("cp", after); after.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("their Secret was changed: %+v", after)
	}
	if err := admin.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	// Nothing tells of it: it is looked at again.
	before := p.reason("cp", v1alpha1.AvailableReason)
	p.eventually("the status is lost", func() error {
		lost := p.config("cp")
		lost.Status = v1alpha1.HullmarkConfigStatus{}
		return admin.Status().Update(t.Context(), lost)
	})
	p.eventually("the status is back", func() error {
		if got := p.config("cp").Status; got.DataSecretName != before.Status.DataSecretName || !ptr.Deref(got.Initialization.DataSecretCreated, false) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

// TestOldContract: core refuses a CRD that does not say that it fulfils the contract, and takes it up when it does.
//
// It changes what all tests use, so it runs alone.
func TestOldContract(t *testing.T) {
	p := newPlace(t, "old")
	start(t, params{namespaces: []string{p.namespace}})
	relabel := func(from, to string) {
		t.Helper()
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: "hullmarkconfigs." + v1alpha1.GroupVersion.Group}, crd); err != nil {
			t.Fatal(err)
		}
		before := crd.DeepCopy()
		crd.Labels[to] = crd.Labels[from]
		delete(crd.Labels, from)
		if err := admin.Patch(t.Context(), crd, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	const now, old = "cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1alpha4"
	relabel(now, old)
	back := sync.OnceFunc(func() { relabel(old, now) })
	defer back()
	p.machine("cp", true)
	p.reason("cp", v1alpha1.WaitingForOwnerReason)
	time.Sleep(3 * time.Second)
	if c := p.config("cp"); len(c.OwnerReferences) > 0 || p.get("cp", &corev1.Secret{}) {
		t.Errorf("core took it: %+v", c.OwnerReferences)
	}
	back()
	p.reason("cp", v1alpha1.AvailableReason)
}

// TestRefusedByAPI is the table of what never gets to the controller: the API says which field, and why.
func TestRefusedByAPI(t *testing.T) {
	t.Parallel()
	p := place{t, "refused"}
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}})
	whole := func() map[string]any {
		return map[string]any{"clusterRoot": testRoot, "pool": "workers", "stateDisk": map[string]any{"serial": "state"}}
	}
	for name, test := range map[string]struct {
		field string
		value any
		want  string
	}{
		"whole":                {"", nil, ""},
		"kubeadm's own field":  {"kubeadm", map[string]any{"format": "ignition"}, ""},
		"an unknown field":     {"joinToken", "abc", `unknown field "spec.joinToken"`},
		"kubeadm's unknown":    {"kubeadm", map[string]any{"format": "ignition", "x": 1}, `unknown field "spec.kubeadm.x"`},
		"no root":              {"clusterRoot", nil, "spec.clusterRoot: Required"},
		"a short root":         {"clusterRoot", "5f", "spec.clusterRoot"},
		"an upper case root":   {"clusterRoot", strings.ToUpper(testRoot), "spec.clusterRoot"},
		"a root of zeros":      {"clusterRoot", strings.Repeat("0", 64), "hullmark cluster new"},
		"no pool":              {"pool", nil, "spec.pool: Required"},
		"a pool with a dot":    {"pool", "a.b", "spec.pool"},
		"no disk":              {"stateDisk", nil, "spec.stateDisk: Required"},
		"two disks":            {"stateDisk", map[string]any{"serial": "a", "path": "/dev/vdb"}, "exactly one of serial and path"},
		"an empty disk":        {"stateDisk", map[string]any{}, "exactly one of serial and path"},
		"a path elsewhere":     {"stateDisk", map[string]any{"path": "/etc/passwd"}, "spec.stateDisk.path"},
		"an endpoint, no port": {"joinEndpoints", []any{"join.example"}, "spec.joinEndpoints[0]"},
		"too many endpoints":   {"joinEndpoints", slices.Repeat([]any{"join.example:7444"}, 33), "spec.joinEndpoints"},
		"a time server":        {"timeServers", []any{"a b"}, "spec.timeServers[0]"},
		"an address":           {"network", map[string]any{"addresses": []any{"192.0.2.1"}}, "CIDR notation"},
		"a gateway":            {"network", map[string]any{"addresses": []any{"192.0.2.1/24"}, "gateway": "router"}, "the gateway is an IP address"},
		"a name server":        {"network", map[string]any{"addresses": []any{"192.0.2.1/24"}, "nameServers": []any{"x"}}, "each name server"},
		"a network of nothing": {"network", map[string]any{"gateway": "192.0.2.1"}, "spec.network.addresses: Required"},
	} {
		for _, kind := range []string{"HullmarkConfig", "HullmarkConfigTemplate"} {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
			u.SetNamespace(p.namespace)
			u.SetGenerateName("x-")
			s, want := whole(), test.want
			if test.field != "" {
				s[test.field] = test.value
			}
			if test.field != "" && test.value == nil {
				delete(s, test.field)
			}
			u.Object["spec"] = any(s)
			if kind == "HullmarkConfigTemplate" {
				u.Object["spec"] = map[string]any{"template": map[string]any{"spec": s}}
				want = strings.ReplaceAll(want, "spec.", "spec.template.spec.")
				if name == "no root" { // a ClusterClass's patch has it
					want = ""
				}
			}
			err := admin.Create(t.Context(), u, client.FieldValidation(metav1.FieldValidationStrict))
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || apierrors.IsInternalError(err)) {
				t.Errorf("%s %s: got %v, want %q", kind, name, err, want)
			}
		}
	}
	u := &v1alpha1.HullmarkConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "n"}}
	u.Spec.Template.Spec = spec(func(s *v1alpha1.HullmarkConfigSpec) { s.Network.Addresses = []string{"192.0.2.1/24"} })
	if err := admin.Create(t.Context(), u); err == nil || !strings.Contains(err.Error(), "a template has no network") {
		t.Errorf("a template with a network: %v", err)
	}
}
