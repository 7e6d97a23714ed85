//go:build long

package run_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// node is a node's file system as far as a unit of kubeadm sees it: the real kubeadm and its patches, and folders for the rest.
type node struct {
	bin, etc, kubelet, input string
	patches                  string
}

func newNode(t *testing.T, bin string) node {
	t.Helper()
	dir := t.TempDir()
	n := node{bin, filepath.Join(dir, "etc"), filepath.Join(dir, "kubelet"), filepath.Join(dir, "run"), ""}
	for _, folder := range []string{filepath.Join(n.etc, "manifests"), n.kubelet, n.input} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if n.patches, err = filepath.Abs("../../tools/kubernetes/patches"); err != nil {
		t.Fatal(err)
	}
	return n
}

var (
	execLine        = regexp.MustCompile(`(?m)^ExecStart=(.+)$`)
	environmentLine = regexp.MustCompile(`(?m)^Environment=(.+)$`)
)

// start runs the commands of a unit as they stand in its file, in a sandbox in which their paths are the node's.
func (n node) start(t *testing.T, unit string) string {
	t.Helper()
	text, err := os.ReadFile("../../systemd/system/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for _, line := range execLine.FindAllSubmatch(text, -1) {
		args := []string{
			"--unshare-user", "--uid", "0", "--gid", "0", "--proc", "/proc", "--dev", "/dev", "--dir", "/root", "--clearenv",
			"--ro-bind", filepath.Join(n.bin, "kube"), "/usr/bin/kubeadm", "--ro-bind", n.patches, kubeadm.PatchesDir,
			"--bind", n.etc, "/etc/kubernetes", "--ro-bind", n.kubelet, "/var/lib/kubelet", "--bind", n.input, "/run/hullmark/kubeadm",
		}
		for _, set := range environmentLine.FindAllSubmatch(text, -1) {
			for word := range strings.FieldsSeq(string(set[1])) {
				name, value, _ := strings.Cut(word, "=")
				args = append(args, "--setenv", name, value)
			}
		}
		out, err := exec.CommandContext(t.Context(), "bwrap", append(args, strings.Fields(string(line[1]))...)...).CombinedOutput()
		if said.Write(out); err != nil {
			t.Fatalf("%s: %v (bwrap missing? apt-get install bubblewrap)\n%s", unit, err, said.String())
		}
	}
	return said.String()
}

// The API's side of a node whose kubelet runs an API server of this release: its Node, and the pod that its kubelet shows.
const seenNode = `apiVersion: v1
kind: Node
metadata: {name: one, labels: {node-role.kubernetes.io/control-plane: "", kubernetes.io/hostname: one}}
---
apiVersion: v1
kind: Pod
metadata:
  name: kube-apiserver-one
  namespace: kube-system
  labels: {component: kube-apiserver, tier: control-plane}
  annotations: {kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: "192.0.2.7:6443", kubernetes.io/config.mirror: "1"}
spec:
  nodeName: one
  containers: [{name: kube-apiserver, image: "localhost/hullmark/kube-apiserver:%s"}]
`

// The units do with the real kubeadm what the agent counts on: a release is written into the cluster, CoreDNS follows, and the kubelet's
// configuration is made without a file of the node being touched.
func TestUpgradeUnits(t *testing.T) {
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
	n := newNode(t, env.Programs())
	access := n.join(ctx, t, env)
	before, err := run.Running(ctx, access)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := kubeadm.ClusterVersion(before.ClusterConfiguration); err != nil || v.String() != "v1.36.0" {
		t.Fatalf("the cluster begins with %v, %v", v, err)
	}
	now, err := hullmark.ParseVersion(kubeadm.Version)
	if err != nil {
		t.Fatal(err)
	}
	n.give(t, now, kubeadm.RecordDocuments)
	for range 2 { // once more is the same
		n.start(t, run.UpgradeUnit)
		after, err := run.Running(ctx, access)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := kubeadm.ClusterVersion(after.ClusterConfiguration); err != nil || v != now {
			t.Errorf("the cluster records %v, %v", v, err)
		}
		if !strings.Contains(string(after.ClusterConfiguration), "kubelet-certificate-authority") {
			t.Errorf("a flag of the cluster is lost:\n%s", after.ClusterConfiguration)
		}
	}
	if image, err := run.DNSImage(ctx, access); err != nil || image != "" {
		t.Errorf("CoreDNS was started with the record: %q, %v", image, err)
	}
	n.give(t, now, kubeadm.DNSDocuments)
	n.start(t, run.UpgradeUnit)
	wanted, err := run.WantedDNSImage(ctx, filepath.Join(env.Programs(), "kubeadm"), now)
	if err != nil {
		t.Fatal(err)
	}
	if image, err := run.DNSImage(ctx, access); err != nil || image != wanted || !strings.HasPrefix(image, "localhost/hullmark/coredns:v") {
		t.Errorf("CoreDNS is %q, %v; want %s", image, err, wanted)
	}
	n.kubeletConfig(t)
}

// kubeletConfig lets the unit make the kubelet's configuration, on a control plane and on a worker.
func (n node) kubeletConfig(t *testing.T) {
	t.Helper()
	for _, role := range []string{"control plane", "worker"} {
		if role == "worker" {
			for _, name := range []string{"manifests/kube-apiserver.yaml", "admin.conf"} {
				if err := os.Remove(filepath.Join(n.etc, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		n.input = t.TempDir() // as a node's: kubeadm names a folder in it by the second, and must not meet an earlier one
		n.start(t, run.KubeletConfigUnit)
		text, err := os.ReadFile(filepath.Join(n.input, "config.yaml"))
		if err != nil || !strings.Contains(string(text), "kind: KubeletConfiguration") || !strings.Contains(string(text), "serverTLSBootstrap: true") {
			t.Errorf("%s: %v\n%s", role, err, text)
		}
		if left, err := os.ReadDir(n.kubelet); err != nil || len(left) != 0 {
			t.Errorf("%s: the kubelet's folder was written to: %v, %v", role, left, err)
		}
	}
}

// give writes the documents where a unit finds them.
func (n node) give(t *testing.T, v hullmark.Version, make func(hullmark.Version) ([]byte, error)) {
	t.Helper()
	documents, err := make(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.input, "config.yaml"), documents, 0o600); err != nil {
		t.Fatal(err)
	}
}

// join makes the node one of the cluster, which was begun with an earlier patch release.
func (n node) join(ctx context.Context, t *testing.T, env *testenv.Environment) run.Access {
	t.Helper()
	for name, user := range map[string][]string{"admin.conf": {"kubernetes-admin", "system:masters"}, "kubelet.conf": {"system:node:one", "system:nodes"}} {
		config, err := env.Kubeconfig(user[0], user[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n.etc, name), config, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(n.etc, "manifests/kube-apiserver.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	documents, err := kubeadm.InitDocuments(kubeadm.Params{
		NodeName: "one", AdvertiseAddress: netip.MustParseAddr("192.0.2.7"),
		ServiceSubnet: kubeadm.MustParseSubnets("10.96.0.0/16"), PodSubnet: kubeadm.MustParseSubnets("10.244.0.0/16"),
	})
	if err != nil {
		t.Fatal(err)
	}
	upload := exec.CommandContext(ctx, filepath.Join(n.bin, "kubeadm"), "init", "phase", "upload-config", "all", "--kubeconfig", filepath.Join(n.etc, "admin.conf"), "--config", "/dev/stdin")
	upload.Stdin = strings.NewReader(strings.Replace(string(documents), kubeadm.Version, "v1.36.0", 1))
	if err := env.Apply(ctx, fmt.Appendf(nil, seenNode, kubeadm.Version)); err != nil {
		t.Fatal(err)
	}
	if out, err := upload.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return run.Access{Kubeconfig: "admin.conf", Read: func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(n.etc, name)) }}
}
