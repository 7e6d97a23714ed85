package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

func newNodeListCommand() *cobra.Command {
	var o apiOptions
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what the cluster keeps of each machine",
		Long: `List what the cluster keeps of each machine: its name and role, how far it has come and why it stopped or waits, the trust class of its evidence, the image
and the release that its registers matched and the Kubernetes that it brings, the slot that runs, its state disk, the window that the disk's epoch must lie in (of a single control plane also since when, and how long, a copy of its disk passes), when its kubelet's certificate ends, and which of the addresses that it named its certificates do not name. Of a machine without a record that its group counts all the same, only
the name is known.

The join services keep these records in the API. Whoever administers Kubernetes can change them; no ticket gets wider by that, because role, name and documents
come from the signed policy. Exit code 5 if the API server is not reached.`,
		Example: "  hullmark node list --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("node list", output); err != nil {
				return err
			}
			return o.look(cmd, "node list", func(api *operate.Reader, c *cluster.Cluster) error {
				return listNodes(cmd.Context(), api, c, output, cmd.OutOrStdout())
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// listNodes prints all records; those that cannot be read are an error after the others.
func listNodes(ctx context.Context, api *operate.Reader, c *cluster.Cluster, output string, out io.Writer) error {
	listed, err := api.Machines(ctx)
	if listed == nil && err != nil {
		return err
	}
	if output == "json" {
		return errors.Join(writeJSON(out, listed), err)
	}
	now := time.Now()
	return errors.Join(writeNodes(out, listed, now), tellWindow(out, listed, c, now), err)
}

func writeNodes(out io.Writer, nodes []operate.Machine, now time.Time) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "name\trole\tstate\ttrust\timage\trelease\tkubernetes\tslot\tdisk\tepoch\tcertificate\tseen\tcondition\n")
	for _, n := range nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\t%s\t%s\t%s\n", oneLine(n.Name), oneLine(string(n.Role)), oneLine(string(n.State)), oneLine(string(n.Platform.Trust)),
			oneLine(imageOf(n)), cmp.Or(oneLine(n.Release), "-"), n.Kubernetes, slotOf(n.Update), diskOf(n.Record), epochOf(n.Record), endOf(n.CertificateEnds), ago(n.Seen, now), conditionOf(n))
	}
	return t.Flush()
}

// imageOf names the image, by its document's digest if the cluster file has no such document any more.
func imageOf(n operate.Machine) string {
	switch {
	case n.Image != "":
		return n.Image
	case n.Document == (measurements.DocumentID{}):
		return "-"
	}
	return n.Document.String()[:12] + "…"
}

// diskOf names the state disk of a machine that was given a ticket.
func diskOf(r joinservice.Record) string {
	if r.Disk == (hullmark.UUID{}) {
		return "-"
	}
	return r.Disk.String()
}

// epochOf is the window that the disk's epoch must lie in.
func epochOf(r joinservice.Record) string {
	if r.Disk == (hullmark.UUID{}) {
		return "-"
	}
	return fmt.Sprintf("%d..%d", r.Committed, r.Issued)
}

// endOf is when a certificate ends, or that there was none.
func endOf(end time.Time) string {
	if end.IsZero() {
		return "-"
	}
	return end.UTC().Format("2006-01-02T15:04Z")
}

// slotOf says which slot runs, and how far an update of it is.
func slotOf(u *hullmark.UpdateStatus) string {
	switch {
	case u == nil:
		return "-"
	case u.Running != u.Default:
		return oneLine(u.Running + ", on trial")
	case u.Phase != hullmark.UpdateIdle:
		return oneLine(u.Running + ", the other " + string(u.Phase))
	}
	return oneLine(u.Running)
}

// ago says how long ago a moment was.
func ago(then, now time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return now.Sub(then).Truncate(time.Second).String() + " ago"
}

// conditionOf says what a machine is at, or why it stopped or waits, whether its configuration names an old root, and which
// addresses it was refused.
func conditionOf(n operate.Machine) string {
	text := n.Phase
	if n.Condition != nil {
		root := n.Condition.Root()
		text = root.Code + ": " + root.Title
	}
	if n.OldRoot {
		text = strings.TrimSuffix("old root; "+text, "; ")
	}
	for _, r := range n.Refused {
		text = strings.TrimPrefix(fmt.Sprintf("%s; %v", text, r), "; ")
	}
	return oneLine(text)
}
