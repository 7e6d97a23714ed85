package kubeadm

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

const testToken = "abcdef.0123456789abcdef"

func joinParams(t *testing.T) JoinParams {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
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
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []any `json:"users"`
	}
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

func TestJoinTemplateIsWhatJoinDocumentsFill(t *testing.T) {
	for _, profile := range []Profile{Normal, Slow} {
		text, err := JoinTemplate(profile)
		if err != nil {
			t.Fatal(err)
		}
		if patient := strings.Contains(string(text), "timeouts:"); patient != (profile == Slow) {
			t.Errorf("profile %q: time-outs: %t", profile, patient)
		}
		for _, want := range []string{"name: \"\"\n", "tlsBootstrapToken: \"\"\n", "kubeConfigPath: " + DiscoveryFile} {
			if !strings.Contains(string(text), want) {
				t.Errorf("profile %q: lacks %q:\n%s", profile, want, text)
			}
		}
	}
}
