//go:build long

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

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
	coredeployment "sigs.k8s.io/cluster-api/core/reconcilers/machinedeployment"
	corepool "sigs.k8s.io/cluster-api/core/reconcilers/machinepool"
	coreset "sigs.k8s.io/cluster-api/core/reconcilers/machineset"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/config"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

// One real API for all tests, with core's reconcilers and an infrastructure provider that makes nothing.
var (
	api         *testenv.Environment
	admin       client.WithWatch
	adminConfig *rest.Config
	kubeconfig  []byte
)

const (
	// holdLabel keeps the stub from letting a machine's Node appear, as if it had not finished to initialize or to join.
	holdLabel = "test.hullmark/hold"
	// manager is who the Deployment's pods are to the API.
	managerUser = "system:serviceaccount:hullmark-bootstrap-system:hullmark-bootstrap-manager"
)

func TestMain(m *testing.M) { coretest.Main(m, prepare) }

// prepare starts the API, and core's own reconcilers, as its manager does, with the stub.
func prepare(ctx context.Context, dir string) (*testenv.Environment, <-chan error, error) {
	var err error
	if api, err = testenv.Start(ctx, dir); err != nil {
		return nil, nil, err
	}
	if adminConfig, err = api.Config("test", "system:masters"); err != nil {
		return api, nil, err
	}
	if kubeconfig, err = api.Kubeconfig("test", "system:masters"); err != nil {
		return api, nil, err
	}
	scheme, err := wholeScheme()
	if err != nil {
		return api, nil, err
	}
	if admin, err = client.NewWithWatch(adminConfig, client.Options{Scheme: scheme}); err != nil {
		return api, nil, err
	}
	if err := install(ctx); err != nil {
		return api, nil, err
	}
	ended, err := startCore(ctx, scheme)
	return api, ended, err
}

func wholeScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), clusterv1.AddToScheme(s), v1alpha1.AddToScheme(s), apiextensionsv1.AddToScheme(s))
}

// install gives the API core's CRDs, the stub's, and our components as a person would apply them.
func install(ctx context.Context) error {
	if err := coretest.InstallCRDs(ctx, adminConfig); err != nil {
		return err
	}
	components, err := config.Bootstrap.Components("registry.example/hullmark-capi:test")
	if err != nil {
		return err
	}
	for range 2 { // applying it again changes nothing
		if err := api.Apply(ctx, components); err != nil {
			return err
		}
	}
	return testenv.Poll(ctx, 100*time.Millisecond, func() error { return admin.List(ctx, &v1alpha1.HullmarkConfigTemplateList{}) })
}

func startCore(ctx context.Context, scheme *runtime.Scheme) (ended <-chan error, err error) {
	core, err := coretest.NewCore(ctx, adminConfig, scheme, 10)
	if err != nil {
		return nil, err
	}
	c, live := core.GetClient(), core.GetAPIReader()
	err = errors.Join(
		(&coreset.Reconciler{Client: c, APIReader: live, ClusterCache: core.Clusters}).SetupWithManager(ctx, core, core.Options),
		(&coredeployment.Reconciler{Client: c, APIReader: live}).SetupWithManager(ctx, core, core.Options),
		(&corepool.Reconciler{Client: c, APIReader: live, ClusterCache: core.Clusters}).SetupWithManager(ctx, core, core.Options),
		addStub(core),
	)
	if err != nil {
		return nil, err
	}
	return core.Go(ctx), nil
}

// stub is an infrastructure provider that makes nothing: a machine that has its bootstrap data is provisioned, and has a Node.
type stub struct{ client.Client }

func addStub(core *coretest.Core) error {
	s := stub{core.GetClient()}
	machines := ctrl.NewControllerManagedBy(core).Named("stubmachine").For(stubObject("StubMachine")).WithOptions(core.Options)
	clusters := ctrl.NewControllerManagedBy(core).Named("stubcluster").For(stubObject("StubCluster"))
	return errors.Join(machines.Complete(reconcile.Func(s.machine)), clusters.Complete(reconcile.Func(s.cluster)))
}

func stubObject(kind string) *unstructured.Unstructured { return coretest.Stub(kind, "", "") }

func (s stub) cluster(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	u := stubObject("StubCluster")
	if err := s.Get(ctx, r.NamespacedName, u); err != nil || u.GetLabels()[holdLabel] != "" {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return ctrl.Result{}, s.provisioned(ctx, u)
}

func (s stub) provisioned(ctx context.Context, u *unstructured.Unstructured) error {
	before := u.DeepCopy()
	if err := unstructured.SetNestedField(u.Object, true, "status", "initialization", "provisioned"); err != nil {
		return err
	}
	return client.IgnoreNotFound(s.Status().Patch(ctx, u, client.MergeFrom(before)))
}

func (s stub) machine(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	u := stubObject("StubMachine")
	if err := s.Get(ctx, r.NamespacedName, u); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	again := ctrl.Result{RequeueAfter: 200 * time.Millisecond}
	by := metav1.GetControllerOf(u)
	if by == nil || by.Kind != "Machine" {
		return again, nil
	}
	m := &clusterv1.Machine{}
	if err := s.Get(ctx, client.ObjectKey{Namespace: u.GetNamespace(), Name: by.Name}, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if m.Spec.Bootstrap.DataSecretName == nil || !m.DeletionTimestamp.IsZero() {
		return again, nil
	}
	id := "stub://" + m.Namespace + "/" + m.Name
	before := u.DeepCopy()
	if err := unstructured.SetNestedField(u.Object, id, "spec", "providerID"); err != nil {
		return ctrl.Result{}, err
	}
	if err := s.Patch(ctx, u, client.MergeFrom(before)); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if err := s.provisioned(ctx, u); err != nil {
		return ctrl.Result{}, err
	}
	if u.GetLabels()[holdLabel] != "" { // the label's going wakes it
		return ctrl.Result{}, nil
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Namespace + "." + m.Name}, Spec: corev1.NodeSpec{ProviderID: id}}
	if err := s.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, nil
}

// params are how a manager of ours is run.
type params struct {
	namespaces []string
	filter     string
	// hook is called for each write, and does it.
	hook func(what string, do func() error) error
	// transport sees each request.
	transport func(*http.Request)
}

// start runs the reconciler in a manager of its own, by the permissions of its Deployment and no others, until stop is called.
func start(t *testing.T, p params) (stop func()) {
	t.Helper()
	c := rest.CopyConfig(adminConfig)
	c.Impersonate = rest.ImpersonationConfig{UserName: managerUser, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	if p.transport != nil {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, p.transport} })
	}
	options := ctrl.Options{Scheme: admin.Scheme(), Metrics: server.Options{BindAddress: "0"}, Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{}}}
	for _, n := range p.namespaces {
		options.Cache.DefaultNamespaces[n] = cache.Config{}
	}
	mgr, err := ctrl.NewManager(c, options)
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("hullmark-bootstrap"), WatchFilter: p.filter}
	if p.hook != nil {
		r.Client = hooked{r.Client, p.hook}
	}
	if err := r.SetupWithManager(mgr, controller.Options{MaxConcurrentReconciles: 10, SkipNameValidation: ptr.To(true)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("manager: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

type counted struct {
	next http.RoundTripper
	see  func(*http.Request)
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.see(r)
	return c.next.RoundTrip(r)
}

// hooked is a client whose writes go through a function.
type hooked struct {
	client.Client
	hook func(what string, do func() error) error
}

func (h hooked) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return h.hook(fmt.Sprintf("create %T", o), func() error { return h.Client.Create(ctx, o, opts...) })
}

func (h hooked) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return h.hook(fmt.Sprintf("update %T", o), func() error { return h.Client.Update(ctx, o, opts...) })
}

func (h hooked) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return h.hook(fmt.Sprintf("delete %T", o), func() error { return h.Client.Delete(ctx, o, opts...) })
}

func (h hooked) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return h.hook(fmt.Sprintf("patch %T", o), func() error { return h.Client.Patch(ctx, o, p, opts...) })
}

func (h hooked) Status() client.SubResourceWriter { return hookedStatus{h.Client.Status(), h.hook} }

type hookedStatus struct {
	client.SubResourceWriter
	hook func(what string, do func() error) error
}

func (h hookedStatus) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	return h.hook(fmt.Sprintf("patch status of %T", o), func() error { return h.SubResourceWriter.Patch(ctx, o, p, opts...) })
}

// place is a namespace with one Cluster "c".
type place struct {
	*testing.T
	namespace string
}

// newPlace makes one. Its Cluster's machines are Nodes of the API itself, which plays the workload cluster, too.
func newPlace(t *testing.T, name string, change ...func(*clusterv1.Cluster, *unstructured.Unstructured)) place {
	t.Helper()
	p := place{t, name}
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	infra := stubObject("StubCluster")
	infra.SetNamespace(name)
	infra.SetName("c")
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "c"}, Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api.example", Port: 6443},
		InfrastructureRef:    coretest.Ref("StubCluster", "c"),
	}}
	for _, f := range change {
		f(c, infra)
	}
	p.create(infra)
	p.create(c)
	p.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "c-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}},
		Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": kubeconfig},
	})
	return p
}

func configRef(kind, name string) clusterv1.Bootstrap {
	return clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: kind, Name: name}}
}

func (p place) create(o client.Object) {
	p.Helper()
	if err := admin.Create(p.Context(), o); err != nil {
		p.Fatalf("create %T: %v", o, err)
	}
}

// get reads an object of the place, and reports whether it is there.
func (p place) get(name string, o client.Object) bool {
	p.Helper()
	err := admin.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		p.Fatal(err)
	}
	return err == nil
}

func (p place) config(name string) *v1alpha1.HullmarkConfig {
	c := &v1alpha1.HullmarkConfig{}
	p.get(name, c)
	return c
}

func (p place) machineNamed(name string) *clusterv1.Machine {
	m := &clusterv1.Machine{}
	p.get(name, m)
	return m
}

// change edits an object of the place until nobody else was faster.
func change[T client.Object](p place, o T, name string, edit func(T)) {
	p.Helper()
	for {
		if !p.get(name, o) {
			p.Fatalf("%T %s is not there", o, name)
		}
		edit(o)
		err := admin.Update(p.Context(), o)
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			p.Fatal(err)
		}
	}
}

// machine makes a Machine with its config and its infrastructure, all of one name, as a person would.
func (p place) machine(name string, cp bool, edits ...func(*clusterv1.Machine, *v1alpha1.HullmarkConfig, *unstructured.Unstructured)) {
	p.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: "c"}
	if cp {
		labels[clusterv1.MachineControlPlaneLabel] = ""
	}
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name, Labels: labels}, Spec: clusterv1.MachineSpec{
		ClusterName: "c", Version: "v1.36.3", Bootstrap: configRef(v1alpha1.ConfigKind, name), InfrastructureRef: coretest.Ref("StubMachine", name),
	}}
	c := &v1alpha1.HullmarkConfig{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}}, Spec: spec(nil)}
	infra := stubObject("StubMachine")
	infra.SetNamespace(p.namespace)
	infra.SetName(name)
	for _, f := range edits {
		f(m, c, infra)
	}
	p.create(c)
	p.create(infra)
	p.create(m)
}

// held keeps the machine from becoming a Node.
func held(_ *clusterv1.Machine, _ *v1alpha1.HullmarkConfig, infra *unstructured.Unstructured) {
	infra.SetLabels(map[string]string{holdLabel: "true"})
}

// eventually waits for something that other processes do.
func (p place) eventually(what string, done func() error) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 4*time.Minute)
	defer cancel()
	if err := testenv.Poll(ctx, 100*time.Millisecond, done); err != nil {
		p.Fatalf("%s: %v", what, err)
	}
}

// reason waits for a config's condition Ready to have a reason.
func (p place) reason(name, want string) *v1alpha1.HullmarkConfig {
	p.Helper()
	var c *v1alpha1.HullmarkConfig
	p.eventually(name+" "+want, func() error {
		c = p.config(name)
		for _, each := range c.Status.Conditions {
			if each.Type == v1alpha1.ReadyCondition && each.Reason == want {
				return nil
			}
		}
		return fmt.Errorf("%s: %+v", name, c.Status.Conditions)
	})
	return c
}
