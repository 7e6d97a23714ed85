package enroll

import (
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
)

// workload is a cluster in memory.
type workload struct {
	vouchers map[hullmark.EKID][]byte
	nodes    []string
	joined   []hullmark.EKID
	puts     int
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

func (w *workload) ListVouchers(context.Context) (all [][]byte, err error) {
	err = w.call("list", func() {
		for _, signed := range w.vouchers {
			all = append(all, signed)
		}
	})
	return all, err
}

func (w *workload) HasNode(_ context.Context, name string) (there bool, err error) {
	err = w.call("node", func() { there = slices.Contains(w.nodes, name) })
	return there, err
}

func (w *workload) Joined(_ context.Context, node hullmark.EKID) (joined bool, err error) {
	err = w.call("joined", func() { joined = slices.Contains(w.joined, node) })
	return joined, err
}

func (w *workload) Forget(_ context.Context, node hullmark.EKID) error {
	return w.call("forget", func() {
		w.forgot = append(w.forgot, node)
		delete(w.vouchers, node)
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
	return slices.Clone(w.key), w.keyErr
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
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: bootstrapv1.HullmarkConfigSpec{ClusterRoot: w.root, Pool: pool},
	})
	infra := &unstructured.Unstructured{}
	infra.SetGroupVersionKind(infraMachine)
	infra.SetNamespace("ns")
	infra.SetName(name)
	w.make(infra)
	w.report(name, ekid)
}

// rooted has the Machines that are made from now on name a root.
func (w *world) rooted(root hullmark.ClusterRoot) *world {
	w.root = root.String()
	return w
}

// report has the infrastructure report an identity.
func (w *world) report(name, ekid string) {
	w.t.Helper()
	infra := &unstructured.Unstructured{}
	infra.SetGroupVersionKind(infraMachine)
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, infra); err != nil {
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
	return &Reconciler{
		Client: w.client, Live: w.client, Keys: w, Events: events.NewFakeRecorder(100), Now: func() time.Time { return w.now },
		Connect: func(context.Context, client.ObjectKey) (Workload, error) { return w.cluster, w.connect },
	}
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
		"a control plane's":  {func(w *world) { w.machine("cp", ek1, controlPlane) }, bootstrapv1.IdentityTakenReason, "cp claims"},
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
	w.cluster.nodes = []string{"workers-x", "workers-y"}
	if result := w.mustReconcile(); len(w.cluster.forgot) > 0 || result.RequeueAfter != retry {
		t.Errorf("%v was forgotten, and its Node is there; again after %v", w.cluster.forgot, result.RequeueAfter)
	}
	w.cluster.nodes = []string{"workers-y"}
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
	for _, call := range []string{"list", "put", "node", "joined", "forget", "status"} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", call, after), func(t *testing.T) {
				w := newWorld(t)
				w.machine("workers-x", ek1)
				w.machine("workers-gone", ek2)
				w.mustReconcile()
				w.delete("workers-gone")
				delete(w.cluster.vouchers, must(hullmark.ParseEKID(ek1)))
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
				_, _ = w.reconcile()
				w.client = plain
				clear(w.cluster.fails)
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
