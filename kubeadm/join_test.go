package kubeadm

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

const testToken = "abcdef.0123456789abcdef"

func joinParams(t *testing.T) JoinParams {
	t.Helper()
	certificate, _ := clientPair(t)
	return JoinParams{NodeName: "worker-1", Endpoint: "10.0.2.21:6443", CA: certificate, Token: hullmark.NewSecret([]byte(testToken))}
}

func TestJoinDocuments(t *testing.T) {
	p := joinParams(t)
	documents, discoveryText, err := JoinDocuments(p)
	if err != nil {
		t.Fatal(err)
	}
	var c joinConfiguration
	if err := yaml.UnmarshalStrict(documents, &c); err != nil {
		t.Fatal(err)
	}
	if c.Discovery.TLSBootstrapToken != testToken || c.Discovery.File.KubeConfigPath != DiscoveryFile || c.NodeRegistration.Name != "worker-1" || c.Timeouts != nil {
		t.Errorf("documents = %+v", c)
	}
	var k kubeconfigFile
	if err := yaml.Unmarshal(discoveryText, &k); err != nil {
		t.Fatal(err)
	}
	if len(k.Users) != 0 || len(k.Clusters) != 1 || k.Clusters[0].Cluster.Server != "https://10.0.2.21:6443" || !x509.NewCertPool().AppendCertsFromPEM(k.Clusters[0].Cluster.CA) {
		t.Errorf("discovery = %s", discoveryText)
	}
	if strings.Contains(string(discoveryText), testToken) {
		t.Error("the file on the disk holds the token")
	}
	if c.ControlPlane != nil {
		t.Errorf("a worker's documents make a control plane: %s", documents)
	}
	p.AdvertiseAddress = netip.MustParseAddr("192.0.2.8")
	if documents, _, err = JoinDocuments(p); err != nil {
		t.Fatal(err)
	}
	c = joinConfiguration{}
	if err := yaml.UnmarshalStrict(documents, &c); err != nil || c.ControlPlane == nil || c.ControlPlane.LocalAPIEndpoint != (endpoint{"192.0.2.8", 6443}) {
		t.Errorf("a control plane's documents: %v: %s", err, documents)
	}
	p.Profile = Slow
	if documents, _, err = JoinDocuments(p); err != nil || !strings.Contains(string(documents), "tlsBootstrap: 20m") {
		t.Errorf("the slow profile: %v: %s", err, documents)
	}
}

func TestJoinParamsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*JoinParams){
		"node name": func(p *JoinParams) { p.NodeName = "Worker 1" },
		"endpoint":  func(p *JoinParams) { p.Endpoint = "10.0.2.21" },
		"CA":        func(p *JoinParams) { p.CA = []byte("-----BEGIN NOTHING-----") },
		"token":     func(p *JoinParams) { p.Token = hullmark.NewSecret([]byte("abcdef.0123456789abcdef\nx: y")) },
		"profile":   func(p *JoinParams) { p.Profile = "fast" },
		"advertise": func(p *JoinParams) { p.AdvertiseAddress = netip.IPv4Unspecified() },
	} {
		p := joinParams(t)
		spoil(&p)
		_, _, err := JoinDocuments(p)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), testToken) {
			t.Errorf("%s: the error tells the token", name)
		}
	}
}

// kubelets' certificates are the join service's to approve, so nothing of kubeadm may approve them.
func TestInitLeavesCertificatesToTheJoinService(t *testing.T) {
	text, err := InitDocuments(params())
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "---\n")[1:]
	var i initConfiguration
	var k kubeletConfiguration
	if err := errors.Join(yaml.Unmarshal([]byte(parts[0]), &i), yaml.Unmarshal([]byte(parts[2]), &k)); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(i.SkipPhases, "bootstrap-token") || !k.ServerTLSBootstrap || !k.RotateCertificates {
		t.Errorf("phases left out %v, kubelet %+v", i.SkipPhases, k)
	}
}

// Whether it works or not, a join leaves no token behind.
func TestJoinForgetsItsDocuments(t *testing.T) {
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		dir := filepath.Join(t.TempDir(), "kubeadm")
		var got []Phase
		err := joinWith(t.Context(), dir, []byte("token: "+testToken), func(p Phase) { got = append(got, p) }, func(context.Context, string) error {
			info, err := os.Stat(filepath.Join(dir, "config.yaml"))
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("documents: %v, %v", info, err)
			}
			return errors.Join(want, os.WriteFile(filepath.Join(dir, "output"), []byte("[kubelet-start] Starting the kubelet\nerror: token "+testToken+" is invalid\n"), 0o600))
		})
		if !errors.Is(err, want) || err != nil && (!strings.Contains(err.Error(), "error: token <token> is invalid") || strings.Contains(err.Error(), testToken)) {
			t.Errorf("got %v", err)
		}
		if want := []Phase{{"kubelet-start", "Starting the kubelet"}}; !slices.Equal(got, want) {
			t.Errorf("phases = %v", got)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}

// A template's own fields are kept; what one node alone has is written into it, whatever it said.
func TestJoinTemplateIsFilled(t *testing.T) {
	p := joinParams(t)
	p.Template = []byte(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
controlPlane: {certificateKey: x}
discovery: {tlsBootstrapToken: other, file: {kubeConfigPath: /etc/passwd}}
nodeRegistration: {name: other, taints: [], kubeletExtraArgs: [{name: v, value: "4"}]}
timeouts: {discovery: 8m}
`)
	documents, _, err := JoinDocuments(p)
	if err != nil {
		t.Fatal(err)
	}
	var c joinConfiguration
	var own struct {
		NodeRegistration struct{ KubeletExtraArgs []argument }
	}
	if err := errors.Join(yaml.Unmarshal(documents, &c), yaml.Unmarshal(documents, &own)); err != nil {
		t.Fatal(err)
	}
	if c.Discovery.TLSBootstrapToken != testToken || c.Discovery.File.KubeConfigPath != DiscoveryFile || c.NodeRegistration.Name != "worker-1" || c.ControlPlane != nil {
		t.Errorf("documents:\n%s", documents)
	}
	if taints := c.NodeRegistration.Taints; taints == nil || len(*taints) != 0 || len(own.NodeRegistration.KubeletExtraArgs) != 1 || c.Timeouts == nil || c.Timeouts.Discovery != "8m" {
		t.Errorf("the template's fields are gone:\n%s", documents)
	}
	p.AdvertiseAddress = netip.MustParseAddr("192.0.2.8")
	if documents, _, err = JoinDocuments(p); err != nil || !strings.Contains(string(documents), "advertiseAddress: 192.0.2.8") || strings.Contains(string(documents), "certificateKey") {
		t.Errorf("of a control plane: %v\n%s", err, documents)
	}
	for name, template := range map[string]string{
		"another kind":    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {}\ndiscovery: {}\n",
		"another version": "apiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\nnodeRegistration: {}\ndiscovery: {}\n",
		"no discovery":    "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration: {}\n",
		"no YAML":         "{",
		"a field twice":   "kind: a\nkind: JoinConfiguration\n",
	} {
		p.Template = []byte(template)
		if _, _, err := JoinDocuments(p); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
