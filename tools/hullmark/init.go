package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
)

// initOptions are the flags of `hullmark init`.
type initOptions struct {
	releaseOptions
	measurements          string
	name                  string
	kubeconfig, endpoint  string
	documents             documentOptions
	dryRun                bool
	newDisk, replaceFirst bool
	etcdBackup            string
}

func newInitCommand() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Verify a cluster's first node, give it its disk key, and see it Ready",
		Long: `Verify a cluster's first node, give it its disk key, and see it Ready.

The node's TPM has to quote the registers that the measurement document predicts, over this very connection, with a key that lives
beside the endorsement key that you name. The table shows both sides. Only then does the node get its disk key, the cluster's keys
and its kubeadm documents. Run the same command again after an interruption, or after the node was powered off.

Exit codes: 0 Ready (or verified, with --dry-run), 1 failed, 2 usage, 3 the node booted something else, 4 denied, 5 not reached.`,
		Example: "  hullmark init --cluster prod.cluster --node 192.0.2.7 --measurements node.json --ek $(cat ek.id) --kubeconfig admin.conf",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runRelease(cmd, o.output, o.prepare) },
	}
	o.addFlags(cmd)
	return cmd
}

func (o *initOptions) addFlags(cmd *cobra.Command) {
	o.releaseOptions.addFlags(cmd)
	o.documents.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.measurements, "measurements", "", "measurement document `FILE` that the node has to match")
	f.StringVar(&o.name, "name", "control-plane-1", "the node's `NAME`")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "write an administrator's kubeconfig to `FILE` (mode 0600)")
	f.StringVar(&o.endpoint, "endpoint", "", "`HOST:PORT` at which you reach the API server (default: the node's host, port 6443)")
	f.BoolVar(&o.dryRun, "dry-run", false, "stop after the table; the node gets nothing")
	f.BoolVar(&o.newDisk, "new-disk", false, "let the node format another disk than the recorded one, whose data is given up")
	f.StringVar(&o.etcdBackup, "etcd-backup", "", "begin a lost cluster anew with this `FILE` of hullmark etcd backup")
	f.BoolVar(&o.replaceFirst, "replace-first", false, "let another machine be the first node; the recorded one's data is given up")
	require(cmd, "measurements", "ek")
}

// prepare reads every file, and makes the policy that this init admits by.
func (o *initOptions) prepare(out, notes io.Writer) (*initRun, error) {
	run := &initRun{options: *o, release: newRelease(hullmark.Init, &o.releaseOptions, out, notes)}
	for _, step := range []func() error{run.checkFlags, run.readAnchor, run.readDocument, run.chooseEndpoint, run.checkKubeconfig, run.options.documents.check, run.openCluster, run.keepSettings, run.makeDesk, run.readBackup} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return run, nil
}

func (r *initRun) checkFlags() error {
	if !hullmark.ValidNodeName(r.options.name) {
		return withCode(exitUsage, fmt.Errorf("--name %q: want a DNS label: at most 63 lower-case letters, digits and hyphens", r.options.name))
	}
	if d := r.options.documents; d.network == "none" && len(d.manifests) == 0 && r.options.etcdBackup == "" {
		return withCode(exitUsage, errors.New("--network none: a node without a pod network never becomes Ready; name its manifests (--manifest)"))
	}
	return r.options.operatorOptions.check()
}

func (r *initRun) readAnchor() error {
	if err := r.setEK(r.options.ek); err != nil {
		return err
	}
	return r.readAuthorities(r.options.ekCA)
}

func (r *initRun) readDocument() (err error) {
	r.document, err = readDocument(r.options.measurements)
	return err
}

// checkKubeconfig makes sure that the file can and may be written, before the node that it is for has a disk.
func (r *initRun) checkKubeconfig() error {
	if r.options.kubeconfig == "" {
		return nil
	}
	if err := checkKubeconfig(r.options.kubeconfig); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(r.options.kubeconfig), ".hullmark-")
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// chooseEndpoint decides where the kubeconfig points.
func (r *initRun) chooseEndpoint() error {
	r.endpoint = r.options.endpoint
	if r.endpoint == "" {
		host, _, err := net.SplitHostPort(r.options.address())
		if err != nil {
			return withCode(exitUsage, fmt.Errorf("--node: %w", err))
		}
		r.endpoint = net.JoinHostPort(host, "6443")
	}
	if err := checkHostPort(r.endpoint); err != nil {
		return withCode(exitUsage, fmt.Errorf("--endpoint: %w", err))
	}
	return nil
}
