package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// stateDiskSerial is the serial number that `hullmark vm` gives its state disk.
const stateDiskSerial = "hullmark-state"

func newClusterCommand() *cobra.Command {
	return group("cluster", "Make a cluster's keys, and what derives from them", newClusterNewCommand(), newClusterKubeconfigCommand(), newClusterKeeperCommand(), newClusterRotateCommand(), newClusterForgetRootCommand(), newClusterSplitCommand(), newClusterSignCommand(), newClusterEncryptCommand(), newClusterLendCommand(), newClusterTakeBackCommand())
}

// clusterOptions are the flags of `hullmark cluster new`.
type clusterOptions struct {
	passphraseFile, nodeConfig, stateDisk, install, pki string
	rootKey                                             rootOptions
	rootPublicKey                                       string
}

func newClusterNewCommand() *cobra.Command {
	var o clusterOptions
	cmd := &cobra.Command{
		Use:   "new FILE",
		Short: "Make a cluster file, before any of its nodes boots",
		Long: `Make a cluster file, before any of its nodes boots.

It holds the cluster's root key, the master keys of every node's disk and the Kubernetes authorities, encrypted under a passphrase
(age format, mode 0600). Keep it and the passphrase: without them a cluster that is down cannot be brought back. The command prints
the cluster root, which every node's configuration names.

With --pki the Kubernetes authorities are taken from a folder as kubeadm keeps it: ca, etcd/ca and front-proxy-ca (.crt and .key), and
sa.key, each of ECDSA P-256; those that are absent are made. Nodes get them with their tickets. When such a CA ends, so do the cluster's certificates.

With --root-public-key and --root-signer the root's key stays where it is: in a token, a key service, another machine. The command gets what
is to be signed on standard input, and answers on standard output with a signature of ECDSA P-256 with SHA-256, in ASN.1 DER or as 64 bytes of
r and s. All verbs that need the root's signature take it (--root-signer, or the variable ` + rootSignerVariable + `); the cluster file does not name it.`,
		Example: "  hullmark cluster new prod.cluster --node-config node.json",
		Args:    exactArg("cluster new", "the file to make"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return newCluster(cmd.Context(), args[0], o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.passphraseFile, "passphrase-file", "", "`FILE` whose first line is the passphrase (default: ask twice)")
	f.StringVar(&o.nodeConfig, "node-config", "", "also write a node configuration for this cluster to `FILE`")
	f.StringVar(&o.pki, "pki", "", "use the Kubernetes authorities in this `FOLDER`, as kubeadm keeps them")
	f.StringVar(&o.stateDisk, "state-disk", stateDiskSerial, "serial `NUMBER` of the state disk in that configuration")
	o.rootKey.addFlag(cmd)
	f.StringVar(&o.rootPublicKey, "root-public-key", "", "public key `FILE` (PEM, ECDSA P-256) of a root whose key is elsewhere")
	f.StringVar(&o.install, "install-disk", "", "serial `NUMBER` of the disk that an installation medium with that configuration installs")
	return cmd
}

// exactArg wants one argument, and says what it stands for.
func exactArg(verb, what string) cobra.PositionalArgs { return exactArgs(1, verb, what) }

// exactArgs wants n arguments, and says what they stand for.
func exactArgs(n int, verb, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return withCode(exitUsage, fmt.Errorf("%s: name %s (see %s --help)", verb, what, cmd.CommandPath()))
		}
		return nil
	}
}

func newCluster(ctx context.Context, path string, o clusterOptions, out, notes io.Writer) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("cluster new: %s exists already; a cluster file is never overwritten", path)
	}
	passphrase, err := newPassphrase(o.passphraseFile, notes)
	if err != nil {
		return err
	}
	c, err := o.makeKeys(ctx, notes)
	if err != nil {
		return err
	}
	if o.pki != "" {
		found, err := c.Provide(os.DirFS(o.pki), time.Now())
		if err != nil {
			return fmt.Errorf("cluster new: --pki %s: %w", o.pki, err)
		}
		fmt.Fprintf(notes, "used of %s: %s\n", o.pki, strings.Join(found, ", "))
	}
	if err := writeNodeConfig(o, c.ID()); err != nil {
		return err
	}
	if _, err := cluster.Create(path, passphrase, c, cluster.WorkFactor); err != nil {
		return errors.Join(err, forget(o.nodeConfig))
	}
	fmt.Fprintf(out, "cluster root %s\n", c.ID())
	return nil
}

// makeKeys makes the cluster's keys, under a root whose key is elsewhere if one is named.
func (o *clusterOptions) makeKeys(ctx context.Context, notes io.Writer) (*cluster.Cluster, error) {
	if o.rootPublicKey == "" && o.rootKey.signer == "" {
		if o.rootKey.command() != "" {
			fmt.Fprintf(notes, "$%s does not sign for this cluster: without --root-public-key its root's key is made, and is in the cluster file\n", rootSignerVariable)
		}
		return cluster.New()
	}
	root, err := readRoot(ctx, o.rootPublicKey, o.rootKey.command(), "--root-public-key and --root-signer", notes)
	if err != nil {
		return nil, fmt.Errorf("cluster new: %w", err)
	}
	return cluster.NewUnder(root)
}

// forget removes a configuration whose cluster was not made.
func forget(nodeConfig string) error {
	if nodeConfig == "" {
		return nil
	}
	return os.Remove(nodeConfig)
}

// newPassphrase asks twice, unless a file is named.
func newPassphrase(file string, notes io.Writer) (hullmark.Secret, error) {
	first, err := readPassphrase(file, notes, "New passphrase")
	if err != nil || file != "" {
		return first, err
	}
	second, err := readPassphrase("", notes, "The same again")
	if err != nil {
		return hullmark.Secret{}, err
	}
	if !first.Equal(second) || first.Len() == 0 {
		return hullmark.Secret{}, errors.New("the two passphrases differ, or are empty")
	}
	return first, nil
}

// writeNodeConfig writes the configuration that every node of a simple cluster can boot with.
func writeNodeConfig(o clusterOptions, root hullmark.ClusterRoot) error {
	if o.nodeConfig == "" {
		return nil
	}
	config := hullmark.NodeConfig{Version: 1, ClusterRoot: root, StateDisk: hullmark.DiskSelector{Serial: o.stateDisk}}
	if o.install != "" {
		config.Install = &hullmark.Install{Disk: hullmark.DiskSelector{Serial: o.install}}
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("node config: %w", err)
	}
	if _, err := hullmark.ParseNodeConfig(text); err != nil {
		return withCode(exitUsage, err)
	}
	return writeNew(o.nodeConfig, append(text, '\n'), 0o644)
}

// maxKubeconfig is how long a kubeconfig may be that is written over, in bytes.
const maxKubeconfig = 1 << 20

// checkKubeconfig is an error if something else than a kubeconfig would be written over.
func checkKubeconfig(path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	text, err := readBounded(path, maxKubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	var found struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal(text, &found); err != nil || found.Kind != "Config" {
		return withCode(exitUsage, fmt.Errorf("%s exists and is no kubeconfig; name another file", path))
	}
	return nil
}

func newClusterKubeconfigCommand() *cobra.Command {
	var o operatorOptions
	var endpoint string
	cmd := &cobra.Command{
		Use:   "kubeconfig FILE",
		Short: "Sign an administrator's kubeconfig, without asking the cluster",
		Args:  exactArg("cluster kubeconfig", "the file to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if endpoint != "" {
				if err := checkHostPort(endpoint); err != nil {
					return withCode(exitUsage, fmt.Errorf("--endpoint: %w", err))
				}
			}
			if err := checkKubeconfig(args[0]); err != nil {
				return err
			}
			file, err := o.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if endpoint == "" {
				settings, err := file.Cluster.CurrentSettings()
				if err != nil {
					return withCode(exitUsage, fmt.Errorf("%w; name it (--endpoint)", err))
				}
				endpoint = settings.ControlPlaneEndpoint
			}
			text, err := file.Cluster.Kubeconfig(endpoint, time.Now())
			if err != nil {
				return err
			}
			return writeKubeconfig(args[0], text)
		},
	}
	f := cmd.Flags()
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	f.StringVar(&endpoint, "endpoint", "", "`HOST:PORT` at which you reach the API server (default: the control plane's endpoint)")
	return cmd
}

// writeKubeconfig writes a kubeconfig with mode 0600 in place of an older one.
func writeKubeconfig(path string, text []byte) error {
	if err := writeWhole(path, text, 0o600); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}
