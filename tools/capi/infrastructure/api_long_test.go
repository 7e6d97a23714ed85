//go:build long

package infrastructure

import (
	"context"
	"encoding/json"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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
	for _, glob := range []string{filepath.Join(strings.TrimSpace(string(core)), "core/config/crd/bases/cluster.x-k8s.io_*.yaml"), "../config/crd/infrastructure.*.yaml"} {
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
	client    client.WithWatch
	namespace string
	root      string
	world     *world
	cluster   *clusterv1.Cluster
	// live is the controller that works on the bench.
	live *controller
}

// clusterName is the Cluster's and the HullmarkCluster's name.
const clusterName = "cluster"

func newBench(t *testing.T) *bench {
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
	b := &bench{T: t, client: c, namespace: namespace.Name, root: t.TempDir(), world: newWorld(t)}
	b.makeCluster()
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

func (b *bench) makeCluster() {
	b.Helper()
	b.cluster = &clusterv1.Cluster{ObjectMeta: b.meta(clusterName, nil, ""), Spec: clusterv1.ClusterSpec{InfrastructureRef: infraRef(infrav1.ClusterKind, clusterName)}}
	b.create(b.cluster)
	b.create(&infrav1.HullmarkCluster{ObjectMeta: b.meta(clusterName, b.cluster, "Cluster"), Spec: infrav1.HullmarkClusterSpec{ControlPlaneEndpoint: infrav1.Endpoint{Host: "10.0.2.20", Port: 6443}}})
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
	b.create(&corev1.Secret{ObjectMeta: b.meta(name, nil, ""), Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": []byte(userData), "format": []byte("test")}})
	machine := &clusterv1.Machine{ObjectMeta: b.meta(name, nil, ""), Spec: clusterv1.MachineSpec{
		ClusterName: clusterName, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(name)}, InfrastructureRef: infraRef(infrav1.MachineKind, name),
	}}
	b.create(machine)
	m := &infrav1.HullmarkMachine{ObjectMeta: b.meta(name, machine, "Machine"), Spec: infrav1.HullmarkMachineSpec{
		Image: "/images/node.raw", Machine: infrav1.Hardware{CPUs: 1, MemoryMiB: 2048, StateDisk: "8G", SMBIOS: []string{"a=b"}, Tools: "/tools"},
	}}
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
	h, err := newHost(c, c, Options{Folder: b.root, Processes: b.world})
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
	for range 30 {
		if so() {
			return
		}
		if err := b.round(); err != nil {
			b.Fatalf("%s: %v", what, err)
		}
	}
	b.Fatalf("%s: not after 30 rounds; %s", what, b.describe())
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

func TestLife(t *testing.T) {
	b := newBench(t)
	m := b.makeMachine("one", static)
	b.until("it runs", b.isReady(m))
	s := b.folder().slot(0)
	hc := b.hullmarkCluster()
	b.get(hc)
	if hc.Status.APIServer == "" || !conditions.IsTrue(hc, infrav1.ReadyCondition) {
		t.Errorf("the cluster: %+v", hc.Status)
	}
	forwards, err := b.folder().forwards()
	if err != nil {
		t.Fatal(err)
	}
	agent := onHost(hostPort(forwards, firstStatic.Next(), agentPort)) // not ours: 10.0.2.5
	status := m.Status
	if m.Spec.ProviderID != "hullmark-qemu://"+b.namespace+"/one" || !ptr.Deref(status.Initialization.Provisioned, false) || status.EKID != ekID(s.machine()) ||
		!strings.HasPrefix(status.EKCertificateAuthority, "-----BEGIN CERTIFICATE-----") || status.AgentAddress == "" || status.AgentAddress == agent || status.Console != s.console() {
		t.Errorf("%s: %+v", m.Spec.ProviderID, status)
	}
	want := []clusterv1.MachineAddress{{Type: "InternalIP", Address: "10.0.2.21"}, {Type: "InternalIP", Address: "10.0.2.20"}}
	if fmt.Sprint(status.Addresses) != fmt.Sprint(want) {
		t.Errorf("addresses %v, want %v", status.Addresses, want)
	}
	b.checkFiles(s)
	b.stays("it runs", b.isReady(m))
	b.remove(m)
	b.until("it is gone", b.gone(m))
	if _, err := os.Stat(string(s)); err == nil {
		t.Error("the folder is left")
	}
	b.remove(hc)
	b.until("the cluster is gone", b.gone(hc))
	if got := b.world.count(); got != "2 starts, 0 run" {
		t.Error(got)
	}
	if _, err := os.Stat(string(b.folder())); err == nil {
		t.Error("the cluster's folder is left")
	}
}

// checkFiles holds what a machine was started with against what was declared.
func (b *bench) checkFiles(s slot) {
	b.Helper()
	config, err := os.ReadFile(s.nodeConfig())
	if err != nil || string(config) != static {
		b.Errorf("node config %s, %v", config, err)
	}
	content, err := os.ReadFile(s.machineFile())
	if err != nil {
		b.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(content, &file); err != nil {
		b.Fatal(err)
	}
	want := map[string]any{"schema": "hullmark.machine/v1", "cpus": 1., "memoryMiB": 2048., "stateDisk": "8G", "smbios": []any{"a=b"}, "tools": "/tools", "nodeConfig": "node.json"}
	if fmt.Sprint(file) != fmt.Sprint(want) {
		b.Errorf("machine file %v, want %v", file, want)
	}
	args := strings.Join(b.world.args[s.machine()], " ")
	if want := fmt.Sprintf("vm /images/node.raw --dir %s --machine %s --network %s --grace 1m0s", s.machine(), s.machineFile(), b.folder().network()); args != want {
		b.Errorf("started as %s, want %s", args, want)
	}
}

func TestGivenAddressIsReported(t *testing.T) {
	b := newBench(t)
	m := b.makeMachine("one", given)
	b.until("it runs", b.isReady(m))
	if m.Status.AgentAddress != "" || len(m.Status.Addresses) > 0 {
		t.Errorf("nothing answers, and it has %v, %s", m.Status.Addresses, m.Status.AgentAddress)
	}
	// The machine comes up.
	if err := os.Remove(filepath.Join(b.folder().network(), runName)); err != nil {
		t.Fatal(err)
	}
	segment(t, b.folder().network(), map[string]mac{"10.0.2.103": cardOf(b.folder().slot(0).machine())})
	b.until("its address is known", func() bool { return b.get(m) && m.Status.AgentAddress != "" })
	forwards, err := b.folder().forwards()
	if err != nil {
		t.Fatal(err)
	}
	want := onHost(hostPort(forwards, firstGiven.Next().Next().Next(), agentPort))
	if m.Status.AgentAddress != want || m.Status.Addresses[0].Address != "10.0.2.103" {
		t.Errorf("%v, %s; want %s", m.Status.Addresses, m.Status.AgentAddress, want)
	}
}

// mortal is a client of a controller that dies at its n-th write, before it or after it.
type mortal struct {
	n     int
	after bool
	dead  bool
}

var errDead = errors.New("the controller is dead")

func (k *mortal) write(do func() error) error {
	if k.dead {
		return errDead
	}
	k.n--
	if k.n > 0 {
		return do()
	}
	k.dead = true
	if k.after {
		_ = do()
	}
	return errDead
}

func (k *mortal) read(do func() error) error {
	if k.dead {
		return errDead
	}
	return do()
}

func (k *mortal) wrap(c client.WithWatch) client.Client {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return k.read(func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			return k.read(func() error { return c.List(ctx, l, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return k.write(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return k.write(func() error { return c.Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return k.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

// A controller that is killed at any of its writes leaves nothing that needs a hand, and starts nothing twice.
func TestKilledAtEachWrite(t *testing.T) {
	n := 0
	for alive := true; alive; n++ {
		for _, after := range []bool{false, true} {
			k := &mortal{n: n + 1, after: after}
			liveUntilKilled(t, k)
			alive = k.dead
		}
	}
	if n < 8 {
		t.Errorf("the provider wrote %d times in all: the test sees not all of it", n-1)
	}
	t.Logf("%d writes", n-1)
}

func liveUntilKilled(t *testing.T, k *mortal) {
	t.Helper()
	b := newBench(t)
	m, hc := b.makeMachine("one", static), b.hullmarkCluster()
	b.start(k.wrap(b.client))
	until := func(what string, so func() bool) {
		t.Helper()
		for range 40 {
			if so() {
				return
			}
			if err := b.round(); err != nil && !k.dead {
				t.Fatalf("%s: %v", what, err)
			}
			if k.dead {
				b.start(b.client)
			}
		}
		t.Fatalf("%s: not after being killed at write %+v; %s", what, k, b.describe())
	}
	until("it runs", b.isReady(m))
	identity := m.Status.EKID
	until("it runs", b.isReady(m))
	if m.Status.EKID != identity || m.Spec.ProviderID == "" {
		t.Errorf("%+v: %s, %+v", k, m.Spec.ProviderID, m.Status)
	}
	b.remove(m)
	until("it is gone", b.gone(m))
	b.remove(hc)
	until("the cluster is gone", b.gone(hc))
	if got := b.world.count(); got != "2 starts, 0 run" {
		t.Errorf("%+v: %s", k, got)
	}
	if left, _ := os.ReadDir(filepath.Join(b.root, b.namespace)); len(left) > 0 {
		t.Errorf("%+v: left: %v", k, left)
	}
}

func TestMachineEndsByItself(t *testing.T) {
	for name, test := range map[string]struct {
		end             func(b *bench, s slot)
		reason, message string
	}{
		"switches itself off": {func(b *bench, s slot) { b.world.over(s.machine()) }, infrav1.PoweredOffReason, "console.log"},
		"fails": {func(b *bench, s slot) {
			b.world.over(s.machine())
			b.world.said(s, "hullmark: vm: the machine's TPM ended\n")
		}, infrav1.FailedReason, "TPM ended"},
		"is killed": {func(b *bench, s slot) { b.world.killed(s.machine()) }, infrav1.FailedReason, "killed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := b.makeMachine("one", static)
			b.until("it runs", b.isReady(m))
			test.end(b, b.folder().slot(0))
			b.until("its end is reported", b.says(m, test.reason, test.message))
			b.start(b.client)
			b.stays("it is not started again", b.says(m, test.reason, "console.log"))
			if got := b.world.count(); got != "2 starts, 1 run" || !ptr.Deref(m.Status.Initialization.Provisioned, false) {
				t.Errorf("%s; provisioned: %v", got, m.Status.Initialization)
			}
			b.remove(m)
			b.until("it is gone", b.gone(m))
		})
	}
}

func TestStartFailsAndIsTriedAgain(t *testing.T) {
	b := newBench(t)
	m := b.makeMachine("one", static)
	b.world.refuse = func(folder string) error {
		if strings.HasSuffix(folder, "vm") {
			return errors.New("no QEMU: install it")
		}
		return nil
	}
	b.until("the reason is reported", b.says(m, infrav1.StartFailedReason, "no QEMU"))
	b.world.refuse = nil
	b.world.dies = true // after it has its lock
	b.until("the next reason is reported", b.says(m, infrav1.StartFailedReason, "no room for the disk"))
	if ptr.Deref(m.Status.Initialization.Provisioned, false) || m.Spec.ProviderID != "" {
		t.Error("a machine that never ran is provisioned")
	}
	b.world.dies = false
	b.until("it runs", b.isReady(m))
}

func TestNetworkFails(t *testing.T) {
	b := newBench(t)
	b.world.refuse = func(string) error { return errors.New("port 6443 is taken") }
	hc := b.hullmarkCluster()
	b.until("the reason is reported", b.says(hc, infrav1.StartFailedReason, "port 6443 is taken"))
	m := b.makeMachine("one", static)
	b.until("the machine waits", b.says(m, infrav1.WaitingForInfrastructureReason, ""))
	b.world.refuse = nil
	b.until("it runs", b.isReady(m))
	// The network ends under the machine, and is there again for the next one.
	before := hc.Status.APIServer
	b.world.over(b.folder().network())
	b.until("the machine says so", b.says(m, infrav1.NetworkLostReason, "delete its Machine"))
	b.stays("the machine says so", b.says(m, infrav1.NetworkLostReason, ""))
	b.until("the network runs again", func() bool { return b.get(hc) && conditions.IsTrue(hc, infrav1.ReadyCondition) })
	if before != "" && hc.Status.APIServer != before {
		t.Errorf("the API server was at %s and is at %s", before, hc.Status.APIServer)
	}
	next := b.makeMachine("two", given)
	b.until("the next machine runs", b.isReady(next))
}

func TestBadUserData(t *testing.T) {
	for name, data := range map[string]string{
		"cloud-config": "#cloud-config\nwrite_files: []\n", "Ignition": `{"ignition":{"version":"3.1.0"}}`, "nothing": "",
		"an unknown field": strings.Replace(static, `"version"`, `"token":"x","version"`, 1), "a cut": static[:40],
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := b.makeMachine("one", data)
			b.until("it is refused", b.says(m, infrav1.UserDataRefusedReason, `format "test"`))
			b.stays("it is refused", b.says(m, infrav1.UserDataRefusedReason, "node config"))
			if got := b.world.count(); got != "1 starts, 1 run" || controllerMade(b.folder()) {
				t.Errorf("%s: something of the machine was made", got)
			}
			// A finalizer without a machine does not hold the object.
			b.remove(m)
			b.until("it is gone", b.gone(m))
		})
	}
}

// controllerMade reports whether there is any slot.
func controllerMade(c clusterFolder) bool {
	found, _ := filepath.Glob(filepath.Join(string(c), "slot-*"))
	return len(found) > 0
}

func TestWaitsForBootstrapData(t *testing.T) {
	b := newBench(t)
	m := b.makeMachine("one", static)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "one"}}
	b.remove(secret)
	b.until("it waits", b.says(m, infrav1.WaitingForBootstrapDataReason, "is not there"))
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "one"}}
	b.get(machine)
	machine.Spec.Bootstrap = clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "HullmarkConfig", Name: "one"}}
	if err := b.client.Update(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	b.until("it waits", b.says(m, infrav1.WaitingForBootstrapDataReason, "names no data Secret"))
}

func TestFolderTaken(t *testing.T) {
	b := newBench(t)
	b.until("the network runs", func() bool { hc := b.hullmarkCluster(); return b.get(hc) && conditions.IsTrue(hc, infrav1.ReadyCondition) })
	s, err := b.folder().claim(owner{b.namespace + "/one", "another uid"})
	if err != nil {
		t.Fatal(err)
	}
	m := b.makeMachine("one", static)
	b.until("it is said", b.says(m, infrav1.FolderTakenReason, "another uid"))
	b.remove(m)
	b.until("it is gone", b.gone(m))
	if has, err := s.owner(); err != nil || has.uid != "another uid" {
		t.Errorf("the folder is %v's, %v", has, err)
	}
}

// clusterctl move makes the object anew, with another uid and its spec.
func TestMovedObjectKeepsItsMachine(t *testing.T) {
	b := newBench(t)
	m := b.makeMachine("one", static)
	b.until("it runs", b.isReady(m))
	identity := m.Status.EKID
	moved := &infrav1.HullmarkMachine{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, OwnerReferences: m.OwnerReferences}, Spec: m.Spec}
	m.Finalizers = nil
	if err := b.client.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	b.remove(m)
	b.create(moved)
	b.until("it runs", b.isReady(moved))
	if got := b.world.count(); got != "2 starts, 2 run" || moved.Status.EKID != identity {
		t.Errorf("%s; %s", got, moved.Status.EKID)
	}
	b.remove(moved)
	b.until("it is gone", b.gone(moved))
	if got := b.world.count(); got != "2 starts, 1 run" {
		t.Error(got)
	}
}

func TestSecondControllerDoesNothing(t *testing.T) {
	b := newBench(t)
	m := b.makeMachine("one", static)
	b.until("it runs", b.isReady(m))
	second := &bench{T: t, client: b.client, namespace: b.namespace, root: b.root, world: b.world, cluster: b.cluster}
	second.start(b.client)
	b.get(m)
	before := m.ResourceVersion
	if err := second.round(); err == nil || !strings.Contains(err.Error(), "another controller works there") {
		t.Errorf("got %v", err)
	}
	if b.get(m); m.ResourceVersion != before {
		t.Error("the second controller wrote")
	}
}

func TestPausedDoesNothing(t *testing.T) {
	b := newBench(t)
	m := b.makeMachine("one", static)
	b.cluster.Spec.Paused = ptr.To(true)
	if err := b.client.Update(t.Context(), b.cluster); err != nil {
		t.Fatal(err)
	}
	isPaused := func() bool { return b.get(m) && conditions.IsTrue(m, clusterv1.PausedCondition) }
	b.until("it is paused", isPaused)
	b.stays("it is paused", isPaused)
	if got := b.world.count(); got != "0 starts, 0 run" || len(m.Finalizers) > 0 {
		t.Errorf("%s, finalizers %v", got, m.Finalizers)
	}
	b.cluster.Spec.Paused = ptr.To(false)
	if err := b.client.Update(t.Context(), b.cluster); err != nil {
		t.Fatal(err)
	}
	b.until("it runs", b.isReady(m))
}

func TestWithoutOwner(t *testing.T) {
	b := newBench(t)
	m := &infrav1.HullmarkMachine{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "alone"}, Spec: infrav1.HullmarkMachineSpec{Image: "/i.raw"}}
	b.create(m)
	b.until("it waits", b.says(m, infrav1.WaitingForClusterReason, ""))
	b.remove(m)
	b.until("it is gone", b.gone(m))
}

func TestClusterEndsLast(t *testing.T) {
	b := newBench(t)
	m, orphan := b.makeMachine("one", static), b.makeMachine("two", given)
	b.until("one runs", b.isReady(m))
	b.until("two runs", b.isReady(orphan))
	// Somebody takes an object away by force: its machine ends with the cluster.
	b.get(orphan)
	orphan.Finalizers = nil
	if err := b.client.Update(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	b.remove(orphan)
	hc := b.hullmarkCluster()
	b.remove(hc)
	b.until("it waits", b.says(hc, infrav1.DeletingReason, "1 of them"))
	b.stays("it waits", b.says(hc, infrav1.DeletingReason, "1 of them"))
	// The Cluster may be gone before.
	b.remove(b.cluster)
	b.world.stubborn = true
	b.remove(m)
	b.until("the machine is asked", b.says(m, infrav1.DeletingReason, "power button"))
	b.stays("the guest has its grace", b.says(m, infrav1.DeletingReason, "power button"))
	b.world.stubborn = false
	b.until("the machine is gone", b.gone(m))
	b.until("the cluster is gone", b.gone(hc))
	if got := b.world.count(); got != "3 starts, 0 run" {
		t.Error(got)
	}
	if _, err := os.Stat(string(b.folder())); err == nil {
		t.Error("the cluster's folder is left")
	}
}

// The API server itself refuses what cannot be.
func TestRefusedByTheAPI(t *testing.T) {
	b := newBench(t)
	good := func() *infrav1.HullmarkMachine {
		return &infrav1.HullmarkMachine{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, GenerateName: "m-"}, Spec: infrav1.HullmarkMachineSpec{Image: "/i.raw"}}
	}
	for name, change := range map[string]func(*infrav1.HullmarkMachineSpec){
		"an image without folder":    func(s *infrav1.HullmarkMachineSpec) { s.Image = "i.raw" },
		"no image":                   func(s *infrav1.HullmarkMachineSpec) { s.Image = "" },
		"a machine without TPM":      func(s *infrav1.HullmarkMachineSpec) { s.Machine.TPM = "none" },
		"Secure Boot without keys":   func(s *infrav1.HullmarkMachineSpec) { s.Machine.SecureBoot = ptr.To(true) },
		"a disk of gibibytes":        func(s *infrav1.HullmarkMachineSpec) { s.Machine.StateDisk = "10Gi" },
		"no memory":                  func(s *infrav1.HullmarkMachineSpec) { s.Machine.MemoryMiB = 1 },
		"another's kind of provider": func(s *infrav1.HullmarkMachineSpec) { s.ProviderID = "aws:///eu/i-1" },
	} {
		m := good()
		change(&m.Spec)
		if err := b.client.Create(t.Context(), m); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*infrav1.HullmarkMachineSpec){
		"the image":         func(s *infrav1.HullmarkMachineSpec) { s.Image = "/other.raw" },
		"hardware":          func(s *infrav1.HullmarkMachineSpec) { s.Machine.CPUs = 2 },
		"hardware, removed": func(s *infrav1.HullmarkMachineSpec) { s.Machine = infrav1.Hardware{} },
		"the provider ID":   func(s *infrav1.HullmarkMachineSpec) { s.ProviderID = "hullmark-qemu://a/c" },
		"no provider ID":    func(s *infrav1.HullmarkMachineSpec) { s.ProviderID = "" },
	} {
		m := good()
		m.Spec.ProviderID, m.Spec.Machine.MemoryMiB = "hullmark-qemu://a/b", 2048
		b.create(m)
		change(&m.Spec)
		if err := b.client.Update(t.Context(), m); !apierrors.IsInvalid(err) {
			t.Errorf("changed %s: %v", name, err)
		}
	}
	for host, want := range map[string]bool{"10.0.2.4": true, "10.0.2.99": true, "10.0.2.3": false, "10.0.2.100": false, "10.0.3.20": false, "": false} {
		hc := &infrav1.HullmarkCluster{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, GenerateName: "c-"}, Spec: infrav1.HullmarkClusterSpec{ControlPlaneEndpoint: infrav1.Endpoint{Host: host, Port: 6443}}}
		if err := b.client.Create(t.Context(), hc); (err == nil) != want {
			t.Errorf("endpoint %q: %v", host, err)
		}
	}
}
