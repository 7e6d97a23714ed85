package bootstrap

import (
	"strings"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

var testRoot = strings.Repeat("5f2b9c1d", 8)

// spec returns a whole spec that change alters.
func spec(change func(*v1alpha1.HullmarkConfigSpec)) v1alpha1.HullmarkConfigSpec {
	s := v1alpha1.HullmarkConfigSpec{ClusterRoot: testRoot, Pool: "workers", StateDisk: v1alpha1.StateDisk{Serial: "state"}}
	if change != nil {
		change(&s)
	}
	return s
}

func TestNodeConfig(t *testing.T) {
	text, c, err := nodeConfig(spec(func(s *v1alpha1.HullmarkConfigSpec) {
		s.TimeServers = []string{"time.example"}
		s.Network = v1alpha1.Network{Addresses: []string{"192.0.2.11/24"}, Gateway: "192.0.2.1", NameServers: []string{"192.0.2.53"}}
	}), clusterv1.APIEndpoint{Host: "2001:db8::1", Port: 6443})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "version": 1,
  "clusterRoot": "5f2b9c1d5f2b9c1d5f2b9c1d5f2b9c1d5f2b9c1d5f2b9c1d5f2b9c1d5f2b9c1d",
  "endpoints": [
    "[2001:db8::1]:7444"
  ],
  "addresses": [
    "192.0.2.11/24"
  ],
  "gateway": "192.0.2.1",
  "nameServers": [
    "192.0.2.53"
  ],
  "timeServers": [
    "time.example"
  ],
  "stateDisk": {
    "serial": "state"
  }
}
`
	if string(text) != want {
		t.Errorf("got %s\nwant %s", text, want)
	}
	if len(c.Endpoints) != 1 || c.StateDisk.Serial != "state" {
		t.Errorf("parsed as %+v", c)
	}
}

func TestNodeConfigEndpoints(t *testing.T) {
	set := spec(func(s *v1alpha1.HullmarkConfigSpec) { s.JoinEndpoints = []string{"join.example:7000"} })
	for name, test := range map[string]struct {
		spec     v1alpha1.HullmarkConfigSpec
		endpoint string
		want     string
	}{
		"of the spec":               {set, "api.example", "join.example:7000"},
		"of the Cluster":            {spec(nil), "api.example", "api.example:7444"},
		"none before the first":     {spec(nil), "", ""},
		"of the spec, no Cluster's": {set, "", "join.example:7000"},
	} {
		_, c, err := nodeConfig(test.spec, clusterv1.APIEndpoint{Host: test.endpoint})
		if got := strings.Join(c.Endpoints, ","); err != nil || got != test.want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, test.want)
		}
	}
}

// FuzzNodeConfig holds what is written to what the image reads: an error, or bytes that it parses and that say what the spec said.
func FuzzNodeConfig(f *testing.F) {
	f.Add(testRoot, "join.example:7444", "time.example", "state", "", "192.0.2.1/24", "192.0.2.254", "api.example")
	f.Add(testRoot, "192.0.2.01:7444", "::1", "", "/dev/vdb", "", "", "")
	f.Add(strings.Repeat("0", 64), "", "", "s", "/dev/x", "2001:db8::1/64", "x", "[::1]")
	f.Add(strings.ToUpper(testRoot), "a:0", "\x00", "\u2028", "/dev/<>&", "1.2.3.4", "fe80::1%eth0", "host name")
	f.Fuzz(func(t *testing.T, root, endpoint, timeServer, serial, path, address, gateway, host string) {
		one := func(s string) []string {
			if s == "" {
				return nil
			}
			return []string{s}
		}
		s := v1alpha1.HullmarkConfigSpec{
			ClusterRoot: root, JoinEndpoints: one(endpoint), TimeServers: one(timeServer),
			StateDisk: v1alpha1.StateDisk{Serial: serial, Path: path}, Network: v1alpha1.Network{Addresses: one(address), Gateway: gateway},
		}
		text, got, err := nodeConfig(s, clusterv1.APIEndpoint{Host: host})
		if err != nil {
			return
		}
		read, err := hullmark.ParseNodeConfig(text)
		if err != nil {
			t.Fatalf("written, but not read: %v: %s", err, text)
		}
		if read.StateDisk.Serial != serial || read.StateDisk.Path != path || read.ClusterRoot.String() != strings.ToLower(root) || len(read.Endpoints) > 1 ||
			strings.Join(read.Addresses, "") != address || read.Gateway != gateway || strings.Join(read.TimeServers, "") != timeServer {
			t.Fatalf("%s is not what %+v says", text, s)
		}
		if len(got.Endpoints) == 1 && !hullmark.ValidEndpoint(got.Endpoints[0]) {
			t.Fatalf("endpoint %q", got.Endpoints[0])
		}
	})
}
