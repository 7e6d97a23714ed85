package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/kubeadm"
)

// initOptions are the flags of `hullmark init`.
type initOptions struct {
	exchangeOptions
	measurements, enforce string
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
and its kubeadm documents. What has to match is said first: what the protocol wants, PCR 0, 2, 3, 6, 7 and 14 as far as the document predicts them, and PCR 1 if it does
and --enforce says nothing else. If the machine has a firmware that you have no file of, --dry-run --save-log takes the event log for hullmark measure --log. Run the same command again after an interruption, or after the node was powered off.

Exit codes: 0 Ready (or verified, with --dry-run), 1 failed, 2 usage, 3 the node booted something else, 4 denied, 5 not reached.`,
		Example: "  hullmark init --cluster prod.cluster --node 192.0.2.7 --measurements node.json --ekid $(cat ek.id) --kubeconfig admin.conf",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("init", o.output); err != nil {
				return err
			}
			if err := o.run(cmd); err != nil {
				return fmt.Errorf("init: %w", tell(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *initOptions) addFlags(cmd *cobra.Command) {
	o.exchangeOptions.addFlags(cmd)
	o.documents.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.measurements, "measurements", "", "measurement document `FILE` that the node has to match")
	f.StringVar(&o.enforce, "enforce", "", enforceUsage)
	f.StringVar(&o.name, "name", "control-plane-1", "the node's `NAME`")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "write an administrator's kubeconfig to `FILE` (mode 0600)")
	f.StringVar(&o.endpoint, "endpoint", "", "`HOST:PORT` at which you reach the API server (default: the node's host, port 6443)")
	f.BoolVar(&o.dryRun, "dry-run", false, "stop after the table; the node gets nothing")
	f.BoolVar(&o.newDisk, "new-disk", false, "let the node format another disk than the recorded one, whose data is given up")
	f.StringVar(&o.etcdBackup, "etcd-backup", "", "begin a lost cluster anew with this `FILE` of hullmark etcd backup")
	f.BoolVar(&o.replaceFirst, "replace-first", false, "let another machine be the first node; the recorded one's data is given up")
	require(cmd, "measurements", "ekid")
}

func (o *initOptions) run(cmd *cobra.Command) (err error) {
	begin := operate.InitOptions{Name: o.name, DryRun: o.dryRun, NewDisk: o.newDisk, ReplaceFirst: o.replaceFirst}
	if begin.Target, err = o.target(cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
		return err
	}
	if begin.Document, err = readDocument(o.measurements); err != nil {
		return err
	}
	if o.enforce != "" {
		if begin.Enforce, err = parseEnforced(o.enforce); err != nil {
			return err
		}
	}
	if begin.Endpoint, err = o.apiServer(); err != nil {
		return err
	}
	if begin.Kubernetes, err = o.documents.read(); err != nil {
		return err
	}
	if o.kubeconfig != "" {
		if err := checkNewKubeconfig(o.kubeconfig); err != nil {
			return err
		}
		begin.Kubeconfig = func(text []byte) error { return writeKubeconfig(o.kubeconfig, text) }
	}
	if o.etcdBackup != "" {
		if begin.Backup, err = os.Open(o.etcdBackup); err != nil {
			return fmt.Errorf("--etcd-backup %s: %w", o.etcdBackup, err)
		}
		defer begin.Backup.Close()
	}
	if err := begin.Check(); err != nil {
		return err
	}
	file, err := o.open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	return operate.Init(cmd.Context(), file, begin)
}

// apiServer is where the kubeconfig points.
func (o *initOptions) apiServer() (string, error) {
	endpoint := o.endpoint
	if endpoint == "" {
		host, _, err := net.SplitHostPort(o.address())
		if err != nil {
			return "", withCode(exitUsage, fmt.Errorf("--node: %w", err))
		}
		endpoint = net.JoinHostPort(host, "6443")
	}
	if err := checkHostPort(endpoint); err != nil {
		return "", withCode(exitUsage, fmt.Errorf("--endpoint: %w", err))
	}
	return endpoint, nil
}

// checkNewKubeconfig makes sure that the file can and may be written, before the node that it is for has a disk.
func checkNewKubeconfig(path string) error {
	if err := checkKubeconfig(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".hullmark-")
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// documentOptions are the flags that decide what kubeadm reads.
type documentOptions struct {
	kubeadm                  string
	advertise, controlPlane  string
	podSubnet, serviceSubnet string
	profile, network         string
	manifests                []string
	policies, workloads      bool
}

func (d *documentOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.kubeadm, "kubeadm", "", "kubeadm documents `FILE` in place of the generated ones")
	f.StringVar(&d.advertise, "advertise-address", "", "the API server's `ADDRESS` as other nodes reach it (default: the node's own)")
	f.StringVar(&d.controlPlane, "control-plane", "", "the control plane's stable `HOST:PORT` (default: the first node's address)")
	f.StringVar(&d.podSubnet, "pod-subnet", "10.244.0.0/16", "`NETWORK` of the pods, or one of each family, by a comma, the primary one first")
	f.StringVar(&d.serviceSubnet, "service-subnet", "10.96.0.0/12", "`NETWORK` of the services, or one of each family, in the same order")
	f.StringVar(&d.profile, "profile", "", "slow: `PROFILE` for machines without hardware acceleration, for tests")
	f.StringVar(&d.network, "network", "flannel", "pod `NETWORK`, with kube-proxy: flannel (nodes in one segment, unencrypted), wireguard (flannel, encrypted between nodes); or kube-proxy alone, or none: bring your own as a manifest")
	f.BoolVar(&d.policies, "network-policies", true, "have flannel enforce NetworkPolicies")
	f.StringArrayVar(&d.manifests, "manifest", nil, "YAML `FILE` to apply after init; repeat for more")
	f.BoolVar(&d.workloads, "workloads", false, "let ordinary pods run on this node")
}

// read reads what the flags name.
func (d *documentOptions) read() (documents operate.Kubernetes, err error) {
	documents = operate.Kubernetes{ControlPlane: d.controlPlane, Profile: kubeadm.Profile(d.profile), KubeProxy: d.network != "none", Flannel: d.network == "flannel" || d.network == "wireguard", WireGuard: d.network == "wireguard", NetworkPolicies: d.policies, Workloads: d.workloads}
	if documents.PodSubnet, err = kubeadm.ParseSubnets(d.podSubnet); err != nil {
		return documents, withCode(exitUsage, fmt.Errorf("--pod-subnet: %w", err))
	}
	if documents.ServiceSubnet, err = kubeadm.ParseSubnets(d.serviceSubnet); err != nil {
		return documents, withCode(exitUsage, fmt.Errorf("--service-subnet: %w", err))
	}
	if !slices.Contains([]string{"flannel", "wireguard", "kube-proxy", "none"}, d.network) {
		return documents, withCode(exitUsage, fmt.Errorf("--network %q: want flannel, wireguard, kube-proxy or none", d.network))
	}
	if d.advertise != "" {
		if documents.Advertise, err = netip.ParseAddr(d.advertise); err != nil {
			return documents, withCode(exitUsage, fmt.Errorf("--advertise-address: %w", err))
		}
	}
	if d.kubeadm != "" {
		if documents.Kubeadm, err = os.ReadFile(d.kubeadm); err != nil {
			return documents, err
		}
	}
	for _, file := range d.manifests {
		manifest, err := os.ReadFile(file)
		if err != nil {
			return documents, err
		}
		documents.Manifests = append(documents.Manifests, manifest)
	}
	return documents, nil
}
