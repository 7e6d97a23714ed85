package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// errNoRecord ends the error of a machine that has none.
var errNoRecord = errors.New("hullmark node list shows what it keeps")

// findMachine returns the one record of a node's name, or of a machine's identity.
func findMachine(ctx context.Context, client *registry.Registry, which string) (joinservice.Machine, error) {
	machines, err := client.List(ctx)
	if err != nil && len(machines) == 0 {
		return joinservice.Machine{}, err
	}
	found := slices.DeleteFunc(machines, func(m joinservice.Machine) bool { return m.Name != which && m.Node.String() != which })
	switch {
	case len(found) == 0:
		return joinservice.Machine{}, errors.Join(fmt.Errorf("the cluster keeps no record of %s; %w", which, errNoRecord), err)
	case len(found) > 1:
		return joinservice.Machine{}, fmt.Errorf("%d machines were called %s; name one by its endorsement key (hullmark node list -o json)", len(found), which)
	}
	return found[0], nil
}

// findCounted returns the machine without a record that a group counts: its first ticket was never recorded. If there is none, the error is missing.
func findCounted(ctx context.Context, client *registry.Registry, which string, missing error) (joinservice.Machine, error) {
	counted, err := client.Counted(ctx)
	if err != nil {
		return joinservice.Machine{}, err
	}
	i := slices.IndexFunc(counted, func(m joinservice.Machine) bool { return m.Name == which || m.Node.String() == which })
	if i < 0 {
		return joinservice.Machine{}, missing
	}
	switch _, version, err := client.Load(ctx, counted[i].Node); {
	case err != nil:
		return joinservice.Machine{}, err // It has one that cannot be read.
	case version != "":
		return joinservice.Machine{}, fmt.Errorf("machine %s gets its first ticket just now; run the command again", which)
	}
	return counted[i], nil
}

// refuseReady refuses what must not be done to a node that runs.
func refuseReady(ctx context.Context, client *registry.Registry, name string) error {
	ready, err := client.NodeReady(ctx, name)
	if err != nil || !ready {
		return err
	}
	return withCode(exitDenied, fmt.Errorf("node %s is Ready: switch its machine off first, or go on all the same (--force)", name))
}

func newNodeRemoveCommand() *cobra.Command {
	var o apiOptions
	var force, gone bool
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Forget a machine: its record, its name and its Node object",
		Long: `Forget a machine: its record, its name and its Node object. NAME may be its endorsement key's ID, too.

The record says how recent the machine's state disk must be: without it that disk is never opened again, and the machine comes back only with a blank one. As long
as the policy names the machine it may do that; hullmark policy remove member ends it. A member of etcd is not removed. A machine that has no record, and
that its group counts all the same, is counted no more.

The machine may have a certificate for its name until that ends. It renews none and makes no Node, and no machine gets the name until then, this one included: its
key may have been copied, and who shows such a certificate could not be told from it. Wait, give the machine another name in the policy, or, if nobody else can have its certificates, free the name at once
by --gone, also after it was removed.`,
		Example: "  hullmark node remove worker-3 --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("node remove", "the node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, client, err := o.connect(cmd.ErrOrStderr())
			if err == nil {
				err = o.persist(cmd.Context(), cmd.ErrOrStderr(), func() error {
					return removeNode(cmd.Context(), client, file.Cluster, args[0], removal{force: force, gone: gone}, cmd.OutOrStdout())
				})
			}
			if err != nil {
				return fmt.Errorf("node remove: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove it although it is Ready, or a control plane")
	cmd.Flags().BoolVar(&gone, "gone", false, "nobody else can have the machine's certificates: its name is free at once")
	return cmd
}

// removal is what the operator vouches for.
type removal struct{ force, gone bool }

func removeNode(ctx context.Context, client *registry.Registry, c *cluster.Cluster, which string, how removal, out io.Writer) error {
	machine, err := findMachine(ctx, client, which)
	if errors.Is(err, errNoRecord) {
		machine, err = findCounted(ctx, client, which, err)
	}
	if errors.Is(err, errNoRecord) && how.gone {
		return freeName(ctx, client, which, err, out)
	}
	if err != nil {
		return err
	}
	if !how.force {
		if err := refuseReady(ctx, client, machine.Name); err != nil {
			return err
		}
		if machine.Role == hullmark.ControlPlane {
			return withCode(exitDenied, fmt.Errorf("node %s is a control plane, whose member of etcd is not removed with it: remove that first, then go on (--force)", machine.Name))
		}
	}
	until, err := client.Delete(ctx, machine, how.gone)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "node %s (%s) is forgotten; %s\n", machine.Name, machine.Node, fateOf(machine.Record))
	sayWhatStays(machine, until, time.Now(), out)
	policy, err := c.OpenPolicy()
	if err != nil {
		return err
	}
	if member, ok := policy.Member(machine.Node); ok {
		fmt.Fprintf(out, "the policy still admits this machine, with a blank disk; to end that: hullmark policy remove member %s, then hullmark policy push\n", member.Name)
	} else if slices.ContainsFunc(policy.Groups, func(g measurements.Group) bool { return g.Member(machine.Node).Name == machine.Name }) {
		fmt.Fprintf(out, "its group admits this machine still, with a blank disk, if there is such a machine; to end that: hullmark policy remove member %s, then hullmark policy push\n", machine.Node)
	}
	return nil
}

// freeName ends the rest of a removed machine's name; missing is the error if none rests.
func freeName(ctx context.Context, client *registry.Registry, name string, missing error, out io.Writer) error {
	switch _, rests, err := client.Resting(ctx, name); {
	case err != nil:
		return err
	case !rests:
		return missing
	}
	if err := client.Free(ctx, name); err != nil {
		return err
	}
	fmt.Fprintf(out, "the name %s is free\n", name)
	return nil
}

// sayWhatStays tells what a machine that is forgotten can still do, and for how long.
func sayWhatStays(machine joinservice.Machine, until, now time.Time, out io.Writer) {
	if machine.Role == hullmark.ControlPlane {
		fmt.Fprintln(out, "a control plane has had the cluster's authorities: whoever has its disk's content can make certificates of any name, whatever is removed")
	}
	if !now.Before(until) {
		fmt.Fprintln(out, "it has no certificate of a kubelet any more")
		return
	}
	fmt.Fprintf(out, "its kubelet may have a certificate until %s, in %v: with that it reads what every node may (Services and Endpoints), and no Secret; it makes no Node, and renews nothing\n",
		until.Local().Format(time.RFC3339), until.Sub(now).Round(time.Minute))
	fmt.Fprintf(out, "until then no machine gets the name %s, this one included; if nobody else can have its certificates: hullmark node remove %s --gone\n", machine.Name, machine.Name)
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
		Long: `Let a machine whose state disk is gone format another one, once. NAME may be its endorsement key's ID, too.

The reset is signed into the policy for the recorded disk, whose data is given up, and pushed. It is spent once the machine has shown another disk.`,
		Example: "  hullmark node reset worker-3 --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("node reset", "the node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, client, err := o.connect(cmd.ErrOrStderr())
			if err == nil {
				err = o.persist(cmd.Context(), cmd.ErrOrStderr(), func() error {
					return resetNode(cmd.Context(), client, file, args[0], cmd.OutOrStdout())
				})
			}
			if err != nil {
				return fmt.Errorf("node reset: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	return cmd
}

func resetNode(ctx context.Context, client *registry.Registry, file *cluster.File, which string, out io.Writer) error {
	machine, err := findMachine(ctx, client, which)
	if err != nil {
		return err
	}
	reset := measurements.Reset{EKID: machine.Node, OldUUID: machine.Record.Disk}
	return signAndPush(ctx, client, file, out, func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if slices.Contains(policy.Resets, reset) {
			return "", nil, nil
		}
		// Earlier ones stay: a backup of etcd from before them still has the records of the disks that they gave up.
		policy.Resets = append(slices.Clone(policy.Resets), reset)
		return fmt.Sprintf("node %s may format another disk than %s, whose data is given up", machine.Name, machine.Record.Disk), nil, nil
	})
}

// signAndPush edits the policy in the cluster file, unless it says already what
// it should, and brings it to the cluster.
func signAndPush(ctx context.Context, client *registry.Registry, file *cluster.File, out io.Writer, edit policyEdit) error {
	if err := checkSuperseded(ctx, client, file.Cluster); err != nil {
		return err
	}
	policy, err := file.Cluster.OpenPolicy()
	if err != nil {
		return err
	}
	edited := policy
	changed, _, err := edit(&edited)
	if err != nil {
		return err
	}
	if changed != "" {
		if _, err := changePolicy(file, policy, edit); err != nil {
			return err
		}
		fmt.Fprintln(out, changed)
	}
	if err := pushPolicy(ctx, client, file.Cluster, out); err != nil {
		return signedOnly(err)
	}
	return nil
}

// signedOnly says of a push that failed that what it was to bring is not lost, and not to be signed again.
func signedOnly(err error) error {
	const title = "the change is signed in the cluster file; if it is not in force in the cluster, hullmark policy push brings it there"
	var c *hullmark.Condition
	if !errors.As(err, &c) {
		return fmt.Errorf("%s: %w", title, err)
	}
	return &hullmark.Condition{Code: c.Code, Step: c.Step, Title: title, Next: c.Next, Retry: c.Retry, Because: c}
}

// rebindOptions are the flags of `hullmark node rebind`.
type rebindOptions struct {
	apiOptions
	from, to    string
	force, gone bool
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
			if err := o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("node rebind: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.from, "from", "", "the old machine's endorsement key's `ID`")
	cmd.Flags().StringVar(&o.to, "to", "", "the new machine's endorsement key's `ID`")
	cmd.Flags().BoolVar(&o.force, "force", false, "go on although the node is Ready")
	cmd.Flags().BoolVar(&o.gone, "gone", false, "the old machine is switched off for good: nobody but its disk has its certificate")
	require(cmd, "from", "to")
	return cmd
}

func (o *rebindOptions) run(ctx context.Context, out, notes io.Writer) error {
	var rebind measurements.Rebind
	var err error
	if rebind.Old, err = hullmark.ParseNodeID(o.from); err != nil {
		return withCode(exitUsage, fmt.Errorf("--from: %w", err))
	}
	if rebind.New, err = hullmark.ParseNodeID(o.to); err != nil {
		return withCode(exitUsage, fmt.Errorf("--to: %w", err))
	}
	file, client, err := o.connect(notes)
	if err != nil {
		return err
	}
	var machine joinservice.Machine
	err = o.persist(ctx, notes, func() (err error) {
		machine, err = findMachine(ctx, client, o.from)
		return err
	})
	if err != nil {
		return err
	}
	if !o.force {
		if err := refuseReady(ctx, client, machine.Name); err != nil {
			return err
		}
	}
	if err := o.checkGone(machine, time.Now()); err != nil {
		return err
	}
	if err := signAndPush(ctx, client, file, out, rebindRule(rebind)); err != nil {
		return err
	}
	if err := file.Update(func(c *cluster.Cluster) error {
		c.Rebind(rebind.Old, rebind.New)
		return nil
	}); err != nil {
		return err
	}
	if err := client.Rebind(ctx, machine, rebind.New); err != nil {
		return fmt.Errorf("the policy is changed, but the record is not handed over; run the command again: %w", err)
	}
	_, err = fmt.Fprintf(out, "machine %s is node %s from its next boot on, with disk %s\n", rebind.New, machine.Name, machine.Record.Disk)
	return err
}

// checkGone refuses two machines that the cluster could not tell apart.
func (o *rebindOptions) checkGone(machine joinservice.Machine, now time.Time) error {
	if o.gone || !now.Before(machine.CertificateEnds) {
		return nil
	}
	return withCode(exitDenied, fmt.Errorf("machine %s may have a certificate for the name %s until %s: switch it off for good and say so (--gone), or wait until then",
		machine.Node, machine.Name, machine.CertificateEnds.Local().Format(time.RFC3339)))
}

// rebindRule hands the old machine's rule over, unless that is done.
func rebindRule(rebind measurements.Rebind) policyEdit {
	return func(policy *measurements.Policy) (string, []measurements.Document, error) {
		if rebind.Old == rebind.New {
			return "", nil, withCode(exitUsage, errors.New("--from and --to are the same machine"))
		}
		old, isMember := policy.Member(rebind.Old)
		newer, isTaken := policy.Member(rebind.New)
		signed := slices.Contains(policy.Rebinds, rebind)
		switch {
		case !isMember && isTaken && signed:
			return "", nil, nil // An earlier run came so far.
		case !isMember:
			return "", nil, fmt.Errorf("the policy names no machine %s; one of a group needs a rule of its own first, under the name that it has (hullmark policy add member)", rebind.Old)
		case isTaken:
			return "", nil, fmt.Errorf("machine %s is %s already; remove that rule first (hullmark policy remove member %s)", rebind.New, newer.Name, newer.Name)
		}
		*policy = policy.Without(rebind.Old)
		old.EKID = rebind.New
		policy.Members = append(policy.Members, old)
		if !signed {
			policy.Rebinds = append(slices.Clone(policy.Rebinds), rebind)
		}
		return fmt.Sprintf("%s (%s) goes over from machine %s to %s", old.Name, old.Role, rebind.Old, rebind.New), nil, nil
	}
}
