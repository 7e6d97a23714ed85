package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// lendOptions are the flags of `hullmark cluster lend`.
type lendOptions struct {
	operatorOptions
	measurements, ekid, name, providerID   string
	recipient, purpose, lentPassphraseFile string
	replaceFirst                           bool
}

func newClusterLendCommand() *cobra.Command {
	var o lendOptions
	cmd := &cobra.Command{
		Use:   "lend FILE",
		Short: "Make a cluster file without the root key, for whoever is to begin the cluster on one machine",
		Long: `Make a cluster file without the root key, for whoever is to begin the cluster on one machine.

With it, hullmark init makes that one machine the first node, as long as its state disk is empty, and as the policy says that is signed
now: it accepts this measurement document, and names this machine. It opens no other machine and signs no policy. It does hold the
cluster's other keys, the Kubernetes authorities among them, so keep it as you keep the cluster file. With --recipient it is sealed
to a program, such as the control plane provider of Cluster API, which tells its recipient. Afterwards,
hullmark cluster take-back notes in the cluster file what was done.`,
		Example: "  hullmark cluster lend prod.lent --cluster prod.cluster --ekid $(cat ek.id) --measurements node.json",
		Args:    exactArg("cluster lend", "the file to make"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.run(args[0], cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("cluster lend: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	o.rootKey.addFlag(cmd)
	f.StringVar(&o.lentPassphraseFile, "lent-passphrase-file", "", "`FILE` whose first line is the passphrase of the file to make (default: ask twice)")
	f.StringVar(&o.recipient, "recipient", "", "seal the file to this age `RECIPIENT` (age1…), in the place of a passphrase")
	f.StringVar(&o.purpose, "for", "", "with --recipient: the Cluster, `NAMESPACE/NAME`, that the program may use the file for")
	f.StringVar(&o.measurements, "measurements", "", "measurement document `FILE` that the machine has to match")
	f.StringVar(&o.ekid, "ekid", "", "the machine's `EKID`: the SHA-256 of its endorsement key")
	f.StringVar(&o.name, "name", "control-plane-1", "the node's `NAME`")
	f.StringVar(&o.providerID, "provider-id", "", "the node's provider `ID`, as Cluster API or a cloud's controllers know the machine")
	f.BoolVar(&o.replaceFirst, "replace-first", false, "let another machine be the first node; the recorded one's data is given up")
	require(cmd, "measurements", "ekid")
	return cmd
}

func (o *lendOptions) run(path string, notes io.Writer) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already; a cluster file is never overwritten", path)
	}
	node, err := hullmark.ParseEKID(o.ekid)
	if err != nil {
		return withCode(exitUsage, fmt.Errorf("--ekid: %w", err))
	}
	if !hullmark.ValidNodeName(o.name) {
		return withCode(exitUsage, fmt.Errorf("--name %q: want a DNS label: at most 63 lower-case letters, digits and hyphens", o.name))
	}
	loan := cluster.Loan{Node: node, Name: o.name, ProviderID: o.providerID, ReplaceFirst: o.replaceFirst, For: o.purpose}
	if loan.Document, err = readDocument(o.measurements); err != nil {
		return err
	}
	create, err := o.creator(notes)
	if err != nil {
		return err
	}
	file, err := o.open(notes)
	if err != nil {
		return err
	}
	var lent *cluster.Cluster
	if err := file.Update(func(c *cluster.Cluster) (err error) {
		lent, err = c.Lend(loan)
		return err
	}); err != nil {
		return err
	}
	return create(path, lent)
}

// creator returns what makes the file, for whoever is to open it.
func (o *lendOptions) creator(notes io.Writer) (func(path string, lent *cluster.Cluster) error, error) {
	if o.recipient == "" {
		if err := noPurpose(o.purpose); err != nil {
			return nil, err
		}
		passphrase, err := newPassphrase(o.lentPassphraseFile, notes)
		return func(path string, lent *cluster.Cluster) error {
			_, err := cluster.Create(path, passphrase, lent, cluster.WorkFactor)
			return err
		}, err
	}
	recipient, err := parseRecipient(o.recipient, o.purpose, o.lentPassphraseFile)
	return func(path string, lent *cluster.Cluster) error { return cluster.CreateSealed(path, recipient, lent) }, err
}

func newClusterTakeBackCommand() *cobra.Command {
	var o operatorOptions
	var lentPassphraseFile string
	cmd := &cobra.Command{
		Use:   "take-back FILE",
		Short: "Note in the cluster file what was done with one that was lent",
		Long: `Note in the cluster file what was done with one that was lent: which machine and disk is the first node's, and what its join
services are set to. hullmark recover and policy push need it. Remove the lent file afterwards.`,
		Example: "  hullmark cluster take-back prod.lent --cluster prod.cluster",
		Args:    exactArg("cluster take-back", "the file that was lent"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := takeBack(args[0], lentPassphraseFile, &o, cmd); err != nil {
				return fmt.Errorf("cluster take-back: %w", err)
			}
			return nil
		},
	}
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	cmd.Flags().StringVar(&lentPassphraseFile, "lent-passphrase-file", "", "`FILE` whose first line is the lent file's passphrase (default: ask)")
	return cmd
}

// openLent opens a file that was lent: by its own passphrase, or, if it is sealed, by what the cluster file holds.
func openLent(path, passphraseFile string, file *cluster.File, notes io.Writer) (*cluster.File, error) {
	sealed, err := cluster.IsSealed(path)
	if err != nil {
		return nil, err
	}
	if sealed {
		return file.Cluster.OpenLent(path)
	}
	passphrase, err := readPassphrase(passphraseFile, notes, "Passphrase of "+path)
	if err != nil {
		return nil, err
	}
	return cluster.Open(path, passphrase)
}

func takeBack(path, passphraseFile string, o *operatorOptions, cmd *cobra.Command) error {
	file, err := o.open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	lent, err := openLent(path, passphraseFile, file, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := file.Update(func(c *cluster.Cluster) error { return c.TakeBack(lent.Cluster) }); err != nil {
		return err
	}
	switch c := file.Cluster; {
	case c.First == nil:
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "nothing was begun with it")
	case c.Initialised == nil:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the cluster was begun on %s, which has not been seen Ready\n", c.First.EKID)
	default:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the cluster runs on %s\n", c.First.EKID)
	}
	return err
}
