package operate

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// Kubernetes says what kubeadm init reads, and what is applied after it.
type Kubernetes struct {
	// Kubeadm is the operator's own configuration, in place of the generated one; nil for that.
	Kubeadm []byte
	// Advertise is the API server's address as other nodes reach it; the zero value is the node's own (--advertise-address).
	Advertise netip.Addr
	// ControlPlane is the control plane's stable HOST:PORT; empty is the first node's address.
	ControlPlane string
	// PodSubnet and ServiceSubnet are the networks of the pods and of the services; with documents of the operator's own, theirs.
	PodSubnet, ServiceSubnet kubeadm.Subnets
	// Profile is that of the machines; empty is the normal one.
	Profile kubeadm.Profile
	// Several says that more control planes may come, which the profile slow has to know.
	Several bool
	// KubeProxy and Flannel bring these (--network); without flannel, Manifests bring a pod network (--manifest).
	KubeProxy, Flannel bool
	// WireGuard has flannel encrypt and authenticate what nodes send each other (--network wireguard), NetworkPolicies has it
	// enforce these.
	WireGuard, NetworkPolicies bool
	// Manifests are applied after init, in their order.
	Manifests [][]byte
	// Workloads lets ordinary pods run on this node.
	Workloads bool

	// names are further ones of the API server's certificate.
	names []string
}

// check refuses what could only fail once the node's disk is open.
func (d *Kubernetes) check() error {
	if d.ControlPlane != "" && !hullmark.ValidEndpoint(d.ControlPlane) {
		return as(ErrUsage, fmt.Errorf("--control-plane %q: want HOST:PORT", d.ControlPlane))
	}
	if err := d.checkMaking(); err != nil {
		return as(ErrUsage, err)
	}
	return nil
}

func (d *Kubernetes) checkMaking() error {
	p, err := d.example()
	if err != nil {
		return err
	}
	if d.Kubeadm == nil {
		if err := p.CheckSizes(); err != nil {
			return err
		}
	}
	for i, m := range d.Manifests {
		if err := checkManifest(m); err != nil {
			return fmt.Errorf("--manifest, number %d: %w", i+1, err)
		}
	}
	documents, _, err := d.make(p)
	if err != nil {
		return err
	}
	settings, err := d.settings(p, documents)
	if err == nil {
		_, err = settings.Encode()
	}
	return err
}

// example is parameters that only lack what the node adds, so that everything else is checked before it is dialled.
func (d *Kubernetes) example() (kubeadm.Params, error) {
	address := d.Advertise
	if !address.IsValid() {
		family, err := d.primary()
		if err != nil {
			return kubeadm.Params{}, err
		}
		if address = netip.AddrFrom4([4]byte{192, 0, 2, 1}); family == joinservice.IPv6 {
			address = netip.MustParseAddr("2001:db8::1")
		}
	}
	return d.parameters("example", address, nil)
}

// primary is the family of the API server's address: the one of the services' first network.
func (d *Kubernetes) primary() (joinservice.Family, error) {
	services, _, err := d.networks()
	if err != nil || len(services) == 0 {
		return joinservice.IPv4, err
	}
	return joinservice.FamilyOf(services[0].Addr()), nil
}

// networks are those of the services and of the pods. Documents of the operator's own may leave the pods' out.
func (d *Kubernetes) networks() (services, pods kubeadm.Subnets, err error) {
	if d.Kubeadm == nil {
		return d.ServiceSubnet, d.PodSubnet, nil
	}
	f, err := frameOf(d.Kubeadm)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeadm: %w", err)
	}
	if services, err = kubeadm.ParseSubnets(f.Networking.ServiceSubnet); err != nil {
		return nil, nil, fmt.Errorf("--kubeadm: networking.serviceSubnet: %w", err)
	}
	if f.Networking.PodSubnet != "" {
		if pods, err = kubeadm.ParseSubnets(f.Networking.PodSubnet); err != nil {
			return nil, nil, fmt.Errorf("--kubeadm: networking.podSubnet: %w", err)
		}
	}
	return services, pods, nil
}

func (d *Kubernetes) parameters(name string, address netip.Addr, sans []string) (kubeadm.Params, error) {
	services, pods, err := d.networks()
	return kubeadm.Params{
		NodeName: name, AdvertiseAddress: address, Endpoint: d.ControlPlane,
		ServiceSubnet: services, PodSubnet: pods,
		SANs: sans, Workloads: d.Workloads, Profile: d.Profile, Several: d.Several,
	}, err
}

// parameters are those of this node: its image may be of another release than this program, and its API server is also reached by the
// operator's own endpoint.
func (r *initRun) parameters(config hullmark.NodeConfig, member measurements.Member, own []netip.Addr) (kubeadm.Params, error) {
	address, err := r.nodeAddress(config, own)
	if err != nil {
		return kubeadm.Params{}, err
	}
	host, _, err := net.SplitHostPort(r.options.Endpoint)
	if err != nil {
		return kubeadm.Params{}, err
	}
	p, err := r.options.Kubernetes.parameters(member.Name, address, append([]string{host}, r.options.Kubernetes.names...))
	p.Kubernetes, p.ProviderID = r.options.Document.Image.Kubernetes, member.ProviderID
	return p, err
}

// settings are what the cluster's join services have to know of these parameters, and of the documents that were made of them.
func (d *Kubernetes) settings(p kubeadm.Params, documents []byte) (*joinservice.Settings, error) {
	endpoint := d.ControlPlane
	if endpoint == "" {
		endpoint = netip.AddrPortFrom(p.AdvertiseAddress, 6443).String()
	}
	f, err := frameOf(documents)
	if err != nil {
		return nil, err
	}
	networks, err := f.networks()
	return &joinservice.Settings{ControlPlaneEndpoint: endpoint, Names: d.names, Networks: networks, Profile: p.Profile}, err
}

// make returns the kubeadm documents and the manifests to apply after init, in this order: the node waits for the pod network, which takes
// its time to begin while the rest is applied.
func (d *Kubernetes) make(p kubeadm.Params) (documents []byte, manifests [][]byte, err error) {
	if documents = d.Kubeadm; documents == nil {
		documents, err = kubeadm.InitDocuments(p)
	} else if err = kubeadm.CheckDocuments(documents); err != nil {
		err = fmt.Errorf("--kubeadm: %w", err)
	}
	if err != nil {
		return nil, nil, err
	}
	p.WireGuard, p.NetworkPolicies = d.WireGuard, d.NetworkPolicies
	for _, addon := range []struct {
		brought bool
		write   func(kubeadm.Params) ([]byte, error)
	}{{d.Flannel, kubeadm.Flannel}, {d.KubeProxy, kubeadm.KubeProxy}} {
		if !addon.brought {
			continue
		}
		manifest, err := addon.write(p)
		if err != nil {
			return nil, nil, err
		}
		manifests = append(manifests, manifest)
	}
	manifests = append(manifests, registry.Manifest())
	return documents, append(manifests, d.Manifests...), nil
}
