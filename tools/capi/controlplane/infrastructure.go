package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// agentPort is where a node's agent listens, unless the infrastructure says otherwise.
const agentPort = "7443"

// endpointOf is the Cluster's control plane endpoint as HOST:PORT.
func endpointOf(c *clusterv1.Cluster) string {
	return net.JoinHostPort(c.Spec.ControlPlaneEndpoint.Host, strconv.Itoa(int(c.Spec.ControlPlaneEndpoint.Port)))
}

// findServer returns where a Cluster's API is reached from here: where its infrastructure says (status.apiServer), or at its endpoint;
// problem is why neither is anything. It becomes part of commands that a person runs, so it is an endpoint and nothing else.
func (r *Reconciler) findServer(ctx context.Context, c *clusterv1.Cluster) (server string, problem, err error) {
	endpoint := endpointOf(c)
	if !hullmark.ValidEndpoint(endpoint) {
		return "", fmt.Errorf("spec.controlPlaneEndpoint %.200q: want a host name or an address, and a port", endpoint), nil
	}
	if !c.Spec.InfrastructureRef.IsDefined() {
		return endpoint, nil, nil
	}
	infra, err := external.GetObjectFromContractVersionedRef(ctx, r.Live, c.Spec.InfrastructureRef, c.Namespace)
	if err != nil {
		return "", nil, fmt.Errorf("infrastructure of Cluster %s: %w", c.Name, err)
	}
	server = field(infra, "status", "apiServer")
	switch {
	case server == "":
		return endpoint, nil, nil
	case !hullmark.ValidEndpoint(server):
		return "", fmt.Errorf("%s %s: status.apiServer %.200q: want HOST:PORT", infra.GetKind(), infra.GetName(), server), nil
	}
	return server, nil, nil
}

// identity is what an infrastructure provider reports of a machine.
type identity struct {
	node              hullmark.EKID
	agent, providerID string
	// missing says what is not reported yet, or wrong; empty if all is there.
	missing string
}

// known reports whether all is there that the first machine needs.
func (i identity) known() bool { return i.missing == "" }

// identify reads what is reported of a machine (docs/cluster-api.md): status.ekID, spec.providerID, and status.agentAddress or an address.
// All of it becomes part of commands that a person runs who has the root's key: what a shell would read as more than text is not known.
func identify(infra *unstructured.Unstructured) (i identity) {
	if infra == nil {
		return identity{missing: "its infrastructure object is not there"}
	}
	i.providerID, i.agent = field(infra, "spec", "providerID"), field(infra, "status", "agentAddress")
	if addresses := addressesOf(infra); i.agent == "" && len(addresses) > 0 {
		i.agent = net.JoinHostPort(addresses[0], agentPort)
	}
	var err error
	i.node, err = core.ReportedEKID(infra)
	switch {
	case errors.Is(err, core.ErrNoEKID):
		i.missing = "status.ekID is not reported yet: a provider that never reports it cannot be used here"
	case err != nil:
		i.missing = err.Error()
	case i.providerID == "":
		i.missing = "spec.providerID is not reported yet"
	case !hullmark.ValidProviderID(i.providerID):
		i.missing = fmt.Sprintf("spec.providerID %.200q: want SCHEME://…, of at most %d letters, digits and / . _ : + = @ -", i.providerID, hullmark.MaxProviderID)
	case i.agent == "":
		i.missing = "neither status.agentAddress nor an address is reported yet"
	case !hullmark.ValidEndpoint(i.agent):
		i.missing = fmt.Sprintf("status.agentAddress, or the first address, %.200q: want HOST:PORT", i.agent)
	}
	return i
}

// addressesOf returns the IP addresses of a machine, internal ones first.
func addressesOf(infra *unstructured.Unstructured) (all []string) {
	list, _, _ := unstructured.NestedSlice(infra.Object, "status", "addresses")
	for _, want := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, each := range list {
			if m, ok := each.(map[string]any); ok && m["type"] == string(want) {
				if address, ok := m["address"].(string); ok {
					all = append(all, address)
				}
			}
		}
	}
	return all
}

// field returns a string of an object, or an empty one.
func field(o *unstructured.Unstructured, path ...string) string {
	text, _, _ := unstructured.NestedString(o.Object, path...)
	return text
}
