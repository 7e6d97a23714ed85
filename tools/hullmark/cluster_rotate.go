package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/joinservice/cluster"
)

// rotations are the keys that can be exchanged while a cluster lives.
var rotations = map[string]func(*cluster.Cluster) error{
	"keyset":    (*cluster.Cluster).RotateKeyset,
	"online-ca": (*cluster.Cluster).RotateOnlineCA,
}

func newClusterRotateCommand() *cobra.Command {
	var o apiOptions
	cmd := &cobra.Command{
		Use:   "rotate keyset|online-ca",
		Short: "Exchange the keys that control planes hold",
		Long: `Exchange the keys that control planes hold.

keyset gives the master keys one more generation, from which the keys of new disks derive; disks keep the one that they were formatted under. online-ca
exchanges the authority that join services' certificates come from. The exchange is signed into the policy and pushed. Control planes get the new keys at
their next boot, one at a time: bring the first back with hullmark recover as soon as you can, for until one has the new keys the others let no control plane
come back. Those that follow get them from it.`,
		Example: "  hullmark cluster rotate keyset --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("cluster rotate", "keyset or online-ca"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, ok := rotations[args[0]]
			if !ok {
				return withCode(exitUsage, fmt.Errorf("cluster rotate %q: want keyset or online-ca", args[0]))
			}
			if err := o.rotate(cmd.Context(), change, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("cluster rotate: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	return cmd
}

// rotate exchanges keys in the cluster file, once, and brings the policy that says so to the cluster.
func (o *apiOptions) rotate(ctx context.Context, change func(*cluster.Cluster) error, out, notes io.Writer) error {
	file, client, err := o.connect(notes)
	if err != nil {
		return err
	}
	if err := file.Update(change); err != nil {
		return err
	}
	c := file.Cluster
	fmt.Fprintf(out, "the cluster file holds the new keys; the keyset's newest generation is %d\n", c.Keys.Current())
	if c.Keeper != nil && c.Keeper.Generation != c.Keys.Current() {
		fmt.Fprintln(out, "next: have the keeper wrap the new generation (hullmark cluster keeper set)")
	}
	if err := o.persist(ctx, notes, func() error { return pushPolicy(ctx, client, c, out) }); err != nil {
		return signedOnly(err)
	}
	_, err = fmt.Fprintln(out, "next: reboot the control planes, one at a time, the first of them with hullmark recover")
	return err
}
