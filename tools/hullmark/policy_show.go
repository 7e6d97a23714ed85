package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/measurements"
)

func newPolicyShowCommand() *cobra.Command {
	var o policyOptions
	var output string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the policy in force, after checking its signature",
		Long: `Print the policy in force, after checking its signature.

With -o json it is the very document that was signed, which hullmark policy sign takes back once it is changed.`,
		Example: "  hullmark policy show --cluster prod.cluster",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("policy show", output); err != nil {
				return err
			}
			h, policy, err := o.openAny(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if policy.Version == 0 {
				return operate.ErrNoPolicy
			}
			if output == "text" {
				return writePolicy(cmd.OutOrStdout(), h.known(), policy)
			}
			text, err := policy.Encode()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// writePolicy prints a policy for people.
func writePolicy(out io.Writer, c *cluster.Cluster, policy measurements.Policy) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if err := writeTerms(t, c, policy); err != nil {
		return err
	}
	writeAdmitted(t, c, policy)
	writeExceptions(t, policy)
	return t.Flush()
}

// writeTerms shows what holds for all machines.
func writeTerms(t io.Writer, c *cluster.Cluster, policy measurements.Policy) error {
	encoded, err := policy.Encode()
	if err != nil {
		return err
	}
	fmt.Fprintf(t, "policy version %d, releases from security version %d\n", policy.Version, policy.MinimumSVN)
	fmt.Fprintf(t, "its SHA-256 begins with %s\n", cluster.ShortDigest(encoded))
	if changer, ok := measurements.PolicyChanger(c.Policy); ok {
		fmt.Fprintf(t, "signed by operator %s, who changed what the root signed\n", changer.Name)
	}
	if c.Revision.Number > 0 {
		fmt.Fprintf(t, "cluster file of %s\n", c.Revision)
	}
	roots, err := c.Roots()
	if err != nil {
		return err
	}
	fmt.Fprintf(t, "root %s\n", c.ID())
	for _, earlier := range roots[1:] {
		fmt.Fprintf(t, "nodes may still name root %s, which has handed over\n", earlier)
	}
	if policy.Rotation > 0 {
		fmt.Fprintf(t, "control planes' keys of rotation %d\n", policy.Rotation)
	}
	taken := map[cluster.Exchange]int{cluster.ExchangeTrusted: 1, cluster.ExchangeSigning: 2}
	for _, name := range cluster.CANames() {
		if steps := taken[c.Exchange(name)]; steps > 0 {
			fmt.Fprintf(t, "%s is exchanged: step %d of 3 was taken\n", name, steps)
		}
	}
	if policy.Trust.ControlPlane != "" || policy.Trust.Worker != "" {
		fmt.Fprintf(t, "least class of control planes %s, of workers %s\n", cmp.Or(string(policy.Trust.ControlPlane), "any"), cmp.Or(string(policy.Trust.Worker), "any"))
	}
	for _, p := range policy.Platforms {
		fmt.Fprintf(t, "evidence of %s counts, by %d bytes of demands\n", p.Kind, len(p.Demands))
	}
	if policy.Builders.Threshold > 0 {
		fmt.Fprintf(t, "%d of these have to have signed a release:", policy.Builders.Threshold)
		for _, b := range policy.Builders.Of {
			fmt.Fprintf(t, " %s", b.Name)
		}
		fmt.Fprintln(t)
	}
	for _, each := range policy.Operators {
		fmt.Fprintf(t, "operator %s may %s\n", each.Name, hullmark.FormatPermissions(each.May))
	}
	return nil
}

// writeAdmitted shows which releases and which machines are admitted.
func writeAdmitted(t io.Writer, c *cluster.Cluster, policy measurements.Policy) {
	images := operate.ImageNames(c)
	fmt.Fprintf(t, "\ndocument\timage\tenforced\n")
	for _, a := range policy.Documents {
		document, _ := measurements.Parse(c.Documents[a.Document]) // Of none, what has to match of every document is shown.
		fmt.Fprintf(t, "%s\t%s\t%s\n", a.Document, oneLine(images[a.Document]), operate.Enforced(document, a))
	}
	if policy.Builders.Threshold > 0 {
		writeTable(t, "document\tsigned by its builders", policy.Documents, func(a measurements.Accepted) {
			agreement := "its document cannot be read"
			if document, err := measurements.Parse(c.Documents[a.Document]); err == nil {
				if by, err := policy.Agreement(document); err == nil {
					agreement = by.String()
				}
			}
			fmt.Fprintf(t, "%s\t%s\n", a.Document, agreement)
		})
	}
	fmt.Fprintf(t, "\nmember\trole\tendorsement key\n")
	for _, m := range policy.Members {
		fmt.Fprintf(t, "%s\t%s\t%s\n", m.Name, m.Role, m.EKID)
	}
	writeTable(t, "group\tat most\tsubject of the endorsement key's certificate\tsigned by", policy.Groups, func(g measurements.Group) {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", g.Name, g.Max, oneLine(operate.SubjectOf(g)), oneLine(operate.AuthoritiesOf(g)))
	})
}

// writeExceptions shows what is said of single machines and disks.
func writeExceptions(t io.Writer, policy measurements.Policy) {
	writeTable(t, "denied by all groups", policy.Denied, func(ekid hullmark.EKID) { fmt.Fprintln(t, ekid) })
	writeTable(t, "rebind of\tto", policy.Rebinds, func(r measurements.Rebind) { fmt.Fprintf(t, "%s\t%s\n", r.Old, r.New) })
	writeTable(t, "reset of\tonce, while its disk is", policy.Resets, func(r measurements.Reset) { fmt.Fprintf(t, "%s\t%s\n", r.EKID, r.OldUUID) })
	writeTable(t, "override\tof\tdisk\tepoch", policy.Overrides, func(o measurements.Override) {
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\n", o.Serial, o.EKID, o.UUID, o.Epoch)
	})
}

// writeTable writes a table, unless it has no row.
func writeTable[T any](t io.Writer, head string, all []T, row func(T)) {
	if len(all) > 0 {
		fmt.Fprintf(t, "\n%s\n", head)
	}
	for _, each := range all {
		row(each)
	}
}
