package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/joinservice/cluster"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
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
}

func newClusterRotateCommand() *cobra.Command {
	var o apiOptions
	cmd := &cobra.Command{
		Use:   "rotate keyset|online-ca",
		Short: "Exchange the keys that control planes hold",
		Long: `Exchange the keys that control planes hold.

keyset gives the master keys one more generation, from which the keys of new disks derive; disks keep the one that they were formatted under. A keeper
wraps it before it counts. online-ca exchanges the authority that join services' certificates come from. The exchange is signed into the policy and pushed.
Control planes get the new keys at their next boot: reboot them one at a time, the first with hullmark recover, and those that follow get them from it. A
control plane that does not have them yet lets no control plane join or come back, and no machine join, so do it soon.`,
		Example: "  hullmark cluster rotate keyset --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("cluster rotate", "keyset or online-ca"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, ok := rotations[args[0]]
			if !ok {
				return withCode(exitUsage, fmt.Errorf("cluster rotate %q: want keyset or online-ca", args[0]))
			}
			if err := o.rotate(cmd.Context(), change, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("cluster rotate: %w", err)
			}
			return nil
		},
	}
	o.addFlags(cmd)
	return cmd
}

// rotate exchanges keys in the cluster file, once, and brings the policy that says so to the cluster.
func (o *apiOptions) rotate(ctx context.Context, change rotation, out, notes io.Writer) error {
	file, client, err := o.connect(notes)
	if err != nil {
		return err
	}
	// Nothing is exchanged while nobody could be told; and what an earlier command could not push is pushed first.
	if err := o.persist(ctx, notes, func() error { return pushPolicy(ctx, client, file.Cluster, io.Discard) }); err != nil {
		return tellAPI(err)
	}
	if err := exchange(ctx, file, change, notes); err != nil {
		return withCode(keeperExit(err), err)
	}
	c := file.Cluster
	fmt.Fprintf(out, "the cluster file holds the new keys; the keyset's newest generation is %d\n", c.Keys.Current())
	if err := o.persist(ctx, notes, func() error { return pushPolicy(ctx, client, c, out) }); err != nil {
		return tellAPI(signedOnly(err))
	}
	_, err = fmt.Fprintln(out, "next: reboot the control planes, one at a time, the first of them with hullmark recover")
	return err
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
