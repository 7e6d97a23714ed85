package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/finalizers"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hullmark/hullmark/internal/vm"
	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

// clusterReconciler runs a network for each HullmarkCluster.
type clusterReconciler struct{ *host }

// Reconcile implements reconcile.Reconciler.
func (r *clusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	c := &infrav1.HullmarkCluster{}
	if err := r.client.Get(ctx, req.NamespacedName, c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.ignores(c) {
		return ctrl.Result{}, nil
	}
	cluster, err := util.GetOwnerCluster(ctx, r.client, c.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if isPaused, changed, err := paused.EnsurePausedCondition(ctx, r.client, cluster, c); err != nil || isPaused || changed {
		return ctrl.Result{}, err
	}
	if err := r.folders.own(); err != nil {
		return ctrl.Result{}, err
	}
	if cluster != nil {
		if _, err := finalizers.EnsureFinalizer(ctx, r.client, c, infrav1.ClusterFinalizer); err != nil {
			return ctrl.Result{}, err
		}
	}
	helper, err := patch.NewHelper(c, r.client)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer func() { err = errors.Join(err, save(ctx, helper, c)) }()
	switch {
	case !c.DeletionTimestamp.IsZero():
		return r.end(ctx, c)
	case cluster == nil:
		notReady(c, infrav1.WaitingForClusterReason, "no Cluster owns this object yet")
		return ctrl.Result{}, nil
	}
	return r.run(ctx, c, r.folders.cluster(c.Namespace, cluster.Name))
}

// run sees to it that the network runs, and says where it leads.
func (r *clusterReconciler) run(ctx context.Context, c *infrav1.HullmarkCluster, folder clusterFolder) (ctrl.Result, error) {
	running, err := r.processes.Look(folder.network())
	if err != nil {
		return ctrl.Result{}, err
	}
	if !running {
		return r.start(ctx, c, folder)
	}
	forwards, err := folder.forwards()
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(forwards) == 0 {
		notReady(c, infrav1.StartFailedReason, "%s is not there: end the network that runs on %s", folder.forwardsFile(), folder.network())
		return after(r.poll), nil
	}
	// Its ports listen once the network serves. Later this is not asked: the API server would hear of it each time.
	fresh := !ptr.Deref(c.Status.Initialization.Provisioned, false)
	serves := !fresh || listens(onHost(forwards[0].Host))
	if serves {
		c.Status.APIServer = onHost(forwards[0].Host)
		c.Status.Initialization.Provisioned = ptr.To(true)
	}
	if fresh { // conditions are written before the rest: nobody must see a Ready network without its port
		notReady(c, infrav1.StartingReason, "the network starts; it logs to %s", folder.networkLog())
		return after(soon), nil
	}
	setReady(c, metav1.ConditionTrue, infrav1.RunningReason, "")
	return after(r.poll), nil
}

func listens(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// start starts the network, the first time or after it ended. Machines that ran then cannot be plugged in again; each says so of itself.
func (r *clusterReconciler) start(ctx context.Context, c *infrav1.HullmarkCluster, folder clusterFolder) (ctrl.Result, error) {
	if err := os.MkdirAll(string(folder), 0o700); err != nil {
		return ctrl.Result{}, err
	}
	address, err := netip.ParseAddr(c.Spec.ControlPlaneEndpoint.Host)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("controlPlaneEndpoint: %w", err)
	}
	forwards, err := folder.chooseForwards(vm.Forward{
		Host: uint16(c.Spec.Network.APIServerPort), Address: address, Guest: uint16(c.Spec.ControlPlaneEndpoint.Port),
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	args := []string{"vm", "network", folder.network()}
	if c.Spec.Network.Tools != "" {
		args = append(args, "--tools", c.Spec.Network.Tools)
	}
	for _, f := range forwards {
		args = append(args, "--forward", f.String())
	}
	before := lastFailure(folder.networkLog())
	if err := r.processes.Start(ctx, folder.network(), folder.networkLog(), args...); err != nil {
		notReady(c, infrav1.StartFailedReason, "%v", err)
		return after(r.poll), nil
	}
	if before != "" {
		notReady(c, infrav1.StartFailedReason, "started again after: %s", before)
		return after(soon), nil
	}
	notReady(c, infrav1.StartingReason, "the network starts; it logs to %s", folder.networkLog())
	return after(soon), nil
}

// end ends the network once no machine is left in it.
func (r *clusterReconciler) end(ctx context.Context, c *infrav1.HullmarkCluster) (ctrl.Result, error) {
	name := c.Labels[clusterv1.ClusterNameLabel]
	if name == "" || !controllerutil.ContainsFinalizer(c, infrav1.ClusterFinalizer) {
		controllerutil.RemoveFinalizer(c, infrav1.ClusterFinalizer)
		return ctrl.Result{}, nil
	}
	machines := &infrav1.HullmarkMachineList{}
	if err := r.client.List(ctx, machines, client.InNamespace(c.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: name}); err != nil {
		return ctrl.Result{}, err
	}
	if n := len(machines.Items); n > 0 {
		notReady(c, infrav1.DeletingReason, "the network is needed by HullmarkMachines, %d of them", n)
		return after(soon), nil
	}
	ended, err := r.endAll(r.folders.cluster(c.Namespace, name))
	if err != nil {
		return ctrl.Result{}, err
	}
	if !ended {
		notReady(c, infrav1.DeletingReason, "the network is being ended")
		return after(soon), nil
	}
	controllerutil.RemoveFinalizer(c, infrav1.ClusterFinalizer)
	return ctrl.Result{}, nil
}

// networkGrace is how long a network may take to end.
const networkGrace = 10 * time.Second

// endAll ends what runs for a cluster and removes its folder. A machine whose object somebody took away by force is ended, too.
func (r *clusterReconciler) endAll(folder clusterFolder) (ended bool, err error) {
	for i := range slots {
		ended, err := r.processes.Stop(folder.slot(i).machine(), r.grace)
		if err != nil || !ended {
			return false, err
		}
		if err := folder.slot(i).remove(); err != nil {
			return false, err
		}
	}
	if ended, err = r.processes.Stop(folder.network(), networkGrace); err != nil || !ended {
		return false, err
	}
	if err := removeRun(folder.network()); err != nil {
		return false, err
	}
	return true, os.RemoveAll(string(folder))
}
