package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

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
			file, policy, err := o.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if policy.Version == 0 {
				return operate.ErrNoPolicy
			}
			if output == "text" {
				return writePolicy(cmd.OutOrStdout(), file.Cluster, policy)
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
	images := operate.ImageNames(c)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "policy version %d, releases from security version %d\n", policy.Version, policy.MinimumSVN)
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
	if policy.Trust.ControlPlane != "" || policy.Trust.Worker != "" {
		fmt.Fprintf(t, "least class of control planes %s, of workers %s\n", cmp.Or(string(policy.Trust.ControlPlane), "any"), cmp.Or(string(policy.Trust.Worker), "any"))
	}
	for _, p := range policy.Platforms {
		fmt.Fprintf(t, "evidence of %s counts, by %d bytes of demands\n", p.Kind, len(p.Demands))
	}
	fmt.Fprintf(t, "\ndocument\timage\tenforced\n")
	for _, a := range policy.Documents {
		document, _ := measurements.Parse(c.Documents[a.Document]) // Of none, what has to match of every document is shown.
		fmt.Fprintf(t, "%s\t%s\t%s\n", a.Document, images[a.Document], operate.Enforced(document, a))
	}
	fmt.Fprintf(t, "\nmember\trole\tendorsement key\n")
	for _, m := range policy.Members {
		fmt.Fprintf(t, "%s\t%s\t%s\n", m.Name, m.Role, m.EKID)
	}
	if len(policy.Groups) > 0 {
		fmt.Fprintf(t, "\ngroup\tat most\tsubject of the endorsement key's certificate\tsigned by\n")
	}
	for _, g := range policy.Groups {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", g.Name, g.Max, printable(operate.SubjectOf(g)), printable(operate.AuthoritiesOf(g)))
	}
	if len(policy.Denied) > 0 {
		fmt.Fprintf(t, "\ndenied by all groups\n")
	}
	for _, ekid := range policy.Denied {
		fmt.Fprintln(t, ekid)
	}
	if len(policy.Rebinds) > 0 {
		fmt.Fprintf(t, "\nrebind of\tto\n")
	}
	for _, r := range policy.Rebinds {
		fmt.Fprintf(t, "%s\t%s\n", r.Old, r.New)
	}
	if len(policy.Resets) > 0 {
		fmt.Fprintf(t, "\nreset of\tonce, while its disk is\n")
	}
	for _, r := range policy.Resets {
		fmt.Fprintf(t, "%s\t%s\n", r.EKID, r.OldUUID)
	}
	if len(policy.Overrides) > 0 {
		fmt.Fprintf(t, "\noverride\tof\tdisk\tepoch\n")
	}
	for _, o := range policy.Overrides {
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\n", o.Serial, o.EKID, o.UUID, o.Epoch)
	}
	return t.Flush()
}
