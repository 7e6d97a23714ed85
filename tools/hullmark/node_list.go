package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

func newNodeListCommand() *cobra.Command {
	var o apiOptions
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what the cluster keeps of each machine",
		Long: `List what the cluster keeps of each machine: its name and role, how far it has come and why it stopped or waits, the trust class of its evidence, the image
that its registers matched, its state disk, the window that the disk's epoch must lie in (of a single control plane also since when, and how long, a copy of its disk passes), and which of the addresses that it named its certificates do not name. Of a machine without a record that its group counts all the same, only
the name is known.

The join services keep these records in the API. Whoever administers Kubernetes can change them; no ticket gets wider by that, because role, name and documents
come from the signed policy. Exit code 5 if the API server is not reached.`,
		Example: "  hullmark node list --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("node list", output); err != nil {
				return err
			}
			file, client, err := o.connect(cmd.ErrOrStderr())
			if err == nil {
				err = o.persist(cmd.Context(), cmd.ErrOrStderr(), func() error {
					return listNodes(cmd.Context(), client, file.Cluster, output, cmd.OutOrStdout())
				})
			}
			if err != nil {
				return fmt.Errorf("node list: %w", tellAPI(err))
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// listedNode is a machine's record, with what people call the image that it booted.
type listedNode struct {
	joinservice.Machine
	Image string `json:"image,omitempty"`
	// OldRoot says that the configuration of its last ticket named another root than the present one.
	OldRoot bool `json:"oldRoot,omitempty"`
	// Heard is when init or recover saw its disk last: of a single control plane nothing tells a copy since.
	Heard time.Time `json:"heard,omitzero"`
}

// listNodes prints all records; those that cannot be read are an error after the others.
func listNodes(ctx context.Context, client *registry.Registry, c *cluster.Cluster, output string, out io.Writer) error {
	machines, err := client.List(ctx)
	if err != nil && len(machines) == 0 {
		return err
	}
	counted, unlisted := countedOnly(ctx, client, machines)
	machines, err = append(machines, counted...), errors.Join(err, unlisted)
	policy, unopened := c.OpenPolicy()
	if unopened != nil {
		return unopened
	}
	images := imageNames(c)
	listed := make([]listedNode, 0, len(machines))
	for _, m := range machines {
		listed = append(listed, listedNode{Machine: m, Image: images[m.Document], OldRoot: namedRoot(m, policy, c.ID()) != c.ID(), Heard: c.Epochs[m.Node].Heard})
	}
	slices.SortStableFunc(listed, func(a, b listedNode) int { return cmp.Compare(a.Name, b.Name) })
	if output == "json" {
		return errors.Join(writeJSON(out, listed), err)
	}
	now := time.Now()
	return errors.Join(writeNodes(out, listed, now), tellWindow(out, listed, c, now), err)
}

// namedRoot returns the root that a machine's configuration named at its last ticket; of one without a ticket, the present one.
func namedRoot(m joinservice.Machine, policy measurements.Policy, present hullmark.ClusterRoot) hullmark.ClusterRoot {
	if m.Record == (joinservice.Record{}) {
		return present
	}
	return cmp.Or(m.Root, policy.First(present))
}

// countedOnly returns the machines that groups count and that have no record: a first ticket is being made, or was never recorded.
func countedOnly(ctx context.Context, client *registry.Registry, recorded []joinservice.Machine) ([]joinservice.Machine, error) {
	counted, err := client.Counted(ctx)
	known := map[hullmark.NodeID]bool{}
	for _, m := range recorded {
		known[m.Node] = true
	}
	counted = slices.DeleteFunc(counted, func(m joinservice.Machine) bool { return known[m.Node] })
	for i := range counted {
		counted[i].Phase = "counted to its group, without a record"
	}
	return counted, err
}

func writeNodes(out io.Writer, nodes []listedNode, now time.Time) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "name\trole\tstate\ttrust\timage\tdisk\tepoch\tseen\tcondition\n")
	for _, n := range nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d..%d\t%s\t%s\n", printable(n.Name), n.Role, printable(string(n.State)), printable(string(n.Platform.Trust)),
			imageOf(n), n.Record.Disk, n.Record.Committed, n.Record.Issued, ago(n.Seen, now), conditionOf(n))
	}
	return t.Flush()
}

// imageOf names the image, by its document's digest if the cluster file has no such document any more.
func imageOf(n listedNode) string {
	switch {
	case n.Image != "":
		return n.Image
	case n.Document == (measurements.DocumentID{}):
		return "-"
	}
	return n.Document.String()[:12] + "…"
}

// ago says how long ago a moment was.
func ago(then, now time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return now.Sub(then).Truncate(time.Second).String() + " ago"
}

// conditionOf says what a machine is at, or why it stopped or waits, whether its configuration names an old root, and which addresses it was refused.
func conditionOf(n listedNode) string {
	text := n.Phase
	if n.Condition != nil {
		root := n.Condition.Root()
		text = root.Code + ": " + root.Title
	}
	if n.OldRoot {
		text = strings.TrimSuffix("old root; "+text, "; ")
	}
	for _, r := range n.Refused {
		text = strings.TrimPrefix(fmt.Sprintf("%s; %s: %s", text, r.Condition.Root().Code, r.Address), "; ")
	}
	return printable(text)
}
