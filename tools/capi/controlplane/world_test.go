package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/etcd"
	"github.com/hullmark/hullmark/measurements"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

var planeKey = client.ObjectKey{Namespace: "ns", Name: "c-cp"}

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"StubMachine", "StubMachineTemplate", "StubCluster"} {
		s.AddKnownTypeWithName(schema.GroupVersionKind{Group: coretest.InfraGroup, Version: "v1", Kind: kind}, &unstructured.Unstructured{})
		s.AddKnownTypeWithName(schema.GroupVersionKind{Group: coretest.InfraGroup, Version: "v1", Kind: kind + "List"}, &unstructured.UnstructuredList{})
	}
	return s
}

func stub(kind, name string) *unstructured.Unstructured { return coretest.Stub(kind, "ns", name) }

// stubCRDs are what says which version of the stub is of the contract.
func stubCRDs() *apiextensionsv1.CustomResourceDefinitionList {
	list := &apiextensionsv1.CustomResourceDefinitionList{}
	for _, crd := range coretest.StubCRDs() {
		list.Items = append(list.Items, *crd)
	}
	return list
}

// world is a management cluster in memory with one Cluster "c" and its control plane "c-cp", of an infrastructure that reports at once,
// and core's part as far as it concerns Machines. Its workload cluster is faked.
type world struct {
	*testing.T
	client.Client
	fake   client.WithWatch
	r      *Reconciler
	events *events.FakeRecorder
	// whole is the cluster file that a person has.
	whole *cluster.Cluster
	// document is that of the image.
	document measurements.Document
	custody  *fakeCustody
	workload *fakeWorkload
	// begun hears of each attempt to begin; its error is that attempt's.
	begun func(context.Context, *cluster.File, operate.InitOptions) error
	clock time.Time
	// machines counts the infrastructure's.
	machines int
	// killed reports whether the controller is to be taken for dead: another one comes in its place.
	killed func() bool
}

func newWorld(t *testing.T, edit ...func(*v1alpha1.HullmarkControlPlane, *clusterv1.Cluster)) *world {
	t.Helper()
	whole, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, whole: whole, document: nodetest.Document(t, "v1.36.3"), clock: time.Now().Truncate(time.Second)}
	w.custody = newCustody(t)
	w.workload = &fakeWorkload{view: View{Nodes: map[string]Node{}, Records: map[hullmark.EKID]joinservice.Machine{}}}
	c := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid-c", Generation: 1},
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "192.0.2.7", Port: 6443},
			InfrastructureRef:    coretest.Ref("StubCluster", "c"),
			ControlPlaneRef:      clusterv1.ContractVersionedObjectReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.ControlPlaneKind, Name: planeKey.Name},
		},
	}
	c.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	plane := newPlane(whole.ID().String(), w.document.Image.Kubernetes.String())
	for _, f := range edit {
		f(plane, c)
	}
	template := stub("StubMachineTemplate", "small")
	_ = unstructured.SetNestedMap(template.Object, map[string]any{"size": "small"}, "spec", "template", "spec")
	w.fake = fake.NewClientBuilder().WithScheme(newScheme(t)).
		WithStatusSubresource(&v1alpha1.HullmarkControlPlane{}, &clusterv1.Machine{}).
		WithObjects(c, plane, template, stub("StubCluster", "c")).WithLists(stubCRDs()).Build()
	w.Client = w.fake
	w.events = events.NewFakeRecorder(2000)
	w.r = w.controller(w.Client)
	t.Cleanup(func() { w.r.jobs.stop() })
	return w
}

func newPlane(root, version string) *v1alpha1.HullmarkControlPlane {
	return &v1alpha1.HullmarkControlPlane{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: planeKey.Namespace, Name: planeKey.Name, UID: "uid-plane", Generation: 1, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "c", UID: "uid-c"}},
		},
		Spec: v1alpha1.HullmarkControlPlaneSpec{
			Replicas: ptr.To[int32](1), Version: version,
			MachineTemplate: v1alpha1.HullmarkControlPlaneMachineTemplate{Spec: v1alpha1.HullmarkControlPlaneMachineTemplateSpec{
				InfrastructureRef: coretest.Ref("StubMachineTemplate", "small"),
			}},
			Config: bootstrapv1.HullmarkConfigSpec{ClusterRoot: root, Pool: "control-plane", StateDisk: bootstrapv1.StateDisk{Serial: "state"}},
		},
	}
}

// controller is a new one, as after a restart, that writes by a client.
func (w *world) controller(c client.Client) *Reconciler {
	return &Reconciler{
		Client: c, Live: w.Client, Events: w.events, Custody: w.custody, Now: func() time.Time { return w.clock },
		Begin: func(ctx context.Context, f *cluster.File, o operate.InitOptions) error {
			if w.begun == nil {
				return w.begin(f, o)
			}
			return w.begun(ctx, f, o)
		},
		Connect: func(*cluster.File, string) (Workload, error) { return w.workload, nil },
	}
}

// begin is a first machine that does all that it should.
func (w *world) begin(f *cluster.File, o operate.InitOptions) error {
	w.workload.join(*o.Anchor.EKID, o.Name)
	return f.Update(func(c *cluster.Cluster) error { c.Initialised = o.Anchor.EKID; return nil })
}

// lend has a person lend the cluster file as the condition says.
func (w *world) lend(ekid, name, providerID string, replace bool) {
	w.Helper()
	node, err := hullmark.ParseEKID(ekid)
	if err != nil {
		w.Fatal(err)
	}
	lent, err := w.whole.Lend(cluster.Loan{Document: w.document, Node: node, Name: name, ProviderID: providerID, ReplaceFirst: replace})
	if err != nil {
		w.Fatal(err)
	}
	w.must(w.custody.put(lent))
}

// provide puts a cluster's Kubernetes authority where the kubeadm provider would look for one.
func (w *world) provide(of *cluster.Cluster) {
	w.must(w.Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.plane().Namespace, Name: "c-ca"}, Data: map[string][]byte{"tls.crt": of.KubernetesCA()},
	}))
}

// lendFirst lends it for the machine that the status names.
func (w *world) lendFirst(replace bool) {
	w.Helper()
	first := w.plane().Status.First
	w.lend(first.EKID, first.Machine, "stub://"+first.Machine, replace)
}

// infra has the infrastructure report its machines, and core do its part of deletions.
func (w *world) infra() {
	w.Helper()
	list := &clusterv1.MachineList{}
	if err := w.List(w.Context(), list); err != nil {
		w.Fatal(err)
	}
	for i := range list.Items {
		m := &list.Items[i]
		infra := stub("StubMachine", m.Name)
		err := w.Get(w.Context(), client.ObjectKeyFromObject(infra), infra)
		if err == nil && field(infra, "status", "ekID") == "" {
			w.machines++
			_ = unstructured.SetNestedField(infra.Object, hullmark.EKID{byte(w.machines)}.String(), "status", "ekID")
			_ = unstructured.SetNestedField(infra.Object, "stub://"+m.Name, "spec", "providerID")
			_ = unstructured.SetNestedSlice(infra.Object, []any{map[string]any{"type": "InternalIP", "address": fmt.Sprintf("192.0.2.%d", 10+w.machines)}}, "status", "addresses")
			if err := w.Update(w.Context(), infra); err != nil {
				w.Fatal(err)
			}
		}
		w.core(m, infra)
	}
}

// core takes a Machine a step further: it has a finalizer and its config, comes to the hook, and goes with its objects.
func (w *world) core(m *clusterv1.Machine, infra *unstructured.Unstructured) {
	w.Helper()
	before := m.DeepCopy()
	if m.DeletionTimestamp.IsZero() {
		if !slices.Contains(m.Finalizers, clusterv1.MachineFinalizer) {
			m.Finalizers = append(m.Finalizers, clusterv1.MachineFinalizer)
			w.must(w.Patch(w.Context(), m, client.MergeFrom(before)))
			config := &bootstrapv1.HullmarkConfig{}
			if w.Get(w.Context(), client.ObjectKeyFromObject(m), config) != nil {
				return
			}
			config.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, Controller: ptr.To(true)}}
			w.must(w.Update(w.Context(), config))
		}
		return
	}
	if _, hooked := m.Annotations[v1alpha1.EtcdHookAnnotation]; hooked {
		m.Status.Deletion = &clusterv1.MachineDeletionStatus{WaitForPreTerminateHookStartTime: metav1.NewTime(w.clock)}
		w.must(w.Status().Patch(w.Context(), m, client.MergeFrom(before)))
		return
	}
	w.must(client.IgnoreNotFound(w.Delete(w.Context(), infra)))
	w.must(client.IgnoreNotFound(w.Delete(w.Context(), &bootstrapv1.HullmarkConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: m.Name}})))
	if i := slices.Index(m.Finalizers, clusterv1.MachineFinalizer); i >= 0 {
		m.Finalizers = slices.Delete(m.Finalizers, i, i+1)
		w.must(client.IgnoreNotFound(w.Patch(w.Context(), m, client.MergeFrom(before))))
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// reconcile runs it once, and the world around it before.
func (w *world) reconcile() ctrl.Result {
	w.Helper()
	w.infra()
	result, err := w.r.Reconcile(w.Context(), ctrl.Request{NamespacedName: planeKey})
	switch {
	case w.killed != nil && w.killed():
		w.r.jobs.stop()
		w.r, w.killed = w.controller(w.Client), nil
	case err != nil:
		w.Fatal(err)
	}
	return result
}

// until reconciles until something is so.
func (w *world) until(what string, done func() error) {
	w.Helper()
	var err error
	for range 200 {
		w.reconcile()
		if err = done(); err == nil {
			return
		}
		p := &v1alpha1.HullmarkControlPlane{}
		if w.Get(w.Context(), planeKey, p) == nil && !ptr.Deref(p.Status.Initialization.ControlPlaneInitialized, false) {
			time.Sleep(5 * time.Millisecond) // for jobs
		}
	}
	p := &v1alpha1.HullmarkControlPlane{}
	_ = w.Get(w.Context(), planeKey, p)
	for _, c := range p.Status.Conditions {
		w.Logf("%s %s %s %s", c.Type, c.Status, c.Reason, c.Message)
	}
	w.Fatalf("%s: %v", what, err)
}

func (w *world) plane() *v1alpha1.HullmarkControlPlane {
	w.Helper()
	p := &v1alpha1.HullmarkControlPlane{}
	w.must(w.Get(w.Context(), planeKey, p))
	return p
}

// reason waits for a condition to have a reason, and returns its message.
func (w *world) reason(kind, want string) string {
	w.Helper()
	var c *metav1.Condition
	w.until(kind+" "+want, func() error {
		if c = conditions.Get(w.plane(), kind); c == nil || c.Reason != want {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	return c.Message
}

// change edits the control plane as a person does.
func (w *world) change(edit func(*v1alpha1.HullmarkControlPlane)) {
	w.Helper()
	p := w.plane()
	before := p.DeepCopy()
	edit(p)
	p.Generation++
	w.must(w.Patch(w.Context(), p, client.MergeFrom(before)))
}

func (w *world) list() (names []string) {
	w.Helper()
	list := &clusterv1.MachineList{}
	w.must(w.List(w.Context(), list))
	for _, m := range list.Items {
		names = append(names, m.Name)
	}
	return names
}

// fakeCustody is a Secret with one lent file, sealed to this manager.
type fakeCustody struct {
	mutex    sync.Mutex
	identity *age.X25519Identity
	sealed   []byte
	dir      string
}

func newCustody(t *testing.T) *fakeCustody {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return &fakeCustody{identity: identity, dir: t.TempDir()}
}

func (c *fakeCustody) Recipient() string { return c.identity.Recipient().String() }

func (c *fakeCustody) OpenCluster(context.Context, client.ObjectKey) (*cluster.File, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.sealed == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "c-lent")
	}
	return cluster.OpenSealed(c.sealed, c.identity, &fakeStore{c, c.sealed})
}

// put seals a file as a person does.
func (c *fakeCustody) put(lent *cluster.Cluster) error {
	path := filepath.Join(c.dir, rand.String(8))
	if err := cluster.CreateSealed(path, c.identity.Recipient(), lent); err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	c.set(text)
	return err
}

func (c *fakeCustody) set(sealed []byte) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.sealed = sealed
}

// fakeStore replaces what is there unless somebody else has.
type fakeStore struct {
	c    *fakeCustody
	seen []byte
}

func (s *fakeStore) Replace(next []byte) error {
	s.c.mutex.Lock()
	defer s.c.mutex.Unlock()
	if !bytes.Equal(s.c.sealed, s.seen) {
		return apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "c-lent", errors.New("changed"))
	}
	s.c.sealed, s.seen = next, next
	return nil
}

// fakeWorkload is a cluster whose machines do what they are told.
type fakeWorkload struct {
	mutex   sync.Mutex
	view    View
	members []etcd.Member
	// err is that of each call, deaf that of those of etcd; sick are Nodes whose API server does not answer.
	err, deaf error
	sick      []string
	removed   []string
	forgotten []hullmark.EKID
}

// join lets a machine join.
func (f *fakeWorkload) join(node hullmark.EKID, name string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	address := netip.AddrFrom4([4]byte{192, 0, 2, 10 + node[0]})
	f.view.Nodes[name] = Node{Name: name, Address: address, Ready: true, Changed: time.Now(), Kubelet: "v1.36.3"}
	f.view.Records[node] = joinservice.Machine{EKID: node, Name: name, Role: hullmark.ControlPlane, State: joinservice.MachineReady}
	f.members = append(f.members, etcd.Member{ID: uint64(node[0]), Name: name, Addresses: []netip.Addr{address}, Answers: true})
}

func (f *fakeWorkload) Look(context.Context) (View, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.view, f.err
}

func (f *fakeWorkload) Serves(_ context.Context, n Node) error {
	if slices.Contains(f.sick, n.Name) {
		return errors.New("its API server does not answer")
	}
	return f.err
}

func (f *fakeWorkload) Members(context.Context, []Node) ([]etcd.Member, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return slices.Clone(f.members), errors.Join(f.err, f.deaf)
}

func (f *fakeWorkload) RemoveMember(_ context.Context, at []Node, id uint64) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	answering := 0
	for _, m := range f.members {
		if m.ID != id && m.Answers {
			answering++
		}
	}
	if len(at) == 0 || answering != len(f.members)-1 || answering == 0 {
		return errors.New("a member is down")
	}
	for i, m := range f.members {
		if m.ID == id {
			f.members, f.removed = slices.Delete(f.members, i, i+1), append(f.removed, m.Name)
			break
		}
	}
	return nil
}

func (f *fakeWorkload) RemoveStray(_ context.Context, at []Node, id uint64) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	i := slices.IndexFunc(f.members, func(m etcd.Member) bool { return m.ID == id })
	switch {
	case len(at) == 0:
		return errors.New("nobody to ask")
	case i < 0:
		return nil
	case f.members[i].Answers:
		return errors.New("it answers")
	}
	f.removed = append(f.removed, f.members[i].Name)
	f.members = slices.Delete(f.members, i, i+1)
	return nil
}

func (f *fakeWorkload) Forget(_ context.Context, node hullmark.EKID) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	record := f.view.Records[node]
	delete(f.view.Records, node)
	delete(f.view.Nodes, record.Name)
	f.forgotten = append(f.forgotten, node)
	return f.err
}

func metaOf(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }

func recordOf(issued uint64) joinservice.Record {
	return joinservice.Record{Disk: hullmark.UUID{1}, Issued: issued}
}
