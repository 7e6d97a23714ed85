package bootstrap

import (
	"context"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/kubeadmspec"
)

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// world is a management cluster in memory: one Cluster "c", whose objects are named after it, and a config "m" of the Machine "m".
type world struct {
	cluster *clusterv1.Cluster
	machine *clusterv1.Machine
	pool    *clusterv1.MachinePool
	config  *v1alpha1.HullmarkConfig
	also    []client.Object
	filter  string
	// unseen are not in the API.
	unseen []client.Object
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Generation: 1, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"},
	}
}

func controlPlane(m *clusterv1.Machine) { m.Labels[clusterv1.MachineControlPlaneLabel] = "" }

func newMachine(name string) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: meta(name), Spec: clusterv1.MachineSpec{ClusterName: "c"}}
}

func machineOwner(name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true)}}
}

// newWorld returns one in which the Secret is written at once.
func newWorld() *world {
	w := &world{
		cluster: &clusterv1.Cluster{ObjectMeta: meta("c"), Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api.example", Port: 6443}}},
		machine: newMachine("m"),
		config:  &v1alpha1.HullmarkConfig{ObjectMeta: meta("m"), Spec: spec(nil)},
	}
	w.cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(true)}
	w.config.OwnerReferences = machineOwner("m")
	return w
}

// before has the control plane not be initialized yet, and the Machine be one.
func before(w *world) {
	w.cluster.Status.Initialization.ControlPlaneInitialized = nil
	controlPlane(w.machine)
}

// asPool makes the owner a MachinePool.
func asPool(w *world) {
	w.pool = &clusterv1.MachinePool{ObjectMeta: meta("m"), Spec: clusterv1.MachinePoolSpec{ClusterName: "c"}}
	w.unseen = append(w.unseen, w.machine)
	w.config.OwnerReferences[0].Kind = "MachinePool"
}

// dataSecret is the Secret that the world's config would have by now.
func (w *world) dataSecret() *corev1.Secret {
	text, _, err := nodeConfig(w.config.Spec, w.cluster.Spec.ControlPlaneEndpoint)
	if err != nil {
		panic(err)
	}
	return newSecret(w.config, "c", text)
}

func lockOf(machine string) *corev1.ConfigMap {
	return newLock(&clusterv1.Cluster{ObjectMeta: meta("c")}, machine)
}

// run reconciles the config thrice, as it would be after its own changes, and returns what is there then.
func (w *world) run(t *testing.T) (client.Client, *v1alpha1.HullmarkConfig, ctrl.Result, *events.FakeRecorder) {
	t.Helper()
	b := fake.NewClientBuilder().WithScheme(newScheme(t)).WithStatusSubresource(&v1alpha1.HullmarkConfig{})
	objects := append([]client.Object{w.cluster, w.machine, w.config}, w.also...)
	if w.pool != nil {
		objects = append(objects, w.pool)
	}
	for _, o := range objects {
		seen := true
		for _, u := range w.unseen {
			seen = seen && u != o
		}
		if seen {
			b = b.WithObjects(o)
		}
	}
	c := b.Build()
	recorder := events.NewFakeRecorder(10)
	r := &Reconciler{Client: c, Live: c, Events: recorder, WatchFilter: w.filter}
	var result ctrl.Result
	for range 3 {
		var err error
		if result, err = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(w.config)}); err != nil {
			t.Fatal(err)
		}
	}
	got := &v1alpha1.HullmarkConfig{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(w.config), got); err != nil {
		t.Fatal(err)
	}
	return c, got, result, recorder
}

func getSecret(t *testing.T, c client.Client) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "m"}, s); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	return s
}

func lockHolder(t *testing.T, c client.Client) string {
	t.Helper()
	m := &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "c-lock"}, m); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return m.Data[lockKey]
}

// TestVerdicts is the table of what a config waits for, is refused for, or gets.
func TestVerdicts(t *testing.T) {
	const mine = `{"machineName":"m"}`
	now := metav1.Now()
	for name, test := range map[string]struct {
		change func(*world)
		reason string
		// message is part of it, secret that there is one, lock whose it is afterwards.
		message string
		secret  bool
		lock    string
	}{
		"a worker":       {func(*world) {}, v1alpha1.AvailableReason, "", true, ""},
		"a MachinePool":  {asPool, v1alpha1.AvailableReason, "", true, ""},
		"no owner":       {func(w *world) { w.config.OwnerReferences = nil }, v1alpha1.WaitingForOwnerReason, "bootstrap.configRef", false, ""},
		"owner gone":     {func(w *world) { w.unseen = []client.Object{w.machine} }, v1alpha1.WaitingForOwnerReason, "", false, ""},
		"owner replaced": {func(w *world) { w.machine.UID = "another" }, v1alpha1.WaitingForOwnerReason, "", false, ""},
		"a MachineSet's": {func(w *world) { w.config.OwnerReferences[0].Kind = "MachineSet" }, v1alpha1.WaitingForOwnerReason, "", false, ""},
		"another group's Machine": {
			func(w *world) { w.config.OwnerReferences[0].APIVersion = "example.com/v1" }, v1alpha1.WaitingForOwnerReason, "", false, "",
		},
		"no Cluster": {func(w *world) { w.unseen = []client.Object{w.cluster} }, v1alpha1.WaitingForClusterReason, "Cluster c", false, ""},
		"no infrastructure": {
			func(w *world) { w.cluster.Status.Initialization.InfrastructureProvisioned = nil }, v1alpha1.WaitingForInfrastructureReason, "Cluster c", false, "",
		},
		"no endpoint": {
			func(w *world) { w.cluster.Spec.ControlPlaneEndpoint.Host = "" }, v1alpha1.WaitingForEndpointReason, "spec.joinEndpoints", false, "",
		},
		"not initialized, worker": {
			func(w *world) { w.cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(false) }, v1alpha1.WaitingForControlPlaneReason, "Cluster c", false, "",
		},
		"the first control plane": {before, v1alpha1.AvailableReason, "", true, mine},
		"the first, without an endpoint": {
			func(w *world) { before(w); w.cluster.Spec.ControlPlaneEndpoint.Host = "" }, v1alpha1.AvailableReason, "", true, mine,
		},
		"the second control plane": {func(w *world) {
			before(w)
			w.also = []client.Object{lockOf("first"), newMachine("first")}
		}, v1alpha1.WaitingForInitLockReason, "Machine first", false, `{"machineName":"first"}`},
		"the first is gone": {func(w *world) {
			before(w)
			w.also = []client.Object{lockOf("first")}
		}, v1alpha1.AvailableReason, "", true, mine},
		"the first is being deleted": {func(w *world) {
			before(w)
			first := newMachine("first")
			first.DeletionTimestamp, first.Finalizers = &now, []string{"example.com/infrastructure"}
			w.also = []client.Object{lockOf("first"), first}
		}, v1alpha1.WaitingForInitLockReason, "Machine first", false, `{"machineName":"first"}`},
		"a lock that names nobody": {func(w *world) {
			before(w)
			lock := lockOf("first")
			lock.Data = map[string]string{lockKey: "{}"}
			w.also = []client.Object{lock}
		}, v1alpha1.InitLockInvalidReason, "ConfigMap c-lock", false, "{}"},
		"initialized: the lock is freed": {func(w *world) {
			controlPlane(w.machine)
			w.also = []client.Object{lockOf("first"), newMachine("first")}
		}, v1alpha1.AvailableReason, "", true, ""},
		"initialized, as core says of Machines without a control plane provider": {func(w *world) {
			w.cluster.Status.Initialization.ControlPlaneInitialized = nil
			conditions.Set(w.cluster, metav1.Condition{Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: "Yes"})
		}, v1alpha1.AvailableReason, "", true, ""},
		"deleted before it got a Secret": {func(w *world) {
			before(w)
			w.machine.DeletionTimestamp, w.machine.Finalizers = &now, []string{"example.com/infrastructure"}
			w.also = []client.Object{lockOf("m")}
		}, v1alpha1.DeletingReason, "", false, ""},
		"deleted after it got a Secret": {func(w *world) {
			before(w)
			w.machine.DeletionTimestamp, w.machine.Finalizers = &now, []string{"example.com/infrastructure"}
			w.also = []client.Object{lockOf("m"), w.dataSecret()}
		}, v1alpha1.AvailableReason, "", true, mine},
		"the Cluster is being deleted": {func(w *world) {
			w.cluster.DeletionTimestamp, w.cluster.Finalizers = &now, []string{clusterv1.ClusterFinalizer}
		}, v1alpha1.DeletingReason, "", false, ""},
		"a lock that was lost, with a Secret": {func(w *world) {
			before(w)
			w.also = []client.Object{w.dataSecret()}
		}, v1alpha1.AvailableReason, "", true, mine},
		"a pool with a network": {func(w *world) {
			asPool(w)
			w.config.Spec.Network.Addresses = []string{"192.0.2.1/24"}
		}, v1alpha1.FieldRefusedReason, "spec: network: ", false, ""},
		"a root that is none": {func(w *world) { w.config.Spec.ClusterRoot = "5f" }, v1alpha1.FieldRefusedReason, "clusterRoot", false, ""},
		"an endpoint that looks like an address": {
			func(w *world) { w.config.Spec.JoinEndpoints = []string{"192.0.2.01:7444"} }, v1alpha1.FieldRefusedReason, `"192.0.2.01:7444"`, false, "",
		},
		"refused, so the lock stays free": {
			func(w *world) { before(w); w.config.Spec.StateDisk.Path = "/dev/vdb" }, v1alpha1.FieldRefusedReason, "exactly one of serial and path", false, "",
		},
		"kubeadm refused": {func(w *world) {
			w.config.Spec.Kubeadm = &kubeadmv1.KubeadmConfigSpec{Format: "ignition", Users: []kubeadmv1.User{{Name: "root"}}}
		}, v1alpha1.FieldRefusedReason, "kubeadm.format: User data is a node configuration", false, ""},
		"kubeadm refused for a worker": {func(w *world) {
			w.config.Spec.Kubeadm = &kubeadmv1.KubeadmConfigSpec{ClusterConfiguration: kubeadmv1.ClusterConfiguration{EncryptionAlgorithm: "ECDSA-P256"}}
		}, v1alpha1.FieldRefusedReason, "kubeadm.clusterConfiguration: It is of the control plane", false, ""},
		"kubeadm honoured": {func(w *world) {
			w.config.Spec.Kubeadm = &kubeadmv1.KubeadmConfigSpec{NTP: kubeadmv1.NTP{Servers: []string{"time.example"}}}
		}, v1alpha1.AvailableReason, "ConfigMap m-pool", true, ""},
		"the draft's name is taken": {func(w *world) {
			w.config.Spec.Kubeadm = &kubeadmv1.KubeadmConfigSpec{NTP: kubeadmv1.NTP{Servers: []string{"time.example"}}}
			w.also = []client.Object{&corev1.ConfigMap{ObjectMeta: meta("m-pool"), Data: map[string]string{"theirs": ""}}}
		}, v1alpha1.DraftNameTakenReason, "ConfigMap m-pool", false, ""},
		"the draft's name is taken later": {func(w *world) {
			w.also = []client.Object{w.dataSecret(), &corev1.ConfigMap{ObjectMeta: meta("m-pool"), Data: map[string]string{"theirs": ""}}}
			w.config.Spec.Kubeadm = &kubeadmv1.KubeadmConfigSpec{}
		}, v1alpha1.DraftNameTakenReason, "ConfigMap m-pool", true, ""},
		"the name is taken": {func(w *world) {
			w.also = []client.Object{&corev1.Secret{ObjectMeta: meta("m"), Data: map[string][]byte{"theirs": nil}}}
		}, v1alpha1.SecretNameTakenReason, "Secret m", true, ""},
		"the name is another controller's": {func(w *world) {
			s := w.dataSecret()
			s.OwnerReferences[0].Kind = "KubeadmConfig"
			w.also = []client.Object{s}
		}, v1alpha1.SecretNameTakenReason, "Secret m", true, ""},
		"another type": {func(w *world) {
			s := w.dataSecret()
			s.Type = corev1.SecretTypeOpaque
			w.also = []client.Object{s}
		}, v1alpha1.SecretNameTakenReason, "Secret m", true, ""},
		"a Secret that was changed": {func(w *world) {
			s := w.dataSecret()
			s.Data[valueKey] = []byte("#cloud-config")
			w.also = []client.Object{s}
		}, v1alpha1.SecretInvalidReason, "Secret m", true, ""},
		"a Machine's Secret of an earlier spec": {func(w *world) {
			w.also = []client.Object{w.dataSecret()}
			w.config.Spec.StateDisk.Serial = "other"
		}, v1alpha1.AvailableReason, "replace the Machine", true, ""},
		"a pool's Secret of an earlier spec": {func(w *world) {
			asPool(w)
			w.also = []client.Object{w.dataSecret()}
			w.config.Spec.StateDisk.Serial = "other"
		}, v1alpha1.AvailableReason, "", true, ""},
		"a pool's spec that is refused later": {func(w *world) {
			asPool(w)
			w.also = []client.Object{w.dataSecret()}
			w.config.Spec.StateDisk.Path = "/dev/vdb"
		}, v1alpha1.FieldRefusedReason, "keeps the last spec", true, ""},
		"a first control plane whose Cluster got an endpoint": {func(w *world) {
			w.cluster.Spec.ControlPlaneEndpoint.Host = ""
			s := w.dataSecret()
			w.cluster.Spec.ControlPlaneEndpoint.Host = "api.example"
			w.also = []client.Object{s}
		}, v1alpha1.AvailableReason, "", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			c, got, result, _ := w.run(t)
			// What is not watched has to be looked at again.
			polled := test.reason == v1alpha1.WaitingForInitLockReason || test.reason == v1alpha1.InitLockInvalidReason ||
				test.reason == v1alpha1.SecretNameTakenReason || test.reason == v1alpha1.SecretInvalidReason || test.reason == v1alpha1.DraftNameTakenReason
			if (result.RequeueAfter > 0) != polled {
				t.Errorf("looks again after %v", result.RequeueAfter)
			}
			for _, kind := range []string{v1alpha1.ReadyCondition, v1alpha1.DataSecretAvailableCondition} {
				if r := conditions.GetReason(got, kind); r != test.reason {
					t.Errorf("%s: %s, want %s (%s)", kind, r, test.reason, conditions.GetMessage(got, kind))
				}
				if m := conditions.GetMessage(got, kind); !strings.Contains(m, test.message) || test.message == "" && m != "" && test.reason == v1alpha1.AvailableReason {
					t.Errorf("%s: %q, want %q", kind, m, test.message)
				}
			}
			if s := getSecret(t, c); (s != nil) != test.secret {
				t.Errorf("Secret: %v", s)
			}
			if l := lockHolder(t, c); l != test.lock {
				t.Errorf("lock: %q, want %q", l, test.lock)
			}
			if test.reason == v1alpha1.AvailableReason {
				if got.Status.DataSecretName != "m" || !ptr.Deref(got.Status.Initialization.DataSecretCreated, false) {
					t.Errorf("status %+v", got.Status)
				}
				if _, err := hullmark.ParseNodeConfig(getSecret(t, c).Data[valueKey]); err != nil {
					t.Error(err)
				}
			}
			if got.Status.ObservedGeneration != 1 {
				t.Errorf("observed generation %d", got.Status.ObservedGeneration)
			}
		})
	}
}

// TestPoolFollows: a MachinePool's Secret is that of the spec, a Machine's that of its beginning.
func TestPoolFollows(t *testing.T) {
	for _, pool := range []bool{true, false} {
		w := newWorld()
		if pool {
			asPool(w)
		}
		w.also = []client.Object{w.dataSecret()}
		w.config.Spec.StateDisk.Serial = "other"
		c, _, _, _ := w.run(t)
		n, err := hullmark.ParseNodeConfig(getSecret(t, c).Data[valueKey])
		if want := map[bool]string{true: "other", false: "state"}[pool]; err != nil || n.StateDisk.Serial != want {
			t.Errorf("pool %v: %+v, %v", pool, n.StateDisk, err)
		}
	}
}

// TestRestored: status and owner come back after a move or a restore, in which objects get new UIDs and no status.
func TestRestored(t *testing.T) {
	w := newWorld()
	s := w.dataSecret()
	s.OwnerReferences[0].UID, s.Labels = "earlier", nil
	w.also = []client.Object{s}
	// Not even the infrastructure is known again yet.
	w.cluster.Status = clusterv1.ClusterStatus{}
	c, got, _, _ := w.run(t)
	after := getSecret(t, c)
	if got.Status.DataSecretName != "m" || !reflect.DeepEqual(after.OwnerReferences, []metav1.OwnerReference{ownerReference(w.config)}) ||
		after.Labels[clusterv1.ClusterNameLabel] != "c" || !reflect.DeepEqual(after.Data, s.Data) {
		t.Errorf("status %+v, Secret %+v", got.Status, after)
	}
}

// TestSecretIsMadeAgain: one that somebody deleted is made again, and until then the status does not claim it.
func TestSecretIsMadeAgain(t *testing.T) {
	w := newWorld()
	w.config.Status.DataSecretName, w.config.Status.Initialization.DataSecretCreated = "m", ptr.To(true)
	w.cluster.Status.Initialization.InfrastructureProvisioned = nil
	_, got, _, _ := w.run(t)
	if got.Status.DataSecretName != "" || ptr.Deref(got.Status.Initialization.DataSecretCreated, true) {
		t.Errorf("status %+v", got.Status)
	}
}

func TestPaused(t *testing.T) {
	for name, change := range map[string]func(*world){
		"the Cluster": func(w *world) { w.cluster.Spec.Paused = ptr.To(true) },
		"the config":  func(w *world) { w.config.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
		"a config without an owner": func(w *world) {
			w.config.OwnerReferences, w.cluster.Spec.Paused = nil, ptr.To(true)
		},
	} {
		w := newWorld()
		change(w)
		c, got, _, _ := w.run(t)
		if !conditions.IsTrue(got, clusterv1.PausedCondition) || getSecret(t, c) != nil || conditions.Has(got, v1alpha1.ReadyCondition) {
			t.Errorf("%s: %+v", name, got.Status)
		}
	}
	_, got, _, _ := newWorld().run(t)
	if !conditions.IsFalse(got, clusterv1.PausedCondition) {
		t.Errorf("not paused: %+v", got.Status)
	}
}

func TestWatchFilter(t *testing.T) {
	for label, want := range map[string]bool{"blue": true, "green": false, "": false} {
		w := newWorld()
		w.filter = "blue"
		if label != "" {
			w.config.Labels[clusterv1.WatchLabel] = label
		}
		c, got, _, _ := w.run(t)
		if (getSecret(t, c) != nil) != want || !want && len(got.Status.Conditions) > 0 {
			t.Errorf("label %q: %+v", label, got.Status)
		}
	}
}

// TestEvents: one for each thing that changed, none for looking again.
func TestEvents(t *testing.T) {
	count := func(w *world) int { _, _, _, r := w.run(t); return len(r.Events) }
	if n := count(newWorld()); n != 1 {
		t.Errorf("%d events of a Secret", n)
	}
	refused := newWorld()
	refused.config.Spec.ClusterRoot = strings.Repeat("x", 5000)
	if n := count(refused); n != 1 {
		t.Errorf("%d events of a refusal", n)
	}
	waits := newWorld()
	waits.cluster.Status.Initialization.InfrastructureProvisioned = nil
	if n := count(waits); n != 0 {
		t.Errorf("%d events of waiting", n)
	}
}

// TestLockRaces: of two that see a free or an orphaned lock, one gets it.
func TestLockRaces(t *testing.T) {
	cluster := newWorld().cluster
	for name, objects := range map[string][]client.Object{"free": nil, "orphaned": {lockOf("gone")}} {
		c := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(objects...).WithObjects(newMachine("a"), newMachine("b")).Build()
		// b reads the lock as a is about to write.
		stale := initLock{c, readsOnce{c, func() {
			if holder, err := (initLock{c, c}).acquire(t.Context(), cluster, "a"); err != nil || holder != "a" {
				t.Fatalf("a: %q, %v", holder, err)
			}
		}}}
		if _, err := stale.acquire(t.Context(), cluster, "b"); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			t.Errorf("%s: the late one got %v", name, err)
		}
		if holder, err := (initLock{c, c}).acquire(t.Context(), cluster, "b"); err != nil || holder != "a" {
			t.Errorf("%s: b is told of %q, %v", name, holder, err)
		}
		// Who frees what another holds by now frees nothing.
		if err := (initLock{c, c}).release(t.Context(), cluster, "b"); err != nil || lockHolder(t, c) != `{"machineName":"a"}` {
			t.Errorf("%s: %v, %s", name, err, lockHolder(t, c))
		}
		if err := (initLock{c, c}).release(t.Context(), cluster, "a"); err != nil || lockHolder(t, c) != "" {
			t.Errorf("%s: %v, %s", name, err, lockHolder(t, c))
		}
	}
}

// readsOnce is a reader in whose first answer everything that then does is missing.
type readsOnce struct {
	client.Reader
	then func()
}

func (r readsOnce) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, o, opts...)
	if _, ok := o.(*corev1.ConfigMap); ok {
		r.then()
	}
	return err
}

// What a kubeadm spec says is put into words of the cluster document, for whoever signs the policy, and follows the spec.
func TestDraft(t *testing.T) {
	w := newWorld()
	w.config.Spec.TimeServers = []string{"own.example", "both.example"}
	w.config.Spec.Kubeadm = &kubeadmv1.KubeadmConfigSpec{
		NTP:   kubeadmv1.NTP{Servers: []string{"both.example", "time.example"}},
		Files: []kubeadmv1.File{{Path: "/etc/kubernetes/storage/rack.yaml", Content: "rack: 7\n", Permissions: "0600"}},
		JoinConfiguration: kubeadmv1.JoinConfiguration{NodeRegistration: kubeadmv1.NodeRegistrationOptions{
			Taints: &[]corev1.Taint{{Key: "example.com/storage", Value: "only", Effect: corev1.TaintEffectNoSchedule}},
		}},
	}
	stale := &corev1.ConfigMap{ObjectMeta: meta("m-pool"), Data: map[string]string{draftKey: "name: earlier\n"}}
	stale.OwnerReferences = []metav1.OwnerReference{ownerReference(w.config)}
	for name, also := range map[string][]client.Object{"new": nil, "an earlier one": {stale}} {
		w.also = also
		c, _, _, _ := w.run(t)
		held, err := hullmark.ParseNodeConfig(getSecret(t, c).Data[valueKey])
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"own.example", "both.example", "time.example"}; !reflect.DeepEqual(held.TimeServers, want) {
			t.Errorf("%s: time servers %q, want %q", name, held.TimeServers, want)
		}
		m := &corev1.ConfigMap{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "m-pool"}, m); err != nil {
			t.Fatal(err)
		}
		var said kubeadmspec.Pool
		if err := yaml.UnmarshalStrict([]byte(m.Data[draftKey]), &said); err != nil {
			t.Fatal(err)
		}
		if p := said.Pool; p.Name != "workers" || p.Role != hullmark.Worker || p.StateDisk.Serial != "state" || len(p.Files) != 1 || p.Files[0].Content != "rack: 7\n" || p.Taints == nil || len(*p.Taints) != 1 {
			t.Errorf("%s: the draft says\n%s", name, m.Data[draftKey])
		}
		if by := metav1.GetControllerOf(m); by == nil || by.UID != w.config.UID || m.Labels[clusterv1.ClusterNameLabel] != "c" {
			t.Errorf("%s: the draft's owner is %+v", name, by)
		}
	}
}
