//go:build bench

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

// stub is an infrastructure provider that makes nothing: a Machine that has its bootstrap data is provisioned at once, and has a Node.
type stub struct {
	// Client reads Machines from a cache.
	client.Client
	// release lets the control plane's Machine go on.
	release atomic.Bool
	// done are the Machines that have all.
	done  sync.Map
	end   context.CancelFunc
	ended chan error
}

func startStub(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) (*stub, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}
	s := &stub{Client: mgr.GetClient(), ended: make(chan error, 1)}
	err = ctrl.NewControllerManagedBy(mgr).Named("stub").For(&clusterv1.Machine{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10, SkipNameValidation: ptr.To(true)}).Complete(s)
	if err != nil {
		return nil, err
	}
	ctx, s.end = context.WithCancel(ctx)
	go func() { s.ended <- mgr.Start(ctx) }()
	return s, nil
}

// stop ends the stub.
func (s *stub) stop() error {
	if s == nil {
		return nil
	}
	s.end()
	return <-s.ended
}

// Reconcile provisions what a Machine needs.
func (s *stub) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	m := &clusterv1.Machine{}
	if err := s.Get(ctx, r.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if _, done := s.done.Load(m.Name); done || m.Spec.Bootstrap.DataSecretName == nil {
		return ctrl.Result{}, nil
	}
	if m.Name == "cp" && !s.release.Load() {
		// Its Cluster has to have its infrastructure before.
		return ctrl.Result{RequeueAfter: 200 * time.Millisecond}, s.provisioned(ctx, "StubCluster", "c")
	}
	id := "stub://" + m.Name
	infra := object(coretest.InfraGroup+"/v1", "StubMachine", m.Spec.InfrastructureRef.Name)
	if err := errors.Join(
		s.provisioned(ctx, "StubCluster", "c"),
		s.Patch(ctx, infra, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"providerID":%q}}`, id))),
		s.provisioned(ctx, "StubMachine", infra.GetName()),
		s.node(ctx, m.Name, id),
	); err != nil {
		return ctrl.Result{}, err
	}
	s.done.Store(m.Name, true)
	return ctrl.Result{}, nil
}

func (s *stub) provisioned(ctx context.Context, kind, name string) error {
	if kind == "StubCluster" {
		if _, done := s.done.LoadOrStore("Cluster", true); done {
			return nil
		}
	}
	return s.Status().Patch(ctx, object(coretest.InfraGroup+"/v1", kind, name), client.RawPatch(types.MergePatchType, []byte(`{"status":{"initialization":{"provisioned":true}}}`)))
}

func (s *stub) node(ctx context.Context, name, id string) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: id}}
	if err := s.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
