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

// An API server says which it is, and which deprecated APIs it was asked for; that the metric is where this looks is the API server's to say.
func TestVersionsOfARealServer(t *testing.T) {
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
	patch, err := env.Kubectl(ctx, "patch", "node", "one", "--subresource=status", "-p", `{"status":{"nodeInfo":{"kubeletVersion":"v1.33.1"}}}`)
	if err == nil {
		err = patch.Run()
	}
	if err != nil {
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
	got, err := api.KubernetesVersions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := (step.Seen{Node: "one", Version: hullmark.Version{Major: 1, Minor: 33, Patch: 1}}); len(got.Kubelets) != 1 || got.Kubelets[0] != want {
		t.Errorf("kubelets %v, want %v", got.Kubelets, want)
	}
	if len(got.Servers) != 1 || got.Servers[0].Version.String() != kubeadm.Version {
		t.Errorf("servers %v, want one of %s", got.Servers, kubeadm.Version)
	}
	if !slices.Contains(got.Requested, step.API{Version: "v1", Resource: "componentstatuses"}) {
		t.Errorf("the deprecated API that was asked for is not among %v", got.Requested)
	}
	if err := step.RemovedAPIs(got.Requested, got.Servers[0].Version); err != nil {
		t.Errorf("an API server refuses itself: %v", err)
	}
}
