package operate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/kubeadm/step"
)

// Versions say which Kubernetes runs where in a cluster, as far as a step to another release depends on it.
type Versions struct {
	// Servers are the API servers of all control planes, and Kubelets those of all nodes.
	Servers, Kubelets []step.Seen
	// Requested are deprecated APIs that one of the servers was asked for since it started.
	Requested []step.API
}

// KubernetesVersions asks each API server and lists the kubelets. One that does not answer is an error that names it: what it was asked
// for is known to nobody else.
func (a *API) KubernetesVersions(ctx context.Context) (versions Versions, err error) {
	err = a.persist(ctx, func() error {
		versions, err = a.kubernetesVersions(ctx)
		return err
	})
	return versions, err
}

func (a *API) kubernetesVersions(ctx context.Context) (v Versions, err error) {
	kubelets, err := a.client.Kubelets(ctx)
	if err != nil {
		return v, err
	}
	for _, k := range kubelets {
		v.Kubelets = append(v.Kubelets, step.Seen{Node: k.Name, Version: k.Version})
	}
	planes, err := a.client.ControlPlanes(ctx)
	if err != nil {
		return v, err
	}
	if len(planes) == 0 {
		return v, errors.New("the cluster has no node of the role control-plane")
	}
	for _, p := range planes {
		address := netip.AddrPortFrom(p.Address, apiPort).String()
		if len(planes) == 1 && a.Server != "" { // There is no other that could answer there.
			address = a.Server
		}
		if err := a.askServer(ctx, p.Name, address, &v); err != nil {
			return v, fmt.Errorf("the API server of %s at %s: %w", p.Name, address, err)
		}
	}
	return v, nil
}

// askServer adds what one API server says of itself.
func (a *API) askServer(ctx context.Context, node, address string, v *Versions) error {
	kubeconfig, err := a.file.Cluster.Kubeconfig(address, time.Now())
	if err != nil {
		return err
	}
	defer clear(kubeconfig)
	access := kubeadmrun.Access{Read: func(string) ([]byte, error) { return kubeconfig, nil }, Server: address}
	server, err := kubeadmrun.ServerVersion(ctx, access)
	if err != nil {
		return err
	}
	requested, err := kubeadmrun.RequestedAPIs(ctx, access)
	if err != nil {
		return err
	}
	v.Servers = append(v.Servers, step.Seen{Node: node, Version: server.Version})
	v.Requested = append(v.Requested, requested...)
	return nil
}
