package operate_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/kubeadm"
)

// TestInitChecksBeforeItDials: what is missing is said while no node has formatted its disk for it.
func TestInitChecksBeforeItDials(t *testing.T) {
	whole := func() operate.InitOptions {
		return operate.InitOptions{
			Target: operate.Target{Node: operate.Node{Address: "192.0.2.7:7443"}, Anchor: verifier.Anchor{EKID: &hullmark.EKID{1}}},
			Name:   "control-plane-1", Endpoint: "cluster.example.org:6443",
			Kubernetes: operate.Kubernetes{PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"), ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12"), Flannel: true},
		}
	}
	legal := whole()
	if err := legal.Check(); err != nil {
		t.Fatalf("the positive control: %v", err)
	}
	for want, change := range map[string]func(o *operate.InitOptions){
		"--ekid":              func(o *operate.InitOptions) { o.Anchor.EKID = nil },
		"address of the node": func(o *operate.InitOptions) { o.Address = "192.0.2.7" },
		"--endpoint":          func(o *operate.InitOptions) { o.Endpoint = "" },
		"--name":              func(o *operate.InitOptions) { o.Name = "Node" },
		"--network none":      func(o *operate.InitOptions) { o.Kubernetes.Flannel = false },
		"pod subnet":          func(o *operate.InitOptions) { o.Kubernetes.PodSubnet = nil },
	} {
		o := whole()
		change(&o)
		if err := o.Check(); !errors.Is(err, operate.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
