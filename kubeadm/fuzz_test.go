package kubeadm

import (
	"bytes"
	"testing"

	"github.com/hullmark/hullmark"
)

// FuzzWithControlPlane holds the edit of a stored ClusterConfiguration to what its caller relies on: once it was made, nothing
// is left to change.
func FuzzWithControlPlane(f *testing.F) {
	f.Add([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: 192.0.2.1:6443\napiServer:\n  certSANs:\n  - a.example.net\n"))
	f.Add([]byte("apiServer: []\ncontrolPlaneEndpoint: 7\n"))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, stored []byte) {
		changed, _, err := WithControlPlane(stored, "api.example.net:6443", []string{"192.0.2.7"})
		if err != nil {
			return
		}
		again, differs, err := WithControlPlane(changed, "api.example.net:6443", []string{"192.0.2.7"})
		if err != nil || differs || !bytes.Equal(again, changed) {
			t.Errorf("%q was changed again, to %q: %v", changed, again, err)
		}
	})
}

// FuzzWithEndpoint does the same for a kubeconfig.
func FuzzWithEndpoint(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Config\nclusters:\n- name: none\n  cluster:\n    server: https://127.0.0.1:1\nusers:\n- name: none\n  user: {}\n"))
	f.Add([]byte("clusters: [{name: a, cluster: {server: x}}]\nusers: [{}]\n"))
	f.Fuzz(func(t *testing.T, kubeconfig []byte) {
		changed, _, err := WithEndpoint(kubeconfig, "api.example.net:6443")
		if err != nil {
			return
		}
		if _, differs, err := WithEndpoint(changed, "api.example.net:6443"); err != nil || differs {
			t.Errorf("%q was changed again: %v", changed, err)
		}
	})
}

// FuzzWithAuthorities does the same for its authorities, which are found in it then.
func FuzzWithAuthorities(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Config\nclusters:\n- name: none\n  cluster:\n    certificate-authority-data: YQ==\nusers:\n- name: none\n  user: {}\n"))
	f.Add([]byte("clusters: [{name: a, cluster: {certificate-authority: x, certificate-authority-data: [1]}}]\n"))
	f.Fuzz(func(t *testing.T, kubeconfig []byte) {
		changed, _, err := WithAuthorities(kubeconfig, []byte("certificates"))
		if err != nil {
			return
		}
		if _, differs, err := WithAuthorities(changed, []byte("certificates")); err != nil || differs {
			t.Errorf("%q was changed again: %v", changed, err)
		}
		if found, err := AuthoritiesOf(changed); err != nil || string(found) != "certificates" {
			t.Errorf("%q has %q: %v", changed, found, err)
		}
	})
}

// FuzzReadRendered reads what lies on a disk as static pods, and makes documents of it that kubeadm can read.
func FuzzReadRendered(f *testing.F) {
	for _, text := range pods("v1.36.3", "--emulated-version=1.35") {
		f.Add([]byte(text), []byte(keptCluster))
	}
	f.Add([]byte("spec: {containers: [{image: 'localhost/hullmark/x:v1.2.3', command: [--a]}]}"), []byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nscheduler: []\n"))
	f.Fuzz(func(t *testing.T, pod, cluster []byte) {
		read := func(string) ([]byte, error) { return pod, nil }
		r, err := ReadRendered(read)
		if err != nil {
			return
		}
		documents, err := Rendering{NodeName: "a", Version: hullmark.Version{Major: 1}, Acts: r.Acts, ClusterConfiguration: cluster, Read: read}.Documents()
		if err != nil {
			return
		}
		var found map[string]any
		if err := Find(documents, "ClusterConfiguration", &found); err != nil || found["kubernetesVersion"] != "v1.0.0" {
			t.Errorf("%s: %v", documents, err)
		}
	})
}
