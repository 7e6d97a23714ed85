package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

func TestKubeconfigChainsToTheKubernetesCA(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	text, err := c.Kubeconfig("203.0.113.1:6443", now)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct{ Server string } `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User map[string]string `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if got := config.Clusters[0].Cluster.Server; got != "https://203.0.113.1:6443" {
		t.Errorf("server %q", got)
	}
	user := config.Users[0].User
	pair, err := tls.X509KeyPair(decodeBase64(t, user["client-certificate-data"]), decodeBase64(t, user["client-key-data"]))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.Kubernetes.Certificate)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Error(err)
	}
}

func decodeBase64(t *testing.T, s string) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestFilesAreWhatKubeadmReads(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, f := range files {
		found[f.GetPath()] = f.GetContent()
		public := strings.HasSuffix(f.GetPath(), ".crt") || strings.HasSuffix(f.GetPath(), ".pub") || f.GetPath() == stateDir+"policy"
		if (f.GetMode() == 0o600) == public {
			t.Errorf("%s has mode %#o", f.GetPath(), f.GetMode())
		}
	}
	for _, base := range []string{pkiDir + "ca", pkiDir + "etcd/ca", pkiDir + "front-proxy-ca", pkiDir + "kubelet-serving-ca", stateDir + "online-ca"} {
		if _, err := tls.X509KeyPair(found[base+".crt"], found[base+".key"]); err != nil {
			t.Errorf("%s: %v", base, err)
		}
	}
	if !bytes.Equal(found[hullmark.KubeletTrustFile], found[hullmark.KubeletServingCertificate]) || bytes.Equal(found[hullmark.KubeletTrustFile], found[pkiDir+"ca.crt"]) {
		t.Error("API servers hold kubelets to another CA than that of their own")
	}
	for path, kind := range map[string]string{pkiDir + "sa.key": "EC PRIVATE KEY", pkiDir + "sa.pub": "PUBLIC KEY"} {
		if block, _ := pem.Decode(found[path]); block == nil || block.Type != kind {
			t.Errorf("%s is not PEM of a %s", path, kind)
		}
	}
}

// stateDir is where a control plane keeps what Hullmark writes.
const stateDir = "/var/lib/hullmark/"
