package addons

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Limits of what add-ons consist of.
const (
	// maxManifest is the largest stream of manifests that is read, in bytes, and that of a file with values.
	maxManifest = 16 << 20
	// maxObjects bounds the objects of one add-on.
	maxObjects = 5000
)

// object is one of the API, as it is sent and received.
type object = unstructured.Unstructured

// Name names an object of the API.
type Name struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Namespace is empty for objects of the whole cluster.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func nameOf(o *object) Name {
	return Name{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// String writes the name for people, such as "Deployment demo/web".
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Kind + " " + n.Name
	}
	return n.Kind + " " + n.Namespace + "/" + n.Name
}

// kind is the object's; a name whose version cannot be read has none.
func (n Name) kind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(n.APIVersion, n.Kind)
}

// key is what tells objects apart: one that is served in two versions is one.
type key struct{ group, kind, namespace, name string }

func (n Name) key() key { return key{n.kind().Group, n.Kind, n.Namespace, n.Name} }

// isDefinition reports whether an object is a CustomResourceDefinition.
func isDefinition(n Name) bool { return n.kind().GroupKind() == definitionKind.GroupKind() }

// parse reads a stream of YAML documents, or JSON, with the items of lists one by one. What names no object is an error; a
// document that is empty is none.
func parse(stream []byte) ([]*object, error) {
	if len(stream) > maxManifest {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(stream), maxManifest)
	}
	var all []*object
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream))); ; {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if all, err = appendDocument(all, text); err != nil {
			return nil, err
		}
		if len(all) > maxObjects {
			return nil, fmt.Errorf("more than %d objects", maxObjects)
		}
	}
}

// appendDocument adds the objects of one document.
func appendDocument(all []*object, text []byte) ([]*object, error) {
	encoded, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("object %d: %w", len(all)+1, err)
	}
	if string(encoded) == "null" {
		return all, nil
	}
	o := &object{}
	if err := o.UnmarshalJSON(encoded); err != nil {
		return nil, fmt.Errorf("object %d: %w", len(all)+1, err)
	}
	if !o.IsList() {
		return append(all, o), checkNamed(o)
	}
	return all, o.EachListItem(func(item runtime.Object) error {
		one, ok := item.(*object)
		if !ok {
			return fmt.Errorf("object %d: a %T in a list", len(all)+1, item)
		}
		all = append(all, one)
		return checkNamed(one)
	})
}

// checkNamed wants an object that can be found again.
func checkNamed(o *object) error {
	if o.GetKind() == "" || o.GetAPIVersion() == "" {
		return errors.New("an object without apiVersion or kind")
	}
	if o.GetName() == "" {
		return fmt.Errorf("a %s without a name: what generateName makes cannot be found again, and not be brought back", o.GetKind())
	}
	return nil
}

// owned are the fields of metadata that are the API server's to write.
var owned = []string{"resourceVersion", "uid", "generation", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"}

// stripped returns a copy of an object without what is the API server's to write, as it can be created from.
func stripped(o *object) *object {
	c := o.DeepCopy()
	for _, field := range owned {
		unstructured.RemoveNestedField(c.Object, "metadata", field)
	}
	return c
}

// counted are annotations that controllers write at each change, and that say nothing of what an object is to be.
var counted = []string{"deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation"}

// content returns what of an object somebody decides over, for comparisons: all but the API server's own. status is left out,
// unless withStatus says that it is content, too.
func content(o *object, withStatus bool) map[string]any {
	c := stripped(o)
	for _, annotation := range counted {
		unstructured.RemoveNestedField(c.Object, "metadata", "annotations", annotation)
	}
	for _, field := range []string{"annotations", "labels", "finalizers", "ownerReferences"} { // Empty is as good as none.
		if value, ok, _ := unstructured.NestedFieldNoCopy(c.Object, "metadata", field); ok && isEmpty(value) {
			unstructured.RemoveNestedField(c.Object, "metadata", field)
		}
	}
	if !withStatus {
		delete(c.Object, "status")
	}
	return c.Object
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// differences returns the paths at which two values differ, the first few of them, such as spec.replicas.
func differences(a, b any) []string {
	const most = 8
	paths := differ(a, b, "", nil)
	slices.Sort(paths)
	if len(paths) > most {
		paths = append(paths[:most], fmt.Sprintf("and %d more", len(paths)-most))
	}
	return paths
}

func differ(a, b any, path string, found []string) []string {
	left, ok := a.(map[string]any)
	right, both := b.(map[string]any)
	if !ok || !both {
		if reflect.DeepEqual(a, b) || isEmpty(a) && isEmpty(b) {
			return found
		}
		return append(found, cmp.Or(path, "everything"))
	}
	for name := range left {
		found = differ(left[name], right[name], strings.TrimPrefix(path+"."+name, "."), found)
	}
	for name, value := range right {
		if _, known := left[name]; !known && value != nil {
			found = append(found, strings.TrimPrefix(path+"."+name, "."))
		}
	}
	return found
}

// gates are kinds that may refuse changes of other objects. They are created last and deleted first.
var gates = []string{
	"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
}

// rank is the place of a kind among others: what they need comes first, as when Helm creates them.
func rank(kind string) int {
	if i := slices.Index(gates, kind); i >= 0 {
		return len(releaseutil.InstallOrder) + 1 + i
	}
	if i := slices.Index(releaseutil.InstallOrder, kind); i >= 0 {
		return i
	}
	return len(releaseutil.InstallOrder)
}
