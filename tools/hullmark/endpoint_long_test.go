//go:build long

package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
)

// controlPlaneObjects are what kubeadm and Hullmark's addons leave in a cluster with one control plane, as far as an endpoint is in it, or
// by which its controller manager signs.
const controlPlaneObjects = `{apiVersion: v1, kind: Node, metadata: {name: control-plane-1, labels: {node-role.kubernetes.io/control-plane: ""}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data:
  ClusterConfiguration: |
    apiVersion: kubeadm.k8s.io/v1beta4
    kind: ClusterConfiguration
    kubernetesVersion: v1.36.3
    networking: {podSubnet: 10.244.0.0/16}
    apiServer: {certSANs: [127.0.0.1]}
    controlPlaneEndpoint: 192.0.2.7:6443
    controllerManager:
      extraArgs:
      - {name: cluster-signing-cert-file, value: ""}
      - {name: cluster-signing-key-file, value: ""}
      - {name: cluster-signing-kube-apiserver-client-cert-file, value: /etc/kubernetes/pki/kubernetes-signing-ca.crt}
      - {name: cluster-signing-kube-apiserver-client-key-file, value: /etc/kubernetes/pki/ca.key}
      - {name: cluster-signing-kubelet-client-cert-file, value: /etc/kubernetes/pki/kubernetes-signing-ca.crt}
      - {name: cluster-signing-kubelet-client-key-file, value: /etc/kubernetes/pki/ca.key}
      - {name: cluster-signing-kubelet-serving-cert-file, value: /etc/kubernetes/pki/kubelet-serving-ca.crt}
      - {name: cluster-signing-kubelet-serving-key-file, value: /etc/kubernetes/pki/kubelet-serving-ca.key}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  kubeconfig.conf: |
    apiVersion: v1
    kind: Config
    clusters: [{name: default, cluster: {server: "https://192.0.2.7:6443"}}]
`

// flannelObject is what Hullmark's pod network keeps of the endpoint.
const flannelObject = `{apiVersion: v1, kind: ConfigMap, metadata: {name: flannel, namespace: kube-system}, data: {api-host: 192.0.2.7, api-port: "6443", net-conf.json: "{}"}}`

func (s *apiSite) leaveControlPlane(t *testing.T) {
	t.Helper()
	if err := s.env.Apply(t.Context(), []byte(controlPlaneObjects)); err != nil {
		t.Fatal(err)
	}
}

// initialised makes the cluster file one that has initialised the cluster.
func (s *apiSite) initialised(t *testing.T) {
	t.Helper()
	file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Update(func(c *cluster.Cluster) error {
		c.Settings = &joinservice.Settings{ControlPlaneEndpoint: "192.0.2.7:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// systemData is the data of a ConfigMap of kube-system.
func (s *apiSite) systemData(t *testing.T, name string) map[string]string {
	t.Helper()
	kubeconfig := s.path("reader.kubeconfig")
	if _, err := os.Stat(kubeconfig); err != nil {
		code, output := hullmarkCLI(t, "cluster", "kubeconfig", kubeconfig, "--endpoint", s.env.Address, "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
		wantExit(t, code, 0, output)
	}
	out, err := exec.CommandContext(t.Context(), s.env.Programs()+"/kubectl", "--kubeconfig", kubeconfig, "get", "configmap", name, "--namespace", "kube-system", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Data map[string]string }
	if err := json.Unmarshal(out, &object); err != nil {
		t.Fatal(err)
	}
	return object.Data
}

func TestEndpointOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	s.run(t, exitFailed, "endpoint show", "was not initialised by this file")
	s.initialised(t)
	s.run(t, exitUsage, "endpoint set API.example.net:6443", "in lower case")
	s.run(t, exitUsage, "endpoint set 127.0.0.1:6443 --name a..b", `"a..b"`)
	s.run(t, exitFailed, "endpoint set 127.0.0.1:6443", "kubeadm-config")
	s.leaveControlPlane(t)

	// The API server's certificate is not for that name, so nobody may use it yet, but who joins later shall serve it.
	s.run(t, 0, "endpoint set api.example.net:6443 --name 203.0.113.7",
		"control-plane-1", "does not serve api.example.net yet", "reboot the control planes")
	stored := s.systemData(t, "kubeadm-config")["ClusterConfiguration"]
	for _, want := range []string{"- 127.0.0.1", "- api.example.net", "- 203.0.113.7", "controlPlaneEndpoint: api.example.net:6443"} {
		if !strings.Contains(stored, want) {
			t.Errorf("kubeadm-config lacks %q:\n%s", want, stored)
		}
	}
	if config := s.systemData(t, "kube-proxy")["kubeconfig.conf"]; !strings.Contains(config, "192.0.2.7:6443") {
		t.Errorf("kube-proxy was moved to an endpoint that nobody serves:\n%s", config)
	}
	version := s.pushed(t).Version
	s.run(t, 0, "endpoint set api.example.net:6443 --name 203.0.113.7", "does not serve")
	if now := s.pushed(t).Version; now != version {
		t.Errorf("the same endpoint made policy version %d out of %d", now, version)
	}

	// This one the environment's API server serves.
	s.run(t, 0, "endpoint set 127.0.0.1:6443", "control-plane-1", "serves it", "certificate until 20", "no flannel of Hullmark's", "reboot the workers")
	if config := s.systemData(t, "kube-proxy")["kubeconfig.conf"]; !strings.Contains(config, "server: https://127.0.0.1:6443") {
		t.Errorf("kube-proxy was not moved:\n%s", config)
	}
	if err := s.env.Apply(t.Context(), []byte(flannelObject)); err != nil {
		t.Fatal(err)
	}
	if output := s.run(t, 0, "endpoint set 127.0.0.1:6443", "reboot the workers"); strings.Contains(output, "flannel") {
		t.Errorf("flannel is there:\n%s", output)
	}
	if data := s.systemData(t, "flannel"); data["api-host"] != "127.0.0.1" || data["api-port"] != "6443" || data["net-conf.json"] != "{}" {
		t.Errorf("flannel has %q", data)
	}
	s.run(t, 0, "endpoint show", "endpoint 127.0.0.1:6443, further names: none", "serves it")

	// What the operator saw counts for a control plane that cannot be asked from here, and for no other.
	s.run(t, 0, "endpoint set api.example.net:443 --served", "does not serve api.example.net yet", "reboot the control planes")
	another := `{apiVersion: v1, kind: Node, metadata: {name: control-plane-2, labels: {node-role.kubernetes.io/control-plane: ""}}}`
	if err := s.env.Apply(t.Context(), []byte(another)); err != nil {
		t.Fatal(err)
	}
	s.run(t, 0, "endpoint set api.example.net:443", "control-plane-2", "not reached from here", "reboot the control planes")
	s.run(t, 0, "endpoint set api.example.net:443 --served", "control-plane-2", "not reached from here", "reboot the workers")
	if data := s.systemData(t, "flannel"); data["api-host"] != "api.example.net" || data["api-port"] != "443" {
		t.Errorf("flannel has %q", data)
	}
}
