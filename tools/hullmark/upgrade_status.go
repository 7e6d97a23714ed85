package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/upgrade"
)

func newUpgradeStatusCommand() *cobra.Command {
	var o apiOptions
	var output string
	var follow bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how far an upgrade is",
		Long: `Show how far the upgrade is that was asked for last: each node's turn with its times, what the next one waits for, and why it stopped.

Exit code 5 if the API server is not reached; with --follow, 1 if the upgrade fails.`,
		Example: "  hullmark upgrade status --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput("upgrade status", output); err != nil {
				return err
			}
			if follow && output != "text" {
				return withCode(exitUsage, errors.New("upgrade status: --follow tells of changes as text; -o json has the state of one moment"))
			}
			return o.do(cmd, "upgrade status", func(api *operate.API, _ *cluster.File) error {
				if follow {
					return followUpgrade(cmd, api)
				}
				request, state, err := api.Upgrade(cmd.Context())
				if err != nil {
					return err
				}
				if output == "json" {
					return writeJSON(cmd.OutOrStdout(), struct {
						Request upgrade.Request `json:"request"`
						State   upgrade.State   `json:"state"`
					}{request, state})
				}
				return writeState(cmd.OutOrStdout(), request, state)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	cmd.Flags().BoolVar(&follow, "follow", false, "tell of each change, with its time, until the upgrade is over")
	return cmd
}

func newUpgradeAttendCommand() *cobra.Command {
	var o apiOptions
	var node operatorOptions
	var yes bool
	cmd := &cobra.Command{
		Use:   "attend NAME",
		Short: "Let a control plane restart that no other could let in again, and recover it",
		Long: `Let a control plane restart that no other could let in again, and recover it: the only one of its cluster, or one of two. The upgrade waits for this command when it
comes to such a node, and goes on with the workers by itself afterwards.

The node is verified as by recover, and its disk's epoch is shown, and asked about, in the same way. If it falls back, it is recovered once more, in the release from before, and
the command says why it fell back. An interrupted command can be repeated; if the node has restarted by then, hullmark recover does as well.

Exit codes: 0 upgraded, 1 failed, 2 usage, 3 the node booted something else, 4 refused, or it fell back, 5 not reached.`,
		Example: "  hullmark upgrade attend cp-1 --node 192.0.2.7 --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    exactArg("upgrade attend", "the node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			notes := cmd.ErrOrStderr()
			if err := node.check(); err != nil {
				return err
			}
			attend := operate.AttendOptions{Node: node.at(notes)}
			if !yes {
				if !term.IsTerminal(int(os.Stdin.Fd())) {
					return withCode(exitUsage, errors.New("no terminal to ask on whether the disk is the newest; decide beforehand (--yes)"))
				}
				attend.Confirm = func() error { return ask(os.Stdin, notes, "Go on with this disk?") }
			}
			return o.do(cmd, "upgrade attend", func(api *operate.API, _ *cluster.File) error {
				if err := api.Attend(cmd.Context(), args[0], attend); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is upgraded; the workers follow by themselves (hullmark upgrade status)\n", args[0])
				return err
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&node.node, "node", "", "the node's `HOST[:PORT]` (port 7443 if none)")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask before the node goes on with the disk that it shows")
	require(cmd, "node")
	return cmd
}

// writePlan prints the steps in their order, then what is passed over, and what stands against it.
func writePlan(out io.Writer, p upgrade.Plan) error {
	fmt.Fprintln(out, oneLine(whatOf(p.Spec)))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "batch\tnode\trole\tpool\tpods evicted\taway\t\n")
	for _, s := range p.Steps {
		batch, note := fmt.Sprint(s.Batch), ""
		switch {
		case s.There:
			batch, note = "-", "has it already"
		case s.Attended:
			note = "waits for its operator: hullmark upgrade attend " + s.Node + " --node ADDRESS"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", batch, oneLine(s.Node), oneLine(string(s.Role)), cmp.Or(oneLine(s.Pool), "-"), s.Evicted, awayOf(s.Away), oneLine(note))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range p.Notes {
		fmt.Fprintln(out, "note:", oneLine(note))
	}
	for _, c := range p.Against {
		fmt.Fprintf(out, "against it: %s\n", oneLine(c.Error()))
	}
	return nil
}

// whatOf says what a spec is about.
func whatOf(s upgrade.Spec) string {
	if s.Action == hullmark.UpdateRestart {
		return "restart: " + s.Reason
	}
	return fmt.Sprintf("release %s, root hash %s, from %s", s.Release, s.RootHash, strings.Join(s.Sources, ", "))
}

// awayOf says how long a node was away the last time.
func awayOf(d upgrade.Duration) string {
	if d == 0 {
		return "not known"
	}
	return fmt.Sprintf("%v the last time", time.Duration(d).Round(time.Second))
}

// writeState prints each node's turn.
func writeState(out io.Writer, r upgrade.Request, s upgrade.State) error {
	if s.Spec.ID != r.Spec.ID {
		_, err := fmt.Fprintf(out, "upgrade %s: %s\nno control plane has begun with it yet\n", oneLine(r.Spec.ID), oneLine(whatOf(r.Spec)))
		return err
	}
	fmt.Fprintf(out, "upgrade %s: %s\n%s since %s%s\n", oneLine(s.Spec.ID), oneLine(whatOf(s.Spec)), oneLine(string(s.Phase)), clock(s.Began), ended(s))
	if s.Waits != "" {
		fmt.Fprintln(out, "waits:", oneLine(s.Waits))
	}
	if s.Failed != nil {
		fmt.Fprintln(out, "stopped:", oneLine(s.Failed.Error()))
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "node\trole\tpool\tphase\tbegun\trestarted\tback\taway\t\n")
	for _, n := range s.Nodes {
		if n.Phase == upgrade.NodeGone && n.Began.IsZero() {
			continue
		}
		away := "-"
		if n.Away > 0 {
			away = time.Duration(n.Away).Round(time.Second).String()
		}
		why := n.Note
		if n.Failed != nil {
			why = n.Failed.Root().Code + "; " + why
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", oneLine(n.Name), oneLine(string(n.Role)), cmp.Or(oneLine(n.Pool), "-"), oneLine(string(n.Phase)),
			clock(n.Began), clock(n.Drained), clock(n.Back), away, oneLine(strings.TrimSuffix(why, "; ")))
	}
	return t.Flush()
}

func ended(s upgrade.State) string {
	if s.Ended.IsZero() {
		return ""
	}
	return fmt.Sprintf(", over at %s, after %v", clock(s.Ended), s.Ended.Sub(s.Began).Round(time.Second))
}

// clock is a moment by the clock of who reads it.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.TimeOnly)
}

// writeChange prints a change with its time; of one that has none, with when it was seen.
func writeChange(out io.Writer, c upgrade.Change, seen time.Time) {
	if c.Time.IsZero() {
		c.Time = seen
	}
	fmt.Fprintf(out, "%s  %-16s  %s\n", clock(c.Time), oneLine(cmp.Or(c.Node, "upgrade")), oneLine(c.Text))
}
