package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/cluster/report"
)

// reportOptions are the flags of `hullmark report`.
type reportOptions struct {
	apiOptions
	html, since, output string
}

func newReportCommand() *cobra.Command {
	var o reportOptions
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Say how a whole cluster is, and what changed since an earlier report",
		Long: `Say how a whole cluster is, and what changed since an earlier report.

Each machine's release, trust class, epoch, certificate and condition are taken from the records that join services keep in the API, and held to the signed policy, of which
it says who has to sign releases and who may operate the cluster, too. --html writes all of it as one page for a browser, which fetches and runs nothing; -o json is what
--since takes later.

Whoever administers Kubernetes can write these records; no machine gets in by that.

Exit codes: 0 every node is what the policy accepts, 3 one is not or a record cannot be read, 5 the API server is not reached, 1 failed, 2 usage.`,
		Example: "  hullmark report --cluster prod.cluster --html cluster.html\n  hullmark report --cluster prod.cluster --since monday.json -o json > tuesday.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("report", o.output); err != nil {
				return err
			}
			if err := notOver(o.html, o.since, o.cluster, o.passphraseFile); err != nil {
				return fmt.Errorf("report: %w", err)
			}
			earlier, err := readReport(o.since)
			if err != nil {
				return err
			}
			return o.look(cmd, "report", func(api *operate.Reader, c *cluster.Cluster) error {
				machines, unread := api.Machines(cmd.Context())
				if machines == nil && unread != nil {
					return unread
				}
				r, err := report.New(c, machines, unread, time.Now())
				if err != nil {
					return err
				}
				return o.write(cmd.OutOrStdout(), r, earlier)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.html, "html", "", "also write the report to `FILE`, as one HTML page")
	cmd.Flags().StringVar(&o.since, "since", "", "an earlier report `FILE` (JSON) to compare with")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// readReport reads an earlier report; nil if none is named.
func readReport(file string) (*report.Report, error) {
	if file == "" {
		return nil, nil
	}
	text, err := readBounded(file, report.Max)
	if err != nil {
		return nil, err
	}
	r, err := report.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &r, nil
}

// write writes the page, and the report in its format; a node that is not what it should be is an error.
func (o *reportOptions) write(out io.Writer, r report.Report, earlier *report.Report) error {
	if o.html != "" {
		page, err := report.Page(r, earlier)
		if err != nil {
			return err
		}
		if err := writeWhole(o.html, page, 0o644); err != nil {
			return err
		}
	}
	err := writeJSON(out, r)
	if o.output == "text" {
		err = writeClusterReport(out, r, earlier)
	}
	failed, _ := r.Failed()
	switch {
	case err != nil:
		return err
	case r.Unread != "":
		return withCode(exitMismatch, errors.New(oneLine(r.Unread)))
	case failed > 0:
		return withCode(exitMismatch, fmt.Errorf("%d of %d nodes are not what they should be", failed, len(r.Nodes)))
	}
	return nil
}

// writeGranted prints who has to sign releases, who may operate the cluster, and how many machines are kept out.
func writeGranted(out io.Writer, p report.Policy) {
	if demand := p.Demand(); demand != "" {
		fmt.Fprintf(out, "builders who have to sign a release: %s\n", oneLine(demand))
	}
	for _, o := range p.Operators {
		fmt.Fprintf(out, "operator %s may %s\n", oneLine(o.Name), oneLine(hullmark.FormatPermissions(o.May)))
	}
	if len(p.Denied) > 0 {
		fmt.Fprintf(out, "%d machines are denied by all groups (hullmark policy show)\n", len(p.Denied))
	}
}

// writeClusterReport prints what somebody should look at, and what changed.
func writeClusterReport(out io.Writer, r report.Report, earlier *report.Report) error {
	failed, attention := r.Failed()
	fmt.Fprintf(out, "policy version %d, %d releases, %d nodes: %d not what they should be, %d more to look at\n",
		r.Policy.Version, len(r.Policy.Releases), len(r.Nodes), failed, attention)
	writeGranted(out, r.Policy)
	for _, release := range r.Policy.Releases {
		if release.Against != "" {
			fmt.Fprintf(out, "release %s: %s\n", oneLine(release.Name), oneLine(release.Against))
		}
	}
	for _, n := range r.Nodes {
		for _, line := range n.Attention {
			fmt.Fprintf(out, "node %s: %s\n", oneLine(n.Name), oneLine(line))
		}
	}
	if earlier == nil {
		return nil
	}
	fmt.Fprintf(out, "\nsince %s:\n", earlier.Made.UTC().Format(time.RFC3339))
	lines := r.Since(*earlier)
	if len(lines) == 0 {
		lines = []string{"nothing changed"}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, "  "+oneLine(line)); err != nil {
			return err
		}
	}
	return nil
}
