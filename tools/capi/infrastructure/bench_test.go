//go:build long || vm

package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/internal/testenv"
	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

// sharedAPI is one real API, with core's types and ours, for all tests.
var sharedAPI = sync.OnceValues(func() (*testenv.Environment, error) {
	dir, err := os.MkdirTemp("", "testenv-")
	if err != nil {
		return nil, err
	}
	// The bundle may have to be compiled.
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Minute)
	defer cancel()
	api, err := testenv.Start(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	atEnd = func() error { return errors.Join(api.Stop(), os.RemoveAll(dir)) }
	core, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return nil, fmt.Errorf("folder of Cluster API's module: %w", err)
	}
	for _, glob := range []string{filepath.Join(strings.TrimSpace(string(core)), "core/config/crd/bases/cluster.x-k8s.io_*.yaml"), "crd/*.yaml"} {
		if err := applyAll(ctx, api, glob); err != nil {
			return nil, err
		}
	}
	return api, nil
})

// applyAll applies all files of a pattern.
func applyAll(ctx context.Context, api *testenv.Environment, glob string) error {
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%s: %d files, %w", glob, len(files), err)
	}
	for _, file := range files {
		manifest, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := api.Apply(ctx, manifest); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	kubectl, err := api.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	if err != nil {
		return err
	}
	if out, err := kubectl.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), clusterv1.AddToScheme(s), infrav1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// bench is a namespace of the API with one Cluster, and a host of its own.
type bench struct {
	*testing.T
	config    *rest.Config
	client    client.WithWatch
	namespace string
	root      string
	// processes are the host's, world in most tests.
	processes Processes
	world     *world
	cluster   *clusterv1.Cluster
	// rounds is how often until reconciles, with this pause between.
	rounds int
	pause  time.Duration
	// live is the controller that works on the bench.
	live *controller
}

// clusterName is the Cluster's and the HullmarkCluster's name.
const clusterName = "cluster"

// newBench makes a bench on a host whose processes are played.
func newBench(t *testing.T) *bench {
	t.Helper()
	w := newWorld(t)
	b := newBenchOn(t, w)
	b.world = w
	b.makeCluster(infrav1.Network{})
	return b
}

func newBenchOn(t *testing.T, p Processes) *bench {
	t.Helper()
	api, err := sharedAPI()
	if err != nil {
		t.Fatal(err)
	}
	config, err := api.Config("tests", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "infra-"}}
	if err := c.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, config: config, client: c, namespace: namespace.Name, root: t.TempDir(), processes: p, rounds: 30}
	b.start(b.client)
	return b
}

// meta is the metadata of an object of the Cluster.
func (b *bench) meta(name string, owner client.Object, kind string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: b.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: clusterName}}
	if owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: ptr.To(true)}}
	}
	return m
}

func (b *bench) create(o client.Object) {
	b.Helper()
	if err := b.client.Create(b.Context(), o); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) makeCluster(network infrav1.Network) {
	b.Helper()
	b.cluster = &clusterv1.Cluster{ObjectMeta: b.meta(clusterName, nil, ""), Spec: clusterv1.ClusterSpec{InfrastructureRef: infraRef(infrav1.ClusterKind, clusterName)}}
	b.create(b.cluster)
	b.create(&infrav1.HullmarkCluster{ObjectMeta: b.meta(clusterName, b.cluster, "Cluster"), Spec: infrav1.HullmarkClusterSpec{ControlPlaneEndpoint: infrav1.Endpoint{Host: "10.0.2.20", Port: 6443}, Network: network}})
}

func infraRef(kind, name string) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: kind, Name: name}
}

// static and given are node configurations with an address and without.
const (
	static = `{"version":1,"clusterRoot":"0000000000000000000000000000000000000000000000000000000000000007","addresses":["10.0.2.21/24","10.0.2.20/24","192.0.2.7/24"],"stateDisk":{"serial":"hullmark-state"}}`
	given  = `{"version":1,"clusterRoot":"0000000000000000000000000000000000000000000000000000000000000007","stateDisk":{"serial":"hullmark-state"}}`
)

// makeMachine makes a Machine with its user data and its HullmarkMachine.
func (b *bench) makeMachine(name, userData string) *infrav1.HullmarkMachine {
	b.Helper()
	return b.makeMachineOf(name, userData, infrav1.HullmarkMachineSpec{
		Image: "/images/node.raw", Machine: infrav1.Hardware{CPUs: 1, MemoryMiB: 2048, StateDisk: "8G", SMBIOS: []string{"a=b"}, Tools: "/tools"},
	})
}

func (b *bench) makeMachineOf(name, userData string, spec infrav1.HullmarkMachineSpec) *infrav1.HullmarkMachine {
	b.Helper()
	b.create(&corev1.Secret{ObjectMeta: b.meta(name, nil, ""), Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": []byte(userData), "format": []byte("test")}})
	machine := &clusterv1.Machine{ObjectMeta: b.meta(name, nil, ""), Spec: clusterv1.MachineSpec{
		ClusterName: clusterName, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(name)}, InfrastructureRef: infraRef(infrav1.MachineKind, name),
	}}
	b.create(machine)
	m := &infrav1.HullmarkMachine{ObjectMeta: b.meta(name, machine, "Machine"), Spec: spec}
	b.create(m)
	return m
}

// controller is one life of the provider.
type controller struct {
	*host
	cluster *clusterReconciler
	machine *machineReconciler
}

// start begins a new life of the provider, with this client. The one before has ended, wherever it was.
func (b *bench) start(c client.Client) {
	b.Helper()
	if b.live != nil && b.live.folders.lock != nil {
		b.live.folders.lock.Close()
	}
	h, err := newHost(c, c, Options{Folder: b.root, Processes: b.processes})
	if err != nil {
		b.Fatal(err)
	}
	b.live = &controller{h, &clusterReconciler{h}, &machineReconciler{h}}
}

// round reconciles everything once, and does what core does of a Cluster.
func (b *bench) round() error {
	ctx := b.Context()
	_, err := b.live.cluster.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: b.namespace, Name: clusterName}})
	machines := &infrav1.HullmarkMachineList{}
	err = errors.Join(err, b.client.List(ctx, machines, client.InNamespace(b.namespace)))
	for _, m := range machines.Items {
		_, failed := b.live.machine.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&m)})
		err = errors.Join(err, failed)
	}
	hc := &infrav1.HullmarkCluster{}
	if b.client.Get(ctx, client.ObjectKeyFromObject(b.cluster), hc) == nil && ptr.Deref(hc.Status.Initialization.Provisioned, false) && !ptr.Deref(b.cluster.Status.Initialization.InfrastructureProvisioned, false) {
		b.cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
		err = errors.Join(err, b.client.Status().Update(ctx, b.cluster))
	}
	return err
}

// until reconciles until it is so. It fails when a round fails, or after too many.
func (b *bench) until(what string, so func() bool) {
	b.Helper()
	for range b.rounds {
		if so() {
			return
		}
		time.Sleep(b.pause)
		if err := b.round(); err != nil {
			b.Fatalf("%s: %v", what, err)
		}
	}
	b.Fatalf("%s: not after %d rounds; %s", what, b.rounds, b.describe())
}

// describe says what the objects say.
func (b *bench) describe() string {
	var text strings.Builder
	machines := &infrav1.HullmarkMachineList{}
	_ = b.client.List(b.Context(), machines, client.InNamespace(b.namespace))
	for _, m := range machines.Items {
		fmt.Fprintf(&text, "%s: %+v\n", m.Name, m.Status)
	}
	return text.String()
}

// get reads an object's latest state.
func (b *bench) get(o client.Object) bool {
	b.Helper()
	err := b.client.Get(b.Context(), client.ObjectKeyFromObject(o), o)
	if client.IgnoreNotFound(err) != nil {
		b.Fatal(err)
	}
	return err == nil
}

// isReady reports whether a machine is Ready.
func (b *bench) isReady(m *infrav1.HullmarkMachine) func() bool {
	return func() bool { return b.get(m) && conditions.IsTrue(m, infrav1.ReadyCondition) }
}

// says reports whether Ready is False for this reason, with this in its message.
func (b *bench) says(o object, reason, message string) func() bool {
	return func() bool {
		return b.get(o) && conditions.IsFalse(o, infrav1.ReadyCondition) && conditions.GetReason(o, infrav1.ReadyCondition) == reason &&
			strings.Contains(conditions.GetMessage(o, infrav1.ReadyCondition), message)
	}
}

// stays reconciles some rounds more, after which it is still so.
func (b *bench) stays(what string, so func() bool) {
	b.Helper()
	for range 4 {
		if err := b.round(); err != nil {
			b.Fatalf("%s: %v", what, err)
		}
		if !so() {
			b.Fatalf("%s: no more; %s", what, b.describe())
		}
	}
}

func (b *bench) remove(o client.Object) {
	b.Helper()
	if err := b.client.Delete(b.Context(), o); client.IgnoreNotFound(err) != nil {
		b.Fatal(err)
	}
}

// gone reports whether an object is gone.
func (b *bench) gone(o client.Object) func() bool { return func() bool { return !b.get(o) } }

func (b *bench) hullmarkCluster() *infrav1.HullmarkCluster {
	return &infrav1.HullmarkCluster{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: clusterName}}
}

// folder is the Cluster's folder.
func (b *bench) folder() clusterFolder { return b.live.folders.cluster(b.namespace, clusterName) }
