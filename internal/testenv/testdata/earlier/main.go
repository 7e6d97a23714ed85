// Command kube is the API server and the kubeadm of the Kubernetes release before this one's, for tests of steps between the two.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kubeadm":
		if err := kubeadm.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "start it as kube-apiserver or kubeadm, not as %q\n", os.Args[0])
		os.Exit(2)
	}
}
