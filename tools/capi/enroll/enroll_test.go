package enroll

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/bootstrap"
)

// workload is a cluster in memory.
type workload struct {
	vouchers map[hullmark.EKID][]byte
	nodes    map[string]string // by name, their provider IDs
	joined   []hullmark.EKID
	puts     int
	asked    int // how often the records were
	forgot   []hullmark.EKID
	// fails, if it is set, is what each call of that name answers; after says that it did what it was asked for.
	fails map[string]error
	after bool
}

func (w *workload) call(name string, do func()) error {
	err := w.fails[name]
	if err == nil || w.after {
		do()
	}
	return err
}

func (w *workload) PutVoucher(_ context.Context, signed []byte) error {
	v, _, err := measurements.ReadVoucher(signed)
	if err != nil {
		return err
	}
	return w.call("put", func() {
		w.puts++
		w.vouchers[v.EKID] = signed
	})
}

func (w *workload) EachVoucher(_ context.Context, do func([]byte, error)) error {
	return w.call("list", func() {
		for _, signed := range w.vouchers {
			do(asRead(signed))
		}
	})
}

// asRead is a voucher as a registry reads it.
func asRead(signed []byte) ([]byte, error) {
	_, _, err := measurements.ReadVoucher(signed)
	return signed, err
}

func (w *workload) Node(_ context.Context, name string) (provider string, there bool, err error) {
	err = w.call("node", func() { provider, there = w.nodes[name] })
	return provider, there, err
}

func (w *workload) Joined(context.Context) (joined map[hullmark.EKID]bool, err error) {
	w.asked++
	err = w.call("joined", func() {
		joined = map[hullmark.EKID]bool{}
		for _, node := range w.joined {
			joined[node] = true
		}
	})
	return joined, err
}

func (w *workload) Forget(_ context.Context, v measurements.Voucher) error {
	return w.call("forget", func() {
		w.forgot = append(w.forgot, v.EKID)
		delete(w.vouchers, v.EKID)
	})
}

var infraMachine = schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1", Kind: "StubMachine"}

const pool = "workers"

// world is a management cluster with a Cluster "c", and what it runs.
type world struct {
	t       *testing.T
	client  client.WithWatch
	cluster *workload
	key     ed25519.PrivateKey
	now     time.Time
	keyErr  error
	root    string
	connect error
	// same is the process that runs; nil: a new one, that remembers nothing.
	same *Reconciler
	// live, if it is set, is what is read past the cache.
	live client.Reader
	// opened are the keys that were.
	opened []ed25519.PrivateKey
}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	scheme.AddKnownTypeWithName(infraMachine, &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(infraMachine.GroupVersion().WithKind(infraMachine.Kind+"List"), &unstructured.UnstructuredList{})
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, root: strings.Repeat("1", 64), key: key, now: time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC), cluster: &workload{vouchers: map[hullmark.EKID][]byte{}, fails: map[string]error{}}}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&bootstrapv1.HullmarkConfig{}).Build()
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	crd.Name = "stubmachines.infrastructure.cluster.x-k8s.io"
	crd.Labels = map[string]string{"cluster.x-k8s.io/v1beta2": "v1"}
	w.make(crd)
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	c.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	w.make(c)
	return w
}

func (w *world) make(o client.Object) {
	w.t.Helper()
	if err := w.client.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// OpenEnroller implements Keys. Whoever opens a key may wipe it.
func (w *world) OpenEnroller(_ context.Context, secret client.ObjectKey) (ed25519.PrivateKey, error) {
	if secret.String() != "ns/c-enroller" {
		w.t.Errorf("Secret %s was opened", secret)
	}
	opened := slices.Clone(w.key)
	w.opened = append(w.opened, opened)
	return opened, w.keyErr
}

// machine makes a Machine whose infrastructure reports an identity; none if it is empty.
func (w *world) machine(name, ekid string, change ...func(*clusterv1.Machine)) {
	w.t.Helper()
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
		Spec: clusterv1.MachineSpec{
			ClusterName: "c", ProviderID: "stub://ns/" + name,
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infraMachine.Group, Kind: infraMachine.Kind, Name: name},
			Bootstrap:         clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: bootstrapv1.ConfigKind, Name: name}},
		},
	}
	for _, c := range change {
		c(m)
	}
	w.make(m)
	w.make(&bootstrapv1.HullmarkConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: name}, Spec: bootstrapv1.HullmarkConfigSpec{ClusterRoot: w.root, Pool: pool},
	})
	infra := &unstructured.Unstructured{}
	infra.SetGroupVersionKind(infraMachine)
	infra.SetNamespace(m.Namespace)
	infra.SetName(name)
	w.make(infra)
	w.reportIn(m.Namespace, name, ekid)
}

// rooted has the Machines that are made from now on name a root.
func (w *world) rooted(root hullmark.ClusterRoot) *world {
	w.root = root.String()
	return w
}

// report has the infrastructure report an identity.
func (w *world) report(name, ekid string) {
	w.t.Helper()
	w.reportIn("ns", name, ekid)
}

func (w *world) reportIn(namespace, name, ekid string) {
	w.t.Helper()
	infra := &unstructured.Unstructured{}
	infra.SetGroupVersionKind(infraMachine)
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, infra); err != nil {
		w.t.Fatal(err)
	}
	infra.Object["status"] = map[string]any{"ekID": ekid}
	if ekid == "" {
		delete(infra.Object, "status")
	}
	if err := w.client.Update(w.t.Context(), infra); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) reconciler() *Reconciler {
	if w.same == nil {
		w.same = &Reconciler{}
	}
	live := w.live
	if live == nil {
		live = w.client
	}
	*w.same = Reconciler{
		seen: w.same.seen, Client: w.client, Live: live, Keys: w, Events: events.NewFakeRecorder(100), Now: func() time.Time { return w.now },
		Connect: func(context.Context, client.ObjectKey) (Workload, error) { return w.cluster, w.connect },
	}
	return w.same
}

var requestForCluster = ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "c"}}

func (w *world) reconcile() (ctrl.Result, error) {
	return w.reconciler().Reconcile(w.t.Context(), requestForCluster)
}

func (w *world) mustReconcile() ctrl.Result {
	w.t.Helper()
	result, err := w.reconcile()
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

// reason is what a Machine's config says, with the message.
func (w *world) reason(name string) (reason, message string) {
	w.t.Helper()
	config := &bootstrapv1.HullmarkConfig{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, config); err != nil {
		w.t.Fatal(err)
	}
	return conditions.GetReason(config, bootstrapv1.VouchedCondition), conditions.GetMessage(config, bootstrapv1.VouchedCondition)
}

func (w *world) delete(name string) {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}); err != nil {
		w.t.Fatal(err)
	}
}

// voucher is the one of a machine.
func (w *world) voucher(ekid string) (measurements.Voucher, bool) {
	w.t.Helper()
	id, err := hullmark.ParseEKID(ekid)
	if err != nil {
		w.t.Fatal(err)
	}
	signed, ok := w.cluster.vouchers[id]
	if !ok {
		return measurements.Voucher{}, false
	}
	group := measurements.Group{Name: pool, Enrollers: [][]byte{w.key.Public().(ed25519.PublicKey)}, Max: 10}
	v, _, err := measurements.OpenVoucher(signed, group.Enrolls)
	if err != nil {
		w.t.Fatal(err)
	}
	return v, true
}

var ek1, ek2 = strings.Repeat("a1", 32), strings.Repeat("b2", 32)

func controlPlane(m *clusterv1.Machine) { m.Labels[clusterv1.MachineControlPlaneLabel] = "" }

func TestVouches(t *testing.T) {
	w := newWorld(t)
	w.machine("workers-x", ek1)
	w.machine("md-y", ek2)
	if result := w.mustReconcile(); result.RequeueAfter != sweepEvery {
		t.Errorf("again after %v", result.RequeueAfter)
	}
	for ekid, want := range map[string]string{ek1: "workers-x", ek2: NodeName(pool, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "md-y"}})} {
		v, ok := w.voucher(ekid)
		if !ok || v.Name != want || v.Group != pool || !strings.HasPrefix(v.ProviderID, "stub://ns/") || !v.NotAfter.Equal(w.now.Add(Validity)) {
			t.Errorf("%s: %+v", want, v)
		}
	}
	for _, name := range []string{"workers-x", "md-y"} {
		if reason, message := w.reason(name); reason != bootstrapv1.VouchedReason {
			t.Errorf("%s: %s: %s", name, reason, message)
		}
	}
	puts := w.cluster.puts
	w.mustReconcile()
	if w.cluster.puts != puts {
		t.Error("it vouched twice")
	}
	// Three quarters on, who has joined needs no other; who has not gets one.
	w.now = w.now.Add(Validity * 4 / 5)
	id, _ := hullmark.ParseEKID(ek1)
	w.cluster.joined = append(w.cluster.joined, id)
	w.mustReconcile()
	if v, _ := w.voucher(ek2); w.cluster.puts != puts+1 || !v.NotAfter.Equal(w.now.Add(Validity)) {
		t.Errorf("%d vouchers more, the second until %v", w.cluster.puts-puts, v.NotAfter)
	}
}

// Each thing that stands in the way is said, and nobody is vouched for meanwhile.
func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		world        func(w *world)
		reason, says string
	}{
		"no control plane yet": {func(w *world) {
			c := &clusterv1.Cluster{}
			if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: "c"}, c); err != nil {
				w.t.Fatal(err)
			}
			c.Status.Initialization.ControlPlaneInitialized = nil
			if err := w.client.Update(w.t.Context(), c); err != nil {
				w.t.Fatal(err)
			}
		}, bootstrapv1.WaitingForControlPlaneReason, "join services"},
		"no key": {func(w *world) {
			w.keyErr = apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "c-enroller")
		}, bootstrapv1.WaitingForEnrollerReason, "ns/c-enroller"},
		"another's key":      {func(w *world) { w.keyErr = errors.New("it is sealed to somebody else") }, bootstrapv1.EnrollerInvalidReason, "sealed"},
		"no way there":       {func(w *world) { w.connect = errors.New("no kubeconfig") }, bootstrapv1.ClusterUnreachableReason, "no kubeconfig"},
		"no list":            {func(w *world) { w.cluster.fails["list"] = errors.New("refused") }, bootstrapv1.ClusterUnreachableReason, "refused"},
		"no write":           {func(w *world) { w.cluster.fails["put"] = errors.New("refused") }, bootstrapv1.ClusterUnreachableReason, "refused"},
		"no identity":        {func(w *world) { w.report("m", "") }, bootstrapv1.WaitingForIdentityReason, "status.ekID"},
		"a hostile identity": {func(w *world) { w.report("m", strings.Repeat("A", 100)) }, bootstrapv1.WaitingForIdentityReason, "status.ekID"},
		"another's identity": {func(w *world) { w.machine("n", ek1) }, bootstrapv1.IdentityTakenReason, "n claims"},
		"many others'": {func(w *world) {
			for _, name := range []string{"n1", "n2", "n3", "n4", "n5"} {
				w.machine(name, ek1)
			}
		}, bootstrapv1.IdentityTakenReason, "ns/n1, ns/n2, ns/n3, 2 more claims"},
		"two of one provider ID": {func(w *world) {
			w.machine("n", ek2, func(m *clusterv1.Machine) { m.Spec.ProviderID = "stub://ns/m" })
		}, bootstrapv1.IdentityTakenReason, "n has the provider ID"},
		"a Node of that name": {func(w *world) {
			w.cluster.nodes = map[string]string{NodeName(pool, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}): "stub://ns/other\n" + strings.Repeat("x", 1000)}
		}, bootstrapv1.IdentityTakenReason, `there is a Node workers-`},
		"the zero identity": {func(w *world) { w.report("m", strings.Repeat("0", 64)) }, bootstrapv1.WaitingForIdentityReason, "status.ekID"},
		"no infrastructure": {func(w *world) {
			w.change("m", func(m *clusterv1.Machine) { m.Spec.InfrastructureRef.Name = "nowhere" })
		}, bootstrapv1.WaitingForIdentityReason, "StubMachine nowhere is not there"},
		"an unknown kind of infrastructure": {func(w *world) {
			w.change("m", func(m *clusterv1.Machine) { m.Spec.InfrastructureRef.Kind = "Nothing" })
		}, bootstrapv1.WaitingForIdentityReason, "cannot be read"},
		"no cluster root": {func(w *world) {
			w.configure("m", func(c *bootstrapv1.HullmarkConfig) { c.Spec.ClusterRoot = "x" })
		}, bootstrapv1.NotVouchedReason, "clusterRoot"},
		"a pool that is no group's name": {func(w *world) {
			w.configure("m", func(c *bootstrapv1.HullmarkConfig) { c.Spec.Pool = "a.b" })
		}, bootstrapv1.NotVouchedReason, "group"},
		"no look at Nodes": {func(w *world) { w.cluster.fails["node"] = errors.New("refused") }, bootstrapv1.ClusterUnreachableReason, "refused"},
		"another identity before it was given": {func(w *world) {
			w.cluster.fails["put"] = errors.New("late")
			w.mustReconcile()
			clear(w.cluster.fails)
			w.report("m", ek2)
		}, bootstrapv1.IdentityChangedReason, "replace the Machine"},
		"another identity, and the voucher still good": {func(w *world) {
			w.mustReconcile()
			w.report("m", ek2)
			w.now = w.now.Add(sweepEvery)
		}, bootstrapv1.IdentityChangedReason, "replace the Machine"},
		"another identity, a new process, and the voucher deleted": {func(w *world) {
			w.mustReconcile()
			w.report("m", ek2)
			w.same = nil
			clear(w.cluster.vouchers)
		}, bootstrapv1.IdentityChangedReason, "replace the Machine"},
		"a control plane's": {func(w *world) { w.machine("cp", ek1, controlPlane) }, bootstrapv1.IdentityTakenReason, "cp claims"},
		"a hostile provider": {func(w *world) {
			w.change("m", func(m *clusterv1.Machine) { m.Spec.ProviderID = "stub://a b" })
		}, bootstrapv1.NotVouchedReason, "provider ID"},
		"no provider ID": {func(w *world) {
			w.change("m", func(m *clusterv1.Machine) { m.Spec.ProviderID = "" })
		}, bootstrapv1.WaitingForIdentityReason, "provider ID"},
		"another's provider ID": {func(w *world) {
			w.machine("n", ek2)
			w.mustReconcile()
			delete(w.cluster.vouchers, must(hullmark.ParseEKID(ek1)))
			w.change("m", func(m *clusterv1.Machine) { m.Spec.ProviderID = "stub://ns/n" })
		}, bootstrapv1.IdentityTakenReason, "provider ID"},
		"another identity than before": {func(w *world) {
			w.mustReconcile()
			w.report("m", ek2)
			w.now = w.now.Add(Validity)
		}, bootstrapv1.IdentityChangedReason, "replace the Machine"},
		"a machine that has a voucher": {func(w *world) {
			w.delete("m")
			w.machine("n", ek1)
			w.mustReconcile()
			w.machine("m2", ek1)
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.machine("m", ek1)
			c.world(w)
			before := w.cluster.puts
			w.mustReconcile()
			if w.cluster.puts != before {
				t.Error("it vouched")
			}
			if c.reason == "" {
				if reason, _ := w.reason("m2"); reason != bootstrapv1.IdentityTakenReason {
					t.Errorf("the second: %s", reason)
				}
				if reason, _ := w.reason("n"); reason != bootstrapv1.VouchedReason {
					t.Errorf("the first: %s", reason)
				}
				return
			}
			if reason, message := w.reason("m"); reason != c.reason || !strings.Contains(message, c.says) {
				t.Errorf("%s: %s, want %s: …%s…", reason, message, c.reason, c.says)
			}
		})
	}
}

// elsewhere makes a Machine one of another Cluster, in another namespace.
func elsewhere(m *clusterv1.Machine) {
	m.Namespace, m.Spec.ClusterName, m.Labels, m.Spec.ProviderID = "other", "d", map[string]string{clusterv1.ClusterNameLabel: "d"}, "stub://other/"+m.Name
}

func (w *world) configure(name string, change func(*bootstrapv1.HullmarkConfig)) {
	w.t.Helper()
	c := &bootstrapv1.HullmarkConfig{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, c); err != nil {
		w.t.Fatal(err)
	}
	change(c)
	if err := w.client.Update(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
}

// Whoever has another Cluster, in another namespace or in this one, takes no identity away by claiming it, does not learn whose it is, and
// keeps no machine from being forgotten: nothing of his is read.
func TestAnotherClustersClaimsDoNotCount(t *testing.T) {
	w := newWorld(t)
	copied := func(m *clusterv1.Machine) { m.Spec.ProviderID = "stub://ns/workers-x" }
	w.machine("far", ek1, elsewhere, copied)
	w.machine("beside", ek1, elsewhere, copied, func(m *clusterv1.Machine) { m.Namespace = "ns" })
	w.machine("workers-x", ek1)
	w.live = interceptor.NewClient(w.client, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if in := (&client.ListOptions{}).ApplyOptions(opts).Namespace; in != "ns" {
			t.Errorf("%T of namespace %q are read", list, in)
		}
		return c.List(ctx, list, opts...)
	}})
	w.mustReconcile()
	if v, ok := w.voucher(ek1); !ok || v.Name != "workers-x" || v.ClusterRoot.String() != w.root {
		t.Errorf("the voucher is %+v", v)
	}
	if reason, message := w.reason("workers-x"); reason != bootstrapv1.VouchedReason || strings.Contains(message, "far") || strings.Contains(message, "beside") {
		t.Errorf("%s: %s", reason, message)
	}
	if reason, _ := w.reason("beside"); reason != "" {
		t.Errorf("the other Cluster's Machine: %s", reason)
	}
}

// Who was vouched for first keeps it, and gets it anew, whoever claims the identity since.
func TestTheFirstKeepsItsVoucher(t *testing.T) {
	w := newWorld(t)
	w.machine("workers-x", ek1)
	w.mustReconcile()
	w.machine("far", ek1, elsewhere)
	w.machine("near", ek1)
	w.now = w.now.Add(Validity * 4 / 5)
	w.mustReconcile()
	if v, _ := w.voucher(ek1); v.Name != "workers-x" || !v.NotAfter.Equal(w.now.Add(Validity)) {
		t.Errorf("the voucher is %+v", v)
	}
	if reason, message := w.reason("near"); reason != bootstrapv1.IdentityTakenReason {
		t.Errorf("the second: %s: %s", reason, message)
	}
	if reason, message := w.reason("workers-x"); reason != bootstrapv1.VouchedReason {
		t.Errorf("the first: %s: %s", reason, message)
	}
	// An API that is away takes nothing back.
	w.connect = errors.New("away")
	w.mustReconcile()
	if reason, message := w.reason("workers-x"); reason != bootstrapv1.VouchedReason {
		t.Errorf("with the API away: %s: %s", reason, message)
	}
	if reason, _ := w.reason("near"); reason != bootstrapv1.ClusterUnreachableReason {
		t.Errorf("with the API away the second: %s", reason)
	}
}

// A Machine that is made anew under its name and provider ID is another machine, once the former's Node is gone.
func TestMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.machine("workers-x", ek1)
	w.mustReconcile()
	w.cluster.nodes = map[string]string{"workers-x": "stub://ns/workers-x"}
	w.delete("workers-x")
	for _, o := range []client.Object{&bootstrapv1.HullmarkConfig{}, infraObject()} {
		o.SetNamespace("ns")
		o.SetName("workers-x")
		if err := w.client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.machine("workers-x", ek2)
	w.mustReconcile()
	if reason, message := w.reason("workers-x"); reason != bootstrapv1.IdentityTakenReason || !strings.Contains(message, "there is a Node") {
		t.Errorf("while the former's Node is there: %s: %s", reason, message)
	}
	w.cluster.nodes = nil
	w.mustReconcile()
	if v, ok := w.voucher(ek2); !ok || v.Name != "workers-x" {
		t.Errorf("the voucher is %+v", v)
	}
	if _, ok := w.voucher(ek1); ok {
		t.Error("the former has its voucher still")
	}
}

func infraObject() client.Object {
	infra := &unstructured.Unstructured{}
	infra.SetGroupVersionKind(infraMachine)
	return infra
}

// Where the root was exchanged, the enroller's Secret says which one was the first.
func TestFirstRoot(t *testing.T) {
	w := newWorld(t)
	w.machine("workers-x", ek1)
	w.mustReconcile()
	if v, _ := w.voucher(ek1); v.ClusterRoot.String() != strings.Repeat("1", 64) {
		t.Errorf("the voucher is for cluster %s", v.ClusterRoot)
	}
	w.make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-enroller"}, Data: map[string][]byte{rootKey: []byte(strings.Repeat("2", 64))}})
	w.mustReconcile()
	if v, _ := w.voucher(ek1); v.ClusterRoot.String() != strings.Repeat("2", 64) {
		t.Errorf("the voucher is for cluster %s", v.ClusterRoot)
	}
}

// Of a MachinePool and of a paused Machine nothing is vouched for; the first is told so.
func TestLeavesOthersAlone(t *testing.T) {
	w := newWorld(t)
	w.machine("paused", ek1, func(m *clusterv1.Machine) { m.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
	w.machine("going", ek2, func(m *clusterv1.Machine) { m.Finalizers = []string{"test.hullmark/stays"} })
	w.delete("going")
	w.make(&bootstrapv1.HullmarkConfig{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "pool", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool", Name: "pool", UID: "pool", Controller: ptr.To(true)}},
	}})
	w.mustReconcile()
	if w.cluster.puts != 0 {
		t.Error("it vouched")
	}
	if reason, message := w.reason("pool"); reason != bootstrapv1.NotVouchedReason || !strings.Contains(message, "MachinePool") {
		t.Errorf("the pool: %s: %s", reason, message)
	}
	if reason, _ := w.reason("paused"); reason != "" {
		t.Errorf("the paused: %s", reason)
	}
}

// A process that starts in a management cluster whose Machines are not all there, or that is moved away under it, forgets nothing.
func TestSweepIsSure(t *testing.T) {
	gone := func(w *world) { w.same = nil }
	for name, c := range map[string]struct {
		change func(w *world)
		later  time.Duration
		forgot int
	}{
		"a new process":              {gone, 0, 0},
		"a new process, later":       {gone, settle, 1},
		"the process that saw it":    {func(*world) {}, 0, 1},
		"no Machine is left":         {func(w *world) { w.delete("cp") }, 0, 0},
		"its Node is there":          {func(w *world) { w.cluster.nodes = map[string]string{"workers-x": ""} }, 0, 0},
		"the cache is behind":        {func(w *world) { w.stale(&clusterv1.Machine{}) }, 0, 0},
		"moved away under the cache": {func(w *world) { w.stale(&clusterv1.Cluster{}) }, 0, 0},
		"another has its provider ID": {func(w *world) {
			w.machine("near", ek2, func(m *clusterv1.Machine) { m.Spec.ProviderID = "stub://ns/workers-x" })
		}, 0, 0},
		"another Cluster's has its provider ID": {func(w *world) {
			w.machine("far", ek2, elsewhere, func(m *clusterv1.Machine) { m.Spec.ProviderID = "stub://ns/workers-x" })
		}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.machine("workers-x", ek1)
			w.machine("cp", "", controlPlane)
			w.mustReconcile()
			w.mustReconcile()
			w.delete("workers-x")
			c.change(w)
			w.mustReconcile()
			w.now = w.now.Add(c.later)
			w.mustReconcile()
			if len(w.cluster.forgot) != c.forgot {
				t.Errorf("forgot %v", w.cluster.forgot)
			}
		})
	}
}

// stale has the API say something else than the cache: that a Machine is there, or that the Cluster is paused.
func (w *world) stale(what client.Object) {
	w.live = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if machines, ok := list.(*clusterv1.MachineList); ok {
				if _, wanted := what.(*clusterv1.Machine); wanted {
					machines.Items = append(machines.Items, clusterv1.Machine{Spec: clusterv1.MachineSpec{ClusterName: "c", ProviderID: "stub://ns/workers-x"}})
				}
			}
			return err
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if cluster, ok := o.(*clusterv1.Cluster); ok {
				if _, wanted := what.(*clusterv1.Cluster); wanted {
					cluster.Spec.Paused = ptr.To(true)
				}
			}
			return err
		},
	})
}

// However many workers there are, what is asked of both APIs does not grow with them once they have joined.
func TestAsksOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		ekid := fmt.Sprintf("%064x", i+1)
		w.machine(fmt.Sprintf("workers-%d", i), ekid)
		w.cluster.joined = append(w.cluster.joined, must(hullmark.ParseEKID(ekid)))
	}
	w.mustReconcile()
	w.now = w.now.Add(2 * Validity)
	asked := 0
	w.live = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			asked++
			return c.List(ctx, list, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			asked++
			return c.Get(ctx, key, o, opts...)
		},
	})
	w.mustReconcile()
	w.mustReconcile()
	if asked > 8 || w.cluster.asked != 2 || w.cluster.puts != 20 {
		t.Errorf("the management cluster was asked %d times, the records %d times, and %d vouchers were put", asked, w.cluster.asked, w.cluster.puts)
	}
}

// Both managers write the conditions of a config, and neither takes the other's away, nor writes what it read too long ago.
func TestConditionsOfTwoManagers(t *testing.T) {
	w := newWorld(t)
	w.machine("workers-x", ek1)
	beside := func() {
		t.Helper()
		r := &bootstrap.Reconciler{Client: w.client, Live: w.client, Events: events.NewFakeRecorder(100)}
		for range 3 {
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "workers-x"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(kinds ...string) {
		t.Helper()
		config := &bootstrapv1.HullmarkConfig{}
		if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "workers-x"}, config); err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			if conditions.Get(config, kind) == nil {
				t.Errorf("the condition %s is gone: %+v", kind, config.Status.Conditions)
			}
		}
	}
	w.mustReconcile()
	want(bootstrapv1.VouchedCondition)
	w.configure("workers-x", func(c *bootstrapv1.HullmarkConfig) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: "workers-x", UID: "workers-x", Controller: ptr.To(true)}}
	})
	beside()
	want(bootstrapv1.VouchedCondition, bootstrapv1.ReadyCondition, bootstrapv1.DataSecretAvailableCondition)
	// The enroller read the config before the other wrote it.
	w.report("workers-x", "")
	clear(w.cluster.vouchers)
	plain, stale := w.client, &bootstrapv1.HullmarkConfig{}
	if err := plain.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "workers-x"}, stale); err != nil {
		t.Fatal(err)
	}
	stale.Status.Conditions = nil
	w.configure("workers-x", func(c *bootstrapv1.HullmarkConfig) { c.Labels = map[string]string{"a": "b"} })
	w.client = interceptor.NewClient(plain, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if config, ok := o.(*bootstrapv1.HullmarkConfig); ok {
			stale.DeepCopyInto(config)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}})
	if result := w.mustReconcile(); result.RequeueAfter != retry {
		t.Errorf("again after %v", result.RequeueAfter)
	}
	w.client = plain
	want(bootstrapv1.VouchedCondition, bootstrapv1.ReadyCondition)
	if reason, _ := w.reason("workers-x"); reason != bootstrapv1.VouchedReason {
		t.Errorf("%s was written over what it did not see", reason)
	}
	w.mustReconcile()
	if reason, _ := w.reason("workers-x"); reason != bootstrapv1.WaitingForIdentityReason {
		t.Errorf("%s, when it had read it again", reason)
	}
	want(bootstrapv1.ReadyCondition, bootstrapv1.DataSecretAvailableCondition)
}

// The key is in memory while vouchers are signed, and not longer.
func TestKeyIsWiped(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"vouched":    func(*world) {},
		"no way":     func(w *world) { w.connect = errors.New("away") },
		"put fails":  func(w *world) { w.cluster.fails["put"] = errors.New("refused") },
		"no machine": func(w *world) { w.delete("workers-x") },
	} {
		w := newWorld(t)
		w.machine("workers-x", ek1)
		w.machine("cp", "", controlPlane)
		change(w)
		w.mustReconcile()
		if len(w.opened) == 0 {
			t.Errorf("%s: no key was opened", name)
		}
		for _, key := range w.opened {
			if !bytes.Equal(key, make([]byte, len(key))) {
				t.Errorf("%s: the key is there still", name)
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w *world) change(name string, change func(*clusterv1.Machine)) {
	w.t.Helper()
	m := &clusterv1.Machine{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, m); err != nil {
		w.t.Fatal(err)
	}
	change(m)
	if err := w.client.Update(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

// A machine that is gone is forgotten, once its Node is; another enroller's vouchers are left alone.
func TestSweep(t *testing.T) {
	w := newWorld(t)
	w.machine("workers-x", ek1)
	w.machine("workers-y", ek2)
	w.mustReconcile()
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := measurements.SignVoucher(other, measurements.Voucher{
		ClusterRoot: hullmark.ClusterRoot{1}, Group: pool, EKID: hullmark.EKID{7}, Name: pool + "-z", ProviderID: "stub://ns/z", NotAfter: w.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.cluster.vouchers[hullmark.EKID{7}] = foreign
	w.delete("workers-x")
	w.cluster.nodes = map[string]string{"workers-x": "", "workers-y": ""}
	if result := w.mustReconcile(); len(w.cluster.forgot) > 0 || result.RequeueAfter != retry {
		t.Errorf("%v was forgotten, and its Node is there; again after %v", w.cluster.forgot, result.RequeueAfter)
	}
	w.cluster.nodes = map[string]string{"workers-y": ""}
	w.cluster.fails["forget"] = errors.New("late")
	if _, err := w.reconcile(); err == nil {
		t.Error("a failure is not told of")
	}
	w.cluster.fails["forget"] = nil
	w.mustReconcile()
	if id := must(hullmark.ParseEKID(ek1)); !slices.Equal(w.cluster.forgot, []hullmark.EKID{id}) {
		t.Errorf("forgot %v", w.cluster.forgot)
	}
	if len(w.cluster.vouchers) != 2 {
		t.Errorf("%d vouchers are left", len(w.cluster.vouchers))
	}
	// A paused Cluster, one that is being deleted, and one of another manager are left alone.
	w.delete("workers-y")
	w.cluster.nodes = nil
	c := &clusterv1.Cluster{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "c"}, c); err != nil {
		t.Fatal(err)
	}
	c.Spec.Paused = ptr.To(true)
	if err := w.client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.mustReconcile()
	filtered := w.reconciler()
	filtered.WatchFilter = "others"
	if _, err := filtered.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(c)}); err != nil {
		t.Fatal(err)
	}
	if len(w.cluster.forgot) != 1 {
		t.Errorf("forgot %v", w.cluster.forgot)
	}
}

// A controller that is cut off at each of its calls, before it or after it, ends in the same state; none is left half done.
func TestCutOff(t *testing.T) {
	cut := errors.New("cut off")
	for _, call := range []string{"list", "put", "node", "joined", "forget", "status", "config"} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", call, after), func(t *testing.T) {
				w := newWorld(t)
				w.machine("workers-x", ek1)
				w.machine("workers-gone", ek2)
				w.mustReconcile()
				w.delete("workers-gone")
				delete(w.cluster.vouchers, must(hullmark.ParseEKID(ek1)))
				w.configure("workers-x", func(c *bootstrapv1.HullmarkConfig) { c.Annotations = nil })
				plain := w.client
				w.cluster.fails[call], w.cluster.after = cut, after
				if call == "status" {
					w.client = interceptor.NewClient(plain, interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
						if after {
							if err := c.Status().Patch(ctx, o, p, opts...); err != nil {
								return err
							}
						}
						return cut
					}})
				}
				if call == "config" {
					w.client = interceptor.NewClient(plain, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
						if after {
							if err := c.Patch(ctx, o, p, opts...); err != nil {
								return err
							}
						}
						return cut
					}})
				}
				_, _ = w.reconcile()
				w.client = plain
				clear(w.cluster.fails)
				w.same = nil
				w.mustReconcile()
				w.now = w.now.Add(settle)
				w.mustReconcile()
				if _, ok := w.voucher(ek1); !ok {
					t.Error("the worker that is there has no voucher")
				}
				if _, ok := w.voucher(ek2); ok {
					t.Error("the worker that is gone has one")
				}
				if reason, message := w.reason("workers-x"); reason != bootstrapv1.VouchedReason {
					t.Errorf("%s: %s", reason, message)
				}
			})
		}
	}
}

func TestNodeNames(t *testing.T) {
	for machine, own := range map[string]bool{"workers-a": true, "workers": false, "workers-": false, "md-1": false, "workers-" + strings.Repeat("x", 60): false, "workers-a.b": false} {
		name := NodeName(pool, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: machine}})
		if (name == machine) != own || !hullmark.ValidNodeName(name) || !strings.HasPrefix(name, pool+"-") {
			t.Errorf("%s: %s", machine, name)
		}
	}
}
