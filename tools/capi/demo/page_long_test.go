//go:build long

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	infrav1 "github.com/hullmark/hullmark/tools/capi/api/infrastructure/v1alpha1"
)

// The images of both kinds of machine. The control plane's says of which Kubernetes it is, which the Cluster has to declare.
const (
	planeImage  = "v1.36.3"
	workerImage = "worker"
)

// TestPage runs the commands of the page's section as they stand there, against the real programs: hullmark, kubectl, core's manager, ours
// by the permissions of their accounts, two API servers and a join service. The machines are stand-ins with TPM emulators and the
// node's side of the protocol.
func TestPage(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Minute) // the bundle may have to be compiled
	defer cancel()
	// The page is named from the checkout's top, as the demo names it.
	t.Chdir(filepath.Join("..", "..", ".."))
	d := &demo{out: t.TempDir(), state: t.TempDir(), bin: t.TempDir()}
	buildPrograms(ctx, t, d)
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	})
	var said bytes.Buffer
	d.journey.Out = io.MultiWriter(os.Stdout, &said)
	for name, image := range map[string]string{"control-plane": planeImage, "workers": workerImage} {
		text, err := nodetest.Document(t, image).Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.path(name+".measurements.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	do := func(name string, what func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		if err := d.step(ctx, step{name, what}); err != nil {
			t.Fatalf("%s: %v, %v", name, err, context.Cause(ctx))
		}
	}
	run := func(block int) func(context.Context) error {
		return func(ctx context.Context) error { return d.journey.Run(ctx, block) }
	}
	do("make a cluster file", d.makeCluster)
	do("start a management cluster", d.manage)
	do("start the controllers", d.startControllers)
	h := newHost(ctx, t, d)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fail(fmt.Errorf("the stand-in of the machines: %w", h.work(ctx, t)))
	}()
	t.Cleanup(func() {
		fail(nil)
		<-ended
	})
	do("name who may vouch for workers", d.enrol)
	do("declare the cluster", d.declare)
	do("lend it a file to begin with", run(lend))
	do("the control plane is Ready", run(begun))
	do("the worker is vouched for, Ready", run(joined))
	do("the Cluster is Available", func(ctx context.Context) error {
		return testenv.Poll(ctx, time.Second, func() error { return h.available(ctx) })
	})
	fmt.Println(strings.Join(d.took, "\n"))

	plane, worker := h.named(true), h.named(false)
	if plane == nil || worker == nil {
		t.Fatalf("the machines are %v", h.machines)
	}
	if after := openCluster(t, d); after.Initialised == nil || *after.Initialised != plane.node.ID || after.Settings == nil {
		t.Errorf("lent.back was not taken back: the cluster file says that the cluster began on %v", after.Initialised)
	}
	for _, want := range []string{plane.name, plane.node.ID.String(), worker.name, worker.node.ID.String()} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the commands said nothing of %s", want)
		}
	}
	if found, _ := d.watch.End(); len(found) > 0 {
		t.Errorf("processes were called with keys: %v", found)
	}
	d.watch = nil
}

// buildPrograms builds what the page and the demo call, and puts the bundle's kubectl where the demo has it.
func buildPrograms(ctx context.Context, t *testing.T, d *demo) {
	t.Helper()
	capi := filepath.Join("tools", "capi")
	for _, b := range []struct{ name, dir, pkg string }{
		{"hullmark", ".", "./tools/hullmark"}, {"capi-manager", capi, "."}, {"capi-core", capi, "sigs.k8s.io/cluster-api/core"},
	} {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(d.bin, b.name), b.pkg)
		cmd.Dir, cmd.Env = b.dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", b.name, err, out)
		}
	}
	if err := testenv.BuildJoinService(ctx, d.program("joinservice")); err != nil {
		t.Fatal(err)
	}
	bundle, err := testenv.Programs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(bundle, "kubectl"), d.kubectlPath()); err != nil {
		t.Fatal(err)
	}
}

// openCluster reads the cluster file as the person does.
func openCluster(t *testing.T, d *demo) *cluster.Cluster {
	t.Helper()
	passphrase, err := os.ReadFile(d.path("passphrase"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.Open(d.path("cluster"), hullmark.NewSecret(bytes.TrimSpace(passphrase)))
	if err != nil {
		t.Fatal(err)
	}
	return file.Cluster
}

// newHost starts the API that the machines' cluster will have.
func newHost(ctx context.Context, t *testing.T, d *demo) *host {
	t.Helper()
	h := &host{program: d.program("joinservice"), dir: t.TempDir(), machines: map[string]*machine{}}
	var err error
	if h.api, err = testenv.StartFor(ctx, t.TempDir(), openCluster(t, d)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.service != nil {
			if err := h.service.Stop(); err != nil {
				t.Error(err)
			}
		}
		if err := h.api.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, each := range []struct {
		of *testenv.Environment
		to *client.Client
	}{{d.management, &h.management}, {h.api, &h.workload}} {
		config, err := each.of.Config("test", "system:masters")
		if err != nil {
			t.Fatal(err)
		}
		if *each.to, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// available returns nothing once core has found a Node for each Machine, and says that the Cluster is Available.
func (h *host) available(ctx context.Context) error {
	machines, c := &clusterv1.MachineList{}, &clusterv1.Cluster{}
	if err := h.management.List(ctx, machines, client.InNamespace(namespace)); err != nil {
		return err
	}
	if len(machines.Items) != 2 {
		return fmt.Errorf("%d Machines, want 2", len(machines.Items))
	}
	for _, m := range machines.Items {
		if stand := h.get(m.Name); stand == nil || stand.nodeName == "" || m.Status.NodeRef.Name != stand.nodeName {
			return fmt.Errorf("Machine %s has the Node %q", m.Name, m.Status.NodeRef.Name)
		}
	}
	if err := h.management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "prod"}, c); err != nil {
		return err
	}
	if !conditions.IsTrue(c, clusterv1.ClusterAvailableCondition) {
		return fmt.Errorf("the Cluster is not Available: %s", conditions.GetMessage(c, clusterv1.ClusterAvailableCondition))
	}
	return nil
}
