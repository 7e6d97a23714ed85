package kubeadmspec

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
)

// step is a field of a struct as JSON has it.
type step struct {
	name  string
	index []int
	kind  reflect.Type
}

// fieldsOf returns a struct's fields, those of inlined structs among them.
func fieldsOf(kind reflect.Type) []step {
	var all []step
	for f := range kind.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			for _, below := range fieldsOf(f.Type) {
				all = append(all, step{below.name, append(slices.Clone(f.Index), below.index...), below.kind})
			}
		} else if name != "-" {
			all = append(all, step{name, f.Index, f.Type})
		}
	}
	return all
}

// isObject reports whether a type is a JSON object with fields of its own.
func isObject(kind reflect.Type) bool {
	marshaler := reflect.TypeFor[json.Marshaler]()
	return kind.Kind() == reflect.Struct && !kind.Implements(marshaler) && !reflect.PointerTo(kind).Implements(marshaler)
}

// without returns the fields of a type that no row of the table is about, and notes those that are.
func without(kind reflect.Type, path string, seen map[string]bool) (missing []string) {
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if f, ok := rows[path]; ok {
		seen[path] = true
		if f.Where == "" && !f.open {
			return nil
		}
		if !f.open {
			// What is honoured is one value: a new field inside of an object would go unnoticed.
			if isObject(kind) || kind.Kind() == reflect.Slice || kind.Kind() == reflect.Map && isObject(kind.Elem()) {
				return []string{path + " (honoured as a whole)"}
			}
			return nil
		}
	}
	switch {
	case isObject(kind):
		for _, f := range fieldsOf(kind) {
			missing = append(missing, without(f.kind, strings.TrimPrefix(path+"."+f.name, "."), seen)...)
		}
	case kind.Kind() == reflect.Slice:
		missing = without(kind.Elem(), path+"[]", seen)
	default:
		missing = []string{path}
	}
	return missing
}

// A new release of Cluster API has new fields: each needs a row.
func TestEveryFieldHasARow(t *testing.T) {
	seen := map[string]bool{}
	for _, path := range without(reflect.TypeFor[bootstrapv1.KubeadmConfigSpec](), "", seen) {
		t.Errorf("%s: no row of the table is about it", path)
	}
	for _, f := range fields {
		if !seen[f.Path] {
			t.Errorf("%s: Cluster API has no such field", f.Path)
		}
		if f.Why == "" && f.Where == "" && !f.open {
			t.Errorf("%s: neither honoured nor refused with a reason", f.Path)
		}
	}
	if len(rows) != len(fields) {
		t.Errorf("%d fields have %d rows", len(rows), len(fields))
	}
}

// The test above would notice a new field, at the top or inside of a list.
func TestNewFieldsAreNoticed(t *testing.T) {
	type file struct {
		Path string `json:"path"`
		New  string `json:"new"`
	}
	type spec struct {
		Files []file `json:"files"`
		Users []struct {
			New string `json:"new"`
		} `json:"users"`
		NTP struct {
			Servers []struct{ Name string } `json:"servers"`
		} `json:"ntp"`
		New *int `json:"new"`
	}
	got := without(reflect.TypeFor[spec](), "", map[string]bool{})
	if want := []string{"files[].new", "ntp.servers[] (honoured as a whole)", "new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
