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
	f.Add([]byte(noCluster))
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

// FuzzKubeconfig holds the reader of kubeconfigs to one cluster and one user.
func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte(noCluster))
	f.Add([]byte("clusters: [{cluster: {certificate-authority-data: eA==}}]\nusers: [{user: {client-key: /k}}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		access := Access{Kubeconfig: "k", Read: func(string) ([]byte, error) { return text, nil }}
		c, err := access.kubeconfig()
		if err == nil && (len(c.Clusters) != 1 || len(c.Users) != 1) {
			t.Errorf("%d clusters and %d users", len(c.Clusters), len(c.Users))
		}
		_, _, _ = access.client()
	})
}
