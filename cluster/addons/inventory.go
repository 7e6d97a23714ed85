package addons

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// Where it is kept what plain manifests consisted of, so that what they name no more is removed: a ConfigMap for each add-on.
const (
	inventoryPrefix = "addon."
	inventoryKey    = "objects"
	// maxInventory bounds one, in bytes; etcd takes little more.
	maxInventory = 1 << 20
)

// The labels of Hullmark's own objects in the cluster, as registry has them.
var ownLabels = map[string]string{managedBy: "hullmark", "app.kubernetes.io/component": "addons"}

func inventoryName(addon string) Name {
	return Name{APIVersion: "v1", Kind: "ConfigMap", Namespace: registry.Namespace, Name: inventoryPrefix + addon}
}

// readInventory returns the objects that an add-on consisted of when it was applied last, by their names alone.
func readInventory(ctx context.Context, c *client, addon string) ([]*object, error) {
	kept, err := c.get(ctx, inventoryName(addon))
	if err != nil || kept == nil {
		return nil, err
	}
	names, err := parseInventory(nested(kept, "data", inventoryKey))
	if err != nil {
		return nil, fmt.Errorf("%s: %w; next: look at it, and delete it if nobody can read it: then nothing is removed that the manifests name no more", nameOf(kept), err)
	}
	var all []*object
	for _, n := range names {
		o := &object{}
		o.SetAPIVersion(n.APIVersion)
		o.SetKind(n.Kind)
		o.SetNamespace(n.Namespace)
		o.SetName(n.Name)
		all = append(all, o)
	}
	return all, nil
}

func parseInventory(text string) (names []Name, err error) {
	if err := hullmark.DecodeStrict([]byte(text), maxInventory, &names); err != nil {
		return nil, err
	}
	if len(names) > maxObjects {
		return nil, fmt.Errorf("%d objects, want at most %d", len(names), maxObjects)
	}
	for _, n := range names {
		if n.Kind == "" || n.Name == "" || n.APIVersion == "" {
			return nil, fmt.Errorf("an object without kind, name or apiVersion")
		}
	}
	return names, nil
}

// inventory makes the ConfigMap that names objects.
func inventory(addon string, objects []*object) (*object, error) {
	names := make([]Name, 0, len(objects))
	for _, o := range objects {
		names = append(names, nameOf(o))
	}
	text, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	if len(text) > maxInventory {
		return nil, fmt.Errorf("the names of its objects have %d bytes, want at most %d: make two add-ons of it", len(text), maxInventory)
	}
	n := inventoryName(addon)
	o := &object{Object: map[string]any{"data": map[string]any{inventoryKey: string(text)}}}
	o.SetAPIVersion(n.APIVersion)
	o.SetKind(n.Kind)
	o.SetNamespace(n.Namespace)
	o.SetName(n.Name)
	o.SetLabels(ownLabels)
	return o, nil
}
