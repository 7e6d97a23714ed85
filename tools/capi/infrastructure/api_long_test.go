//go:build long

package infrastructure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

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
	b.until("the network runs", func() bool {
		hc := b.hullmarkCluster()
		return b.get(hc) && conditions.IsTrue(hc, infrav1.ReadyCondition)
	})
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
	second := &bench{T: t, client: b.client, namespace: b.namespace, root: b.root, processes: b.world, cluster: b.cluster}
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
