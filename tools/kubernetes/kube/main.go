// Command kube is every Kubernetes program of a node in one binary: it does what the
// name it was started under says. Seven programs share their packages, so one file is
// less than a third of their sum, and the page cache holds it once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // time zones of CronJobs; the root has no zoneinfo

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's credential plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubeadmerrors "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"

	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are the names this binary answers to. Each ends the process itself when it
// fails; returning means success.
var programs = map[string]func(){
	"kube-apiserver":          func() { daemon(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { daemon(awaiting(controllermanager.NewControllerManagerCommand())) },
	"kube-proxy":              func() { daemon(proxy.NewProxyCommand()) },
	"kube-scheduler":          func() { daemon(scheduler.NewSchedulerCommand()) },
	"kubeadm":                 func() { kubeadmerrors.HandleError(kubeadm.Run()) },
	"kubectl":                 kubectl,
	"kubelet":                 func() { daemon(kubelet.NewKubeletCommand(context.Background())) },
}

func main() {
	program := filepath.Base(os.Args[0])
	run, known := programs[program]
	if !known {
		fmt.Fprintf(os.Stderr, "kube: no program %q here: start it under one of the names %s\n", program, names())
		os.Exit(2)
	}
	run()
}

func daemon(command *cobra.Command) {
	if code := cli.Run(command); code != 0 {
		os.Exit(code)
	}
}

// kubectl reads its verbosity before the command exists, because building the command
// already reads configuration files and logs about them.
func kubectl() {
	if _, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl: verbosity:", err)
	}
	cmdutil.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
}

func names() string {
	list := make([]string, 0, len(programs))
	for name := range programs {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
