//go:build long

package config

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// phases are control planes by how far they are: what the status says, and which version the spec wants.
var phases = map[string]struct{ version, status string }{
	"new":   {"v1.36.3", ""},
	"first": {"v1.36.3", `{"first":{"machine":"m"}}`},
	"begun": {"v1.36.3", `{"first":{"machine":"m"},"initialization":{"controlPlaneInitialized":true},"version":"v1.36.3","versions":[{"version":"v1.36.3","replicas":3}]}`},
	// A status that was lost, as by a move, and that nobody has counted Machines into yet.
	"moved": {"v1.36.3", `{"initialization":{"controlPlaneInitialized":true}}`},
	"rolling": {"v1.37.1", `{"first":{"machine":"m"},"initialization":{"controlPlaneInitialized":true},"version":"v1.36.3",
		"versions":[{"version":"v1.36.3","replicas":2},{"version":"v1.37.1","replicas":1}]}`},
}

const (
	otherRoot  = `{"spec":{"config":{"clusterRoot":"6060606060606060606060606060606060606060606060606060606060606060"}}}`
	doesNotGo  = "a cluster does not go back"
	skips      = "version skips a minor release"
	begunWith  = "the cluster was begun with the earlier kubernetes"
	notSemver  = "spec.version"
	madeForOld = "the first machine was made for the earlier clusterRoot"
)

// changes are what somebody writes into a control plane's spec, and what the API server says to it; nothing if it is taken.
var changes = []struct{ phase, change, refusal string }{
	{"new", `{"spec":{"kubernetes":{"network":"flannel"}}}`, ""},
	{"new", otherRoot, ""},
	{"new", version("v1.30.0"), ""},
	{"first", `{"spec":{"kubernetes":{"network":"flannel"}}}`, ""},
	{"first", otherRoot, madeForOld},
	{"first", version("v1.30.0"), ""}, // the image has it
	{"begun", `{"metadata":{"labels":{"a":"b"}},"spec":{"replicas":5}}`, ""},
	{"begun", `{"spec":{"kubernetes":{"network":"wireguard"}}}`, ""}, // as it is
	{"begun", `{"spec":{"kubernetes":{"network":"flannel"}}}`, begunWith},
	{"begun", `{"spec":{"kubernetes":{"workloads":true}}}`, begunWith},
	{"begun", `{"spec":{"kubernetes":null}}`, begunWith},
	{"begun", otherRoot, ""}, // after an exchange of the root
	{"begun", version("1.36.3"), ""},
	{"begun", version("v1.36.10"), ""},
	{"begun", version("1.37.0"), ""},
	{"begun", version("v1.37.0-rc.1+build.2"), ""},
	{"begun", version("v1.36.2"), doesNotGo},
	{"begun", version("v1.35.9"), doesNotGo},
	{"begun", version("v0.99.99"), doesNotGo},
	{"begun", version("v1.38.0"), skips},
	{"begun", version("v2.0.0"), skips},
	{"begun", version("v1.37"), notSemver},
	{"begun", version("v1.37.00"), notSemver},
	{"begun", version("v1.37.0-"), notSemver},
	{"begun", version("v1.37.0-a..b"), notSemver},
	{"moved", version("v1.36.2"), doesNotGo},
	{"moved", version("v1.38.0"), skips},
	{"moved", version("v1.37.0"), ""},
	{"rolling", version("v1.36.3"), ""}, // taken back before all have it
	{"rolling", version("v1.36.2"), doesNotGo},
	{"rolling", version("v1.37.2"), ""},
	{"rolling", version("v1.38.0"), skips}, // two for the oldest
}

func version(v string) string { return fmt.Sprintf(`{"spec":{"version":%q}}`, v) }

// refuse is the table of changes, each as a dry run, and as a server-side apply is one when core's topology reconciler makes it.
func refuse(ctx context.Context, t *testing.T, m management) {
	planes := map[string]*unstructured.Unstructured{}
	for name, phase := range phases {
		o := planeOf(name, phase.version)
		if err := m.client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		if phase.status != "" {
			patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":%s}`, phase.status))
			if err := m.client.Status().Patch(ctx, o, patch); err != nil {
				t.Fatal(err)
			}
		}
		planes[name] = o
	}
	for _, c := range changes {
		err := m.client.Patch(ctx, planes[c.phase].DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(c.change)), client.DryRunAll)
		checkRefusal(t, c.phase+" "+c.change, err, c.refusal)
	}
	applied := planeOf("begun", "v1.36.2")
	checkRefusal(t, "apply", m.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.ForceOwnership, client.FieldOwner("topology"), client.DryRunAll), doesNotGo)
	applied = planeOf("begun", "v1.36.4")
	checkRefusal(t, "apply", m.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.ForceOwnership, client.FieldOwner("topology"), client.DryRunAll), "")
}

// refuseNew is the table of what is refused when it is made: what only a template may leave out, and infrastructure that is none.
func refuseNew(ctx context.Context, t *testing.T, m management) {
	group := func(name string) *unstructured.Unstructured {
		o := planeOf("of-a-group", "v1.36.3")
		_ = unstructured.SetNestedField(o.Object, name, "spec", "machineTemplate", "spec", "infrastructureRef", "apiGroup")
		return o
	}
	bare := planeOf("without-a-root", "v1.36.3")
	unstructured.RemoveNestedField(bare.Object, "spec", "config", "clusterRoot")
	config := map[string]any{"pool": "workers", "stateDisk": map[string]any{"serial": "s"}}
	for name, test := range map[string]struct {
		o       *unstructured.Unstructured
		refusal string
	}{
		"infrastructure":             {group("infrastructure.cluster.x-k8s.io"), ""},
		"a part of infrastructure":   {group("vmware.infrastructure.cluster.x-k8s.io"), ""},
		"a group of its own":         {group("infra.example"), ""},
		"core":                       {group("cluster.x-k8s.io"), "name a template of an infrastructure provider"},
		"bootstrap":                  {group("bootstrap.cluster.x-k8s.io"), "name a template of an infrastructure provider"},
		"a name like infrastructure": {group("noinfrastructure.cluster.x-k8s.io"), "name a template of an infrastructure provider"},
		"a control plane":            {bare, "spec.config.clusterRoot: Required"},
		"a config":                   {objectOf(boot, "HullmarkConfig", config), "spec.clusterRoot: Required"},
		"a config's template":        {objectOf(boot, "HullmarkConfigTemplate", map[string]any{"template": map[string]any{"spec": config}}), ""},
		"a machine":                  {objectOf(infra, "HullmarkMachine", map[string]any{"machine": map[string]any{"cpus": int64(1)}}), "spec.image: Required"},
		"a machine's template": {objectOf(infra, "HullmarkMachineTemplate", map[string]any{"template": map[string]any{"spec": map[string]any{
			"machine": map[string]any{"cpus": int64(1)},
		}}}), ""},
	} {
		checkRefusal(t, name, m.client.Create(ctx, test.o, client.DryRunAll), test.refusal)
	}
}

func checkRefusal(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func objectOf(group, kind string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1alpha1", "kind": kind, "metadata": map[string]any{"namespace": "default", "name": "o"}, "spec": spec,
	}}
}

// planeOf is a control plane of three that was begun with WireGuard.
func planeOf(name, version string) *unstructured.Unstructured {
	o := objectOf(plane, "HullmarkControlPlane", map[string]any{
		"replicas": int64(3), "version": version, "kubernetes": map[string]any{"network": "wireguard"},
		"machineTemplate": map[string]any{"spec": map[string]any{"infrastructureRef": map[string]any{"apiGroup": infra, "kind": "HullmarkMachineTemplate", "name": "m"}}},
		"config":          map[string]any{"clusterRoot": strings.Repeat("5f", 32), "pool": "control-plane", "stateDisk": map[string]any{"serial": "s"}},
	})
	o.SetName(name)
	return o
}
