//go:build long

package build

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// renewedNode is a folder in the place of a control plane's /etc/kubernetes, and the programs of the bundle.
type renewedNode struct{ dir, bundle string }

// file is where a program's path is in the folder.
func (n renewedNode) file(path string) string {
	return filepath.Join(n.dir, strings.TrimPrefix(path, "/etc/kubernetes/"))
}

var startPattern = regexp.MustCompile(`(?m)^ExecStart=` + run.Program + ` (.*)$`)

// phases runs what the renewal's unit runs.
func (n renewedNode) phases(t *testing.T, documents []byte) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	moved := strings.Replace(string(documents), "kind: ClusterConfiguration\n", "kind: ClusterConfiguration\ncertificatesDir: "+filepath.Join(n.dir, "pki")+"\n", 1)
	if err := os.WriteFile(config, []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	unit, err := os.ReadFile("../../systemd/system/" + run.RenewUnit)
	if err != nil {
		t.Fatal(err)
	}
	commands := startPattern.FindAllStringSubmatch(string(unit), -1)
	if len(commands) < 4 {
		t.Fatalf("the unit has %d commands", len(commands))
	}
	for _, c := range commands {
		args := strings.Fields(strings.Replace(c[1], "/run/hullmark/kubeadm/config.yaml", config, 1))
		if strings.Contains(c[1], " kubeconfig ") {
			args = append(args, "--kubeconfig-dir", n.dir)
		}
		if out, err := exec.CommandContext(t.Context(), filepath.Join(n.bundle, run.Program), args...).CombinedOutput(); err != nil {
			t.Fatalf("kubeadm %s: %v: %s", args, err, out)
		}
	}
}

func (n renewedNode) renewal(now time.Time, endpoint string, names ...string) kubeadm.Renewal {
	return kubeadm.Renewal{
		NodeName: "one", Endpoint: endpoint, Names: names, Now: now,
		Read: func(path string) ([]byte, error) { return os.ReadFile(n.file(path)) },
	}
}

// TestKubeadmRenews makes a control plane's certificates and kubeconfigs, lets them grow old, and renews them for another
// endpoint, as the agent and its unit do.
func TestKubeadmRenews(t *testing.T) {
	for _, profile := range []kubeadm.Profile{kubeadm.Normal, kubeadm.Slow} {
		n := renewedNode{dir: t.TempDir(), bundle: kubernetesBundle(t)}
		p := clusterParams()
		p.Profile = profile
		documents, err := kubeadm.InitDocuments(p)
		if err != nil {
			t.Fatal(err)
		}
		n.phases(t, documents)
		patched := strings.Replace(string(documents), kubeadm.PatchesDir, filepath.Join(n.bundle, kubeadm.PatchesDir), 1)
		if err := os.Rename(dryRun(t.Context(), t, n.bundle, patched), filepath.Join(n.dir, "manifests")); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(n.file("/etc/kubernetes/pki/apiserver.crt"))
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if documents, why, err := n.renewal(now, "10.0.2.15:6443").Plan(); why != "" || err != nil {
			t.Fatalf("of a fresh node something is to be renewed: %q, %v\n%s", why, err, documents)
		}
		if _, why, err := n.renewal(now.Add(300*24*time.Hour), "10.0.2.15:6443").Plan(); !strings.HasPrefix(why, "apiserver.crt ends on ") || err != nil {
			t.Errorf("after 300 days: %q, %v", why, err)
		}
		documents, why, err := n.renewal(now, "api.example.net:6443", "203.0.113.7").Plan()
		if why != "apiserver.crt is not for api.example.net" || err != nil {
			t.Fatalf("another endpoint: %q, %v", why, err)
		}
		for _, path := range kubeadm.Renewals() {
			if err := os.Remove(n.file(path)); err != nil {
				t.Fatal(err)
			}
		}
		n.phases(t, documents)
		if _, why, err := n.renewal(now, "api.example.net:6443", "203.0.113.7", "127.0.0.1", "10.96.0.1", "kubernetes.default.svc.cluster.local").Plan(); why != "" || err != nil {
			t.Errorf("after the renewal: %q, %v", why, err)
		}
		after, err := os.ReadFile(n.file("/etc/kubernetes/pki/apiserver.crt"))
		if err != nil || string(after) == string(before) {
			t.Errorf("the certificate is the old one: %v", err)
		}
		algorithm := map[kubeadm.Profile]string{kubeadm.Normal: "encryptionAlgorithm: RSA-2048", kubeadm.Slow: "encryptionAlgorithm: ECDSA-P256"}[profile]
		if !strings.Contains(string(documents), algorithm) {
			t.Errorf("want %s in\n%s", algorithm, documents)
		}
		for _, name := range []string{"controller-manager", "scheduler"} {
			text, err := os.ReadFile(filepath.Join(n.dir, name+".conf"))
			if err != nil || !strings.Contains(string(text), "server: https://10.0.2.15:6443") {
				t.Errorf("%s.conf leads elsewhere than to the node's own API server: %v", name, err)
			}
		}
	}
}

// Of a file with two authorities kubeadm signs with the first one, and takes the other along: so an exchange of etcd's CA, of the front
// proxy's or of Kubernetes' goes on. Certificates of the former one are found, and made anew; nothing is to be done before that and after.
// Into kubeconfigs kubeadm writes the first one alone, and goes on beside those that begin with it, as the agent has them.
func TestRenewalInAnExchange(t *testing.T) {
	n := renewedNode{t.TempDir(), kubernetesBundle(t)}
	other := renewedNode{t.TempDir(), n.bundle}
	p := clusterParams()
	p.Profile = kubeadm.Slow
	documents, err := kubeadm.InitDocuments(p)
	if err != nil {
		t.Fatal(err)
	}
	n.phases(t, documents)
	other.phases(t, documents) // makes authorities that are to follow
	patched := strings.Replace(string(documents), kubeadm.PatchesDir, filepath.Join(n.bundle, kubeadm.PatchesDir), 1)
	if err := os.Rename(dryRun(t.Context(), t, n.bundle, patched), filepath.Join(n.dir, "manifests")); err != nil {
		t.Fatal(err)
	}
	plan := func(want string) []byte {
		t.Helper()
		documents, why, err := n.renewal(time.Now(), "10.0.2.15:6443").Plan()
		if why != want || err != nil {
			t.Fatalf("to be renewed is %q, %v; want %q", why, err, want)
		}
		return documents
	}
	for _, c := range []struct{ authority, first, leaf string }{
		{"/etc/kubernetes/pki/etcd/ca", "apiserver-etcd-client", "etcd/peer"},
		{"/etc/kubernetes/pki/front-proxy-ca", "front-proxy-client", "front-proxy-client"},
		{"/etc/kubernetes/pki/ca", "apiserver", "apiserver-kubelet-client"},
	} {
		own, next, key := n.read(t, c.authority+".crt"), other.read(t, c.authority+".crt"), other.read(t, c.authority+".key")
		before := n.read(t, "/etc/kubernetes/pki/"+c.leaf+".crt")
		n.write(t, c.authority+".crt", own+next)
		n.trust(t)
		n.phases(t, documents)
		if plan(""); n.read(t, "/etc/kubernetes/pki/"+c.leaf+".crt") != before {
			t.Errorf("%s was made anew before the next authority signs", c.leaf)
		}
		n.write(t, c.authority+".crt", next+own)
		n.write(t, c.authority+".key", key)
		n.trust(t)
		renewing := plan(c.first + ".crt is not of the authority that signs by now")
		for _, path := range kubeadm.Renewals() {
			if err := os.Remove(n.file(path)); err != nil {
				t.Fatal(err)
			}
		}
		n.phases(t, renewing)
		plan("")
		signs, _, _ := strings.Cut(n.read(t, "/etc/kubernetes/pki/ca.crt"), "-----END")
		if found, err := kubeadm.AuthoritiesOf([]byte(n.read(t, "/etc/kubernetes/admin.conf"))); err != nil || strings.Count(string(found), "BEGIN") != 1 || !strings.HasPrefix(string(found), signs) {
			t.Errorf("kubeadm writes other authorities than the first one into a kubeconfig: %v\n%s", err, found)
		}
		n.trust(t)
		if err := parse(t, n.read(t, "/etc/kubernetes/pki/"+c.leaf+".crt")).CheckSignatureFrom(parse(t, next)); err != nil {
			t.Errorf("%s: %v", c.leaf, err)
		}
		if n.read(t, c.authority+".crt") != next+own {
			t.Errorf("kubeadm has changed %s.crt", c.authority)
		}
		n.write(t, c.authority+".crt", next)
		n.trust(t)
		n.phases(t, renewing)
		plan("")
	}
}

// trust has kubeconfigs take API servers by all of the node's authorities, as the agent does at each boot.
func (n renewedNode) trust(t *testing.T) {
	t.Helper()
	for _, name := range []string{"/etc/kubernetes/admin.conf", "/etc/kubernetes/kubelet.conf"} {
		changed, _, err := kubeadm.WithAuthorities([]byte(n.read(t, name)), []byte(n.read(t, "/etc/kubernetes/pki/ca.crt")))
		if err != nil {
			t.Fatal(err)
		}
		n.write(t, name, string(changed))
	}
}

// read and write are for a file by the path that programs see.
func (n renewedNode) read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(n.file(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (n renewedNode) write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(n.file(path), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// parse reads the first certificate of a text.
func parse(t *testing.T, text string) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("no PEM: %s", text)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
