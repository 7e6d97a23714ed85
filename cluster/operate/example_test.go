package operate_test

import (
	"context"
	"crypto"
	"errors"
	"log"
	"os"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// A program begins a cluster on its first node. It may be interrupted, and run again until the node is Ready.
func ExampleInit() {
	var (
		passphrase []byte           // of the cluster file that cluster.Create made
		publisher  crypto.PublicKey // of who published the image
		ekid       hullmark.EKID    // of the machine, from whoever made it or rents it out
	)
	file, err := cluster.Open("prod.cluster", hullmark.NewSecret(passphrase))
	if err != nil {
		log.Fatal(err)
	}
	signed, err := os.ReadFile("hullmark.measurements.json")
	if err != nil {
		log.Fatal(err)
	}
	document, err := measurements.Open(signed, publisher)
	if err != nil {
		log.Fatal(err)
	}
	err = operate.Init(context.Background(), file, operate.InitOptions{
		Target: operate.Target{
			Node:   operate.Node{Address: "192.0.2.7:7443", Wait: 10 * time.Minute},
			Anchor: verifier.Anchor{EKID: &ekid},
		},
		Document: document,
		Name:     "control-plane-1",
		Endpoint: "192.0.2.7:6443",
		Kubernetes: operate.Kubernetes{
			PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"), ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/12"), Flannel: true,
		},
		Kubeconfig: func(text []byte) error { return os.WriteFile("admin.conf", text, 0o600) },
	})
	switch {
	case errors.Is(err, operate.ErrUnreachable):
		log.Print("the node does not answer yet: run this again. ", err)
	case err != nil:
		log.Fatal(err)
	}
}
