package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// controlPlaneLabel is what kubeadm marks the Nodes of control planes with.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// attempts bounds how often a change is tried that others' changes overtake.
const attempts = 4

// ControlPlane is a Node that runs an API server.
type ControlPlane struct {
	// Name is the Node's, Address its internal one.
	Name    string
	Address netip.Addr
}

// ControlPlanes lists the Nodes that run an API server, by name.
func (r *Endpoints) ControlPlanes(ctx context.Context) ([]ControlPlane, error) {
	list, err := call(ctx, r.connection, "list the control planes", func(ctx context.Context) (*corev1.NodeList, error) {
		return r.nodes.list(ctx, metav1.ListOptions{LabelSelector: controlPlaneLabel})
	})
	if err != nil {
		return nil, err
	}
	planes := make([]ControlPlane, 0, len(list.Items))
	for _, node := range list.Items {
		planes = append(planes, ControlPlane{Name: node.Name, Address: internalAddress(node)})
	}
	return planes, nil
}

// Kubelet is where a Node's kubelet serves.
type Kubelet struct {
	// Name is the Node's, Address the one at which API servers reach it; it may be the zero value.
	Name    string
	Address netip.AddrPort
}

// Kubelets lists the kubelets of all Nodes, by name.
func (r *Endpoints) Kubelets(ctx context.Context) ([]Kubelet, error) {
	list, err := call(ctx, r.connection, "list the nodes", func(ctx context.Context) (*corev1.NodeList, error) {
		return r.nodes.list(ctx, metav1.ListOptions{})
	})
	if err != nil {
		return nil, err
	}
	kubelets := make([]Kubelet, 0, len(list.Items))
	for _, node := range list.Items {
		k := Kubelet{Name: node.Name}
		if own := internalAddress(node); own.IsValid() {
			k.Address = netip.AddrPortFrom(own, uint16(node.Status.DaemonEndpoints.KubeletEndpoint.Port))
		}
		kubelets = append(kubelets, k)
	}
	return kubelets, nil
}

// internalAddress returns a Node's first address inside of the cluster, or the zero value.
func internalAddress(node corev1.Node) netip.Addr {
	for _, a := range node.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			return address
		}
	}
	return netip.Addr{}
}

// NoteEndpoint lets control planes that join from now on serve an endpoint: in kubeadm-config, from which kubeadm join takes it.
func (r *Endpoints) NoteEndpoint(ctx context.Context, e measurements.Endpoint) error {
	found, err := r.editSystem(ctx, "kubeadm-config", func(data map[string]string) (bool, error) {
		const key = "ClusterConfiguration"
		changed, differs, err := kubeadm.WithControlPlane([]byte(data[key]), e.Address, e.Names)
		data[key] = string(changed)
		return differs, err
	})
	if err == nil && !found {
		return errors.New("change kubeadm-config: the cluster has none, from which further control planes could take the endpoint; was it made by kubeadm?")
	}
	return err
}

// SignsApart reports whether controller managers sign by files of one certificate each, as kubeadm-config says it (kubeadm.SignsApart).
// A cluster without it was not made by kubeadm, and nothing is said against that.
func (r *Endpoints) SignsApart(ctx context.Context) (apart bool, err error) {
	apart = true
	_, err = r.editSystem(ctx, "kubeadm-config", func(data map[string]string) (differs bool, err error) {
		apart, err = kubeadm.SignsApart([]byte(data["ClusterConfiguration"]))
		return false, err
	})
	return apart, err
}

// MoveAddons lets kube-proxy and flannel, each from its next start on a node, ask the API server at address, HOST:PORT. It returns
// which of them the cluster does not have, as one with a pod network of its own.
func (r *Endpoints) MoveAddons(ctx context.Context, address string) (absent []string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	for name, edit := range map[string]func(map[string]string) (bool, error){
		"kube-proxy": func(data map[string]string) (bool, error) {
			const key = "kubeconfig.conf"
			changed, differs, err := kubeadm.WithEndpoint([]byte(data[key]), address)
			data[key] = string(changed)
			return differs, err
		},
		"flannel": func(data map[string]string) (bool, error) {
			differs := data["api-host"] != host || data["api-port"] != port
			data["api-host"], data["api-port"] = host, port
			return differs, nil
		},
	} {
		found, err := r.editSystem(ctx, name, edit)
		if err != nil {
			return nil, err
		}
		if !found {
			absent = append(absent, name)
		}
	}
	return absent, nil
}

// editSystem edits a ConfigMap of kube-system, unless it says already what it should, and reports whether there is one.
func (r *Endpoints) editSystem(ctx context.Context, name string, edit func(data map[string]string) (differs bool, err error)) (found bool, err error) {
	what := "change the ConfigMap " + tokenNamespace + "/" + name
	for range attempts {
		object, err := call(ctx, r.connection, what, func(ctx context.Context) (*corev1.ConfigMap, error) { return r.system.get(ctx, name) })
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if object.Data == nil {
			object.Data = map[string]string{}
		}
		differs, err := edit(object.Data)
		if err != nil {
			return true, fmt.Errorf("%s: %w", what, err)
		}
		if !differs {
			return true, nil
		}
		_, err = call(ctx, r.connection, what, func(ctx context.Context) (*corev1.ConfigMap, error) { return r.system.update(ctx, name, object) })
		if !apierrors.IsConflict(err) {
			return true, err
		}
	}
	return true, fmt.Errorf("%s: others change it all the time; run the command again", what)
}
