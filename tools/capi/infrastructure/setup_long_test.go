//go:build long

package infrastructure

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

// In a manager, changes of Clusters and Machines bring the objects on, ends of processes are seen, and what has not the filter's label
// is left alone.
func TestManager(t *testing.T) {
	b := newBench(t)
	mgr, err := ctrl.NewManager(b.config, ctrl.Options{
		Scheme: scheme(t), Metrics: server.Options{BindAddress: "0"}, Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{b.namespace: {}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	// Machines are looked at often, and Secrets are not watched; all else has to be heard of.
	if err := Setup(ctx, mgr, Options{Folder: b.root, Processes: b.world, WatchFilter: "mine", Poll: 200 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	hc := b.hullmarkCluster()
	m, other := b.makeMachine("one", static), b.makeMachine("two", given)
	b.label(b.cluster)
	b.label(m)
	b.label(&clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "one"}})
	b.label(hc)
	b.eventually("the network runs", func() bool { return b.get(hc) && conditions.IsTrue(hc, infrav1.ReadyCondition) })
	b.eventually("the machine waits", b.says(m, infrav1.WaitingForInfrastructureReason, ""))
	b.get(b.cluster)
	b.cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	if err := b.client.Status().Update(t.Context(), b.cluster); err != nil {
		t.Fatal(err)
	}
	b.eventually("the machine runs", b.isReady(m))
	b.world.over(b.folder().slot(0).machine())
	b.eventually("its end is seen", b.says(m, infrav1.PoweredOffReason, ""))
	b.remove(m)
	b.eventually("it is gone", b.gone(m))
	if b.get(other); len(other.Finalizers) > 0 || len(other.Status.Conditions) > 0 {
		t.Errorf("another filter's machine was touched: %v, %v", other.Finalizers, other.Status)
	}
}

// label gives an object the filter's label.
func (b *bench) label(o client.Object) {
	b.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"mine"}}}`, clusterv1.WatchLabel)
	if err := b.client.Patch(b.Context(), o, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		b.Fatal(err)
	}
}

// eventually waits until a manager has made it so.
func (b *bench) eventually(what string, so func() bool) {
	b.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if so() {
			return
		}
	}
	b.Fatalf("%s: not within a minute; %s", what, b.describe())
}
