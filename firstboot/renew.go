package firstboot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
)

// kubeletConf tells a node's kubelet where the API server is.
const kubeletConf = "/etc/kubernetes/kubelet.conf"

// renew brings what kubeadm once wrote on the disk of a node that comes back up to what M6 says: a control plane's certificates and kubeconfigs, and where the
// kubelet finds the API server. What cannot be judged stays as it is, with a warning: the node worked with it.
func (x *exchange) renew(ctx context.Context) error {
	if x.proceed.GetEndpoint() == "" {
		return nil
	}
	if hullmark.Role(x.proceed.GetRole()) == hullmark.ControlPlane {
		if err := x.renewCertificates(ctx); err != nil {
			return err
		}
	}
	return x.moveKubelet(ctx)
}

func (x *exchange) renewCertificates(ctx context.Context) error {
	renewal := x.renewal()
	documents, why, err := renewal.Plan()
	if err == nil && why != "" {
		err = x.agent.Cluster.Validate(ctx, documents) // Once the old files are gone there is no way back.
	}
	if err != nil {
		x.warn("renewal-failed", err.Error(), "read why in hullmark node logs; the certificates that the node has stay as they are")
		return nil
	}
	if why == "" {
		return nil
	}
	x.progress("certs", "making the control plane's certificates anew: "+why)
	if err := x.agent.storeState(kubeadm.RenewFile, documents); err != nil {
		return fmt.Errorf("renew certificates: %w", err)
	}
	if err := x.agent.removeState(kubeadm.Renewals()...); err != nil {
		return fmt.Errorf("renew certificates: %w", err)
	}
	if err := x.agent.Cluster.Renew(ctx, documents, func(p kubeadm.Phase) { x.progress(p.Name, p.Text) }); err != nil {
		return err
	}
	// What kubeadm wrote is not stored yet, and nothing but its documents could bring it back.
	return errors.Join(x.agent.syncState(), x.agent.removeState(kubeadm.RenewFile))
}

func (x *exchange) renewal() kubeadm.Renewal {
	return kubeadm.Renewal{
		NodeName: x.proceed.GetNodeName(), Endpoint: x.proceed.GetEndpoint(), Names: x.proceed.GetNames(), Now: time.Now(), Read: x.agent.readState,
	}
}

// moveKubelet lets the kubelet use the control plane's endpoint. A worker's goes on with the one it has until the new one is served with the right certificate;
// a control plane's, which has that certificate itself by now, may also use its own API server, and then goes on with that.
func (x *exchange) moveKubelet(ctx context.Context) error {
	endpoint := x.proceed.GetEndpoint()
	text, err := x.agent.readState(kubeletConf)
	if err != nil {
		return fmt.Errorf("the kubelet's endpoint: %w", err)
	}
	changed, differs, err := kubeadm.WithEndpoint(text, endpoint)
	if err != nil {
		return fmt.Errorf("the kubelet's endpoint: %w", err)
	}
	if !differs {
		return nil
	}
	if hullmark.Role(x.proceed.GetRole()) == hullmark.ControlPlane {
		if own, err := x.renewal().IsOwn(text); own || err != nil {
			return err
		}
	} else if err := kubeadm.Serves(ctx, kubeadm.Access{Kubeconfig: kubeletConf, Read: x.agent.readState}, endpoint); err != nil {
		x.warn("endpoint-not-served", fmt.Sprintf("the control plane does not serve %s yet: %v", endpoint, err),
			"see which control planes do (hullmark endpoint show); the node goes on with the endpoint it had, and tries again at its next boot")
		return nil
	}
	x.progress("kubelet", "the control plane is reached at "+endpoint+" by now")
	return x.agent.storeState(kubeletConf, changed)
}

// warn says what stands against the node although it goes on; the first such thing is the one to mend first.
func (x *exchange) warn(code, title, next string) {
	x.progress("warning", title)
	if x.warning != nil {
		return
	}
	x.warning = &hullmark.Condition{Code: code, Step: StepKubeadm, Title: title, Next: next}
}

// storeState writes a file of the state disk by the name that programs see, readable by root alone, and returns once it is stored.
func (a *Agent) storeState(name string, content []byte) error {
	if err := writeFiles(a.StateDir, []*wire.File{{Path: name, Content: content, Mode: 0o600}}); err != nil {
		return err
	}
	return a.syncState()
}

// syncState returns once everything that was written to the state disk is stored.
func (a *Agent) syncState() error {
	dir, err := os.Open(a.StateDir)
	if err != nil {
		return err
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return errors.Join(fmt.Errorf("sync the state disk: %w", err), dir.Close())
	}
	return dir.Close()
}
