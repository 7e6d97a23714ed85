// Manager runs Hullmark's bootstrap provider for Cluster API.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/bootstrap"
)

// settings are what the flags say.
type settings struct {
	namespace, watchFilter string
	leaderElect            bool
	health                 string
	syncPeriod             time.Duration
	concurrency            int
	metrics                flags.ManagerOptions
}

func main() {
	s, err := parse(os.Args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

// parse reads the flags.
func parse(args []string) (s settings, err error) {
	// Metrics are secured as core's are: TLS, and the API server is asked who may read them.
	s.metrics.TLSMinVersion = "VersionTLS13"
	fs := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	fs.StringVar(&s.namespace, "namespace", "", "the only namespace to care for; all if empty")
	fs.StringVar(&s.watchFilter, "watch-filter", "", "the value of the label "+clusterv1.WatchLabel+" of the objects to care for; all if empty")
	fs.BoolVar(&s.leaderElect, "leader-elect", false, "have one of several managers work, the others wait")
	fs.StringVar(&s.metrics.DiagnosticsAddress, "metrics-bind-address", ":8443", "where metrics are served, by TLS and to whom the API server allows it; 0: nowhere")
	fs.StringVar(&s.health, "health-probe-bind-address", ":9440", "where /healthz and /readyz are served")
	fs.DurationVar(&s.syncPeriod, "sync-period", 10*time.Minute, "how often everything is looked at without a cause")
	fs.IntVar(&s.concurrency, "concurrency", 10, "how many HullmarkConfigs are worked on at a time")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	if s.concurrency < 1 || fs.NArg() > 0 {
		return s, errors.New("flags: want a concurrency of at least 1, and no arguments")
	}
	return s, nil
}

// run works until it is told to end.
func run(s settings) error {
	ctrl.SetLogger(klog.Background())
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := newManager(config, s)
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// newManager returns a manager with everything in it.
func newManager(config *rest.Config, s settings) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	_, metrics, err := flags.GetManagerOptions(s.metrics)
	if err != nil {
		return nil, err
	}
	options := ctrl.Options{
		Scheme: scheme, LeaderElection: s.leaderElect, LeaderElectionID: "hullmark-bootstrap-manager",
		LeaderElectionNamespace: "hullmark-bootstrap-system", LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress: s.health, Metrics: *metrics, Cache: cache.Options{SyncPeriod: &s.syncPeriod},
	}
	if s.namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{s.namespace: {}}
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	r := &bootstrap.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("hullmark-bootstrap"), WatchFilter: s.watchFilter,
	}
	return mgr, errors.Join(
		r.SetupWithManager(mgr, controller.Options{MaxConcurrentReconciles: s.concurrency}),
		mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping),
	)
}
