package kubeadm

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
)

func params() Params {
	return Params{
		NodeName:         "one",
		AdvertiseAddress: netip.MustParseAddr("10.0.2.15"),
		ServiceSubnet:    netip.MustParsePrefix("10.96.0.0/12"),
		PodSubnet:        netip.MustParsePrefix("10.244.0.0/16"),
	}
}

func TestInitDocumentsHoldsProfileApart(t *testing.T) {
	normal, err := InitDocuments(params())
	if err != nil {
		t.Fatal(err)
	}
	p := params()
	p.Profile = Slow
	patient, err := InitDocuments(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"ECDSA-P256", "heartbeat-interval", "leader-elect", "timeouts:"} {
		if strings.Contains(string(normal), word) {
			t.Errorf("the normal profile holds %s", word)
		}
		if !strings.Contains(string(patient), word) {
			t.Errorf("the slow profile lacks %s", word)
		}
	}
}

func TestInitDocumentsOfAnImage(t *testing.T) {
	p := params()
	for _, want := range []string{Version, "v1.35.4"} {
		text, err := InitDocuments(p)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\nkubernetesVersion: "+want+"\n") {
			t.Errorf("want kubernetesVersion %s:\n%s", want, text)
		}
		p.Kubernetes = hullmark.Version{Major: 1, Minor: 35, Patch: 4}
	}
}

func TestInitDocumentsTaint(t *testing.T) {
	p := params()
	for _, workloads := range []bool{false, true} {
		p.Workloads = workloads
		text, err := InitDocuments(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(text), "taints: []"); got != workloads {
			t.Errorf("workloads %t: an empty list of taints is there: %t", workloads, got)
		}
	}
}

func TestParamsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Params){
		"node name":         func(p *Params) { p.NodeName = "" },
		"advertise address": func(p *Params) { p.AdvertiseAddress = netip.IPv4Unspecified() },
		"service subnet":    func(p *Params) { p.ServiceSubnet = netip.Prefix{} },
		"pod subnet":        func(p *Params) { p.PodSubnet = netip.MustParsePrefix("fd00::/56") },
		"overlaps":          func(p *Params) { p.PodSubnet = netip.MustParsePrefix("10.97.0.0/16") },
		"profile":           func(p *Params) { p.Profile = "fast" },
	} {
		p := params()
		spoil(&p)
		if _, err := InitDocuments(p); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAddonsAreYAMLForTheCluster(t *testing.T) {
	p := params()
	p.Endpoint = "api.example:6443"
	for name, write := range map[string]func(Params) ([]byte, error){"kube-proxy": KubeProxy, "flannel": Flannel} {
		text, err := write(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(text), "\n---\n") {
			var object struct{ Kind string }
			if err := yaml.UnmarshalStrict([]byte(part), &map[string]any{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := yaml.Unmarshal([]byte(part), &object); err != nil || object.Kind == "" {
				t.Errorf("%s: a document without a kind: %v", name, err)
			}
		}
		for _, want := range []string{"api.example", "10.244.0.0/16", "image: " + NodeImage + "\n"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: lacks %s", name, want)
			}
		}
	}
}

// TestWireGuard: the network that is encrypted has the backend, its key in memory, and leases of no other backend.
func TestWireGuard(t *testing.T) {
	p := params()
	plain, err := Flannel(p)
	if err != nil {
		t.Fatal(err)
	}
	p.WireGuard = true
	encrypted, err := Flannel(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(encrypted), "\n---\n") {
		if err := yaml.UnmarshalStrict([]byte(part), &map[string]any{}); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{`"Type": "wireguard"`, "== 'wireguard'", "medium: Memory", "WIREGUARD_KEY_FILE", `"Port":51820`} {
		if !strings.Contains(string(encrypted), want) || strings.Contains(string(plain), want) {
			t.Errorf("%s: in the encrypted network %t, in the plain one %t", want, strings.Contains(string(encrypted), want), strings.Contains(string(plain), want))
		}
	}
	if strings.Contains(string(encrypted), "host-gw") || strings.Contains(string(encrypted), "== 'null'") {
		t.Error("the encrypted network takes leases of the plain one")
	}
}

// TestVersionIsThatOfTheBundle holds the constant here to what is compiled.
func TestVersionIsThatOfTheBundle(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "tools", "kubernetes", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "k8s.io/kubernetes "+Version+"\n") {
		t.Errorf("tools/kubernetes/go.mod does not require k8s.io/kubernetes %s", Version)
	}
}

// Nodes load the image of our addons under the name by which those ask for it.
func TestNodesHaveTheAddonsImage(t *testing.T) {
	unit, err := os.ReadFile("../systemd/system/hullmark-images.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), " "+NodeImage+"\n") {
		t.Errorf("hullmark-images.service gives no image the name %s", NodeImage)
	}
}
