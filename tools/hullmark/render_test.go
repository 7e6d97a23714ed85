package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const renderFolder = "../../cluster/render/testdata"

// smallRoot is the root of the cluster of small.yaml there.
const smallRoot = "5f2b9c1d8e7a6f504132435465768798a9bacbdcedfe0f1021324354657687a9"

// renderCLI runs `hullmark render` with a program in kubeadm's place that takes everything; the real one judges where the
// bundle is at hand.
func renderCLI(t *testing.T, args ...string) (int, string) {
	t.Helper()
	return hullmarkCLI(t, append([]string{"render", "--kubeadm", "true"}, args...)...)
}

func TestRenderWritesAFolder(t *testing.T) {
	out := filepath.Join(t.TempDir(), "rendered")
	rich := filepath.Join(renderFolder, "rich.yaml")
	code, output := renderCLI(t, rich, "--out", out)
	wantExit(t, code, 0, output, filepath.Join(out, "init.yaml")+"\n", filepath.Join(out, "nodes/storage-2/node-config.json")+"\n")
	code, output = renderCLI(t, rich, "--against", out)
	wantExit(t, code, 0, output)
	if output != "" {
		t.Errorf("a render differs from itself:\n%s", output)
	}
	code, output = renderCLI(t, rich, "--against", filepath.Join(renderFolder, "rich"))
	wantExit(t, code, 0, output)
	code, output = renderCLI(t, rich, "--out", out)
	wantExit(t, code, exitUsage, output, "is there already")
}

func TestRenderWritesAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	code, output := hullmarkCLI(t, "render", filepath.Join(renderFolder, "small.yaml"), "--kubeadm", "false", "--out", filepath.Join(dir, "a"))
	wantExit(t, code, exitFailed, output, "init.yaml: validate kubeadm documents")
	code, output = renderCLI(t, filepath.Join(renderFolder, "small.yaml"), "--out", filepath.Join(dir, "absent", "a"))
	wantExit(t, code, exitFailed, output, "--out")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestRenderShowsDifferences(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(renderFolder, "rich.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "changed.yaml")
	write(t, changed, []byte(strings.NewReplacer("maxPods: 60", "maxPods: 70", "name: later", "name: soon").Replace(string(text))))
	earlier := filepath.Join(renderFolder, "rich")
	code, output := renderCLI(t, changed, "--against", earlier)
	wantExit(t, code, exitMismatch, output,
		"--- "+earlier+"/init.yaml\n+++ init.yaml\n", "\n-maxPods: 60\n+maxPods: 70\n", "+++ pools/soon/join.yaml\n", "--- "+earlier+"/pools/later/join.yaml\n")
	code, output = renderCLI(t, changed, "--against", t.TempDir())
	wantExit(t, code, exitFailed, output, "name the folder of an earlier render")
	code, output = renderCLI(t, changed, "--kubeconfig", "absent.conf")
	wantExit(t, code, exitFailed, output, "read the cluster's configuration", "absent.conf")
}

func TestRenderPrints(t *testing.T) {
	small := filepath.Join(renderFolder, "small.yaml")
	code, output := renderCLI(t, small)
	wantExit(t, code, 0, output, "-- init.yaml --\n---\n", "-- policy.json --\n{\n")
	code, output = renderCLI(t, small, "-o", "json", "--against", filepath.Join(renderFolder, "small"))
	wantExit(t, code, 0, output)
	var printed renderedJSON
	if err := json.Unmarshal([]byte(output), &printed); err != nil {
		t.Fatal(err)
	}
	if len(printed.Files) != 4 || printed.Diff == nil || *printed.Diff != "" {
		t.Errorf("got %d files and the differences %v", len(printed.Files), printed.Diff)
	}
	code, output = renderCLI(t, small, "-o", "yaml")
	wantExit(t, code, exitUsage, output, "want text or json")
}

func TestRenderRefuses(t *testing.T) {
	small := filepath.Join(renderFolder, "small.yaml")
	code, output := renderCLI(t, filepath.Join(renderFolder, "small", "policy.json"))
	wantExit(t, code, exitFailed, output, "policy.json: cluster document: line 3: unknown field \"version\"")
	code, output = renderCLI(t, small, "--policy", small)
	wantExit(t, code, exitFailed, output, small+": read policy")
	other := filepath.Join(t.TempDir(), "other.yaml")
	write(t, other, []byte("schema: x"))
	code, output = renderCLI(t, other)
	wantExit(t, code, exitFailed, output, `schema: "x", want "hullmark.cluster/v1"`)
}

// TestRenderedDocumentsInitialise gives init what render wrote, and the draft the policy in force.
func TestRenderedDocumentsInitialise(t *testing.T) {
	s := newSite(t)
	document, err := os.ReadFile(filepath.Join(renderFolder, "small.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "cluster.yaml", []byte(strings.NewReplacer(
		smallRoot, s.cluster.ID().String(),
		"0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9", s.node.ID.String(),
	).Replace(string(document))))
	code, output := renderCLI(t, s.path("cluster.yaml"), "--out", s.path("rendered"))
	wantExit(t, code, 0, output)
	policy := func(args ...string) (int, string) {
		return hullmarkCLI(t, append(append([]string{"policy"}, args...), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))...)
	}
	code, output = policy("sign", s.path("rendered/policy.json"))
	wantExit(t, code, 0, output)
	code, output = s.init(t, "--kubeadm", s.path("rendered/init.yaml"), "--name", "control-plane-1")
	wantExit(t, code, 0, output, "control-plane-1 is Ready")
	want, err := os.ReadFile(s.path("rendered/init.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.node.Proceed().GetKubeadmDocuments(); string(got) != string(want) {
		t.Errorf("the node got\n%s", got)
	}
	code, inForce := policy("show", "-o", "json")
	wantExit(t, code, 0, inForce)
	s.write(t, "policy.json", []byte(inForce))
	code, output = renderCLI(t, s.path("cluster.yaml"), "--policy", s.path("policy.json"), "-o", "json")
	wantExit(t, code, 0, output)
	var printed renderedJSON
	if err := json.Unmarshal([]byte(output), &printed); err != nil {
		t.Fatal(err)
	}
	if printed.Files["policy.json"] != inForce {
		t.Errorf("the draft of what is in force is\n%s\nwant\n%s", printed.Files["policy.json"], inForce)
	}
}

func TestRenderNeedsAKubeadm(t *testing.T) {
	small, err := filepath.Abs(filepath.Join(renderFolder, "small.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	code, output := hullmarkCLI(t, "render", small)
	wantExit(t, code, exitFailed, output, "find the image's kubeadm", "hullmark build", "--kubeadm")
}

// wouldStore stands for kubeadm: it takes every document, and says in a dry run what it would keep.
const wouldStore = `#!/bin/sh
cat >/dev/null
[ "$1" = init ] || exit 0
cat <<'END'
[upload-config] Storing the configuration
[dryrun] Attached object:
data:
  ClusterConfiguration: |
    clusterName: kubernetes
    kind: ClusterConfiguration
kind: ConfigMap
metadata:
  name: kubeadm-config

[dryrun] Attached object:
data:
  kubelet: |
    kind: KubeletConfiguration
    maxPods: 60
kind: ConfigMap
metadata:
  name: kubelet-config

END
`

// runningCluster is an API server that holds the two objects of kubeadm, and a kubeconfig for it.
func runningCluster(t *testing.T, cluster, kubelet string) (kubeconfig string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"metadata": map[string]string{"name": name}, "data": map[string]string{"ClusterConfiguration": cluster, "kubelet": kubelet},
		})
	}))
	t.Cleanup(server.Close)
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	object := func(name string, inner map[string]any) []map[string]any { return []map[string]any{{name: inner}} }
	text, err := json.Marshal(map[string]any{
		"clusters": object("cluster", map[string]any{"server": server.URL, "certificate-authority-data": certificate}),
		"users": object("user", map[string]any{
			"client-certificate-data": certificate, "client-key-data": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(t.TempDir(), "admin.conf")
	write(t, kubeconfig, text)
	return kubeconfig
}

func TestRenderShowsWhatRunsOtherwise(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kubeadm")
	if err := os.WriteFile(program, []byte(wouldStore), 0o700); err != nil {
		t.Fatal(err)
	}
	const cluster, kubelet = "clusterName: kubernetes\nkind: ClusterConfiguration\n", "kind: KubeletConfiguration\nmaxPods: 60\n"
	small := filepath.Join(renderFolder, "small.yaml")
	code, output := hullmarkCLI(t, "render", small, "--kubeadm", program, "--kubeconfig", runningCluster(t, cluster, kubelet))
	wantExit(t, code, 0, output)
	if output != "" {
		t.Errorf("got\n%s", output)
	}
	code, output = hullmarkCLI(t, "render", small, "--kubeadm", program, "--kubeconfig", runningCluster(t, cluster, "kind: KubeletConfiguration\nmaxPods: 110\n"))
	wantExit(t, code, exitMismatch, output, "--- running/KubeletConfiguration\n+++ KubeletConfiguration\n", "\n-maxPods: 110\n+maxPods: 60\n", "there are differences")
}
