package registry

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// Kinds of object, and the keys that they hold their content under.
const (
	nodeKind, machineKey = "node", "machine"
	nameKind, holderKey  = "name", "node"
	// addressKind is of the claims of addresses, which are held under holderKey as names are.
	addressKind = "address"
	// groupKind is of the objects that list a group's machines: each is a key, without a content.
	groupKind = "group"
)

// What the names of machines' records, of claims of names and addresses, and of groups' lists begin with.
const (
	MachineObjects = nodeKind + "."
	NameObjects    = nameKind + "."
	AddressObjects = addressKind + "."
	GroupObjects   = groupKind + "."
)

// MachineObject names the ConfigMap that holds a machine's record.
func MachineObject(node hullmark.EKID) string { return MachineObjects + node.String() }

// NameObject names the ConfigMap that holds the claim of a node's name.
func NameObject(name string) string { return NameObjects + name }

// AddressObject names the ConfigMap that holds the claim of an address in its canonical form. An IPv6 address is written out,
// with hyphens in the place of colons: a name has no others, and no label of it may end in one.
func AddressObject(address netip.Addr) string {
	return AddressObjects + strings.ReplaceAll(address.StringExpanded(), ":", "-")
}

// IsPolicyObject reports whether a ConfigMap of this name holds the policy or one of its documents.
func IsPolicyObject(name string) bool {
	return name == policyObject || strings.HasPrefix(name, documentKind+".")
}

// ParseMachine strictly reads a machine's object. The error names it.
func ParseMachine(object *corev1.ConfigMap) (m joinservice.Machine, err error) {
	switch text, ok := object.Data[machineKey]; {
	case !ok || len(object.Data) != 1 || len(object.BinaryData) != 0:
		err = fmt.Errorf("want the one key %s", machineKey)
	default:
		err = strict(text, &m)
	}
	if err == nil && object.Name != MachineObject(m.EKID) {
		err = fmt.Errorf("it holds the record of machine %s", m.EKID)
	}
	if err != nil {
		return joinservice.Machine{}, fmt.Errorf("ConfigMap %s/%s: %w; mend or delete the object", Namespace, object.Name, err)
	}
	return m, nil
}

// ReadMachine reads of a machine's object what into has fields for, which are some of joinservice.Machine's, and passes over the others:
// while a cluster is upgraded, join services of several releases write records, and each may know more than the other. The error names
// the object.
func ReadMachine(object *corev1.ConfigMap, into any) error {
	text, ok := object.Data[machineKey]
	if !ok || len(object.Data) != 1 || len(object.BinaryData) != 0 {
		return fmt.Errorf("ConfigMap %s/%s: want the one key %s; mend or delete the object", Namespace, object.Name, machineKey)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w; mend or delete the object", Namespace, object.Name, err)
	}
	return nil
}

// PutMachine makes an object a machine's: its name and content, and nothing else of it.
func PutMachine(object *corev1.ConfigMap, m joinservice.Machine) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("store the record of machine %s: %w", m.EKID, err)
	}
	object.Name, object.Data = MachineObject(m.EKID), map[string]string{machineKey: string(text)}
	return nil
}

// ParseHolder strictly reads which machine an object claims a name for. The error names the object.
func ParseHolder(object *corev1.ConfigMap) (hullmark.EKID, error) {
	if len(object.Data) != 1 || len(object.BinaryData) != 0 {
		return hullmark.EKID{}, fmt.Errorf("ConfigMap %s/%s: want the one key %s; mend or delete the object", Namespace, object.Name, holderKey)
	}
	node, err := hullmark.ParseEKID(object.Data[holderKey])
	if err != nil {
		return hullmark.EKID{}, fmt.Errorf("ConfigMap %s/%s: %s: %w; mend or delete the object", Namespace, object.Name, holderKey, err)
	}
	return node, nil
}

// PutHolder makes an object claim its name for a machine.
func PutHolder(object *corev1.ConfigMap, node hullmark.EKID) {
	object.Data = map[string]string{holderKey: node.String()}
}

// ParseCounted strictly reads which machines a group's list counts. The error names the object.
func ParseCounted(object *corev1.ConfigMap) ([]hullmark.EKID, error) {
	var machines []hullmark.EKID
	for key, value := range object.Data {
		node, err := hullmark.ParseEKID(key)
		if err != nil || value != "" {
			return nil, fmt.Errorf("ConfigMap %s/%s: %.80q is no machine's identity alone; mend the object, and do not delete it: nobody on it is counted anew", Namespace, object.Name, key)
		}
		machines = append(machines, node)
	}
	return machines, nil
}

// PutCounted makes a group's list count these machines alone.
func PutCounted(object *corev1.ConfigMap, machines []hullmark.EKID) {
	object.Data = map[string]string{}
	for _, node := range machines {
		object.Data[node.String()] = ""
	}
}
