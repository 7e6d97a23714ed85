package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice/registry"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
)

// kubeletCA is the argument of `hullmark cluster rotate` for the CA of kubelets' serving certificates.
const kubeletCA = "kubelet-ca"

// kubeletSteps are what one run of the command does, by how far the exchange has come, and what the operator has to do next.
var kubeletSteps = map[cluster.KubeletExchange]struct {
	do         func(*cluster.Cluster) error
	done, next string
}{
	cluster.KubeletSteady:  {(*cluster.Cluster).TrustKubeletCA, "step 1 of 3: API servers are to trust the next CA of kubelets, too", "run this command again for step 2"},
	cluster.KubeletTrusted: {(*cluster.Cluster).SignWithKubeletCA, "step 2 of 3: the next CA is to sign, and the former one stays trusted", "kubelets ask for other certificates by themselves, within three days; run this command again for step 3"},
	cluster.KubeletSigning: {(*cluster.Cluster).DropKubeletCA, "step 3 of 3: the former CA is given up", "the exchange is done"},
}

// rotateKubelet takes the exchange of the kubelets' CA one step on, if nothing in the cluster is still at the one before.
func (o *rotateOptions) rotateKubelet(ctx context.Context, file *cluster.File, client *registry.Registry, out, notes io.Writer) error {
	behind := map[string]string{}
	err := o.persist(ctx, notes, func() (err error) {
		behind, err = kubeletsBehind(ctx, client, file.Cluster)
		return err
	})
	if err != nil {
		return tellAPI(err)
	}
	if err := o.leaveOut(behind); err != nil {
		return err
	}
	step := kubeletSteps[file.Cluster.KubeletExchange()]
	if err := file.Update(step.do); err != nil {
		return err
	}
	fmt.Fprintln(out, step.done)
	if err := o.persist(ctx, notes, func() error { return pushPolicy(ctx, client, file.Cluster, out) }); err != nil {
		return tellAPI(signedOnly(err))
	}
	_, err = fmt.Fprintf(out, "%s; %s\n", rebootNext, step.next)
	return err
}

// leaveOut refuses to go on while a node is behind that may not be left there.
func (o *rotateOptions) leaveOut(behind map[string]string) error {
	for _, name := range o.except {
		if behind[name] == "" {
			return withCode(exitUsage, fmt.Errorf("--except %s: no node of that name is behind", name))
		}
		delete(behind, name)
	}
	if len(behind) == 0 {
		return nil
	}
	var each []string
	for _, name := range slices.Sorted(maps.Keys(behind)) {
		each = append(each, name+": "+behind[name])
	}
	return withCode(exitDenied, errors.New("API servers and kubelets would not trust each other: "+strings.Join(each, "; ")+
		"; next: reboot control planes, give kubelets the time to ask for other certificates, or name nodes whose logs may be lost until then (--except)"))
}

// kubeletsBehind says of each node why the next step has to wait for it: a control plane that does not hold the keys of the last rotation, so that its API server and its controller manager are at an earlier
// step; and before the former CA goes, a kubelet whose certificate is of it, or that cannot be asked.
func kubeletsBehind(ctx context.Context, client *registry.Registry, c *cluster.Cluster) (map[string]string, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return nil, err
	}
	machines, err := client.List(ctx)
	if err != nil {
		return nil, err
	}
	behind := map[string]string{}
	for _, m := range machines {
		if m.Role == hullmark.ControlPlane && m.Rotation != policy.Rotation {
			behind[m.Name] = fmt.Sprintf("it holds the keys of rotation %d, not %d", m.Rotation, policy.Rotation)
		}
	}
	if c.KubeletExchange() != cluster.KubeletSigning {
		return behind, nil
	}
	kubelets, err := client.Kubelets(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range kubelets {
		if _, err := kubeadmrun.KubeletCertificate(ctx, c.KubeletCA(), k.Name, k.Address.String()); err != nil && behind[k.Name] == "" {
			behind[k.Name] = "its kubelet shows no certificate of the new CA: " + printable(err.Error())
		}
	}
	return behind, nil
}
