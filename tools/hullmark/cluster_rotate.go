package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// rotation exchanges one kind of key; access reaches the keeper, if there is one.
type rotation func(ctx context.Context, c *cluster.Cluster, access func(cluster.Keeper) keys.Access) error

// rotations are the keys that can be exchanged while a cluster lives.
var rotations = map[string]rotation{
	"keyset": func(ctx context.Context, c *cluster.Cluster, access func(cluster.Keeper) keys.Access) error {
		return c.RotateKeyset(ctx, access)
	},
	"online-ca": func(_ context.Context, c *cluster.Cluster, _ func(cluster.Keeper) keys.Access) error {
		return c.RotateOnlineCA()
	},
	"root": func(_ context.Context, c *cluster.Cluster, _ func(cluster.Keeper) keys.Access) error {
		return c.RotateRoot()
	},
}

// rotateOptions are the flags of `hullmark cluster rotate`.
type rotateOptions struct {
	apiOptions
	except []string
}

func newClusterRotateCommand() *cobra.Command {
	var o rotateOptions
	cmd := &cobra.Command{
		Use:   "rotate keyset|online-ca|kubelet-ca|root",
		Short: "Exchange the keys that control planes hold",
		Long: `Exchange the keys that control planes hold.

keyset gives the master keys one more generation, from which the keys of new disks derive; disks keep the one that they were formatted under. A keeper
wraps it before it counts. online-ca exchanges the authority that join services' certificates come from. The exchange is signed into the policy and pushed.
Control planes get the new keys at their next boot: reboot them one at a time, the first with hullmark recover, and those that follow get them from it. A
control plane that does not have them yet lets no control plane join or come back, and no machine join, so do it soon.

kubelet-ca exchanges the CA of kubelets' serving certificates, in three steps, one at each run: API servers trust the next CA, too; it signs; the former one goes. After each, reboot the
control planes. A step is refused while a control plane does not hold the one before, and the last one while a node's kubelet, which is asked from here, shows a certificate of
the former CA: kubelets have others within three days. --except names nodes that it need not wait for; their logs may be lost until they have another certificate.

root makes another root key, to which the present one hands over, with an online CA and a policy of its own. The present key is gone from the cluster file then.
Nodes whose configuration names the earlier root obey the new one until hullmark cluster forget-root: give each a configuration that names the new one, at a boot
that suits you. Run the command again if it was interrupted before the policy was pushed: it goes on; after that it would make one more root (hullmark policy show).`,
		Example: "  hullmark cluster rotate keyset --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("cluster rotate", "keyset, online-ca, kubelet-ca or root"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if rotations[args[0]] == nil && args[0] != kubeletCA {
				return withCode(exitUsage, fmt.Errorf("cluster rotate %q: want keyset, online-ca, kubelet-ca or root", args[0]))
			}
			if len(o.except) > 0 && args[0] != kubeletCA {
				return withCode(exitUsage, fmt.Errorf("cluster rotate %s: --except is for %s alone", args[0], kubeletCA))
			}
			if err := o.rotate(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("cluster rotate: %w", err)
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&o.except, "except", nil, "`NAME` of a node that kubelet-ca need not wait for; repeat for more")
	return cmd
}

// rotate exchanges keys in the cluster file, once, and brings the policy that says so to the cluster.
func (o *rotateOptions) rotate(ctx context.Context, what string, out, notes io.Writer) error {
	file, client, err := o.connect(notes)
	if err != nil {
		return err
	}
	begun, err := o.catchUp(ctx, client, file.Cluster, notes)
	if err != nil {
		return err
	}
	if begun && what == "root" {
		fmt.Fprintln(out, "an exchange that was begun before is in the cluster now; nothing else was exchanged")
		return tellRoot(out, file.Cluster)
	}
	if what == kubeletCA {
		return o.rotateKubelet(ctx, file, client, out, notes)
	}
	if err := exchange(ctx, file, rotations[what], notes); err != nil {
		return withCode(keeperExit(err), err)
	}
	c := file.Cluster
	fmt.Fprintf(out, "the cluster file holds the new keys; the keyset's newest generation is %d\n", c.Keys.Current())
	if err := o.persist(ctx, notes, func() error { return pushPolicy(ctx, client, c, out) }); err != nil {
		return tellAPI(signedOnly(err))
	}
	if what == "root" {
		return tellRoot(out, c)
	}
	_, err = fmt.Fprintln(out, rebootNext)
	return err
}

// rebootNext is what brings control planes their new keys.
const rebootNext = "next: reboot the control planes, one at a time, the first of them with hullmark recover"

// tellRoot says what the operator has to do once the cluster has another root.
func tellRoot(out io.Writer, c *cluster.Cluster) error {
	_, err := fmt.Fprintf(out, "cluster root %s\n%s; then give each node a configuration that names this root\n", c.ID(), rebootNext)
	return err
}

// catchUp pushes what an earlier command could not push: nothing is changed while nobody could be told. It reports whether the cluster had other roots than the
// cluster file until then, of which somebody was to be told.
func (o *apiOptions) catchUp(ctx context.Context, client *registry.Registry, c *cluster.Cluster, notes io.Writer) (begun bool, err error) {
	err = o.persist(ctx, notes, func() error {
		otherwise, err := otherRoots(ctx, client, c)
		if err != nil {
			return err
		}
		begun = begun || otherwise
		return pushPolicy(ctx, client, c, io.Discard)
	})
	return begun, tellAPI(err)
}

// otherRoots reports whether the policy that was pushed last is of other roots than the cluster file's. Before the first none is.
func otherRoots(ctx context.Context, client *registry.Registry, c *cluster.Cluster) (bool, error) {
	policy, err := c.OpenPolicy()
	if err != nil {
		return false, err
	}
	envelope, err := client.Pushed(ctx)
	if err != nil || envelope == nil {
		return false, err
	}
	pushed, err := measurements.OpenPolicy(envelope, c.ID())
	return err != nil || !slices.EqualFunc(pushed.HandOvers, policy.HandOvers, bytes.Equal), nil
}

// keeperTime bounds the asking of a keeper that does not answer.
const keeperTime = time.Minute

// exchange changes the cluster file, with its keeper if it has one.
func exchange(ctx context.Context, file *cluster.File, change rotation, notes io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, keeperTime)
	defer cancel()
	return file.Update(func(c *cluster.Cluster) error {
		return change(ctx, c, func(k cluster.Keeper) keys.Access {
			return keeperAccess(keeper.Credentials{Secret: k.Secret, CA: k.CA}, notes)
		})
	})
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
			if err := o.forget(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("cluster forget-root: %w", err)
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&o.except, "except", nil, "`NAME` of a machine that may be refused from now on; repeat for more")
	return cmd
}

// forget gives a root up in the cluster file, once, and brings the policy that says so to the cluster.
func (o *forgetOptions) forget(ctx context.Context, out, notes io.Writer) error {
	file, client, err := o.connect(notes)
	if err != nil {
		return err
	}
	begun, err := o.catchUp(ctx, client, file.Cluster, notes)
	if err != nil {
		return err
	}
	if begun {
		_, err := fmt.Fprintln(out, "a change of roots that was begun before is in the cluster now; nothing else was changed")
		return err
	}
	oldest, err := file.Cluster.OldestRoot()
	if err != nil {
		return err
	}
	if err := o.persist(ctx, notes, func() error { return o.checkUnused(ctx, client, file.Cluster, oldest) }); err != nil {
		return tellAPI(err)
	}
	if err := file.Update((*cluster.Cluster).ForgetRoot); err != nil {
		return err
	}
	fmt.Fprintf(out, "root %s is given up: nodes whose configuration names it are refused\n", oldest)
	if err := o.persist(ctx, notes, func() error { return pushPolicy(ctx, client, file.Cluster, out) }); err != nil {
		return tellAPI(signedOnly(err))
	}
	return nil
}

// checkUnused refuses to give a root up that a machine's configuration named at its last ticket, unless that machine may be refused.
func (o *forgetOptions) checkUnused(ctx context.Context, client *registry.Registry, c *cluster.Cluster, root hullmark.ClusterRoot) error {
	if root == c.ID() {
		return nil // ForgetRoot says so.
	}
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	machines, err := client.List(ctx)
	if err != nil {
		return err
	}
	using := map[string]bool{}
	for _, m := range machines {
		if namedRoot(m, policy, c.ID()) == root {
			using[m.Name] = true
		}
	}
	for _, name := range o.except {
		if !using[name] {
			return withCode(exitUsage, fmt.Errorf("--except %s: no machine of that name is known to name root %s", name, root))
		}
		delete(using, name)
	}
	if len(using) == 0 {
		return nil
	}
	return withCode(exitDenied, errors.New("the configurations of these machines named root "+root.String()+" at their last tickets: "+strings.Join(slices.Sorted(maps.Keys(using)), ", ")+
		"; next: give each one that names root "+c.ID().String()+", and reboot it; or name those that may be refused from now on (--except)"))
}
