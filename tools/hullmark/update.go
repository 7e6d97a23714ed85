package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

func newUpdateCommand() *cobra.Command {
	return group("update", "Give one node another release, with a way back",
		updateVerb{
			action: hullmark.UpdateStage, use: "stage DOCUMENT", short: "Write a release into the slot that does not run",
			long: `The node fetches the release by its hash tree from where it was published (--from, several are asked in turn): what the slot that runs has of it is copied,
the rest is fetched by ranges, and every block is held to the root hash in the document. What was interrupted goes on. Nothing changes for what runs.

The node refuses what would not get a ticket once it runs: a document that the signed policy in the cluster file does not accept, a security version below
the policy's minimum, and a document that is of other firmware than the machine's.`,
		}.command(),
		updateVerb{
			action: hullmark.UpdateTry, use: "try DOCUMENT", short: "Restart into the release that was staged, for one boot",
			long: `The node commits the release by itself once it is healthy: its ticket given, its disk open, its node Ready, and the units that boot-complete.target requires
done. Otherwise its next boot is of the release from before, and its status says why (trial-failed). Nothing tries a release again by itself.`,
		}.command(),
		updateVerb{
			action: hullmark.UpdateCommit, use: "commit", short: "Keep the release that runs on trial, without waiting for its checks",
			long: "Only for a trial whose remaining checks do not matter to you: the node commits a healthy one by itself.",
		}.command(),
		updateVerb{
			action: hullmark.UpdateRollback, use: "rollback DOCUMENT", short: "Restart into the release of the other slot, or out of a trial",
			long: `The document is of the release that the node ran before. The node goes back to it as it tries any release: if it is not healthy any more, the next boot is of the
one that runs now.`,
		}.command(),
		updateVerb{
			action: hullmark.UpdateRestart, use: "restart", short: "Restart the node as it is",
			long: "For what counts from the next boot on: another policy, other certificates.",
		}.command(),
		newUpdateStatusCommand(),
	)
}

// updateVerb is one of the verbs that have a node act.
type updateVerb struct {
	action           hullmark.UpdateAction
	use, short, long string
}

func (v updateVerb) command() *cobra.Command {
	var o operatorOptions
	var sources []string
	cmd := &cobra.Command{
		Use: v.use, Short: v.short, Example: v.example(), Args: cobra.NoArgs,
		Long: v.short + ".\n\n" + v.long + "\n\nExit codes: 0 done, 1 failed, 2 usage, 4 refused, or the node could not do it, 5 the node is not reached.",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := v.run(cmd, o, args, sources)
			if err != nil {
				return tell(fmt.Errorf("update %s: %w", v.action, err))
			}
			return writeUpdate(cmd.OutOrStdout(), v.action, s)
		},
	}
	o.addFlags(cmd, 0)
	if v.wantsDocument() {
		cmd.Args = exactArg("update "+string(v.action), "the release's measurement document")
	}
	if v.action == hullmark.UpdateStage {
		cmd.Flags().StringArrayVar(&sources, "from", nil, "`ADDRESS` where the release was published, as the node reaches it; may be given several times")
		require(cmd, "from")
	}
	return cmd
}

// run has the node act. args has the document of a verb that wants one.
func (v updateVerb) run(cmd *cobra.Command, o operatorOptions, args, sources []string) (s hullmark.UpdateStatus, err error) {
	if err := o.check(); err != nil {
		return s, err
	}
	var document *measurements.Document
	if len(args) > 0 {
		d, err := readDocument(args[0])
		if err != nil {
			return s, err
		}
		document = &d
	}
	if v.action == hullmark.UpdateStage {
		if err := hullmark.CheckSources(sources); err != nil {
			return s, withCode(exitUsage, fmt.Errorf("--from: %w", err))
		}
	}
	file, err := o.open(cmd.ErrOrStderr())
	if err != nil {
		return s, err
	}
	return o.at(cmd.ErrOrStderr()).Update(cmd.Context(), file.Cluster, v.action, document, sources)
}

// wantsDocument reports whether the verb is about a release that is not the one that runs.
func (v updateVerb) wantsDocument() bool { return strings.Contains(v.use, " ") }

func (v updateVerb) example() string {
	line := fmt.Sprintf("  hullmark update %s --cluster prod.cluster --node 192.0.2.7", v.action)
	switch v.action {
	case hullmark.UpdateStage:
		line += " next.json --from https://releases.example.com/hullmark"
	case hullmark.UpdateTry:
		line += " next.json"
	case hullmark.UpdateRollback:
		line += " before.json"
	}
	return line
}

// writeUpdate says how an action ended.
func writeUpdate(out io.Writer, action hullmark.UpdateAction, s hullmark.UpdateStatus) error {
	var text string
	switch action {
	case hullmark.UpdateStage:
		text = fmt.Sprintf("staged in the slot beside %s, which runs; next: hullmark update try", s.Running)
	case hullmark.UpdateCommit:
		text = fmt.Sprintf("slot %s starts by itself now", s.Default)
	default:
		text = "the node restarts; hullmark update status tells what became of it"
	}
	_, err := fmt.Fprintln(out, oneLine(text))
	return err
}

func newUpdateStatusCommand() *cobra.Command {
	var o operatorOptions
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print what a node's slots hold, and how far its update is",
		Long: `Print what a node's slots hold, which one runs and which one starts by itself, and how far its update is. The answer is not evidence: what a node has booted is
what it proves for its ticket (hullmark node list).`,
		Example: "  hullmark update status --cluster prod.cluster --node 192.0.2.7",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if err := checkOutput("update status", output); err != nil {
				return err
			}
			h, err := o.openFor("update status", hullmark.MayLook, cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("update status: %w", tell(err))
			}
			text, err := o.at(cmd.ErrOrStderr()).Status(cmd.Context(), h.bearer())
			if err != nil {
				return fmt.Errorf("update status: %w", err)
			}
			var document struct {
				Update *hullmark.UpdateStatus `json:"update"`
			}
			if err := json.Unmarshal(text, &document); err != nil || document.Update == nil {
				return errors.New("update status: the node says nothing of slots: its disk has none, or could not be read (hullmark node status)")
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), document.Update)
			}
			return writeSlots(cmd.OutOrStdout(), *document.Update)
		},
	}
	o.addFlags(cmd, 0)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// writeSlots prints a line for each slot, then the update.
func writeSlots(out io.Writer, s hullmark.UpdateStatus) error {
	for _, slot := range []struct {
		name string
		root hullmark.RootHash
	}{{"a", s.A}, {"b", s.B}} {
		var marks []string
		if s.Running == slot.name {
			marks = append(marks, "runs")
		}
		if s.Default == slot.name {
			marks = append(marks, "starts by itself")
		}
		root := "nothing that could start"
		if slot.root != (hullmark.RootHash{}) {
			root = slot.root.String()
		}
		fmt.Fprintln(out, strings.TrimSpace(fmt.Sprintf("slot %s  %s  %s", slot.name, root, strings.Join(marks, ", "))))
	}
	fmt.Fprintf(out, "update  %s", oneLine(string(s.Phase)))
	if s.Document != (hullmark.DocumentID{}) {
		fmt.Fprintf(out, " of document %s", s.Document)
	}
	if s.Failed != nil {
		fmt.Fprintf(out, "\n        %s", oneLine(s.Failed.Error()))
	}
	_, err := fmt.Fprintln(out)
	return err
}
