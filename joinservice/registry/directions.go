package registry

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hullmark/hullmark"
)

// directionKind is of the objects that say what nodes are to do with their slots, directionKey the key of their content.
const directionKind, directionKey = "direction", "direction"

// DirectionObjects is what the names of those objects begin with.
const DirectionObjects = directionKind + "."

// DirectionObject names the ConfigMap that says what a node is to do with its slots.
func DirectionObject(node hullmark.EKID) string { return DirectionObjects + node.String() }

// ParseDirection strictly reads such an object. One without content is a direction that was withdrawn: the zero value. The error names
// the object.
func ParseDirection(object *corev1.ConfigMap) (d hullmark.UpdateDirection, err error) {
	if len(object.Data)+len(object.BinaryData) == 0 {
		return hullmark.UpdateDirection{}, nil
	}
	switch text, ok := object.Data[directionKey]; {
	case !ok || len(object.Data) != 1 || len(object.BinaryData) != 0:
		err = fmt.Errorf("want the one key %s", directionKey)
	default:
		err = strict(text, &d)
	}
	if err == nil {
		err = d.Check()
	}
	if err != nil {
		return hullmark.UpdateDirection{}, fmt.Errorf("ConfigMap %s/%s: %w; mend or delete the object", Namespace, object.Name, err)
	}
	return d, nil
}

// PutDirection makes an object a node's direction: its name, labels and content, and nothing else of it. The zero direction withdraws
// the one before.
func PutDirection(object *corev1.ConfigMap, node hullmark.EKID, d hullmark.UpdateDirection) error {
	labels := meta(directionKind, DirectionObject(node))
	object.Name, object.Namespace, object.Labels, object.Data = labels.Name, labels.Namespace, labels.Labels, nil
	if d.Serial == 0 && d.Action == "" {
		return nil
	}
	if err := d.Check(); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("store the direction of machine %s: %w", node, err)
	}
	object.Data = map[string]string{directionKey: string(text)}
	return nil
}

// Direction returns what a node is to do with its slots; see joinservice.Directions.
func (r *Machines) Direction(ctx context.Context, node hullmark.EKID) (hullmark.UpdateDirection, error) {
	object, err := r.configMap(ctx, "read the direction of machine "+node.String(), DirectionObject(node))
	if apierrors.IsNotFound(err) {
		return hullmark.UpdateDirection{}, nil
	}
	if err != nil {
		return hullmark.UpdateDirection{}, err
	}
	return ParseDirection(object)
}
