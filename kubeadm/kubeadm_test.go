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
		ServiceSubnet:    MustParseSubnets("10.96.0.0/12"),
		PodSubnet:        MustParseSubnets("10.244.0.0/16"),
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
	p.Several = true
	several, err := InitDocuments(p)
	if err != nil {
		t.Fatal(err)
	}
	if off := "name: leader-elect\n"; !strings.Contains(string(patient), off) || strings.Contains(string(several), off) || !strings.Contains(string(several), "leader-elect-renew-deadline") {
		t.Errorf("leaders are elected with one control plane, or not with several:\n%s", several)
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
		"service subnet":    func(p *Params) { p.ServiceSubnet = nil },
		"same families":     func(p *Params) { p.PodSubnet = MustParseSubnets("fd00:10:244::/56") },
		"same order": func(p *Params) {
			p.ServiceSubnet, p.PodSubnet = MustParseSubnets("10.96.0.0/12,fd00:10:96::/112"), MustParseSubnets("fd00:10:244::/56,10.244.0.0/16")
		},
		"one of each family": func(p *Params) { p.PodSubnet = append(p.PodSubnet, netip.MustParsePrefix("10.245.0.0/16")) },
		"overlaps":           func(p *Params) { p.PodSubnet = MustParseSubnets("10.97.0.0/16") },
		"fd00:10::/108 overlaps": func(p *Params) {
			p.ServiceSubnet, p.PodSubnet = MustParseSubnets("10.96.0.0/12,fd00:10::/108"), MustParseSubnets("10.244.0.0/16,fd00:10::/56")
		},
		"family of the first service subnet": func(p *Params) { p.AdvertiseAddress = netip.MustParseAddr("2001:db8::7") },
		"pods' network 10.0.2.0/24":          func(p *Params) { p.PodSubnet = MustParseSubnets("10.0.2.0/24") },
		"profile":                            func(p *Params) { p.Profile = "fast" },
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
		for _, want := range []string{"api.example", "10.244.0.0/16", "image: " + NodeImage + "\n", "requests: {cpu: "} {
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

// TestBothFamilies: with networks of both families every document names both, the primary one first; the API server's own address
// is of the primary family.
func TestBothFamilies(t *testing.T) {
	for name, primary := range map[string]struct{ services, pods, address, domain string }{
		"IPv4 first": {"10.96.0.0/12,fd00:10:96::/112", "10.244.0.0/16,fd00:10:244::/56", "192.0.2.7", "192.0.2.7:6443"},
		"IPv6 first": {"fd00:10:96::/112,10.96.0.0/12", "fd00:10:244::/56,10.244.0.0/16", "2001:db8::7", "'[2001:db8::7]:6443'"},
		"IPv6 alone": {"fd00:10:96::/112", "fd00:10:244::/56", "2001:db8::7", "'[2001:db8::7]:6443'"},
	} {
		p := params()
		p.Endpoint, p.ServiceSubnet, p.PodSubnet = "", MustParseSubnets(primary.services), MustParseSubnets(primary.pods)
		p.AdvertiseAddress = netip.MustParseAddr(primary.address)
		if err := p.CheckSizes(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text, err := InitDocuments(p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range []string{"podSubnet: " + primary.pods, "serviceSubnet: " + primary.services, "advertiseAddress: " + primary.address, "controlPlaneEndpoint: " + primary.domain} {
			if !strings.Contains(string(text), want+"\n") {
				t.Errorf("%s: lacks %s:\n%s", name, want, text)
			}
		}
		proxy, err := KubeProxy(p)
		if err != nil || !strings.Contains(string(proxy), "clusterCIDR: "+primary.pods+"\n") {
			t.Errorf("%s: kube-proxy: %v", name, err)
		}
	}
}

// TestFlannelsFamilies: flannel's configuration has a network of each family and no other, and its leases may name no more.
func TestFlannelsFamilies(t *testing.T) {
	for pods, want := range map[string]struct{ conf, lease string }{
		"10.244.0.0/16":                  {`{"Network": "10.244.0.0/16", "EnableNFTables": true, "Backend": {"Type": "host-gw"}}`, "'kube-subnet-manager'].map("},
		"fd00:10:244::/56":               {`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56", "EnableNFTables": true, "Backend": {"Type": "host-gw"}}`, "'public-ipv6', 'backend-v6-data'].map("},
		"fd00:10:244::/56,10.244.0.0/16": {`{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56", "EnableNFTables": true, "Backend": {"Type": "host-gw"}}`, "'public-ipv6', 'backend-v6-data'].map("},
	} {
		p := params()
		p.PodSubnet, p.ServiceSubnet = MustParseSubnets(pods), nil
		for _, n := range p.PodSubnet {
			services := MustParseSubnets("10.96.0.0/12")
			if n.Addr().Is6() {
				services = MustParseSubnets("fd00:10:96::/112")
			}
			p.ServiceSubnet = append(p.ServiceSubnet, services...)
		}
		text, err := Flannel(p)
		if err != nil {
			t.Errorf("%s: %v", pods, err)
			continue
		}
		if conf := "net-conf.json: |\n    " + want.conf + "\n"; !strings.Contains(string(text), conf) || !strings.Contains(string(text), want.lease) {
			t.Errorf("%s: want %s and %s in\n%s", pods, conf, want.lease, text)
		}
	}
}

// TestFlannelEnforcesPolicies only where it is told to, and reads pods only then.
func TestFlannelEnforcesPolicies(t *testing.T) {
	for _, policies := range []bool{false, true} {
		p := params()
		p.NetworkPolicies = policies
		text, err := Flannel(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range []string{"- --network-policies\n", "resources: [networkpolicies]\n", "resources: [pods, namespaces]\n"} {
			if strings.Contains(string(text), of) != policies {
				t.Errorf("policies %t: %q is there: %t", policies, of, !policies)
			}
		}
	}
}

func TestSizesOfSubnets(t *testing.T) {
	for subnets, want := range map[[2]string]string{
		{"10.244.0.0/25", "10.96.0.0/12"}:                        "want one from /8 to /24",
		{"fd00::/40", "fd00:1::/112"}:                            "want one from /48 to /64",
		{"fd00::/72", "fd00:1::/112"}:                            "want one from /48 to /64",
		{"10.244.0.0/16", "10.0.0.0/11"}:                         "want one from /12 to /28",
		{"10.244.0.0/16", "10.96.0.0/30"}:                        "want one from /12 to /28",
		{"fd00::/56", "fd00:1::/64"}:                             "want one from /108 to /124",
		{"10.244.0.0/24", "10.96.0.0/28"}:                        "",
		{"fd00::/48", "fd00:1::/108"}:                            "",
		{"10.244.0.0/16,fd00::/64", "10.96.0.0/12,fd00:1::/124"}: "",
	} {
		p := params()
		p.PodSubnet, p.ServiceSubnet = MustParseSubnets(subnets[0]), MustParseSubnets(subnets[1])
		if err := p.CheckSizes(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", subnets, err, want)
		}
	}
}

func TestParseSubnets(t *testing.T) {
	for _, text := range []string{"", "10.244.0.0", "10.244.0.0/16,", "10.244.0.0/16, fd00::/56", "10.244.0.0/16,10.96.0.0/16", "10.0.0.0/8,fd00::/56,fd01::/56", "::ffff:10.0.0.0/112", "fd00::%eth0/56"} {
		if s, err := ParseSubnets(text); err == nil {
			t.Errorf("%q is %v", text, s)
		}
	}
	for _, text := range []string{"10.244.0.0/16", "fd00::/56", "10.244.0.0/16,fd00::/56", "fd00::/56,10.244.0.0/16"} {
		if s, err := ParseSubnets(text); err != nil || s.String() != text {
			t.Errorf("%q is %v, %v", text, s, err)
		}
	}
}
