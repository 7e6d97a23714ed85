package operate

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/kubeadm"
)

func TestManifestsAreChecked(t *testing.T) {
	const head = "# a pod network\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: cni}\n"
	for name, c := range map[string]struct{ manifest, want string }{
		"whole":                    {head + "data: {a: b}\n---\n# the end\n", ""},
		"a kind of somebody's own": {head + "---\napiVersion: example.com/v1\nkind: Network\nmetadata: {name: a}\nspec: {whatever: 1}\n", ""},
		"a field misspelt":         {head + "dato: {a: b}\n", `document 2: strict decoding error: unknown field "dato"`},
		"a field twice":            {head + "data: {a: b}\ndata: {a: c}\n", "document 2"},
		"a field in the wrong case": {
			"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: cni}\nspec: {template: {spec: {hostnetwork: true}}}\n", `unknown field "spec.template.spec.hostnetwork"`,
		},
		"a number for a text": {head + "data: {a: 1}\n", "document 2"},
		"no kind":             {head + "---\nmetadata: {name: a}\n", "document 3"},
		"no YAML":             {head + "---\n\tx\n", "document 3"},
	} {
		err := checkManifest([]byte(c.manifest))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// What a node is given has no field that nobody reads, though it does not look for them.
func TestOwnManifestsAreStrict(t *testing.T) {
	for _, d := range []Kubernetes{
		{KubeProxy: true, Flannel: true}, {KubeProxy: true, Flannel: true, WireGuard: true, NetworkPolicies: true},
	} {
		d.ServiceSubnet, d.PodSubnet = kubeadm.MustParseSubnets("10.96.0.0/12"), kubeadm.MustParseSubnets("10.244.0.0/16")
		p, err := d.parameters("control-plane-1", netip.MustParseAddr("192.0.2.1"), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, manifests, err := d.make(p)
		if err != nil {
			t.Fatal(err)
		}
		if len(manifests) != 3 {
			t.Fatalf("%d manifests", len(manifests))
		}
		for i, m := range manifests {
			if err := checkManifest(m); err != nil {
				t.Errorf("manifest %d: %v", i, err)
			}
		}
	}
}
