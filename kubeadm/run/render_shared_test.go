//go:build long || skew

package run_test

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/kubeadm"
)

// firstDocuments are those of a cluster's first node.
func firstDocuments(t *testing.T) []byte {
	t.Helper()
	documents, err := kubeadm.InitDocuments(kubeadm.Params{
		NodeName: "one", AdvertiseAddress: netip.MustParseAddr("192.0.2.7"), Profile: kubeadm.Slow,
		ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/16"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

// commands are the flags of each program that static pods start.
func commands(t *testing.T, pods map[string][]byte) map[string][]string {
	t.Helper()
	flags := map[string][]string{}
	for _, text := range pods {
		var pod struct {
			Spec struct{ Containers []struct{ Command []string } }
		}
		if err := yaml.Unmarshal(text, &pod); err != nil {
			t.Fatal(err)
		}
		command := pod.Spec.Containers[0].Command
		flags[command[0]] = command[1:]
	}
	return flags
}
