package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster/operate"
)

func newOperatorListCommand() *cobra.Command {
	var o operatorOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the operators whom the policy names, and what each may",
		Long: `List the operators whom the policy in the file names, and what each may.

Of an operator's file it says whose it is, and until when, too.`,
		Example: "  hullmark operator list --cluster prod.cluster",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.openAny(cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("operator list: %w", err)
			}
			return writeOperators(cmd.OutOrStdout(), h)
		},
	}
	clusterFlags(cmd, &o.cluster, &o.passphraseFile)
	return cmd
}

func writeOperators(out io.Writer, h holder) error {
	policy, err := h.known().OpenPolicy()
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "operator\tmay\tkey\n")
	for _, each := range policy.Operators {
		fmt.Fprintf(t, "%s\t%s\t%s\n", each.Name, hullmark.FormatPermissions(each.May), each.Key)
	}
	if h.operator != nil {
		who := h.operator.Grant.Who
		fmt.Fprintf(t, "\nthis is the file of operator %s, who may %s until %s, with policy version %d\n",
			who.Name, hullmark.FormatPermissions(who.May), who.Ends.UTC().Format(time.DateOnly), policy.Version)
	}
	return t.Flush()
}

func newOperatorWithdrawCommand() *cobra.Command {
	var o policyOptions
	cmd := &cobra.Command{
		Use:   "withdraw NAME",
		Short: "Let an operator do nothing any more",
		Long: `Let an operator do nothing any more.

Nodes, join services and the API refuse him once the policy is in the cluster (hullmark policy push). What he has read stays with him; of one who could recover these are the keys of the
control planes' disks, which open copies of those: exchange the keyset (hullmark cluster rotate keyset), and give each control plane an empty disk, if he may have one.`,
		Example: "  hullmark operator withdraw alice --cluster prod.cluster",
		Args:    exactArg("operator withdraw", "the operator's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.change(cmd, operate.WithdrawOperator(args[0]))
		},
	}
	o.addFlags(cmd)
	return cmd
}
