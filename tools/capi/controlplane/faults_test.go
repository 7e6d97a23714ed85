package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

var errKilled = errors.New("killed")

// fuse kills a controller right after one of its changes, of the API or of the cluster that runs: it is made, and nobody hears of it. To
// be killed right before the next one is the same, as nothing else outlives a controller.
type fuse struct {
	mutex sync.Mutex
	// at is the change, counted from 1; 0: none.
	at   int
	seen int
	what []string
	// only counts changes of this beginning; empty: all.
	only string
}

func (f *fuse) do(what string, change func() error) error {
	f.mutex.Lock()
	if !strings.HasPrefix(what, f.only) && f.seen == 0 {
		f.mutex.Unlock()
		return change()
	}
	f.seen++
	n := f.seen
	f.what = append(f.what, what)
	f.mutex.Unlock()
	switch {
	case f.at == 0 || n < f.at:
		return change()
	case n == f.at:
		return errors.Join(change(), errKilled)
	}
	return errKilled
}

func (f *fuse) blown() bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.at > 0 && f.seen >= f.at
}

// fuseWorkload is a cluster whose changes go through a fuse.
type fuseWorkload struct {
	Workload
	fuse *fuse
}

func (w fuseWorkload) RemoveMember(ctx context.Context, at []Node, id uint64) error {
	return w.fuse.do("remove a member of etcd", func() error { return w.Workload.RemoveMember(ctx, at, id) })
}

func (w fuseWorkload) RemoveStray(ctx context.Context, at []Node, id uint64) error {
	return w.fuse.do("remove a stray of etcd", func() error { return w.Workload.RemoveStray(ctx, at, id) })
}

func (w fuseWorkload) Forget(ctx context.Context, node hullmark.EKID) error {
	return w.fuse.do("forget a machine", func() error { return w.Workload.Forget(ctx, node) })
}

// throughFuse has all that a controller changes go through a fuse.
func throughFuse(r *Reconciler, f *fuse, c client.WithWatch) {
	name := func(verb string, o any) string { return fmt.Sprintf("%s %T", verb, o) }
	r.Client = interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return f.do(name("create", o), func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return f.do(name("update", o), func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return f.do(name("patch", o), func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return f.do(name("delete", o), func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return f.do(name("patch "+sub+" of", o), func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
	connect := r.Connect
	r.Connect = func(file *cluster.File, server string) (Workload, error) {
		w, err := connect(file, server)
		return fuseWorkload{w, f}, err
	}
}

// life is all that a control plane goes through: begun, scaled up, a Machine that somebody deletes, one that dies, rolled out, scaled down.
func life(w *world) {
	w.Helper()
	w.start()
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](3) })
	w.settle(3, 1, 3)
	gone := w.list()[0]
	w.must(w.Delete(w.Context(), w.machine(gone)))
	w.without(gone)
	w.settle(3, 2, 3)
	sick := w.list()[0]
	w.workload.setNode(sick, func(n *Node) { n.Ready, n.Changed = false, w.clock.Add(-time.Hour) })
	w.sicken(sick)
	w.without(sick)
	w.settle(3, 2, 3)
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Config.JoinEndpoints = []string{"join.example:7444"} })
	w.reason(clusterv1.RollingOutCondition, clusterv1.RollingOutReason)
	w.settle(3, 3, 4)
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](1) })
	w.settle(1, 1, 3)
	w.clean()
}

// without waits until a Machine is gone.
func (w *world) without(name string) {
	w.Helper()
	w.until(name+" is gone", func() error {
		w.admit()
		if slices.Contains(w.list(), name) {
			return errors.New("it is there")
		}
		return nil
	})
}

// clean fails unless nothing is left of any Machine but the one that there is, and all is well.
func (w *world) clean() {
	w.Helper()
	names := w.list()
	configs := &bootstrapv1.HullmarkConfigList{}
	w.must(w.List(w.Context(), configs))
	infra := &unstructured.UnstructuredList{}
	infra.SetGroupVersionKind(schema.GroupVersionKind{Group: coretest.InfraGroup, Version: "v1", Kind: "StubMachineList"})
	w.must(w.List(w.Context(), infra))
	if len(names) != 1 || len(configs.Items) != 1 || len(infra.Items) != 1 || len(w.workload.view.Nodes) != 1 || len(w.workload.view.Records) != 1 {
		w.Errorf("Machines %q, %d configs, %d infrastructures, Nodes %v, %d records", names, len(configs.Items), len(infra.Items), w.workload.view.Nodes, len(w.workload.view.Records))
	}
	w.until("all is well", func() error {
		p := w.plane()
		for kind, want := range map[string]bool{
			v1alpha1.BegunCondition: true, v1alpha1.InitializedCondition: true, v1alpha1.AvailableCondition: true, v1alpha1.KubeconfigAvailableCondition: true,
			v1alpha1.EtcdClusterHealthyCondition: true, clusterv1.MachinesUpToDateCondition: true,
			clusterv1.ScalingUpCondition: false, clusterv1.ScalingDownCondition: false, clusterv1.RollingOutCondition: false, clusterv1.RemediatingCondition: false,
		} {
			if conditions.IsTrue(p, kind) != want {
				return fmt.Errorf("%+v", conditions.Get(p, kind))
			}
		}
		if p.Annotations[v1alpha1.RemediationForAnnotation] != "" {
			return errors.New("it waits for a replacement")
		}
		return nil
	})
}

// TestKilledAtEachChange kills the controller at each of its changes, of the API and of the cluster that runs. The next one
// ends in the same state, with no more Machines than there may be on the way, and never without a quorum.
func TestKilledAtEachChange(t *testing.T) {
	begin := func(t *testing.T, f *fuse) {
		w := newWorld(t)
		throughFuse(w.r, f, w.fake)
		if f.at > 0 {
			w.killed = f.blown
		}
		life(w)
	}
	never := &fuse{}
	begin(t, never)
	t.Logf("%d changes", never.seen)
	kinds := map[string]bool{}
	for _, what := range never.what {
		kinds[what] = true
	}
	t.Logf("%d kinds: %v", len(kinds), kinds)
	if len(kinds) < 11 {
		t.Errorf("only these kinds of changes were seen: %v", kinds)
	}
	reports := map[string]int{}
	for at := 1; at <= never.seen; at++ {
		// Nothing rests on a status but that the cluster was begun, which the first of them say.
		if what := never.what[at-1]; strings.HasPrefix(what, "patch status") {
			if reports[what]++; reports[what] > 8 {
				continue
			}
		}
		t.Run(fmt.Sprintf("%d %s", at, never.what[at-1]), func(t *testing.T) {
			t.Parallel()
			f := &fuse{at: at}
			begin(t, f)
			if !f.blown() {
				t.Errorf("only %d changes", f.seen)
			}
		})
	}
}

// What somebody writes into an infrastructure machine does not become a condition that the API refuses: nothing would be done any more.
func TestLongAnnotation(t *testing.T) {
	w := newWorld(t)
	w.start()
	name := w.list()[0]
	infra := stub("StubMachine", name)
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(infra), infra))
	infra.SetAnnotations(map[string]string{clusterv1.TemplateClonedFromNameAnnotation: strings.Repeat("x", 100<<10)})
	w.must(w.Update(t.Context(), infra))
	w.reconcile()
	if message := conditions.GetMessage(w.machine(name), clusterv1.MachineUpToDateCondition); message == "" || len(message) > 32768 {
		t.Errorf("a message of %d bytes", len(message))
	}
}

// A kubelet that says nonsense of its version does not keep spec.version from being changed, whose rules compute with it.
func TestNonsenseOfAKubelet(t *testing.T) {
	w := newWorld(t)
	w.start()
	for _, says := range []string{"nonsense", "v1.36", "v1.99999999999999999999.1", "v1.36.x", "v1.100000.0", strings.Repeat("v", 5000)} {
		m := w.machine(w.list()[0])
		m.Status.NodeInfo = &corev1.NodeSystemInfo{KubeletVersion: says}
		w.must(w.Status().Update(t.Context(), m))
		w.reconcile()
		if p := w.plane(); p.Status.Version != versionOf(p) {
			t.Errorf("status.version is %.100s", p.Status.Version)
		}
	}
}
