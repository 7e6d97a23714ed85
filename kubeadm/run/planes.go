package run

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm/step"
)

const (
	// serverPort is that of every control plane's API server, and askTimeout how long one may take to say which it is.
	serverPort = 6443
	askTimeout = 10 * time.Second
	// nodesPage is how many Nodes are asked for at once, and maxNodes how many are looked at.
	nodesPage = 100
	maxNodes  = 20000
	// controlPlaneLabel is what kubeadm marks the Nodes of control planes with.
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
)

// seenNode is the part of a Node that counts here.
type seenNode struct {
	Metadata struct{ Name string }
	Status   struct {
		NodeInfo  struct{ KubeletVersion string }
		Addresses []struct{ Type, Address string }
	}
}

// version is its kubelet's; unknown if it said none.
func (n seenNode) version() hullmark.Version {
	v, _ := hullmark.ParseVersion(n.Status.NodeInfo.KubeletVersion)
	return v
}

// address is its first inside of the cluster, or the zero value.
func (n seenNode) address() netip.Addr {
	for _, a := range n.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil && a.Type == "InternalIP" {
			return address
		}
	}
	return netip.Addr{}
}

// nodes lists the Nodes with a label; empty is all.
func (a *api) nodes(ctx context.Context, label string) ([]seenNode, error) {
	var all []seenNode
	for next := ""; ; {
		query := url.Values{"limit": {fmt.Sprint(nodesPage)}, "labelSelector": {label}, "continue": {next}}
		var page struct {
			Metadata struct{ Continue string }
			Items    []seenNode
		}
		if err := a.get(ctx, "/api/v1/nodes?"+query.Encode(), &page); err != nil {
			return nil, fmt.Errorf("list the nodes: %w", err)
		}
		if all = append(all, page.Items...); len(all) > maxNodes {
			return nil, fmt.Errorf("list the nodes: more than %d", maxNodes)
		}
		if next = page.Metadata.Continue; next == "" {
			return all, nil
		}
	}
}

// Planes returns the control planes as their Nodes say them, and their API servers, each of which is asked at its own address.
func Planes(ctx context.Context, access Access) ([]step.Plane, error) {
	server := api{access: access}
	defer server.close()
	nodes, err := server.nodes(ctx, controlPlaneLabel)
	if err != nil {
		return nil, err
	}
	planes := make([]step.Plane, 0, len(nodes))
	for _, n := range nodes {
		plane := step.Plane{Node: n.Metadata.Name, Version: n.version()}
		if address := n.address(); address.IsValid() {
			there := access
			there.Local, there.Server = false, netip.AddrPortFrom(address, serverPort).String()
			plane.Acts = actsAs(ctx, there)
		}
		planes = append(planes, plane)
	}
	return planes, nil
}

// actsAs is the release that an API server behaves as; unknown if it does not say so now.
func actsAs(ctx context.Context, access Access) hullmark.Version {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := ServerVersion(ctx, access)
	if err != nil {
		return hullmark.Version{}
	}
	return s.Acts
}

// Kubelets returns the kubelets of all nodes.
func Kubelets(ctx context.Context, access Access) ([]step.Seen, error) {
	server := api{access: access}
	defer server.close()
	nodes, err := server.nodes(ctx, "")
	if err != nil {
		return nil, err
	}
	kubelets := make([]step.Seen, 0, len(nodes))
	for _, n := range nodes {
		kubelets = append(kubelets, step.Seen{Node: n.Metadata.Name, Version: n.version()})
	}
	return kubelets, nil
}
