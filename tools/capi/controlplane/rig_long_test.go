//go:build long

package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/bootstrap"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

// One real API for all tests. It is that of the management cluster, and of the cluster that is begun, too, whose authorities it has: so
// the kubeconfig that is made, and core's way by it to Nodes, are real. Its own etcd is not the one whose members come and go.
var (
	api         *testenv.Environment
	whole       *cluster.Cluster
	admin       client.Client
	adminConfig *rest.Config
)

func TestMain(m *testing.M) { coretest.Main(m, prepare) }

func prepare(ctx context.Context, dir string) (*testenv.Environment, <-chan error, error) {
	var err error
	if whole, err = cluster.New(); err != nil {
		return nil, nil, err
	}
	if api, err = testenv.StartFor(ctx, dir, whole); err != nil {
		return nil, nil, err
	}
	if adminConfig, err = api.Config("test", "system:masters"); err != nil {
		return api, nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1.AddToScheme(scheme), bootstrapv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
		apiextensionsv1.AddToScheme(scheme)); err != nil {
		return api, nil, err
	}
	if admin, err = client.New(adminConfig, client.Options{Scheme: scheme}); err != nil {
		return api, nil, err
	}
	if err := coretest.InstallCRDs(ctx, adminConfig, filepath.Join("..", "config", "crd")); err != nil {
		return api, nil, err
	}
	ended, err := startOthers(ctx, scheme)
	return api, ended, err
}

// startOthers runs core's own reconcilers, our bootstrap provider, and the stub of an infrastructure.
func startOthers(ctx context.Context, scheme *runtime.Scheme) (ended <-chan error, err error) {
	core, err := coretest.NewCore(ctx, adminConfig, scheme, 5)
	if err != nil {
		return nil, err
	}
	c := core.GetClient()
	err = errors.Join(
		(&bootstrap.Reconciler{Client: c, Live: core.GetAPIReader(), Events: core.GetEventRecorder("bootstrap")}).SetupWithManager(core, core.Options),
		ctrl.NewControllerManagedBy(core).Named("stubcluster").For(stub("StubCluster", "")).Complete(reconcile.Func(reconcileStubCluster)),
		ctrl.NewControllerManagedBy(core).Named("stubmachine").For(stub("StubMachine", "")).WithOptions(core.Options).Complete(reconcile.Func(reconcileStub)),
	)
	if err != nil {
		return nil, err
	}
	return core.Go(ctx), nil
}

func reconcileStubCluster(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	o := stub("StubCluster", "")
	if err := admin.Get(ctx, r.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := o.DeepCopy()
	_ = unstructured.SetNestedField(o.Object, true, "status", "initialization", "provisioned")
	_ = unstructured.SetNestedField(o.Object, api.Address, "status", "apiServer")
	return ctrl.Result{}, client.IgnoreNotFound(admin.Status().Patch(ctx, o, client.MergeFrom(before)))
}

// hosts are the machines of each namespace.
var hosts sync.Map

// host is an infrastructure whose machines are members of one real etcd, on loopback addresses, with Nodes that nobody runs. They join as
// kubeadm has them join, once the cluster was begun.
type host struct {
	*testing.T
	namespace string
	etcd      *testenv.Etcd
	custody   *fakeCustody

	mutex sync.Mutex
	at    map[string]netip.Addr
	runs  map[string]bool
	next  byte
	// heard is when each Node's kubelet was heard last: the controller manager is real.
	heard map[string]time.Time
}

const stubFinalizer = "test.hullmark/stub"

// reconcileStub does what a host does for one machine.
func reconcileStub(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	found, ok := hosts.Load(r.Namespace)
	if !ok {
		return ctrl.Result{}, nil
	}
	h := found.(*host)
	h.mutex.Lock()
	defer h.mutex.Unlock()
	o := stub("StubMachine", "")
	if err := admin.Get(ctx, r.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !o.GetDeletionTimestamp().IsZero() {
		if h.runs[o.GetName()] {
			_ = h.etcd.Forget(o.GetName()) // One that was removed has ended by itself.
			delete(h.runs, o.GetName())
		}
		before := o.DeepCopy()
		controllerutil.RemoveFinalizer(o, stubFinalizer)
		return ctrl.Result{}, client.IgnoreNotFound(admin.Patch(ctx, o, client.MergeFrom(before)))
	}
	again := ctrl.Result{RequeueAfter: 300 * time.Millisecond}
	if by := metav1.GetControllerOf(o); by == nil || by.Kind != "Machine" {
		return again, nil
	}
	if err := h.report(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	if !h.runs[o.GetName()] && len(h.runs) > 0 {
		if err := h.join(ctx, o.GetName()); err != nil {
			fmt.Fprintln(os.Stderr, "join", o.GetName(), err)
		}
	}
	if last, ok := h.heard[o.GetName()]; ok && h.runs[o.GetName()] && time.Since(last) > 10*time.Second {
		if err := h.node(ctx, o.GetName()); err != nil {
			return ctrl.Result{}, err
		}
	}
	return again, nil
}

// report reports a machine.
func (h *host) report(ctx context.Context, o *unstructured.Unstructured) error {
	name := o.GetName()
	if _, ok := h.at[name]; !ok {
		h.next++
		h.at[name] = netip.AddrFrom4([4]byte{127, 0, 1, h.next})
	}
	before := o.DeepCopy()
	controllerutil.AddFinalizer(o, stubFinalizer)
	_ = unstructured.SetNestedField(o.Object, "stub://"+name, "spec", "providerID")
	if err := admin.Patch(ctx, o, client.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	before = o.DeepCopy()
	id := sha256.Sum256([]byte(name))
	_ = unstructured.SetNestedField(o.Object, hex.EncodeToString(id[:]), "status", "ekID")
	_ = unstructured.SetNestedField(o.Object, true, "status", "initialization", "provisioned")
	_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"type": "InternalIP", "address": h.at[name].String()}}, "status", "addresses")
	return client.IgnoreNotFound(admin.Status().Patch(ctx, o, client.MergeFrom(before)))
}

// join lets a machine join: as a learner, then with a vote, then with a Node.
func (h *host) join(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := h.client(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	answer, err := c.MemberAddAsLearner(ctx, []string{h.etcd.PeerURL(h.at[name])})
	if err != nil {
		return err
	}
	var others []string
	for _, m := range answer.Members {
		if m.ID != answer.Member.ID {
			others = append(others, m.Name+"="+m.PeerURLs[0])
		}
	}
	if err := h.etcd.Start(name, h.at[name], others...); err != nil {
		return err
	}
	h.runs[name] = true
	if err := testenv.Poll(ctx, 300*time.Millisecond, func() error {
		_, err := c.MemberPromote(ctx, answer.Member.ID)
		return err
	}); err != nil {
		return err
	}
	return h.node(ctx, name)
}

// client asks all members that run.
func (h *host) client(ctx context.Context) (*clientv3.Client, error) {
	tls, err := whole.EtcdClient(time.Now(), time.Hour)
	if err != nil {
		return nil, err
	}
	var urls []string
	for name := range h.runs {
		urls = append(urls, h.etcd.ClientURL(h.at[name]))
	}
	return clientv3.New(clientv3.Config{Context: ctx, Endpoints: urls, TLS: tls, DialTimeout: 5 * time.Second})
}

// node makes a machine's Node, which is Ready.
func (h *host) node(ctx context.Context, name string) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}, Spec: corev1.NodeSpec{ProviderID: "stub://" + name}}
	if err := admin.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := admin.Get(ctx, client.ObjectKeyFromObject(n), n); err != nil {
		return err
	}
	before := n.DeepCopy()
	h.heard[name] = time.Now()
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: h.at[name].String()}}
	n.Status.NodeInfo.KubeletVersion = "v1.36.3"
	now := metav1.Now()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastTransitionTime: now, LastHeartbeatTime: now}}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: "Test", LastTransitionTime: now, LastHeartbeatTime: now})
	}
	return admin.Status().Patch(ctx, n, client.MergeFrom(before))
}

// begin is Init of the first machine.
func (h *host) begin(ctx context.Context, f *cluster.File, o operate.InitOptions) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.runs[o.Name] {
		if err := h.etcd.Start(o.Name, h.at[o.Name]); err != nil {
			return err
		}
		h.runs[o.Name] = true
	}
	if err := h.node(ctx, o.Name); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	return f.Update(func(c *cluster.Cluster) error { c.Initialised = o.Anchor.EKID; return nil })
}

// newHost makes a namespace with a Cluster "c" and its control plane, and lends the file as soon as it is asked for.
func newHost(t *testing.T, namespace string) *host {
	t.Helper()
	members, err := testenv.NewEtcd(t.Context(), t.TempDir(), whole)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{T: t, namespace: namespace, etcd: members, custody: newCustody(t), at: map[string]netip.Addr{}, runs: map[string]bool{}, heard: map[string]time.Time{}}
	hosts.Store(namespace, h)
	t.Cleanup(func() {
		hosts.Delete(namespace)
		for name := range h.runs {
			_ = h.etcd.Kill(name)
		}
	})
	create := func(o client.Object) {
		o.SetNamespace(namespace)
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	template := stub("StubMachineTemplate", "small")
	_ = unstructured.SetNestedMap(template.Object, map[string]any{"size": "small"}, "spec", "template", "spec")
	create(template)
	create(stub("StubCluster", "c"))
	plane := newPlane(whole.ID().String(), "v1.36.3")
	plane.UID, plane.OwnerReferences, plane.Generation = "", nil, 0
	create(plane)
	create(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "192.0.2.7", Port: 6443},
		InfrastructureRef:    clusterv1.ContractVersionedObjectReference{APIGroup: coretest.InfraGroup, Kind: "StubCluster", Name: "c"},
		ControlPlaneRef:      clusterv1.ContractVersionedObjectReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.ControlPlaneKind, Name: planeKey.Name},
	}})
	return h
}

// start runs a controller in a manager of its own until stop is called, with all that it changes going through a fuse.
func (h *host) start(f *fuse) (stop func()) {
	h.Helper()
	mgr, err := ctrl.NewManager(adminConfig, ctrl.Options{Scheme: admin.Scheme(), Metrics: server.Options{BindAddress: "0"}, Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{h.namespace: {}}}})
	if err != nil {
		h.Fatal(err)
	}
	r := &Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("control-plane"), Custody: h.custody, Begin: h.begin, retry: time.Second, strayWait: 5 * time.Second,
		Connect: func(file *cluster.File, server string) (Workload, error) {
			w, err := connect(file, server)
			if err != nil {
				return nil, err
			}
			real := w.(*workload)
			url, err := netip.ParseAddrPort(strings.TrimPrefix(h.etcd.ClientURL(netip.MustParseAddr("127.0.0.1")), "https://"))
			real.etcdPort = url.Port()
			return fuseWorkload{hosted{real}, f}, err
		},
	}
	if err := r.SetupWithManager(mgr, controller.Options{SkipNameValidation: ptr.To(true)}); err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.Errorf("manager: %v", err)
		}
	})
	h.Cleanup(stop)
	return stop
}

// hosted is a workload whose API servers are all the one that answers.
type hosted struct{ *workload }

func (hosted) Serves(context.Context, Node) error { return nil }

func (h *host) plane() *v1alpha1.HullmarkControlPlane {
	h.Helper()
	p := &v1alpha1.HullmarkControlPlane{}
	if err := admin.Get(h.Context(), client.ObjectKey{Namespace: h.namespace, Name: planeKey.Name}, p); err != nil {
		h.Fatal(err)
	}
	return p
}

func (h *host) change(edit func(*v1alpha1.HullmarkControlPlane)) {
	h.Helper()
	p := h.plane()
	before := p.DeepCopy()
	edit(p)
	if err := admin.Patch(h.Context(), p, client.MergeFrom(before)); err != nil {
		h.Fatal(err)
	}
}

// eventually waits for something that other processes do. All the time etcd has a quorum.
func (h *host) eventually(what string, done func() error) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 4*time.Minute)
	defer cancel()
	if err := testenv.Poll(ctx, 300*time.Millisecond, done); err != nil {
		for _, c := range h.plane().Status.Conditions {
			h.Logf("%s %s %s %s", c.Type, c.Status, c.Reason, c.Message)
		}
		h.Fatalf("%s: %v", what, err)
	}
}

// lend lends the file for the first machine, as the condition asks.
func (h *host) lend() {
	h.Helper()
	h.eventually("the file is asked for", func() error {
		first := h.plane().Status.First
		if first.EKID == "" {
			return errors.New("no identity yet")
		}
		return nil
	})
	first := h.plane().Status.First
	w := world{T: h.T, whole: ptr.To(*whole), document: nodetest.Document(h.T, "v1.36.3"), custody: h.custody}
	w.lend(first.EKID, first.Machine, "stub://"+first.Machine, false)
}

func (h *host) machines() (names []string) {
	h.Helper()
	list := &clusterv1.MachineList{}
	if err := admin.List(h.Context(), list, client.InNamespace(h.namespace)); err != nil {
		h.Fatal(err)
	}
	for _, m := range list.Items {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// settled waits until there are so many Machines, all Ready and up to date, and etcd's members are theirs.
func (h *host) settled(n int32) {
	h.Helper()
	h.eventually(fmt.Sprintf("%d machines", n), func() error {
		status := h.plane().Status
		if ptr.Deref(status.Replicas, 0) != n || ptr.Deref(status.ReadyReplicas, 0) != n || ptr.Deref(status.UpToDateReplicas, 0) != n || ptr.Deref(status.AvailableReplicas, 0) != n {
			return fmt.Errorf("replicas %d, ready %d, up to date %d", ptr.Deref(status.Replicas, 0), ptr.Deref(status.ReadyReplicas, 0), ptr.Deref(status.UpToDateReplicas, 0))
		}
		h.mutex.Lock()
		defer h.mutex.Unlock()
		ctx, cancel := context.WithTimeout(h.Context(), 10*time.Second)
		defer cancel()
		c, err := h.client(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Put(ctx, "key", time.Now().String()); err != nil {
			return err
		}
		list, err := c.MemberList(ctx)
		if err != nil {
			return err
		}
		var members []string
		for _, m := range list.Members {
			if !m.IsLearner {
				members = append(members, m.Name)
			}
		}
		slices.Sort(members)
		if names := h.machines(); !slices.Equal(names, members) {
			return fmt.Errorf("Machines %q, members %q", names, members)
		}
		return nil
	})
}
