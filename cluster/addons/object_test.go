package addons

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parsed reads the one object of a text.
func parsed(t testing.TB, text string) *object {
	t.Helper()
	all, err := parse([]byte(text))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d objects, %v", len(all), err)
	}
	return all[0]
}

func TestParse(t *testing.T) {
	all, err := parse([]byte("# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n---\n" +
		`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "b", "namespace": "ns"}, "spec": {"replicas": 9007199254740993}}]}`))
	if err != nil || len(all) != 2 {
		t.Fatalf("%d objects, %v", len(all), err)
	}
	if got := nameOf(all[1]).String(); got != "Deployment ns/b" {
		t.Errorf("the second is %s", got)
	}
	if got := all[1].Object["spec"].(map[string]any)["replicas"]; got != int64(9007199254740993) {
		t.Errorf("a large number became %v", got)
	}
	for text, says := range map[string]string{
		"apiVersion: v1\nkind: ConfigMap\n":                                     "without a name",
		"apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\n":             "generateName",
		"metadata: {name: a}\n":                                                 "'Kind' is missing",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n- a list\n": "object 2",
		"a: [":                             "object 1",
		strings.Repeat("x", maxManifest+1): "at most",
		strings.Repeat("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n", maxObjects+1): "more than",
	} {
		if all, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %d objects, %v, want %q", text, len(all), err, says)
		}
	}
}

func TestContent(t *testing.T) {
	o := parsed(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: ns, uid: u, resourceVersion: "7", generation: 2, creationTimestamp: "2026-01-01T00:00:00Z",
managedFields: [{manager: m, operation: Apply, apiVersion: v1}], labels: {}, annotations: {deployment.kubernetes.io/revision: "3"}, finalizers: [example.net/x]}, data: {a: b}, status: {seen: 1}}`)
	want := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"a": "b"},
		"metadata": map[string]any{"name": "a", "namespace": "ns", "finalizers": []any{"example.net/x"}},
	}
	if got := content(o, false); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	want["status"] = map[string]any{"seen": int64(1)}
	if got := content(o, true); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	if o.GetUID() != "u" || o.GetLabels() == nil {
		t.Error("the object itself was changed")
	}
}

func TestDifferences(t *testing.T) {
	a := map[string]any{"spec": map[string]any{"size": int64(1), "same": "x", "list": []any{"a"}, "empty": map[string]any{}}, "only": true}
	b := map[string]any{"spec": map[string]any{"size": int64(2), "same": "x", "list": []any{"b"}, "more": "y"}}
	if got, want := differences(a, b), []string{"only", "spec.list", "spec.more", "spec.size"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := differences(a, a); len(got) > 0 {
		t.Errorf("the same differs in %q", got)
	}
	many := map[string]any{}
	for _, name := range strings.Split("abcdefghijkl", "") {
		many[name] = true
	}
	if got := differences(many, map[string]any{}); len(got) != 9 || got[8] != "and 4 more" {
		t.Errorf("got %q", got)
	}
}

// What refuses others is removed before them, and comes back after them.
func TestItems(t *testing.T) {
	there := &object{}
	var kinds []string
	for _, i := range items([]saved{
		{name: Name{Kind: "Widget"}, object: there},
		{name: Name{Kind: "ValidatingWebhookConfiguration"}, object: there},
		{name: Name{Kind: "ServiceAccount"}, object: there},
		{name: Name{Kind: "Namespace"}},
		{name: Name{Kind: "ValidatingAdmissionPolicy"}},
		{name: Name{Kind: "Deployment"}},
	}, nil) {
		kinds = append(kinds, i.name.Kind)
	}
	want := []string{"ValidatingAdmissionPolicy", "Deployment", "Namespace", "ServiceAccount", "Widget", "ValidatingWebhookConfiguration"}
	if !reflect.DeepEqual(kinds, want) {
		t.Errorf("got %q, want %q", kinds, want)
	}
}

func TestSameManagers(t *testing.T) {
	entry := func(manager string, at int64) metav1.ManagedFieldsEntry {
		time := metav1.Unix(at, 0)
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationApply, Time: &time, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`)}
	}
	of := func(entries ...metav1.ManagedFieldsEntry) *object {
		o := &object{Object: map[string]any{}}
		o.SetManagedFields(entries)
		return o
	}
	if !sameManagers(of(entry("a", 1), entry("b", 2)), of(entry("b", 3), entry("a", 4))) {
		t.Error("times and order count")
	}
	if sameManagers(of(entry("a", 1)), of(entry("b", 1))) || sameManagers(of(entry("a", 1)), of()) {
		t.Error("managers do not count")
	}
}

// definitionOf reads the definition of a chart in testdata.
func definitionOf(t *testing.T, chart string) *object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", chart, "crds", "widgets.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, string(text))
}

func TestDefinition(t *testing.T) {
	one, two, three := definitionOf(t, "demo-1"), definitionOf(t, "demo-2"), definitionOf(t, "demo-3")
	read := func(o *object) definition {
		t.Helper()
		d, err := defined(o)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	live := read(two)
	live.Status.StoredVersions = []string{"v1", "v2"}
	if got := live.dropped(read(three)); !reflect.DeepEqual(got, []string{"v1"}) {
		t.Errorf("3 drops %q", got)
	}
	if got := live.dropped(read(two)); got != nil {
		t.Errorf("2 drops %q", got)
	}
	if live.versions() != "v1, v2 (stored)" || live.read() != "v2" || !live.namespaced() {
		t.Errorf("the versions are %s, read is %s", live.versions(), live.read())
	}
	other := read(two)
	other.Spec.Scope = "Cluster"
	if got := live.fixed(other); got != "spec.scope is Namespaced, and would be Cluster" {
		t.Errorf("got %q", got)
	}
	unserved := read(two)
	unserved.Spec.Versions[1].Served = false
	if unserved.read() != "v1" || unserved.versions() != "v1, v2 (stored) (not served)" {
		t.Errorf("read is %s of %s", unserved.read(), unserved.versions())
	}
	if _, err := defined(parsed(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")); err == nil {
		t.Error("a ConfigMap is a definition")
	}
	for name, test := range map[string]struct {
		live, target *object
		storage      string
		versions     string
	}{
		"forth, both have v2": {two, three, "v2", "v1, v2 (stored)"},
		"back, both have v1":  {two, one, "v1", "v1 (stored), v2"},
		"none in common":      {one, three, "v2", "v1, v2 (stored)"},
		"back, none":          {three, one, "v1", "v2, v1 (stored)"},
	} {
		bridge, storage := bridged(test.live, test.target)
		if d := read(bridge); storage != test.storage || d.versions() != test.versions {
			t.Errorf("%s: by %s, stored in %s", name, d.versions(), storage)
		}
	}
}
