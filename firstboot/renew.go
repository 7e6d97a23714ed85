package firstboot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/kubeadm"
)

// kubeletConf tells a node's kubelet where the API server is, adminConf a control plane's agent. superAdminConf is what kubeadm init uses
// beside it.
const (
	kubeletConf    = "/etc/kubernetes/kubelet.conf"
	adminConf      = "/etc/kubernetes/admin.conf"
	superAdminConf = "/etc/kubernetes/super-admin.conf"
)

// renewing renews what kubeadm wrote on the disk of a node that comes back.
type renewing struct{ *finishing }

// run brings what kubeadm once wrote on the disk of a node that comes back up to what Proceed says: by which authorities API servers are
// known, a control plane's certificates and kubeconfigs, and where the kubelet finds the API server. What cannot be judged stays as it
// is, with a warning: the node worked with it.
func (r renewing) run(ctx context.Context) error {
	r.takeAuthorities() // kubeadm refuses to go on beside a kubeconfig that begins with another one than signs.
	if r.bootstraps() {
		return nil // A kubelet that bootstraps anew is told the endpoint with its token.
	}
	if hullmark.Role(r.proceed.GetRole()) == hullmark.ControlPlane {
		if err := r.renewCertificates(ctx); err != nil {
			return err
		}
		r.takeAuthorities()
	}
	if r.proceed.GetEndpoint() == "" {
		return nil
	}
	if err := r.moveKubelet(ctx); err != nil {
		r.warn("endpoint-not-served", fmt.Sprintf("the node goes on with the endpoint it had, not %s: %v", r.proceed.GetEndpoint(), err),
			"see which control planes serve it (hullmark endpoint show); the node tries again at its next boot")
	}
	return nil
}

// takeAuthorities is trustCA for a node that comes back.
func (r renewing) takeAuthorities() {
	if err := r.trustCA(); err != nil {
		r.unrenewed(fmt.Errorf("trust the Kubernetes CA: %w", err))
	}
}

// renewCertificates goes on with a renewal that did not end, whose old files may be gone, or begins one that is due.
func (r renewing) renewCertificates(ctx context.Context) error {
	documents, err := r.renewal().Interrupted()
	if err != nil {
		return err
	}
	why := "an earlier renewal did not end"
	if documents != nil {
		err = r.agent.storeState(kubeadm.RenewFile, documents)
	} else {
		if r.endpoint() == "" && !r.renewal().Superseded() {
			return nil // An operator whose file knows none brings the node back, and kubeadm has left none.
		}
		if documents, why, err = r.beginRenewal(ctx); err != nil {
			r.unrenewed(err)
			return nil
		}
	}
	if err != nil || why == "" {
		return err
	}
	r.progress("certs", "making the control plane's certificates anew: "+why)
	if err := r.remake(ctx, documents); err != nil {
		return r.putBack(err)
	}
	// What kubeadm wrote is not stored yet, and nothing but its documents could bring it back.
	if err := r.agent.syncState(); err != nil {
		return err
	}
	return r.endRenewal()
}

// beginRenewal plans a renewal that is due, and stores all by which it is gone on with, or given up. Nothing is removed yet.
func (r renewing) beginRenewal(ctx context.Context) (documents []byte, why string, err error) {
	if documents, why, err = r.planRenewal(ctx); err != nil || why == "" {
		return nil, "", err
	}
	if err := r.setAside(); err != nil {
		return nil, "", fmt.Errorf("renew certificates: %w", err)
	}
	return documents, why, r.agent.storeState(kubeadm.RenewFile, documents)
}

// remake removes the old files, and lets kubeadm make them anew.
func (r renewing) remake(ctx context.Context, documents []byte) error {
	old := kubeadm.Renewals()
	if r.renewal().KubeletEnded() {
		old = append(old, kubeadm.KubeletIdentity()...)
	}
	if err := r.agent.removeState(old...); err != nil {
		return fmt.Errorf("renew certificates: %w", err)
	}
	renewing := time.Now()
	err := r.agent.Cluster.Renew(ctx, documents, func(p kubeadm.Phase) { r.progress(p.Name, p.Text) })
	wait(&r.took.programs, renewing)
	return err
}

// asideDir has, on the state disk, what a renewal removes: from before that until the renewal has ended, and only if certificates are of an
// authority that was exchanged. Others trust that as long as the exchange lasts, so the control plane can go on with them.
const asideDir = "/etc/kubernetes/pki/aside/"

// aside is where a file of a renewal is set aside.
func aside(name string) string {
	return path.Join(asideDir, strings.TrimPrefix(name, "/etc/kubernetes/"))
}

// setAside keeps what a renewal is about to remove, for putBack.
func (r renewing) setAside() error {
	if err := r.agent.removeState(asideDir); err != nil || !r.renewal().Superseded() {
		return err
	}
	return r.copyState(func(name string) (from, to string) { return name, aside(name) })
}

// putBack ends a renewal that failed with what was set aside for it, if that is so, and says why. Else the machine restarts, and goes on
// with the renewal.
func (r renewing) putBack(why error) error {
	if _, err := r.agent.readState(aside(kubeadm.Renewals()[0])); err != nil {
		return why
	}
	if err := r.copyState(func(name string) (from, to string) { return aside(name), name }); err != nil {
		return errors.Join(why, err)
	}
	// An earlier boot may have set it aside, and whoever was root since may have changed it.
	if err := errors.Join(r.dropPrograms(), r.agent.syncState()); err != nil {
		return errors.Join(why, err)
	}
	if err := r.endRenewal(); err != nil {
		return errors.Join(why, err)
	}
	r.unrenewed(why)
	return nil
}

// copyState copies the files of a renewal on the state disk. One that is not there is left out.
func (r renewing) copyState(names func(name string) (from, to string)) error {
	var files []*wire.File
	defer func() { wire.WipeFiles(files) }()
	for _, name := range kubeadm.Renewals() {
		from, to := names(name)
		content, err := r.agent.readState(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		files = append(files, &wire.File{Path: to, Content: content, Mode: 0o600})
	}
	return writeFiles(r.agent.StateDir, files)
}

// endRenewal forgets the documents of a renewal, and then what was set aside for it: beside documents that is whole.
func (r renewing) endRenewal() error {
	if err := r.agent.removeState(kubeadm.RenewFile); err != nil {
		return err
	}
	if err := r.agent.syncState(); err != nil {
		return err
	}
	return r.agent.removeState(asideDir)
}

// unrenewed says that certificates are not made anew: they stay as they are. If they are of an authority that was exchanged, others trust
// that until the exchange ends, which it does not before this control plane has others: its record says an earlier rotation until then.
func (r renewing) unrenewed(why error) {
	if r.renewal().Superseded() {
		r.warn("certificates-superseded", "the control plane's certificates are of an authority that was exchanged, and were not made anew: "+why.Error(),
			"set the machine's clock right if it is off, else read why in hullmark node logs; reboot it then: until its certificates are made anew the exchange does not end")
		return
	}
	r.warn("renewal-failed", why.Error(), "read why in hullmark node logs; the certificates that the node has stay as they are")
}

// planRenewal looks whether a renewal is due, and for all that would make it fail: once the old files are gone there is no way back.
func (r renewing) planRenewal(ctx context.Context) (documents []byte, why string, err error) {
	if documents, why, err = r.renewal().Plan(); err != nil || why == "" {
		return nil, "", err
	}
	if off, theirs := clockOff(r.proceed); off.Abs() > clockBound {
		return nil, "", fmt.Errorf("the machine's clock is off by %v (by its verifier's it is %s): certificates would end at a wrong time", off, theirs.UTC().Format(time.RFC3339))
	}
	return documents, why, r.validate(ctx, documents)
}

func (r renewing) renewal() kubeadm.Renewal {
	return kubeadm.Renewal{
		NodeName: r.proceed.GetNodeName(), Endpoint: r.endpoint(), Names: r.proceed.GetNames(), Now: time.Now(), Read: r.agent.readState,
	}
}

// endpoint is the control plane's by Proceed, or else the one that the node has; empty if it has none.
func (r renewing) endpoint() string {
	if told := r.proceed.GetEndpoint(); told != "" {
		return told
	}
	text, err := r.agent.readState(adminConf)
	if err != nil {
		return ""
	}
	endpoint, err := kubeadm.ServerOf(text)
	if err != nil {
		return ""
	}
	return endpoint
}

// moveKubelet lets the kubelet use the control plane's endpoint. A worker's does once that is served with a certificate for its
// name, a control plane's once its own certificate is; one that uses its own API server goes on with that.
func (r renewing) moveKubelet(ctx context.Context) error {
	endpoint := r.proceed.GetEndpoint()
	text, err := r.agent.readState(kubeletConf)
	if err != nil {
		return err
	}
	changed, differs, err := kubeadm.WithEndpoint(text, endpoint)
	if err != nil || !differs {
		return err
	}
	if hullmark.Role(r.proceed.GetRole()) == hullmark.ControlPlane {
		if own, err := r.renewal().IsOwn(text); own || err != nil {
			return err
		}
		if serves, err := r.renewal().Serves(); err != nil || !serves {
			return errors.Join(errors.New("the node's own API server has no certificate for it"), err)
		}
	} else if err := r.served(ctx, endpoint); err != nil {
		return err
	}
	r.progress("kubelet", "the control plane is reached at "+endpoint+" by now")
	return r.agent.storeState(kubeletConf, changed)
}

// warn says what stands against the node although it goes on; the first such thing is the one to mend first.
func (f *finishing) warn(code, title, next string) {
	f.progress("warning", title)
	if f.warning != nil {
		return
	}
	f.warning = &hullmark.Condition{Code: code, Step: StepKubeadm, Title: title, Next: next}
}

// storeState writes a file of the state disk by the name that programs see, readable by root alone, and returns once it is stored.
func (a *Agent) storeState(name string, content []byte) error {
	file, err := onState(name)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(a.StateDir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := writeFile(root, file, content, 0o600); err != nil {
		return fmt.Errorf("%s: %w", name, err)
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
