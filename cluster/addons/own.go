package addons

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hullmark/hullmark/cluster/render"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/kubeadm"
)

const systemNamespace = "kube-system"

// network is one of Hullmark's add-ons that a cluster has only if it began with it.
type network struct {
	name string
	make func(kubeadm.Params) ([]byte, error)
	// endpoint reads from the add-on's ConfigMap where it asks the API server.
	endpoint func(data map[string]string) (string, error)
}

var networks = []network{
	{"kube-proxy", kubeadm.KubeProxy, func(data map[string]string) (string, error) {
		return kubeadm.ServerOf([]byte(data["kubeconfig.conf"]))
	}},
	{"flannel", kubeadm.Flannel, func(data map[string]string) (string, error) {
		return net.JoinHostPort(data["api-host"], data["api-port"]), nil
	}},
}

// ownUnits are Hullmark's own add-ons as this release has them: what the join service needs, and those of the networks that the
// cluster began with. The networks' programs come with a node's image, so they wait until all nodes run this release's Kubernetes.
func (p *planner) ownUnits(ctx context.Context) ([]*unit, error) {
	all := []*unit{{addon: render.Addon{Name: render.OwnAddons[0]}, own: true}}
	var err error
	if all[0].objects, err = parse(registry.Manifest()); err != nil {
		return nil, err
	}
	waits, own := "", ownReader{p.client, p.Network}
	for _, n := range networks {
		u, err := own.unit(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.name, err)
		}
		if u == nil {
			continue
		}
		if waits == "" {
			if waits, err = own.laggard(ctx); err != nil {
				return nil, err
			}
		}
		u.waits = waits
		all = append(all, u)
	}
	for _, u := range all {
		if err := p.manifestUnit(ctx, u); err != nil {
			return nil, fmt.Errorf("%s: %w", u.addon.Name, err)
		}
	}
	return all, nil
}

// ownReader reads from a cluster what its own networks are like.
type ownReader struct {
	client *client
	// wanted is what the cluster document says of them; nil without one.
	wanted *render.Network
}

// unit makes an add-on of the cluster's own networks, nil if the cluster has another in its place.
func (o ownReader) unit(ctx context.Context, n network) (*unit, error) {
	running, err := o.client.get(ctx, Name{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: systemNamespace, Name: n.name})
	if err != nil || running == nil || !isOwn(running) {
		return nil, err
	}
	data, err := o.configMap(ctx, n.name)
	if err != nil {
		return nil, err
	}
	parameters, err := o.parameters(ctx)
	if err != nil {
		return nil, err
	}
	// Where it asks is moved by hullmark endpoint set alone, once all control planes serve it.
	if parameters.Endpoint, err = n.endpoint(data); err != nil {
		return nil, err
	}
	parameters.WireGuard = strings.Contains(data["net-conf.json"], `"wireguard"`)
	parameters.NetworkPolicies = strings.Contains(fmt.Sprint(running.Object["spec"]), "--network-policies")
	if o.wanted != nil && o.wanted.Policies != nil {
		parameters.NetworkPolicies = *o.wanted.Policies
	}
	manifest, err := n.make(parameters)
	if err != nil {
		return nil, err
	}
	u := &unit{addon: render.Addon{Name: n.name}, own: true}
	if n.name == "flannel" {
		u.notes = o.notes(parameters)
	}
	u.objects, err = parse(manifest)
	return u, err
}

// notes are what a plan says of the pods' network beside what changes.
func (o ownReader) notes(p kubeadm.Params) (notes []string) {
	if !p.NetworkPolicies {
		notes = append(notes, "NetworkPolicies are not enforced: creating one does nothing. To have them enforced, say policies: true in the network of the cluster document")
	}
	for _, s := range []struct {
		field, wanted string
		has           kubeadm.Subnets
	}{{"podSubnet", o.wantedOr().PodSubnet, p.PodSubnet}, {"serviceSubnet", o.wantedOr().ServiceSubnet, p.ServiceSubnet}} {
		if s.wanted != "" && s.wanted != s.has.String() {
			notes = append(notes, fmt.Sprintf("the document's network.%s is %s, and the cluster began with %s, which it keeps: other networks, or both families, are for another cluster", s.field, s.wanted, s.has))
		}
	}
	return notes
}

func (o ownReader) wantedOr() render.Network {
	if o.wanted == nil {
		return render.Network{}
	}
	return *o.wanted
}

// isOwn reports whether a DaemonSet runs a program of Hullmark's image.
func isOwn(o *object) bool {
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	for _, c := range containers {
		container, _ := c.(map[string]any)
		if image, _ := container["image"].(string); strings.HasPrefix(image, kubeadm.Repository+"/") {
			return true
		}
	}
	return false
}

// configMap returns the data of a ConfigMap of kube-system.
func (o ownReader) configMap(ctx context.Context, name string) (map[string]string, error) {
	n := Name{APIVersion: "v1", Kind: "ConfigMap", Namespace: systemNamespace, Name: name}
	found, err := o.client.get(ctx, n)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("%s is missing, from which its settings are read; next: bring it back (hullmark addons rollback, or a backup of etcd)", n)
	}
	data, _, err := unstructured.NestedStringMap(found.Object, "data")
	return data, err
}

// parameters are those that the cluster began with, as far as the networks' manifests depend on them.
func (o ownReader) parameters(ctx context.Context) (parameters kubeadm.Params, err error) {
	data, err := o.configMap(ctx, "kubeadm-config")
	if err != nil {
		return parameters, err
	}
	var configuration struct {
		Networking struct{ PodSubnet, ServiceSubnet string }
	}
	if err := kubeadm.Find([]byte(data["ClusterConfiguration"]), "ClusterConfiguration", &configuration); err != nil {
		return parameters, err
	}
	var problems [2]error
	parameters.PodSubnet, problems[0] = kubeadm.ParseSubnets(configuration.Networking.PodSubnet)
	parameters.ServiceSubnet, problems[1] = kubeadm.ParseSubnets(configuration.Networking.ServiceSubnet)
	return parameters, errors.Join(problems[:]...)
}

// laggard names a node that runs another Kubernetes than this release's, if there is one.
func (o ownReader) laggard(ctx context.Context) (string, error) {
	found := ""
	err := o.client.each(ctx, schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, func(node *object) error {
		if runs := nested(node, "status", "nodeInfo", "kubeletVersion"); runs != kubeadm.Version && found == "" {
			found = fmt.Sprintf("node %s runs %s, and this release has %s: its programs come with the image, so it waits until all nodes run that", node.GetName(), runs, kubeadm.Version)
		}
		return nil
	})
	return found, err
}
