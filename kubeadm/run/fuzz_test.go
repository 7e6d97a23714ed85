package run

import "testing"

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
