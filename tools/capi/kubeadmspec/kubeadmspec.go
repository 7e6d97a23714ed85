// Package kubeadmspec turns Cluster API's KubeadmConfigSpec, in which people say how their nodes are made, into what a cluster
// document (package render) says of a pool. Each field is honoured, or refused by name with a reason: none is passed over.
//
// One table decides, which Fields returns; the one in docs/cluster-api-kubeadm.md is made of it. Which fields and arguments of
// kubeadm's documents are not the operator's is not repeated here: what is mapped is rendered, and what the renderer refuses is
// refused with the field that it came from.
package kubeadmspec

import (
	"encoding/json"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"

	"github.com/hullmark/hullmark/cluster/render"
)

// Pool is what a cluster document says of the nodes of a KubeadmConfigSpec. Put into a document, each part in its place, it is
// what package render takes.
type Pool struct {
	// Pool has role, labels, taints, files and a JoinConfiguration. Name, state disk and members are the caller's.
	Pool render.Pool `json:"pool"`
	// SANs belong into the document's controlPlane.sans.
	SANs []string `json:"sans,omitempty"`
	// TimeServers belong into the document's timeServers, or the node configuration of these nodes alone.
	TimeServers []string `json:"timeServers,omitempty"`
	// Overrides are a ClusterConfiguration and an InitConfiguration at most, for the document's overrides. A worker has none.
	Overrides []render.Override `json:"overrides,omitempty"`
}

// Refusal says that a field is not honoured.
type Refusal struct {
	// Field is its path in JSON, such as files[2].owner.
	Field string `json:"field"`
	// Reason says why, and what to do instead.
	Reason string `json:"reason"`
}

// maxRefusals is how many of the refusals are looked for that only the renderer finds: each costs some renderings.
const maxRefusals = 20

// Map returns what a KubeadmConfigSpec says of a control plane's nodes, or of workers. If a field says something that is not
// honoured, it returns an empty Pool and the refusals, one for each such field; of those that only a rendering finds, the first
// 20.
//
// The same spec gives the same result. nil is a spec that says nothing.
func Map(spec *bootstrapv1.KubeadmConfigSpec, controlPlane bool) (Pool, []Refusal) {
	if spec == nil {
		spec = &bootstrapv1.KubeadmConfigSpec{}
	}
	m := &mapping{spec: spec, controlPlane: controlPlane, broken: map[string]bool{}}
	tree, err := asJSON(spec)
	if err != nil {
		return Pool{}, []Refusal{{Field: "spec", Reason: err.Error()}}
	}
	m.walk(place{}, tree, nil)
	if controlPlane {
		m.agree()
	}
	pool := m.judge()
	if len(m.refusals) > 0 {
		return Pool{}, m.refusals
	}
	return pool, nil
}

// asJSON returns a value as its JSON says it: what is left out there is not set.
func asJSON(value any) (tree any, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return tree, json.Unmarshal(text, &tree)
}
