package kubeadm

import (
	"bytes"
	"embed"
	"fmt"
	"net"
	"text/template"
)

// FlannelVersion is the release of flannel that the image carries.
const FlannelVersion = "v0.28.4"

//go:embed addons/*.yaml
var addonFiles embed.FS

// KubeProxy writes the manifest of kube-proxy for the cluster of p. A cluster whose network replaces kube-proxy leaves it out.
func KubeProxy(p Params) ([]byte, error) { return addon("kube-proxy.yaml", p) }

// Flannel writes the manifest of a simple pod network for nodes that share one network segment. A cluster may use any other in its place.
func Flannel(p Params) ([]byte, error) { return addon("flannel.yaml", p) }

func addon(name string, p Params) ([]byte, error) {
	if err := p.check(); err != nil {
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
	err = t.Execute(&out, struct {
		Endpoint, Host, Port, PodSubnet     string
		Repository, Version, FlannelVersion string
	}{p.endpoint(), host, port, p.PodSubnet.String(), Repository, Version, FlannelVersion})
	if err != nil {
		return nil, fmt.Errorf("addon %s: %w", name, err)
	}
	return out.Bytes(), nil
}
