package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/measurements"
)

func newVoucherCommand() *cobra.Command {
	return group("voucher", "Enrol machines whose keys nobody knew when the policy was signed",
		newVoucherKeyCommand(), newVoucherSignCommand(), newVoucherShowCommand(), newVoucherApplyCommand(), newVoucherListCommand(), newVoucherDeleteCommand())
}

func newVoucherKeyCommand() *cobra.Command {
	var passphraseFile, recipient, purpose string
	cmd := &cobra.Command{
		Use:   "new-key KEY PUBLIC",
		Short: "Make an enroller's key",
		Long: `Make an enroller's key.

KEY gets the Ed25519 key (PKCS #8, encrypted under a passphrase; with --recipient sealed to a program that vouches, such as the controller of Cluster API, which tells its recipient), PUBLIC its public half in PEM, which a group of the policy names (hullmark policy add group --enrollers). Neither is
written over. Who has the key can add workers to that group, as many as it may have, until a policy without it is pushed.`,
		Example: "  hullmark voucher new-key enroller.key enroller.pem",
		Args:    exactArgs(2, "voucher new-key", "the files to make: the key, and its public half"),
		RunE: func(cmd *cobra.Command, args []string) error {
			private, public, err := makeEnrollerKey(recipient, purpose, passphraseFile, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := writeNew(args[0], private, 0o600); err != nil {
				return err
			}
			return writeNew(args[1], public, 0o644)
		},
	}
	cmd.Flags().StringVar(&passphraseFile, "passphrase-file", "", "`FILE` whose first line is the key's passphrase (default: ask)")
	cmd.Flags().StringVar(&recipient, "recipient", "", "seal the key to this age `RECIPIENT` (age1…), in the place of a passphrase")
	cmd.Flags().StringVar(&purpose, "for", "", "with --recipient: the Cluster, `NAMESPACE/NAME`, that the program may use the key for")
	return cmd
}

func makeEnrollerKey(recipient, purpose, passphraseFile string, notes io.Writer) (private, public []byte, err error) {
	if recipient != "" {
		sealTo, err := parseRecipient(recipient, purpose, passphraseFile)
		if err != nil {
			return nil, nil, err
		}
		return operate.NewSealedEnrollerKey(sealTo, purpose)
	}
	if err := noPurpose(purpose); err != nil {
		return nil, nil, err
	}
	passphrase, err := newPassphrase(passphraseFile, notes)
	if err != nil {
		return nil, nil, err
	}
	defer passphrase.Wipe()
	return operate.NewEnrollerKey(passphrase)
}

// parseRecipient reads --recipient, beside which no passphrase's file is named, but the Cluster that it is for: a copy of what is sealed is
// of no use to who has another Cluster of the same program.
func parseRecipient(recipient, purpose, passphraseFile string) (*age.X25519Recipient, error) {
	if namespace, name, ok := strings.Cut(purpose, "/"); !ok || !hullmark.ValidNodeName(namespace) || len(name) == 0 || len(name) > 253 || strings.Contains(name, "/") {
		return nil, withCode(exitUsage, fmt.Errorf("--for %q: want the Cluster that it is for, NAMESPACE/NAME", purpose))
	}
	if passphraseFile != "" {
		return nil, withCode(exitUsage, errors.New("--recipient: what is sealed to a recipient has no passphrase; leave its file out"))
	}
	parsed, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, withCode(exitUsage, fmt.Errorf("--recipient %q: want an age recipient of X25519, age1…", recipient))
	}
	return parsed, nil
}

// noPurpose refuses --for without --recipient: whoever knows a passphrase may use the file for whatever he likes, and nothing would
// hold him to that Cluster.
func noPurpose(purpose string) error {
	if purpose == "" {
		return nil
	}
	return withCode(exitUsage, fmt.Errorf(
		"--for %s: add --recipient age1…, the recipient of the program that the file is for; under a passphrase it is for no Cluster, so leave --for out", purpose))
}

func newVoucherSignCommand() *cobra.Command {
	var key, passphraseFile, root, ekid string
	var v measurements.Voucher
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "sign FILE",
		Short: "Vouch for a machine",
		Long: `Vouch for a machine.

FILE gets the signed voucher: the machine of this EKID is to be a worker of the group, under this name. Make sure that the EKID is that of a real TPM of your own machine: it is all that the
cluster knows it by. The voucher is public, and has to be used within --valid: a machine that has joined comes back without it.`,
		Example: "  hullmark voucher sign w1.voucher --key enroller.key --cluster-root ROOT --group cloud --ekid EKID --name cloud-1 --provider-id aws:///eu-west-1a/i-0abc",
		Args:    exactArg("voucher sign", "the file to write"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if v.ClusterRoot, err = hullmark.ParseClusterRoot(root); err != nil {
				return withCode(exitUsage, fmt.Errorf("--cluster-root: %w", err))
			}
			if v.EKID, err = hullmark.ParseEKID(ekid); err != nil {
				return withCode(exitUsage, fmt.Errorf("--ekid: %w", err))
			}
			if valid < time.Second {
				return withCode(exitUsage, fmt.Errorf("--valid %v: want a second at least", valid))
			}
			v.NotAfter = time.Now().Add(valid).UTC().Truncate(time.Second)
			signer, err := readPrivateKey(key, passphraseFile, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			signed, err := measurements.SignVoucher(signer, v)
			if err != nil {
				return withCode(exitUsage, err)
			}
			return writeWhole(args[0], signed, 0o644)
		},
	}
	f := cmd.Flags()
	f.StringVar(&key, "key", "", "the enroller's key `FILE` (PKCS #8)")
	f.StringVar(&passphraseFile, "passphrase-file", "", "`FILE` whose first line is the key's passphrase (default: ask)")
	f.StringVar(&root, "cluster-root", "", "the cluster's first `ROOT`, in hexadecimal, which node configurations name")
	f.StringVar(&v.Group, "group", "", "the policy's `GROUP`")
	f.StringVar(&ekid, "ekid", "", "the machine's `EKID`")
	f.StringVar(&v.Name, "name", "", "the node's `NAME`, which begins with the group's and a hyphen")
	f.StringVar(&v.ProviderID, "provider-id", "", "`ID` by which the infrastructure knows the machine, which its Node says (default: none)")
	f.DurationVar(&valid, "valid", 24*time.Hour, "how long the machine has to come for the first time")
	require(cmd, "key", "cluster-root", "group", "ekid", "name")
	return cmd
}

func newVoucherShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show FILE",
		Short:   "Show what a voucher says",
		Long:    "Show what a voucher says, and which enroller's key it names. Whether the signature is good, and the policy trusts that key, join services decide.",
		Example: "  hullmark voucher show w1.voucher",
		Args:    exactArg("voucher show", "the voucher's file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			signed, err := atomicfile.Read(args[0], measurements.MaxVoucher)
			if err != nil {
				return err
			}
			v, err := operate.ReadVoucher(signed, time.Now())
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return writeJSON(cmd.OutOrStdout(), v)
		},
	}
}

// withVouchers makes a verb that reaches vouchers by a kubeconfig.
func withVouchers(cmd *cobra.Command, verb string, do func(*cobra.Command, *operate.Vouchers, []string) error) *cobra.Command {
	var kubeconfig string
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		vouchers, err := operate.ConnectVouchers(kubeconfig)
		if err == nil {
			err = do(cmd, vouchers, args)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", verb, tellAPI(err))
		}
		return nil
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of the enroller's account, or of an administrator")
	require(cmd, "kubeconfig")
	return cmd
}

func newVoucherApplyCommand() *cobra.Command {
	return withVouchers(&cobra.Command{
		Use:   "apply FILE",
		Short: "Give a voucher to the cluster",
		Long: `Give a voucher to the cluster, in the place of one that the machine has.

A machine that has joined keeps the name and provider ID that it joined with. Exit code 5 if the API server is not reached.`,
		Example: "  hullmark voucher apply w1.voucher --kubeconfig enroller.conf",
		Args:    exactArg("voucher apply", "the voucher's file"),
	}, "voucher apply", func(cmd *cobra.Command, vouchers *operate.Vouchers, args []string) error {
		signed, err := atomicfile.Read(args[0], measurements.MaxVoucher)
		if err != nil {
			return err
		}
		return vouchers.Put(cmd.Context(), signed)
	})
}

func newVoucherListCommand() *cobra.Command {
	return withVouchers(&cobra.Command{
		Use:     "list",
		Short:   "List the cluster's vouchers",
		Long:    "List the cluster's vouchers. Those that cannot be read admit nobody, and are named as an error. Exit code 5 if the API server is not reached.",
		Example: "  hullmark voucher list --kubeconfig enroller.conf",
		Args:    cobra.NoArgs,
	}, "voucher list", func(cmd *cobra.Command, vouchers *operate.Vouchers, _ []string) error {
		all, err := vouchers.List(cmd.Context())
		if wrong := writeVouchers(cmd.OutOrStdout(), all); wrong != nil {
			return wrong
		}
		return err
	})
}

func writeVouchers(out io.Writer, all []operate.Voucher) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "name\tgroup\tendorsement key\tprovider ID\tuntil\n")
	for _, v := range all {
		until := v.NotAfter.Format(time.RFC3339)
		if v.Expired {
			until += ", expired"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", oneLine(v.Name), oneLine(v.Group), v.EKID, oneLine(v.ProviderID), until)
	}
	return t.Flush()
}

func newVoucherDeleteCommand() *cobra.Command {
	return withVouchers(&cobra.Command{
		Use:   "delete EKID",
		Short: "Take a machine's voucher back",
		Long: `Take a machine's voucher back. A machine that has joined by it stays: hullmark policy remove member bars one, hullmark policy remove group all of its group.
Exit code 5 if the API server is not reached.`,
		Example: "  hullmark voucher delete EKID --kubeconfig enroller.conf",
		Args:    exactArg("voucher delete", "the machine's EKID"),
	}, "voucher delete", func(cmd *cobra.Command, vouchers *operate.Vouchers, args []string) error {
		node, err := hullmark.ParseEKID(args[0])
		if err != nil {
			return withCode(exitUsage, err)
		}
		return vouchers.Delete(cmd.Context(), node)
	})
}
