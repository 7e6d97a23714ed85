package agenttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// Cluster is Kubernetes without Kubernetes.
type Cluster struct {
	// StateDir is the agent's.
	StateDir string

	// Works are those of each Init, and Intents what the disk recorded then.
	Works   []run.Work
	Intents []string
	// Intent, if set, returns what the disk records.
	Intent func() (string, error)
	// Restored are the snapshots that etcd's data was made of; Unrestorable, if set, is what Restore returns.
	Restored     []string
	Unrestorable error
	// Joins are the documents of each Join.
	Joins []string
	// Renewals are the documents of each Renew; Remade is what it makes.
	Renewals []string
	Remade   map[string][]byte
	// Refuse is what Validate returns, Fail what Init, Join and Renew do.
	Refuse, Fail error
	// Access is WaitReady's, NotReady what it returns.
	Access   run.Access
	NotReady error
	// Record is what DiskRecord returns.
	Record run.DiskRecord
	// Steps is the rest.
	Steps
}

// on returns where on the state disk a file lies that programs see at name, as its unit binds it.
func (c *Cluster) on(name string) string {
	if rest, ok := strings.CutPrefix(name, "/etc/kubernetes/"); ok {
		name = "etc-kubernetes/" + rest
	}
	return filepath.Join(c.StateDir, name)
}

// Validate takes everything, or nothing.
func (c *Cluster) Validate(context.Context, []byte) error { return c.Refuse }

// Restore wants what etcdutl wants, and leaves what it leaves.
func (c *Cluster) Restore(_ context.Context, r kubeadm.Restoration) error {
	if err := r.Check(); err != nil {
		return err
	}
	snapshot, err := os.ReadFile(c.on(kubeadm.SnapshotFile))
	if err != nil {
		return err
	}
	c.Restored = append(c.Restored, string(snapshot))
	if err := os.Mkdir(c.on(kubeadm.EtcdData), 0o700); err != nil {
		return err
	}
	return c.Unrestorable
}

// Init leaves what kubeadm leaves.
func (c *Cluster) Init(_ context.Context, w run.Work) error {
	c.Works = append(c.Works, w)
	if c.Intent != nil {
		intent, err := c.Intent()
		if err != nil {
			return err
		}
		c.Intents = append(c.Intents, intent)
	}
	w.Report(kubeadm.Phase{Name: "certs", Text: "making certificates"})
	if err := c.Fail; err != nil {
		return err
	}
	return c.writeKubeconfig("admin.conf")
}

// Join wants what kubeadm's preflight wants, and leaves what kubeadm and a kubelet leave.
func (c *Cluster) Join(_ context.Context, documents []byte, report func(kubeadm.Phase)) error {
	c.Joins = append(c.Joins, string(documents))
	controlPlane := strings.Contains(string(documents), "controlPlane")
	wanted := []string{kubeadm.DiscoveryFile}
	if controlPlane {
		wanted = append(wanted, kubeadm.ControlPlaneFiles()...)
	}
	if err := c.preflight(wanted, append(kubeadm.JoinRemains(), "/etc/kubernetes/pki/kubelet.key")); err != nil {
		return err
	}
	report(kubeadm.Phase{Name: "kubelet-start", Text: "starting the kubelet"})
	if c.Fail != nil {
		return c.Fail
	}
	if controlPlane {
		return errors.Join(c.writeKubeconfig("kubelet.conf"), c.writeKubeconfig("admin.conf"))
	}
	return c.writeKubeconfig("kubelet.conf")
}

func (c *Cluster) writeKubeconfig(name string) error {
	return os.WriteFile(c.on("/etc/kubernetes/"+name), []byte("kubeconfig"), 0o600)
}

// preflight fails unless the wanted files are there, and nothing else of what an earlier join leaves but the folders of the wanted.
func (c *Cluster) preflight(wanted, remains []string) error {
	for _, name := range wanted {
		if _, err := os.Stat(c.on(name)); err != nil {
			return err
		}
	}
	for _, name := range remains {
		_, err := os.Lstat(c.on(name))
		needed := slices.ContainsFunc(wanted, func(w string) bool { return w == name || strings.HasPrefix(w, name+"/") })
		if needed != (err == nil) {
			return fmt.Errorf("%s: %v", name, err)
		}
	}
	return nil
}

// Renew wants the documents stored and the old files gone, as the real unit does, and makes new ones for all that the documents name.
func (c *Cluster) Renew(_ context.Context, documents []byte, report func(kubeadm.Phase)) error {
	c.Renewals = append(c.Renewals, string(documents))
	if kept, err := os.ReadFile(c.on(kubeadm.RenewFile)); err != nil || !bytes.Equal(kept, documents) {
		return fmt.Errorf("the documents are not stored: %q, %w", kept, err)
	}
	for _, name := range kubeadm.Renewals() {
		if _, err := os.Stat(c.on(name)); !os.IsNotExist(err) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if c.Fail != nil {
		return c.Fail
	}
	report(kubeadm.Phase{Name: "certs", Text: "making them"})
	for name, content := range c.Remade {
		if err := errors.Join(os.MkdirAll(filepath.Dir(c.on(name)), 0o755), os.WriteFile(c.on(name), content, 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// WaitReady wants a kubeconfig to ask with.
func (c *Cluster) WaitReady(_ context.Context, access run.Access, _ string, _ func(error)) error {
	c.Access = access
	_, err := access.Read(access.Kubeconfig)
	return errors.Join(err, c.NotReady)
}

// DiskRecord returns the record.
func (c *Cluster) DiskRecord(context.Context, run.Access, hullmark.EKID) (run.DiskRecord, error) {
	return c.Record, nil
}
