// Manager runs Hullmark's providers for Cluster API: "manager bootstrap" the one, "manager control-plane" the other. They are one program
// and two Deployments, whose accounts may do different things.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
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

// role is what a manager of this program does.
type role struct {
	// name is the command, and the middle of its account's and namespace's names.
	name string
	// setup adds its controllers, and their types to the scheme.
	setup func(ctrl.Manager, settings) error
	// flags adds the flags that no other role has.
	flags func(*pflag.FlagSet, *settings)
	// finish is an error if these flags do not do, and puts in what follows of them.
	finish func(*settings) error
}

// roles are all.
var roles = []role{
	{name: "bootstrap", setup: setupBootstrap, flags: func(*pflag.FlagSet, *settings) {}, finish: func(*settings) error { return nil }},
	{name: "control-plane", setup: setupControlPlane, flags: controlPlaneFlags, finish: finishControlPlane},
}

// account is the name of a role's account, Lease and Deployment, and system that of its namespace.
func (r role) account() string { return "hullmark-" + r.name + "-manager" }
func (r role) system() string  { return "hullmark-" + r.name + "-system" }

// settings are what the command and its flags say.
type settings struct {
	role                   role
	namespace, watchFilter string
	leaderElect            bool
	health                 string
	syncPeriod             time.Duration
	concurrency            int
	metrics                flags.ManagerOptions
	controlPlane           controlPlaneSettings
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

// usage is what a person is told who names no role.
const usage = "want a command: \"manager bootstrap\" or \"manager control-plane\"; --help after it lists its flags"

// parse reads the command and its flags.
func parse(args []string) (s settings, err error) {
	if len(args) == 0 {
		return s, errors.New(usage)
	}
	i := slices.IndexFunc(roles, func(r role) bool { return r.name == args[0] })
	if i < 0 {
		return s, errors.New(usage)
	}
	s.role = roles[i]
	// Metrics are secured as core's are: TLS, and the API server is asked who may read them.
	s.metrics.TLSMinVersion = "VersionTLS13"
	fs := pflag.NewFlagSet("manager "+s.role.name, pflag.ContinueOnError)
	fs.StringVar(&s.namespace, "namespace", "", "the only namespace to care for; all if empty")
	fs.StringVar(&s.watchFilter, "watch-filter", "", "the value of the label "+clusterv1.WatchLabel+" of the objects to care for; all if empty")
	fs.BoolVar(&s.leaderElect, "leader-elect", false, "have one of several managers work, the others wait")
	fs.StringVar(&s.metrics.DiagnosticsAddress, "metrics-bind-address", ":8443", "where metrics are served, by TLS and to whom the API server allows it; 0: nowhere")
	fs.StringVar(&s.health, "health-probe-bind-address", ":9440", "where /healthz and /readyz are served")
	fs.DurationVar(&s.syncPeriod, "sync-period", 10*time.Minute, "how often everything is looked at without a cause")
	fs.IntVar(&s.concurrency, "concurrency", 10, "how many objects of a kind are worked on at a time")
	s.role.flags(fs, &s)
	if err := fs.Parse(args[1:]); err != nil {
		return s, err
	}
	if s.concurrency < 1 || fs.NArg() > 0 {
		return s, errors.New("flags: want a concurrency of at least 1, and no arguments")
	}
	return s, s.role.finish(&s)
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
		Scheme: scheme, LeaderElection: s.leaderElect, LeaderElectionID: s.role.account(),
		LeaderElectionNamespace: s.role.system(), LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress: s.health, Metrics: *metrics, Cache: cache.Options{SyncPeriod: &s.syncPeriod},
	}
	if s.namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{s.namespace: {}}
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(s.role.setup(mgr, s), mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping))
}

func setupBootstrap(mgr ctrl.Manager, s settings) error {
	r := &bootstrap.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("hullmark-bootstrap"), WatchFilter: s.watchFilter,
	}
	return r.SetupWithManager(mgr, controller.Options{MaxConcurrentReconciles: s.concurrency})
}
