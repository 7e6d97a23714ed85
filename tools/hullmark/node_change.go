package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

func newNodeRemoveCommand() *cobra.Command {
	var o apiOptions
	var how operate.RemoveOptions
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Forget a machine: its record, its name and its Node object",
		Long: `Forget a machine: its record, its name and its Node object. NAME may be its EKID, too.

The record says how recent the machine's state disk must be: without it that disk is never opened again, and the machine comes back only with a blank one. As long
as the policy names the machine it may do that; hullmark policy remove member ends it. A member of etcd is not removed. A machine that has no record, and
that its group counts all the same, is counted no more.

The machine may have a certificate for its name until that ends. It renews none and makes no Node, and no machine gets the name until then, this one included: its
key may have been copied, and who shows such a certificate could not be told from it. Wait, give the machine another name in the policy, or, if nobody else can have its certificates, free the name at once
by --gone, also after it was removed.`,
		Example: "  hullmark node remove worker-3 --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("node remove", "the node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.do(cmd, "node remove", func(api *operate.API, _ *cluster.File) error {
				removed, err := api.Remove(cmd.Context(), args[0], how)
				if err != nil {
					return err
				}
				tellRemoved(cmd.OutOrStdout(), removed, time.Now())
				return nil
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&how.Force, "force", false, "remove it although it is Ready, or a control plane")
	cmd.Flags().BoolVar(&how.Gone, "gone", false, "nobody else can have the machine's certificates: its name is free at once")
	return cmd
}

// tellRemoved tells what was removed, what the machine has still, and what admits it.
func tellRemoved(out io.Writer, r operate.Removed, now time.Time) {
	if r.Freed {
		fmt.Fprintf(out, "the name %s is free\n", oneLine(r.Machine.Name))
		return
	}
	fmt.Fprintf(out, "node %s (%s) is forgotten; %s\n", oneLine(r.Machine.Name), r.Machine.EKID, fateOf(r.Machine.Record))
	tellRest(out, r, now)
	switch {
	case r.Member != "":
		fmt.Fprintf(out, "the policy still admits this machine, with a blank disk; to end that: hullmark policy remove member %s, then hullmark policy push\n", r.Member)
	case r.Group:
		fmt.Fprintf(out, "its group admits this machine still, with a blank disk, if there is such a machine; to end that: hullmark policy remove member %s, then hullmark policy push\n", r.Machine.EKID)
	}
}

// tellRest tells what a machine that is forgotten can still do, and for how long.
func tellRest(out io.Writer, r operate.Removed, now time.Time) {
	machine, until := r.Machine, r.CertificateEnds
	if machine.Role == hullmark.ControlPlane {
		fmt.Fprintln(out, "a control plane has had the cluster's authorities: whoever has its disk's content can make certificates of any name, whatever is removed")
	}
	if !now.Before(until) {
		fmt.Fprintln(out, "it has no certificate of a kubelet any more")
		return
	}
	fmt.Fprintf(out, "its kubelet may have a certificate until %s, in %v: with that it reads what every node may (Services and Endpoints), and no Secret; it makes no Node, and renews nothing\n",
		until.Local().Format(time.RFC3339), until.Sub(now).Round(time.Minute))
	fmt.Fprintf(out, "until then no machine gets the name %s, this one included; if nobody else can have its certificates: hullmark node remove %s --gone\n", oneLine(machine.Name), oneLine(machine.Name))
}

// fateOf says what becomes of the disk of a machine that is forgotten.
func fateOf(r joinservice.Record) string {
	if r == (joinservice.Record{}) {
		return "no disk of it was recorded"
	}
	return "its disk " + r.Disk.String() + " opens no more"
}

func newNodeResetCommand() *cobra.Command {
	var o apiOptions
	cmd := &cobra.Command{
		Use:   "reset NAME",
		Short: "Let a machine whose state disk is gone format another one, once",
		Long: `Let a machine whose state disk is gone format another one, once. NAME may be its EKID, too.

The reset is signed into the policy for the recorded disk, whose data is given up, and pushed. It is spent once the machine has shown another disk.`,
		Example: "  hullmark node reset worker-3 --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("node reset", "the node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.do(cmd, "node reset", func(api *operate.API, _ *cluster.File) error { return api.Reset(cmd.Context(), args[0]) })
		},
	}
	o.addFlags(cmd)
	return cmd
}

// rebindOptions are the flags of `hullmark node rebind`.
type rebindOptions struct {
	apiOptions
	from, to string
	how      operate.RebindOptions
}

func newNodeRebindCommand() *cobra.Command {
	var o rebindOptions
	cmd := &cobra.Command{
		Use:   "rebind",
		Short: "Hand a node and its state disk over to another machine",
		Long: `Hand a node and its state disk over to another machine: after a TPM was replaced, or when a disk moves to a new machine.

The policy's rule, and with it name and role, goes over to the new endorsement key, which may open the disks of the old one; this is signed and pushed. Then the
record and the name go over, so that the epoch is held to what it was. The old machine is not admitted any more. Its kubelet's certificate is for the same name, and nobody could
tell the two machines apart: as long as it may live, the old machine has to be switched off for good, which --gone says.`,
		Example: "  hullmark node rebind --from OLD-EK-ID --to NEW-EK-ID --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rebind, err := o.parse()
			if err != nil {
				return fmt.Errorf("node rebind: %w", err)
			}
			return o.do(cmd, "node rebind", func(api *operate.API, _ *cluster.File) error {
				machine, err := api.Rebind(cmd.Context(), rebind, o.how)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "machine %s is node %s from its next boot on, with disk %s\n", rebind.New, oneLine(machine.Name), machine.Record.Disk)
				return err
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.from, "from", "", "the old machine's `EKID`")
	cmd.Flags().StringVar(&o.to, "to", "", "the new machine's `EKID`")
	cmd.Flags().BoolVar(&o.how.Force, "force", false, "go on although the node is Ready")
	cmd.Flags().BoolVar(&o.how.Gone, "gone", false, "the old machine is switched off for good: nobody but its disk has its certificate")
	require(cmd, "from", "to")
	return cmd
}

// parse reads the two machines.
func (o *rebindOptions) parse() (rebind measurements.Rebind, err error) {
	if rebind.Old, err = hullmark.ParseEKID(o.from); err != nil {
		return rebind, withCode(exitUsage, fmt.Errorf("--from: %w", err))
	}
	if rebind.New, err = hullmark.ParseEKID(o.to); err != nil {
		return rebind, withCode(exitUsage, fmt.Errorf("--to: %w", err))
	}
	return rebind, nil
}
