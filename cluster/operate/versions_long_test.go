//go:build long

package operate

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// node is a control plane's, as its kubelet would register it.
const node = `apiVersion: v1
kind: Node
metadata: {name: one, labels: {node-role.kubernetes.io/control-plane: ""}}
`

// An API server says which deprecated APIs it was asked for; that the metric is where this looks is the API server's to say.
func TestRequestedAPIsOfARealServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	env, err := testenv.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := env.Apply(ctx, []byte(node)); err != nil {
		t.Fatal(err)
	}
	if ask, err := env.Kubectl(ctx, "get", "--raw", "/api/v1/componentstatuses"); err != nil {
		t.Fatal(err)
	} else if out, err := ask.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	api, err := Connect(&cluster.File{Cluster: env.Cluster}, APIOptions{Server: env.Address})
	if err != nil {
		t.Fatal(err)
	}
	requested, err := api.requestedAPIs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(requested, step.API{Version: "v1", Resource: "componentstatuses"}) {
		t.Errorf("the deprecated API that was asked for is not among %v", requested)
	}
	own, err := hullmark.ParseVersion(kubeadm.Version)
	if err != nil {
		t.Fatal(err)
	}
	if err := step.RemovedAPIs(requested, own); err != nil {
		t.Errorf("an API server refuses itself: %v", err)
	}
}
