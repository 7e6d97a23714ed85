package config

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

const testImage = "registry.example/hullmark-capi:v0.1.0"

func objects(t *testing.T, p Provider) []*unstructured.Unstructured {
	t.Helper()
	all, err := p.Objects(testImage)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// as finds a provider's objects of a kind, as their type.
func as[T any](t *testing.T, p Provider, kind string) (found []T) {
	t.Helper()
	for _, o := range objects(t, p) {
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

// directive is a line that has controller-gen make files.
type directive struct {
	// dir is the folder of the package, below tools/capi.
	dir  string
	args []string
}

// output is the folder of what it makes, below tools/capi.
func (d directive) output() (arg int, dir string) {
	for i, arg := range d.args {
		if name, to, found := strings.Cut(arg, "dir="); found && strings.HasPrefix(name, "output:") {
			return i, filepath.Join(d.dir, to)
		}
	}
	return -1, ""
}

// directives finds all of the module.
func directives(t *testing.T) (found []directive) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^//go:generate go tool controller-gen (.+)$`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			dir, err := filepath.Rel("..", filepath.Dir(path))
			if err != nil {
				return err
			}
			found = append(found, directive{dir, strings.Fields(m[1])})
		}
		return err
	})
	if err != nil || len(found) < 6 {
		t.Fatalf("%d lines for controller-gen found, %v", len(found), err)
	}
	return found
}

// TestGenerated: what controller-gen makes of the code is what is in the repository, and nothing else is beside it.
func TestGenerated(t *testing.T) {
	temporary := t.TempDir()
	made := map[string]bool{}
	for _, d := range directives(t) {
		at, kept := d.output()
		if at < 0 {
			t.Fatalf("%s: %q says no folder", d.dir, d.args)
		}
		made[kept] = true
		to := filepath.Join(temporary, kept)
		args := slices.Clone(d.args)
		args[at] = strings.SplitAfter(args[at], "dir=")[0] + to
		cmd := exec.Command("go", append([]string{"tool", "controller-gen"}, args...)...)
		cmd.Dir = filepath.Join("..", d.dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: controller-gen: %v: %s", d.dir, err, out)
		}
	}
	for dir := range made {
		names, err := os.ReadDir(filepath.Join(temporary, dir))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v made, %v", dir, names, err)
		}
		for _, name := range names {
			want, err := os.ReadFile(filepath.Join(temporary, dir, name.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join("..", dir, name.Name())); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s/%s is not what the code says: run go generate ./... in tools/capi (%v)", dir, name.Name(), err)
			}
		}
		if left, err := filepath.Glob(filepath.Join("..", dir, "*.yaml")); err != nil || len(left) > len(names) {
			t.Errorf("%s: %d files, %d are made: delete the others (%v)", dir, len(left), len(names), err)
		}
	}
}

// TestEveryMarker: no package that says what it has to be allowed is left out of the roles. The QEMU provider's program runs on a host,
// as whoever starts it.
func TestEveryMarker(t *testing.T) {
	covered := map[string]bool{"infrastructure": true}
	for _, d := range directives(t) {
		if !strings.HasPrefix(d.args[0], "rbac:") {
			continue
		}
		for _, arg := range d.args {
			if paths, is := strings.CutPrefix(arg, "paths="); is {
				for _, each := range strings.Split(paths, ";") {
					covered[filepath.Join(d.dir, each)] = true
				}
			}
		}
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if dir, _ := filepath.Rel("..", filepath.Dir(path)); strings.Contains(string(text), "\n// +kubebuilder:rbac:") && !covered[dir] {
			t.Errorf("%s: no role has the markers of this package: add it to the paths of a line for controller-gen", dir)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// anyInfrastructure is the only wildcard: which kinds infrastructure providers have, they alone know.
const anyInfrastructure = "infrastructure.cluster.x-k8s.io/*"

// allowed are the verbs of each resource that a manager may use in all namespaces.
var allowed = map[string]map[string]string{
	Bootstrap.Label: {
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
	},
	ControlPlane.Label: {
		"/configmaps": "get",
		"/secrets":    "create get update",
		"apiextensions.k8s.io/customresourcedefinitions":                 "get",
		"authentication.k8s.io/tokenreviews":                             "create",
		"authorization.k8s.io/subjectaccessreviews":                      "create",
		"bootstrap.cluster.x-k8s.io/hullmarkconfigs":                     "create get list patch watch",
		"bootstrap.cluster.x-k8s.io/hullmarkconfigs/status":              "patch",
		"cluster.x-k8s.io/clusters":                                      "get list watch",
		"cluster.x-k8s.io/machinepools":                                  "list",
		"cluster.x-k8s.io/machines":                                      "create delete get list patch watch",
		"cluster.x-k8s.io/machines/status":                               "patch",
		"controlplane.cluster.x-k8s.io/hullmarkcontrolplanes":            "get list patch watch",
		"controlplane.cluster.x-k8s.io/hullmarkcontrolplanes/finalizers": "update",
		"controlplane.cluster.x-k8s.io/hullmarkcontrolplanes/status":     "patch",
		"events.k8s.io/events":                                           "create patch",
		anyInfrastructure:                                                "create get list patch",
	},
}

// allowedAtHome are those in its own namespace.
var allowedAtHome = map[string]map[string]string{
	Bootstrap.Label:    {"coordination.k8s.io/leases": "create get update", "/events": "create patch"},
	ControlPlane.Label: {"coordination.k8s.io/leases": "create get update", "/events": "create patch"},
}

// TestRoles holds what the managers may do to what they need.
func TestRoles(t *testing.T) {
	for _, p := range []Provider{Bootstrap, ControlPlane} {
		t.Run(p.Label, func(t *testing.T) {
			clusterRoles, roles := as[rbacv1.ClusterRole](t, p, "ClusterRole"), as[rbacv1.Role](t, p, "Role")
			if len(clusterRoles) != 1 || len(roles) != 1 || roles[0].Namespace != "hullmark-"+strings.TrimSuffix(p.Label, "-hullmark")+"-system" {
				t.Fatalf("roles %+v, %+v", clusterRoles, roles)
			}
			checkRules(t, clusterRoles[0].Rules, allowed[p.Label])
			checkRules(t, roles[0].Rules, allowedAtHome[p.Label])
		})
	}
	if roles := as[rbacv1.ClusterRole](t, Infrastructure, "ClusterRole"); len(roles) > 0 {
		t.Errorf("the infrastructure provider's components have no account that a role could be for: %+v", roles)
	}
}

// checkRules wants just these verbs. No verb is a wildcard, nor any resource but those of infrastructure, and of Secrets none is found that is not known by name.
func checkRules(t *testing.T, rules []rbacv1.PolicyRule, want map[string]string) {
	t.Helper()
	got := map[string][]string{}
	for _, rule := range rules {
		if len(rule.NonResourceURLs) > 0 {
			t.Errorf("URLs %v", rule.NonResourceURLs)
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				got[group+"/"+resource] = append(got[group+"/"+resource], rule.Verbs...)
			}
		}
	}
	for key := range got {
		slices.Sort(got[key])
		verbs := strings.Join(slices.Compact(got[key]), " ")
		if want[key] != verbs {
			t.Errorf("%s: %q, want %q", key, verbs, want[key])
		}
		if key != anyInfrastructure && strings.Contains(key, "*") || strings.Contains(verbs, "*") || key == "/secrets" && (strings.Contains(verbs, "list") || strings.Contains(verbs, "watch")) {
			t.Errorf("%s: %q is more than anybody needs", key, verbs)
		}
	}
	for key, verbs := range want {
		if got[key] == nil {
			t.Errorf("%s: %q is missing", key, verbs)
		}
	}
}

// TestCoreMayUse: core's own roles cover the groups, so that no role has to be aggregated to it.
func TestCoreMayUse(t *testing.T) {
	module, _, err := coretest.Module(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module, "core", "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := sigsyaml.Unmarshal(text, &role); err != nil {
		t.Fatal(err)
	}
	want := []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	for _, group := range []string{"bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"} {
		if !slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, "*") &&
				!slices.ContainsFunc(want, func(verb string) bool { return !slices.Contains(rule.Verbs, verb) })
		}) {
			t.Errorf("core may not do %v with %s: a ClusterRole has to be aggregated to it", want, group)
		}
	}
}

// TestContract: what clusterctl and core read of the objects before they use them.
func TestContract(t *testing.T) {
	for _, p := range Providers() {
		t.Run(p.Label, func(t *testing.T) {
			for _, o := range objects(t, p) {
				if o.GetLabels()[clusterv1.ProviderNameLabel] != p.Label {
					t.Errorf("%s %s lacks the provider's label", o.GetKind(), o.GetName())
				}
			}
			checkCRDs(t, as[apiextensionsv1.CustomResourceDefinition](t, p, "CustomResourceDefinition"), p)
			// clusterctl takes the namespace of a provider from its components; there has to be one of them.
			namespaces := as[corev1.Namespace](t, p, "Namespace")
			if len(namespaces) != 1 || namespaces[0].Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
				t.Errorf("namespaces %+v", namespaces)
			}
		})
	}
}

// kinds are how many kinds each provider defines.
var kinds = map[string]int{Bootstrap.Label: 2, ControlPlane.Label: 2, Infrastructure.Label: 4}

func checkCRDs(t *testing.T, crds []apiextensionsv1.CustomResourceDefinition, p Provider) {
	t.Helper()
	if len(crds) != kinds[p.Label] {
		t.Errorf("%d CRDs, want %d", len(crds), kinds[p.Label])
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
}

// TestCRDsAreTaken: the API server's own judgement of the CRDs, which bounds what their rules may cost, too.
func TestCRDsAreTaken(t *testing.T) {
	for _, p := range Providers() {
		for _, crd := range as[apiextensionsv1.CustomResourceDefinition](t, p, "CustomResourceDefinition") {
			apiextensionsv1.SetDefaults_CustomResourceDefinition(&crd)
			apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
			in := &apiextensions.CustomResourceDefinition{}
			if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, in, nil); err != nil {
				t.Fatal(err)
			}
			for _, refusal := range validation.ValidateCustomResourceDefinition(t.Context(), in) {
				t.Errorf("%s: %v", crd.Name, refusal)
			}
		}
	}
}

// TestDeployments: each manager runs by its command and its account, with the probes and the port of the metrics that it serves.
func TestDeployments(t *testing.T) {
	for command, p := range map[string]Provider{"bootstrap": Bootstrap, "control-plane": ControlPlane} {
		deployments := as[appsv1.Deployment](t, p, "Deployment")
		if len(deployments) != 1 {
			t.Fatalf("%s: %d Deployments", p.Label, len(deployments))
		}
		pod := deployments[0].Spec.Template.Spec
		if account := "hullmark-" + command + "-manager"; pod.ServiceAccountName != account || deployments[0].Name != account {
			t.Errorf("%s: account %s of %s", p.Label, pod.ServiceAccountName, deployments[0].Name)
		}
		c := pod.Containers
		if len(c) != 1 || c[0].Name != "manager" || c[0].Image != testImage || len(c[0].Args) < 2 || c[0].Args[0] != command || c[0].Args[1] != "--leader-elect" {
			t.Fatalf("%s: containers %+v", p.Label, c)
		}
		if c[0].ReadinessProbe == nil || c[0].ReadinessProbe.HTTPGet.Path != "/readyz" || c[0].LivenessProbe == nil || c[0].LivenessProbe.HTTPGet.Path != "/healthz" ||
			!slices.ContainsFunc(c[0].Ports, func(port corev1.ContainerPort) bool { return port.Name == "metrics" && port.ContainerPort == 8443 }) {
			t.Errorf("%s: probes and ports %+v", p.Label, c[0])
		}
	}
	if deployments := as[appsv1.Deployment](t, Infrastructure, "Deployment"); len(deployments) > 0 {
		t.Errorf("the QEMU provider runs on a host: %+v", deployments)
	}
}

func TestMetadata(t *testing.T) {
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
		if _, err := Bootstrap.Objects(image); err == nil {
			t.Errorf("image %q was taken", image)
		}
	}
}

// TestRepository: a release is written where clusterctl looks for it, twice the same, and beside another; a version that clusterctl could not
// read is refused.
func TestRepository(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"v0.1.0", "v0.1.1", "v0.1.0"} {
		if err := WriteRepository(dir, version, testImage); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"clusterctl.yaml"}
	for _, version := range []string{"v0.1.0", "v0.1.1"} {
		want = append(want, "bootstrap-hullmark/"+version+"/bootstrap-components.yaml", "bootstrap-hullmark/"+version+"/metadata.yaml",
			"control-plane-hullmark/"+version+"/control-plane-components.yaml", "control-plane-hullmark/"+version+"/metadata.yaml",
			"infrastructure-hullmark/"+version+"/cluster-template.yaml", "infrastructure-hullmark/"+version+"/cluster-template-topology.yaml",
			"infrastructure-hullmark/"+version+"/clusterclass-hullmark-qemu.yaml", "infrastructure-hullmark/"+version+"/infrastructure-components.yaml", "infrastructure-hullmark/"+version+"/metadata.yaml")
	}
	slices.Sort(want)
	var got []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			got = append(got, path)
		}
		return err
	})
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %q, want %q", err, got, want)
	}
	text, err := os.ReadFile(filepath.Join(dir, ClusterctlFile))
	if url := "url: " + filepath.Join(dir, "control-plane-hullmark/v0.1.0/control-plane-components.yaml"); err != nil || !strings.Contains(string(text), url) {
		t.Errorf("%s: %v, want %s", text, err, url)
	}
	for _, version := range []string{"", "0.1.0", "v0.1", "../v0.1.0", "v0.1.0/x"} {
		if err := WriteRepository(dir, version, testImage); err == nil {
			t.Errorf("version %q was taken", version)
		}
	}
}
