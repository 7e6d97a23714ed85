package addons

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// definitionKind is that of CustomResourceDefinitions.
var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// definition is what decides over a CustomResourceDefinition's change (k8s.io/apiextensions-apiserver, apiextensions/v1).
type definition struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Kind   string `json:"kind"`
			Plural string `json:"plural"`
		} `json:"names"`
		Scope      string    `json:"scope"`
		Versions   []version `json:"versions"`
		Conversion struct {
			Strategy string `json:"strategy"`
		} `json:"conversion"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
		StoredVersions []string `json:"storedVersions"`
	} `json:"status"`
}

type version struct {
	Name    string `json:"name"`
	Served  bool   `json:"served"`
	Storage bool   `json:"storage"`
}

// defined reads an object that is a CustomResourceDefinition.
func defined(o *object) (d definition, err error) {
	if o.GroupVersionKind() != definitionKind {
		return d, fmt.Errorf("%s: want apiVersion %s", nameOf(o), definitionKind.GroupVersion())
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
		return d, fmt.Errorf("%s: %w", nameOf(o), err)
	}
	if len(d.Spec.Versions) == 0 || d.storage() == "" {
		return d, fmt.Errorf("%s: it has no version that is stored", nameOf(o))
	}
	return d, nil
}

// storage is the version that objects are written in.
func (d definition) storage() string {
	for _, v := range d.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// find returns the version of a name.
func (d definition) find(name string) (version, bool) {
	i := slices.IndexFunc(d.Spec.Versions, func(v version) bool { return v.Name == name })
	if i < 0 {
		return version{}, false
	}
	return d.Spec.Versions[i], true
}

// read is the version that objects are best read in: the one that they are written in, or else the first that is served. Empty if
// none is served.
func (d definition) read() string {
	if v, ok := d.find(d.storage()); ok && v.Served {
		return v.Name
	}
	for _, v := range d.Spec.Versions {
		if v.Served {
			return v.Name
		}
	}
	return ""
}

// resource is that of the objects, in a version.
func (d definition) resource(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: d.Spec.Group, Version: version, Resource: d.Spec.Names.Plural}
}

// kind is that of the objects.
func (d definition) kind() schema.GroupKind {
	return schema.GroupKind{Group: d.Spec.Group, Kind: d.Spec.Names.Kind}
}

func (d definition) namespaced() bool { return d.Spec.Scope == "Namespaced" }

// versions writes the versions for people, the stored one marked.
func (d definition) versions() string {
	var all []string
	for _, v := range d.Spec.Versions {
		text := v.Name
		if v.Storage {
			text += " (stored)"
		}
		if !v.Served {
			text += " (not served)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// dropped are the versions in which objects may be stored and that next has no more: the API server refuses it as long as there
// are any, because nobody could read those objects.
func (d definition) dropped(next definition) []string {
	var all []string
	for _, stored := range d.Status.StoredVersions {
		if _, ok := next.find(stored); !ok {
			all = append(all, stored)
		}
	}
	return all
}

// fixed names a field that no change of a definition may touch, with its two values; empty if none is touched.
func (d definition) fixed(next definition) string {
	for _, f := range []struct{ name, now, next string }{
		{"scope", d.Spec.Scope, next.Spec.Scope},
		{"group", d.Spec.Group, next.Spec.Group},
		{"names.plural", d.Spec.Names.Plural, next.Spec.Names.Plural},
		{"names.kind", d.Spec.Names.Kind, next.Spec.Names.Kind},
	} {
		if f.now != f.next {
			return fmt.Sprintf("spec.%s is %s, and would be %s", f.name, f.now, f.next)
		}
	}
	return ""
}

// trouble says why the API does not serve a definition; empty if it does.
func (d definition) trouble() string {
	for _, want := range []string{"NamesAccepted", "Established"} {
		i := slices.IndexFunc(d.Status.Conditions, func(c struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		},
		) bool {
			return c.Type == want
		})
		if i < 0 || d.Status.Conditions[i].Status != "True" {
			reason := "it is not " + want + " yet"
			if i >= 0 && d.Status.Conditions[i].Message != "" {
				reason += ": " + d.Status.Conditions[i].Message
			}
			return reason
		}
	}
	return ""
}

// bridged returns the definition that leads from live to target, which drops versions that objects are stored in, and the version
// in which they are to be written anew meanwhile. If both have a version, it is live with that one as the stored one: whatever
// converts today goes on. If they share none, it is live with target's versions added, of which one is stored.
func bridged(live, target *object) (*object, string) {
	bridge, wanted := live.DeepCopy(), versionsOf(target)
	versions, storage := versionsOf(live), shared(live, target)
	if storage == "" {
		versions = append(versions, wanted...)
		if conversion, ok, _ := unstructured.NestedMap(target.Object, "spec", "conversion"); ok && conversion["strategy"] == "Webhook" {
			_ = unstructured.SetNestedMap(bridge.Object, conversion, "spec", "conversion") // spec is an object: it has versions
		}
	}
	list := make([]any, 0, len(versions))
	for _, v := range wanted {
		if storage == "" && v["storage"] == true {
			storage, _ = v["name"].(string)
		}
	}
	for _, v := range versions {
		v["storage"] = v["name"] == storage
		list = append(list, v)
	}
	_ = unstructured.SetNestedSlice(bridge.Object, list, "spec", "versions")
	return bridge, storage
}

// shared returns a version that both definitions have, target's stored one if that is one; empty if there is none.
func shared(live, target *object) (name string) {
	known := versionsOf(live)
	for _, v := range versionsOf(target) {
		has := slices.ContainsFunc(known, func(k map[string]any) bool { return k["name"] == v["name"] })
		if text, _ := v["name"].(string); has && (name == "" || v["storage"] == true) {
			name = text
		}
	}
	return name
}

// versionsOf copies the versions of a definition as they stand there.
func versionsOf(o *object) []map[string]any {
	spec, _ := o.DeepCopy().Object["spec"].(map[string]any)
	list, _ := spec["versions"].([]any)
	var all []map[string]any
	for _, v := range list {
		if v, ok := v.(map[string]any); ok {
			all = append(all, v)
		}
	}
	return all
}
