package bootstrap

import (
	"encoding/json"
	"fmt"
	"net"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// servicePort is where a control plane's join service listens (docs/cluster-document.md, joinEndpoints).
const servicePort = "7444"

// nodeConfig returns the node configuration that a spec asks for, as the image reads it, in the bytes that "hullmark render" would
// write. endpoint is the Cluster's, and may be empty. The result has no endpoints if neither the spec nor the Cluster has.
//
// An error names the field of the node configuration that would be refused (hullmark.ParseNodeConfig).
func nodeConfig(spec v1alpha1.HullmarkConfigSpec, endpoint clusterv1.APIEndpoint) (text []byte, c hullmark.NodeConfig, err error) {
	root, err := hullmark.ParseClusterRoot(spec.ClusterRoot)
	if err != nil {
		return nil, c, fmt.Errorf("clusterRoot: %w", err)
	}
	endpoints := spec.JoinEndpoints
	if len(endpoints) == 0 && endpoint.Host != "" {
		endpoints = []string{net.JoinHostPort(endpoint.Host, servicePort)}
	}
	text, err = json.MarshalIndent(hullmark.NodeConfig{
		Version: 1, ClusterRoot: root, Endpoints: endpoints,
		Addresses: spec.Network.Addresses, Gateway: spec.Network.Gateway, NameServers: spec.Network.NameServers,
		TimeServers: spec.TimeServers, StateDisk: hullmark.DiskSelector{Serial: spec.StateDisk.Serial, Path: spec.StateDisk.Path},
	}, "", "  ")
	if err != nil {
		return nil, c, fmt.Errorf("node config: %w", err)
	}
	text = append(text, '\n')
	c, err = hullmark.ParseNodeConfig(text)
	return text, c, err
}
