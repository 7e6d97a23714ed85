package kubeadm

import (
	"bytes"
	"embed"
	"fmt"
	"net"
	"text/template"
)

// NodeImage is the image that kube-proxy and flannel are started from: the empty one, under a name that nodes of every release have
// (systemd/system/hullmark-images.service). Their programs are those of the root, so of the release that each node runs.
const NodeImage = Repository + "/node:any"

//go:embed addons/*.yaml
var addonFiles embed.FS

// KubeProxy writes the manifest of kube-proxy for the cluster of p. A cluster whose network replaces kube-proxy leaves it out.
func KubeProxy(p Params) ([]byte, error) { return addon("kube-proxy.yaml", p) }

// Flannel writes the manifest of a simple pod network: for nodes that share one network segment, or, with WireGuard, for any that
// reach each other. With NetworkPolicies it enforces those. A cluster may use another in its place.
func Flannel(p Params) ([]byte, error) { return addon("flannel.yaml", p) }

func addon(name string, p Params) ([]byte, error) {
	if err := p.checkNetworks(); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(p.endpoint())
	if err != nil {
		return nil, fmt.Errorf("addon %s: endpoint: %w (want host:port)", name, err)
	}
	t, err := template.ParseFS(addonFiles, "addons/"+name)
	if err != nil {
		return nil, fmt.Errorf("addon %s: %w", name, err)
	}
	var out bytes.Buffer
	backend := "host-gw"
	if p.WireGuard {
		backend = "wireguard"
	}
	err = t.Execute(&out, struct {
		Endpoint, Host, Port       string
		PodSubnet, IPv4, IPv6      string
		Image, Backend             string
		WireGuard, NetworkPolicies bool
	}{p.endpoint(), host, port, p.PodSubnet.String(), p.PodSubnet.of(true), p.PodSubnet.of(false), NodeImage, backend, p.WireGuard, p.NetworkPolicies})
	if err != nil {
		return nil, fmt.Errorf("addon %s: %w", name, err)
	}
	return out.Bytes(), nil
}
