package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// rotateOptions are the flags of `hullmark cluster rotate`.
type rotateOptions struct {
	apiOptions
	except              []string
	nextKey, nextSigner string
}

func newClusterRotateCommand() *cobra.Command {
	var o rotateOptions
	kinds := operate.Rotations(", ", " or ")
	cmd := &cobra.Command{
		Use:   "rotate " + operate.Rotations("|", "|"),
		Short: "Exchange the keys that control planes hold",
		Long: `Exchange the keys that control planes hold.

keyset gives the master keys one more generation, from which the keys of new disks derive; disks keep the one that they were formatted under. A keeper
wraps it before it counts. online-ca exchanges the authority that join services' certificates come from. The exchange is signed into the policy and pushed.
Control planes get the new keys at their next boot: reboot them one at a time, the first with hullmark recover, and those that follow get them from it. A
control plane that does not have them yet lets no control plane join or come back, and no machine join, so do it soon.

kubelet-ca, etcd-ca, front-proxy-ca and kubernetes-ca exchange the CA of kubelets' serving certificates, that of etcd, that by which servers of aggregated APIs know API servers, and that
of API servers and all their clients. Each takes three steps, one at each run: the next CA is trusted, too; it signs; the former one goes. After each, reboot the control planes. A step is
refused while a control plane does not hold the one before, and where no record says what control planes hold. front-proxy-ca and kubernetes-ca are run once more after that, so that servers
of aggregated APIs are told of the former CA no more. While the cluster file is lent, all but kubelet-ca refuse: the lent one is brought no other CA.

The last step of kubelet-ca is refused, too, while a node's kubelet, which is asked from here, shows a certificate of the former CA: kubelets have others within three days. --except names
nodes that it need not wait for; their logs may be lost until they have another certificate.

For kubernetes-ca reboot all workers, too, after the control planes: after the first step, so that kubelets and pods trust the next CA, and after the third, so that they trust the former one
no more. The next run is refused until that is so, and the third step while a kubelet may be known by a certificate of the former CA, which ends within three days. --except names workers that
need not be waited for: they may be lost until they are rebooted. After the second step make kubeconfigs anew (hullmark cluster kubeconfig), and operators' files (hullmark operator new
--replace): those of the former CA are refused from the third on. In a cluster that an earlier release began, kubernetes-ca refuses.

root makes another root key, to which the present one hands over, with an online CA and a policy of its own. The present key is gone from the cluster file then.
Nodes whose configuration names the earlier root obey the new one until hullmark cluster forget-root: give each a configuration that names the new one, at a boot
that suits you. Run the command again if it was interrupted before the policy was pushed: it goes on; after that it would make one more root (hullmark policy show).
With --next-root-public-key and --next-root-signer it is a key that is elsewhere, as with hullmark cluster new, and the cluster file has none from then on; without them
it is made, and is in the cluster file. If the present one is elsewhere, --root-signer has it hand over.`,
		Example: "  hullmark cluster rotate keyset --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("cluster rotate", kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := operate.Rotation(args[0])
			if !what.Valid() {
				return withCode(exitUsage, fmt.Errorf("cluster rotate %q: want %s", args[0], kinds))
			}
			next, err := o.nextRoot(cmd)
			if err != nil {
				return fmt.Errorf("cluster rotate: %w", err)
			}
			return o.do(cmd, "cluster rotate", func(api *operate.API, file *cluster.File) error {
				rotated, err := api.Rotate(cmd.Context(), what, operate.RotateOptions{Access: fileAccess(cmd.ErrOrStderr()), Except: o.except, Root: next})
				if code := keeperExit(err); code != exitFailed {
					return withCode(code, err)
				}
				if err != nil {
					return err
				}
				return tellRotated(cmd.OutOrStdout(), what, rotated, file.Cluster)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&o.except, "except", nil, "`NAME` of a node that kubelet-ca, or of a worker that kubernetes-ca, need not wait for; repeat for more")
	cmd.Flags().StringVar(&o.nextKey, "next-root-public-key", "", "public key `FILE` (PEM, ECDSA P-256) of the next root, if its key is elsewhere")
	cmd.Flags().StringVar(&o.nextSigner, "next-root-signer", "", "`COMMAND` that signs with the next root's key")
	return cmd
}

// nextRoot is the root to hand over to, if its key is elsewhere; nil if it is to be made.
func (o *rotateOptions) nextRoot(cmd *cobra.Command) (*cluster.RemoteRoot, error) {
	if o.nextKey == "" && o.nextSigner == "" {
		return nil, nil
	}
	root, err := readRoot(cmd.Context(), o.nextKey, o.nextSigner, "--next-root-public-key and --next-root-signer", cmd.ErrOrStderr())
	return &root, err
}

// rebootNext is what brings control planes their new keys.
const rebootNext = "next: reboot the control planes, one at a time, the first of them with hullmark recover"

// tellRotated says what the operator has to do once the keys are exchanged.
func tellRotated(out io.Writer, what operate.Rotation, r operate.Rotated, c *cluster.Cluster) error {
	if r.Begun {
		fmt.Fprintln(out, "an exchange that was begun before is in the cluster now; nothing else was exchanged")
	}
	text := rebootNext
	switch {
	case r.Ended:
		text = "nothing else was exchanged; run the command again to begin another exchange"
	case what == operate.RotateRoot:
		text = fmt.Sprintf("cluster root %s\n%s; then give each node a configuration that names this root", c.ID(), rebootNext)
	case r.Next != "":
		text += "; " + r.Next
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

// fileAccess reaches the keeper that a cluster file names.
func fileAccess(notes io.Writer) func(cluster.Keeper) keys.Access {
	return func(k cluster.Keeper) keys.Access {
		return keeperAccess(keeper.Credentials{Secret: k.Secret, CA: k.CA}, notes)
	}
}

// forgetOptions are the flags of `hullmark cluster forget-root`.
type forgetOptions struct {
	apiOptions
	except []string
}

func newClusterForgetRootCommand() *cobra.Command {
	var o forgetOptions
	cmd := &cobra.Command{
		Use:   "forget-root",
		Short: "Give up the oldest root that nodes' configurations may still name",
		Long: `Give up the oldest root that nodes' configurations may still name after hullmark cluster rotate root.

From then on join services refuse a node whose configuration names it, and such a node obeys neither them nor the operator. So it is refused as long as a machine's
record says that its configuration named that root at its last ticket (hullmark node list: old root). Run the command again if it was interrupted: it goes on.`,
		Example: "  hullmark cluster forget-root --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.do(cmd, "cluster forget-root", func(api *operate.API, _ *cluster.File) error {
				begun, err := api.ForgetRoot(cmd.Context(), o.except)
				if err == nil && begun {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "a change of roots that was begun before is in the cluster now; nothing else was changed")
				}
				return err
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&o.except, "except", nil, "`NAME` of a machine that may be refused from now on; repeat for more")
	return cmd
}
