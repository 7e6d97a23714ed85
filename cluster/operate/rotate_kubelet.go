package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
)

// kubeletSteps are what one call does for the CA of kubelets, by how far the exchange has come, and what has to be done next.
var kubeletSteps = map[cluster.KubeletExchange]struct {
	do         func(*cluster.Cluster) error
	done, next string
}{
	cluster.KubeletSteady:  {(*cluster.Cluster).TrustKubeletCA, "step 1 of 3: API servers are to trust the next CA of kubelets, too", "run this command again for step 2"},
	cluster.KubeletTrusted: {(*cluster.Cluster).SignWithKubeletCA, "step 2 of 3: the next CA is to sign, and the former one stays trusted", "kubelets ask for other certificates by themselves, within three days; run this command again for step 3"},
	cluster.KubeletSigning: {(*cluster.Cluster).DropKubeletCA, "step 3 of 3: the former CA is given up", "the exchange is done"},
}

// rotateKubelet takes the exchange of the kubelets' CA one step on, if nothing in the cluster is still at the one before.
func (a *API) rotateKubelet(ctx context.Context, except []string) (Rotated, error) {
	var behind map[string]string
	err := a.persist(ctx, func() (err error) {
		behind, err = a.kubeletsBehind(ctx)
		return err
	})
	if err != nil {
		return Rotated{}, err
	}
	err = leaveOut(behind, except, "no node of that name is behind", func(left []string) error {
		return errors.New("API servers and kubelets would not trust each other: " + strings.Join(left, "; ") +
			"; next: reboot control planes, give kubelets the time to ask for other certificates, or name nodes whose logs may be lost until then (--except)")
	})
	if err != nil {
		return Rotated{}, err
	}
	step := kubeletSteps[a.file.Cluster.KubeletExchange()]
	if err := a.file.Update(step.do); err != nil {
		return Rotated{}, err
	}
	a.Done.say("%s", step.done)
	return Rotated{Next: step.next}, a.pushSigned(ctx)
}

// kubeletsBehind says of each node, by name, why the next step has to wait for it: a control plane that does not hold the keys of the
// last rotation, so that its API server and its controller manager are at an earlier step; and before the former CA goes, a kubelet
// whose certificate is of it, or that cannot be asked.
func (a *API) kubeletsBehind(ctx context.Context) (map[string]string, error) {
	c := a.file.Cluster
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	machines, err := a.client.List(ctx)
	if err != nil {
		return nil, err
	}
	behind := map[string]string{}
	for _, m := range machines {
		if m.Role == hullmark.ControlPlane && m.Rotation != policy.Rotation {
			behind[m.Name] = fmt.Sprintf("%s: it holds the keys of rotation %d, not %d", m.Name, m.Rotation, policy.Rotation)
		}
	}
	if c.KubeletExchange() != cluster.KubeletSigning {
		return behind, nil
	}
	kubelets, err := a.client.Kubelets(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range kubelets {
		if _, err := kubeadmrun.KubeletCertificate(ctx, c.KubeletCA(), k.Name, k.Address.String()); err != nil && behind[k.Name] == "" {
			behind[k.Name] = fmt.Sprintf("%s: its kubelet shows no certificate of the new CA: %v", k.Name, err)
		}
	}
	return behind, nil
}
