package render

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/kubeadm"
)

// kind is what is known of one kind of document that an operator may override.
type kind kubeadm.Kind

// apply merges the overrides into our documents, which it changes. Only the kinds of our documents are allowed, each once.
func apply(documents map[string]map[string]any, overrides []Override) error {
	seen := map[string]bool{}
	for i, o := range overrides {
		name, _ := o["kind"].(string)
		ours, ok := documents[name]
		if !ok || o["apiVersion"] != kubeadm.Kinds[name].API {
			return fmt.Errorf("overrides[%d]: %.80v %.80v: want %s", i, o["apiVersion"], o["kind"], wanted(documents))
		}
		if seen[name] {
			return fmt.Errorf("overrides[%d]: a second %s: merge it into the first", i, name)
		}
		seen[name] = true
		if err := kind(kubeadm.Kinds[name]).merge(ours, o, ""); err != nil {
			return fmt.Errorf("overrides[%d] (%s): %w", i, name, err)
		}
	}
	return nil
}

// wanted lists the documents that may be overridden.
func wanted(documents map[string]map[string]any) string {
	var names []string
	for name := range sorted(documents) {
		names = append(names, kubeadm.Kinds[name].API+" "+name)
	}
	return strings.Join(names, ", or ")
}

// merge writes the fields of theirs, which stand below path, into ours: objects field by field, lists of arguments and of
// ignored checks by adding to them, and anything else in place of ours.
func (k kind) merge(ours, theirs map[string]any, path string) error {
	for name, value := range sorted(theirs) {
		if err := k.field(ours, name, value, path+name); err != nil {
			return err
		}
	}
	return nil
}

// field merges one field, whose whole path is at.
func (k kind) field(ours map[string]any, name string, value any, at string) (err error) {
	hint, owned := k.Owned[at]
	taken, arguments := k.Arguments[at]
	object, isObject := value.(map[string]any)
	switch {
	case owned && !reflect.DeepEqual(ours[name], value):
		return clashes(at, hint)
	case owned:
	case arguments:
		ours[name], err = addArguments(ours[name], value, taken, at)
	case at == ignored:
		ours[name], err = addIgnored(ours[name], value, at)
	case isObject:
		into, ok := ours[name].(map[string]any)
		if !ok {
			into = map[string]any{}
		}
		ours[name] = into
		return k.merge(into, object, at+".")
	case value == nil:
		return fmt.Errorf("%s: it has no value; give it one, or leave it out", at)
	case k.holdsOwned(at):
		return fmt.Errorf("%s: want an object", at)
	default:
		ours[name] = value
	}
	return err
}

// clashes is the error of a field that is not the operator's.
func clashes(at, hint string) error {
	if hint == "" {
		hint = "leave it out"
	}
	return fmt.Errorf("%s: Hullmark sets it itself; %s", at, hint)
}

// holdsOwned reports whether a field holds others that are not the operator's, so that nothing else may stand in its place.
func (k kind) holdsOwned(at string) bool {
	inside := func(other string) bool { return strings.HasPrefix(other, at+".") }
	return slices.ContainsFunc(slices.Collect(maps.Keys(k.Owned)), inside) || slices.ContainsFunc(slices.Collect(maps.Keys(k.Arguments)), inside)
}

// addArguments adds a program's flags to ours.
func addArguments(ours, theirs any, taken map[string]string, at string) (any, error) {
	ourList, _ := ours.([]any)
	theirList, ok := theirs.([]any)
	if !ok {
		return nil, fmt.Errorf("%s: want a list of objects with name and value", at)
	}
	set := map[string]bool{}
	for _, a := range ourList {
		name, _ := kubeadm.Argument(a)
		set[name] = true
	}
	for i, a := range theirList {
		name, err := kubeadm.Argument(a)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", at, i, err)
		}
		hint, owned := taken[name]
		if owned || set[name] {
			return nil, clashes(at+": "+name, hint)
		}
	}
	return slices.Concat(ourList, theirList), nil
}

// ignored is the list of kubeadm's checks that do not count; one of ours is in it, and must stay.
const ignored = "nodeRegistration.ignorePreflightErrors"

// addIgnored adds checks to ours that kubeadm shall ignore.
func addIgnored(ours, theirs any, at string) (any, error) {
	list, ok := theirs.([]any)
	if !ok {
		return nil, fmt.Errorf("%s: want a list", at)
	}
	all, _ := ours.([]any)
	for _, check := range list {
		if !slices.ContainsFunc(all, func(a any) bool { return reflect.DeepEqual(a, check) }) {
			all = append(all, check)
		}
	}
	return all, nil
}
