package firstboot

import (
	"errors"
	"slices"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/kubeadm"
)

// isBootstrap reports whether a file of Proceed brings a kubelet's token.
func isBootstrap(f *wire.File) bool { return f.GetPath() == kubeadm.BootstrapFile }

// bootstraps reports that Proceed brings a token for the kubelet, whose certificate has ended: the node was off for longer than that
// lives, or its API was down.
func (f *finishing) bootstraps() bool { return slices.ContainsFunc(f.proceed.GetFiles(), isBootstrap) }

// checkBootstrap takes a token for the kubelet of a worker that comes back by a join service, and nowhere else: a control plane
// makes what it needs itself, and a join has its token in kubeadm's documents.
func (o *opened) checkBootstrap(p *wire.Proceed) error {
	if !slices.ContainsFunc(p.GetFiles(), isBootstrap) || o.service != "" && o.comesBack(p) && hullmark.Role(p.GetRole()) == hullmark.Worker {
		return nil
	}
	return errors.New("it brings a bootstrap token, which only a worker takes that comes back")
}

// readyKubelet lets the kubelet bootstrap anew if Proceed brings a token for that: what it knew itself by is removed, whatever the
// machine's clock says of it. Otherwise no token stays that an earlier boot has left.
func (f *finishing) readyKubelet() error {
	if !f.bootstraps() {
		return f.agent.removeState(kubeadm.BootstrapFile)
	}
	f.progress("kubelet", "its certificate has ended: it asks for another with a token")
	return f.agent.removeState(kubeadm.KubeletIdentity()...)
}
