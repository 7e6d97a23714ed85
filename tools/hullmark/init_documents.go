package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/kubeadm"
)

// documentOptions are the flags that decide what kubeadm reads.
type documentOptions struct {
	kubeadm                    string
	advertise, controlPlane    string
	podSubnet, serviceSubnet   string
	profile, network           string
	manifests                  []string
	workloads                  bool
	podNetwork, serviceNetwork netip.Prefix
	// names are further ones of the API server's certificate.
	names []string
}

func (d *documentOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.kubeadm, "kubeadm", "", "kubeadm documents `FILE` in place of the generated ones")
	f.StringVar(&d.advertise, "advertise-address", "", "the API server's `ADDRESS` as other nodes reach it (default: the node's own)")
	f.StringVar(&d.controlPlane, "control-plane", "", "the control plane's stable `HOST:PORT` (default: the first node's address)")
	f.StringVar(&d.podSubnet, "pod-subnet", "10.244.0.0/16", "`NETWORK` of the pods")
	f.StringVar(&d.serviceSubnet, "service-subnet", "10.96.0.0/12", "`NETWORK` of the services")
	f.StringVar(&d.profile, "profile", "", "slow: `PROFILE` for machines without hardware acceleration, for tests")
	f.StringVar(&d.network, "network", "flannel", "flannel, with kube-proxy, or none: bring your own `NETWORK` as a manifest")
	f.StringArrayVar(&d.manifests, "manifest", nil, "YAML `FILE` to apply after init; repeat for more")
	f.BoolVar(&d.workloads, "workloads", false, "let ordinary pods run on this node")
}

// check refuses what could only fail once the node's disk is open.
func (d *documentOptions) check() (err error) {
	if d.podNetwork, err = netip.ParsePrefix(d.podSubnet); err != nil {
		return withCode(exitUsage, fmt.Errorf("--pod-subnet: %w", err))
	}
	if d.serviceNetwork, err = netip.ParsePrefix(d.serviceSubnet); err != nil {
		return withCode(exitUsage, fmt.Errorf("--service-subnet: %w", err))
	}
	if !slices.Contains([]string{"flannel", "none"}, d.network) {
		return withCode(exitUsage, fmt.Errorf("--network %q: want flannel or none", d.network))
	}
	if d.advertise != "" {
		if _, err := netip.ParseAddr(d.advertise); err != nil {
			return withCode(exitUsage, fmt.Errorf("--advertise-address: %w", err))
		}
	}
	if d.controlPlane != "" && !hullmark.ValidEndpoint(d.controlPlane) {
		return withCode(exitUsage, fmt.Errorf("--control-plane %q: want HOST:PORT", d.controlPlane))
	}
	for _, file := range append(slices.Clone(d.manifests), d.kubeadm) {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return err
		}
	}
	documents, _, err := d.make(d.example())
	if err != nil {
		return withCode(exitUsage, err)
	}
	settings, err := d.settings(d.example(), documents)
	if err == nil {
		_, err = settings.Encode()
	}
	if err != nil {
		return withCode(exitUsage, err)
	}
	return nil
}

// example is parameters that only lack what the node adds, so that everything else is checked before it is dialled.
func (d *documentOptions) example() kubeadm.Params {
	return d.parameters("example", netip.AddrFrom4([4]byte{192, 0, 2, 1}), nil)
}

func (d *documentOptions) parameters(name string, address netip.Addr, sans []string) kubeadm.Params {
	return kubeadm.Params{
		NodeName: name, AdvertiseAddress: address, Endpoint: d.controlPlane,
		ServiceSubnet: d.serviceNetwork, PodSubnet: d.podNetwork,
		SANs: sans, Workloads: d.workloads, Profile: kubeadm.Profile(d.profile),
	}
}

// parameters are those of this node: its API server is also reached by the operator's own endpoint.
func (r *initRun) parameters(config hullmark.NodeConfig, name string, own []netip.Addr) (kubeadm.Params, error) {
	address, err := r.nodeAddress(config, own)
	if err != nil {
		return kubeadm.Params{}, err
	}
	host, _, err := net.SplitHostPort(r.endpoint)
	if err != nil {
		return kubeadm.Params{}, err
	}
	return r.options.documents.parameters(name, address, append([]string{host}, r.options.documents.names...)), nil
}

// settings are what the cluster's join services have to know of these parameters, and of the documents that were made of them.
func (d *documentOptions) settings(p kubeadm.Params, documents []byte) (*joinservice.Settings, error) {
	endpoint := d.controlPlane
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

// make returns the kubeadm documents and the manifests to apply after init.
func (d *documentOptions) make(p kubeadm.Params) (documents []byte, manifests [][]byte, err error) {
	if d.kubeadm != "" {
		documents, err = ownDocuments(d.kubeadm)
	} else {
		documents, err = kubeadm.InitDocuments(p)
	}
	if err != nil {
		return nil, nil, err
	}
	manifests = append(manifests, registry.Manifest())
	if d.network == "flannel" {
		for _, addon := range []func(kubeadm.Params) ([]byte, error){kubeadm.KubeProxy, kubeadm.Flannel} {
			manifest, err := addon(p)
			if err != nil {
				return nil, nil, err
			}
			manifests = append(manifests, manifest)
		}
	}
	for _, file := range d.manifests {
		manifest, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		manifests = append(manifests, manifest)
	}
	return documents, manifests, nil
}

// ownDocuments reads the operator's, which may change nothing that Hullmark relies on.
func ownDocuments(file string) ([]byte, error) {
	documents, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := kubeadm.CheckDocuments(documents); err != nil {
		return nil, fmt.Errorf("--kubeadm %s: %w", file, err)
	}
	return documents, nil
}
