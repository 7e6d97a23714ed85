package main

import (
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/app"
	"k8s.io/klog/v2"
)

// patience is how long a program waits for the API server: less than the four minutes that the startup probe gives it, unless
// kubeadm's controlPlaneComponentHealthCheck says otherwise.
const patience = 3 * time.Minute

// awaiting has the program of a command begin when the API server of its --kubeconfig is healthy, or after patience. A kubelet
// starts all programs of a control plane at once. kube-controller-manager itself gives the API server ten seconds, and ends;
// soon the kubelet's back-off lasts longer than the API server's start. What is wrong with the flags is the program's to say.
func awaiting(command *cobra.Command) *cobra.Command {
	run := command.RunE
	command.RunE = func(cmd *cobra.Command, args []string) error {
		master, file := cmd.Flag("master"), cmd.Flag("kubeconfig")
		if file.Changed && !cmd.Flag("version").Changed {
			await(master.Value.String(), file.Value.String())
		}
		return run(cmd, args)
	}
	return command
}

func await(master, file string) {
	config, err := clientcmd.BuildConfigFromFlags(master, file)
	if err != nil {
		return
	}
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return
	}
	if err := app.WaitForAPIServer(client, patience); err != nil {
		klog.Warningf("after %v: %v", patience, err)
	}
}
