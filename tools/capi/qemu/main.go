// Qemu is the manager of the infrastructure provider whose machines are QEMU's, on the machine on which it runs. It is for
// development, CI and tests, and not for production.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/infrastructure"
)

// settings are the flags.
type settings struct {
	crds      bool
	namespace string
	options   infrastructure.Options
}

func main() {
	s, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err == nil:
		err = run(s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "qemu:", err)
		os.Exit(1)
	}
}

// parse reads the flags.
func parse(args []string) (s settings, err error) {
	var program string
	fs := pflag.NewFlagSet("qemu", pflag.ContinueOnError)
	fs.BoolVar(&s.crds, "crds", false, "print the definitions of HullmarkCluster and HullmarkMachine, for kubectl apply, and end")
	fs.StringVar(&s.options.Folder, "folder", "", "where networks and machines are kept; made if absent")
	fs.StringVar(&program, "program", "hullmark", "the hullmark program, which runs them")
	fs.DurationVar(&s.options.Grace, "grace", time.Minute, "how long a guest may take to switch itself off when its machine is deleted")
	fs.StringVar(&s.namespace, "namespace", "", "the only namespace to care for; all if empty")
	fs.StringVar(&s.options.WatchFilter, "watch-filter", "", "the value of the label "+clusterv1.WatchLabel+" of the objects to care for; all if empty")
	if err := fs.Parse(args); err != nil || s.crds {
		return s, err
	}
	if fs.NArg() > 0 || s.options.Folder == "" {
		return s, errors.New("flags: want --folder, and no arguments")
	}
	found, err := exec.LookPath(program)
	if err != nil {
		return s, fmt.Errorf("--program: %w: make bin/hullmark builds it", err)
	}
	if found, err = filepath.Abs(found); err != nil { // It is started in another folder.
		return s, fmt.Errorf("--program: %w", err)
	}
	s.options.Processes = infrastructure.Hullmark{Program: found}
	return s, nil
}

// run works until it is told to end. Its machines go on then.
func run(s settings) error {
	if s.crds {
		text, err := infrastructure.CRDs()
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	ctrl.SetLogger(klog.Background())
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := newManager(config, s)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := infrastructure.Setup(ctx, mgr, s.options); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(config *rest.Config, s settings) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	options := ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}}
	if s.namespace != "" {
		options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}}
	}
	return ctrl.NewManager(config, options)
}
