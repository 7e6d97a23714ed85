package operate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hullmark/hullmark"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
	"github.com/hullmark/hullmark/kubeadm/step"
	"github.com/hullmark/hullmark/upgrade"
)

// checkRequestedAPIs holds a plan that leads to another minor release of Kubernetes against the APIs that clients ask for. Where an API
// server does not say what it was asked for, the plan notes that: nobody else knows.
func (a *API) checkRequestedAPIs(ctx context.Context, plan *upgrade.Plan, view upgrade.View) {
	to := otherLine(plan.Spec, view)
	if !to.Known() {
		return
	}
	requested, err := a.requestedAPIs(ctx)
	if err != nil {
		plan.Notes = append(plan.Notes, fmt.Sprintf("it is not known whether clients ask for APIs that Kubernetes %s no longer has: %v", to.Line(), err))
		return
	}
	var removed *hullmark.Condition
	if errors.As(step.RemovedAPIs(requested, to), &removed) {
		plan.Against = append(plan.Against, removed)
	}
}

// otherLine is the Kubernetes of a release, if a control plane runs one of another minor release; else it is not known.
func otherLine(s upgrade.Spec, view upgrade.View) hullmark.Version {
	for _, id := range s.Documents {
		to := view.Documents[id].Image.Kubernetes
		for _, m := range view.Machines {
			from := view.Documents[m.Document].Image.Kubernetes
			if m.Role == hullmark.ControlPlane && to.Known() && from.Known() && !from.SameLine(to) {
				return to
			}
		}
	}
	return hullmark.Version{}
}

// requestedAPIs are the deprecated APIs that any of the API servers was asked for since it started. One that does not answer is an error
// that names it.
func (a *API) requestedAPIs(ctx context.Context) (requested []step.API, err error) {
	planes, err := a.client.ControlPlanes(ctx)
	if err != nil {
		return nil, err
	}
	if len(planes) == 0 {
		return nil, errors.New("the cluster has no node of the role control-plane")
	}
	for _, p := range planes {
		address := netip.AddrPortFrom(p.Address, apiPort).String()
		if len(planes) == 1 { // There is no other that could answer there.
			address = a.server
		}
		some, err := a.askServer(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("the API server of %s at %s: %w", p.Name, address, err)
		}
		requested = append(requested, some...)
	}
	return requested, nil
}

// askServer returns what one API server was asked for.
func (a *API) askServer(ctx context.Context, address string) ([]step.API, error) {
	kubeconfig, err := a.file.Cluster.Kubeconfig(address, time.Now())
	if err != nil {
		return nil, err
	}
	defer clear(kubeconfig)
	return kubeadmrun.RequestedAPIs(ctx, kubeadmrun.Access{Read: func(string) ([]byte, error) { return kubeconfig, nil }, Server: address})
}
