package config

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	sigsyaml "sigs.k8s.io/yaml"
)

func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	all, err := Objects("registry.example/hullmark-capi:v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// as finds the objects of a kind, as their type.
func as[T any](t *testing.T, kind string) (found []T) {
	t.Helper()
	for _, o := range objects(t) {
		if o.GetKind() != kind {
			continue
		}
		var typed T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
			t.Fatal(err)
		}
		found = append(found, typed)
	}
	return found
}

// TestGenerated: what controller-gen makes of the code is what is in the repository.
func TestGenerated(t *testing.T) {
	dir := t.TempDir()
	gen := func(from string, args ...string) {
		t.Helper()
		cmd := exec.Command("go", append([]string{"tool", "controller-gen"}, args...)...)
		cmd.Dir = filepath.Join("..", from)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("controller-gen: %v: %s", err, out)
		}
	}
	const api, qemu = "api/bootstrap/v1alpha1", "api/infrastructure/v1alpha1"
	gen(api, "object", "paths=.", "output:dir="+filepath.Join(dir, "object"))
	gen(api, "crd", "paths=.", "output:crd:dir="+filepath.Join(dir, "crd"))
	gen("bootstrap", "rbac:roleName=hullmark-bootstrap-manager", "paths=.", "output:rbac:dir="+filepath.Join(dir, "rbac"))
	gen(qemu, "object", "paths=.", "output:dir="+filepath.Join(dir, "qemu-object"))
	gen(qemu, "crd", "paths=.", "output:crd:dir="+filepath.Join(dir, "qemu-crd"))
	for made, kept := range map[string]string{
		"object": filepath.Join("..", api), "crd": "crd", "rbac": "rbac", "qemu-object": filepath.Join("..", qemu), "qemu-crd": filepath.Join("..", "infrastructure", "crd"),
	} {
		names, err := os.ReadDir(filepath.Join(dir, made))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v made, %v", made, names, err)
		}
		for _, name := range names {
			want, err := os.ReadFile(filepath.Join(dir, made, name.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(kept, name.Name())); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not what the code says: run go generate ./... in tools/capi (%v)", name.Name(), err)
			}
		}
		if left, err := os.ReadDir(kept); err != nil || !strings.HasSuffix(made, "object") && len(left) != len(names) {
			t.Errorf("%s: %d files, %d are made: delete the others (%v)", kept, len(left), len(names), err)
		}
	}
}

// TestRoles holds what the manager may do to what it needs.
func TestRoles(t *testing.T) {
	allowed := map[string]string{
		"/secrets":    "create get update",
		"/configmaps": "create delete get update",
		"bootstrap.cluster.x-k8s.io/hullmarkconfigs":        "get list watch",
		"bootstrap.cluster.x-k8s.io/hullmarkconfigs/status": "patch",
		"cluster.x-k8s.io/clusters":                         "get list watch",
		"cluster.x-k8s.io/machines":                         "get list watch",
		"cluster.x-k8s.io/machinepools":                     "get list watch",
		"events.k8s.io/events":                              "create patch",
		"authentication.k8s.io/tokenreviews":                "create",
		"authorization.k8s.io/subjectaccessreviews":         "create",
	}
	roles := as[rbacv1.ClusterRole](t, "ClusterRole")
	if len(roles) != 1 {
		t.Fatalf("%d cluster roles", len(roles))
	}
	for _, rule := range roles[0].Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				key := group + "/" + resource
				if verbs := strings.Join(slices.Sorted(slices.Values(rule.Verbs)), " "); allowed[key] != verbs {
					t.Errorf("%s: %q, want %q", key, verbs, allowed[key])
				}
				delete(allowed, key)
			}
		}
	}
	for key, verbs := range allowed {
		t.Errorf("%s: %q is missing", key, verbs)
	}
	namespaced := as[rbacv1.Role](t, "Role")
	if len(namespaced) != 1 || namespaced[0].Namespace != "hullmark-bootstrap-system" {
		t.Fatalf("roles %+v", namespaced)
	}
	for _, rule := range namespaced[0].Rules {
		if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Verbs, "*") || slices.Contains(rule.Resources, "*") {
			t.Errorf("role in its own namespace: %+v", rule)
		}
	}
}

// TestCoreMayUse: core's own roles cover the group, so that no role has to be aggregated to it.
func TestCoreMayUse(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "core", "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := sigsyaml.Unmarshal(text, &role); err != nil {
		t.Fatal(err)
	}
	want := []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	for _, rule := range role.Rules {
		if slices.Contains(rule.APIGroups, "bootstrap.cluster.x-k8s.io") && slices.Contains(rule.Resources, "*") &&
			!slices.ContainsFunc(want, func(verb string) bool { return !slices.Contains(rule.Verbs, verb) }) {
			return
		}
	}
	t.Errorf("core may not do %v with bootstrap.cluster.x-k8s.io: a ClusterRole has to be aggregated to it", want)
}

// TestContract: what clusterctl and core read of the objects before they use them.
func TestContract(t *testing.T) {
	for _, o := range objects(t) {
		if o.GetLabels()[clusterv1.ProviderNameLabel] != Provider {
			t.Errorf("%s %s lacks the provider's label", o.GetKind(), o.GetName())
		}
	}
	crds := as[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition")
	if len(crds) != 2 {
		t.Fatalf("%d CRDs", len(crds))
	}
	for _, crd := range crds {
		// External objects are found by these: the contract's label names the versions that fulfil it, the other has clusterctl move them.
		_, moved := crd.Labels["clusterctl.cluster.x-k8s.io"]
		if crd.Labels["cluster.x-k8s.io/v1beta2"] != "v1alpha1" || !moved || crd.Spec.Scope != apiextensionsv1.NamespaceScoped ||
			!slices.Contains(crd.Spec.Names.Categories, "cluster-api") || crd.Spec.Names.ListKind != crd.Spec.Names.Kind+"List" {
			t.Errorf("%s: labels %v, names %+v", crd.Name, crd.Labels, crd.Spec.Names)
		}
		// Core computes a CRD's name of its kind (contract.CalculateCRDName).
		if want := strings.ToLower(crd.Spec.Names.Kind) + "s." + crd.Spec.Group; crd.Name != want {
			t.Errorf("name %s, want %s", crd.Name, want)
		}
	}
	deployments := as[appsv1.Deployment](t, "Deployment")
	if len(deployments) != 1 {
		t.Fatalf("%d Deployments", len(deployments))
	}
	if c := deployments[0].Spec.Template.Spec.Containers; len(c) != 1 || c[0].Name != "manager" || c[0].Image != "registry.example/hullmark-capi:v0.1.0" {
		t.Errorf("containers %+v", c)
	}
	metadata, err := Metadata()
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		APIVersion, Kind string
		ReleaseSeries    []struct {
			Major, Minor int
			Contract     string
		}
	}
	if err := sigsyaml.UnmarshalStrict(metadata, &m); err != nil {
		t.Fatal(err)
	}
	if m.APIVersion != "clusterctl.cluster.x-k8s.io/v1alpha3" || m.Kind != "Metadata" || len(m.ReleaseSeries) == 0 || m.ReleaseSeries[0].Contract != "v1beta2" {
		t.Errorf("metadata %+v", m)
	}
}

func TestImage(t *testing.T) {
	for _, image := range []string{"", "a b", "x\n---", "-x", "x@sha256:1"} {
		if _, err := Objects(image); err == nil {
			t.Errorf("image %q was taken", image)
		}
	}
}
