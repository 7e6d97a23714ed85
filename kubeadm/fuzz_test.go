package kubeadm

import (
	"bytes"
	"testing"
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
