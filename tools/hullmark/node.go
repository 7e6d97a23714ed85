package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
)

func newNodeCommand() *cobra.Command {
	return group("node", "List nodes, ask one what it does, and replace it; there is no shell on it",
		newNodeListCommand(),
		nodeCommand("status", "Print a node's status document", nodeStatus),
		nodeCommand("logs", "Print a node's journal of this boot", nodeLogs),
		newNodeEKCommand(), newNodeRemoveCommand(), newNodeResetCommand(), newNodeRebindCommand(),
	)
}

// nodeCommand makes a verb that asks one node one thing. What comes back is the
// word of whoever answers at that address: only init and recover verify a node.
func nodeCommand(verb, short string, ask func(context.Context, operatorOptions, io.Writer, io.Writer) error) *cobra.Command {
	var o operatorOptions
	cmd := &cobra.Command{
		Use:   verb,
		Short: short,
		Long: short + `.

The node answers only whoever holds the cluster file, or an operator whom the policy lets look. The answer is not evidence: whoever has taken
over the address can give it too.`,
		Example: fmt.Sprintf("  hullmark node %s --cluster prod.cluster --node 192.0.2.7", verb),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return ask(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd, 30*time.Second)
	return cmd
}

func nodeStatus(ctx context.Context, o operatorOptions, out, notes io.Writer) error {
	h, err := o.openFor("node status", hullmark.MayLook, notes)
	if err != nil {
		return fmt.Errorf("node status: %w", tell(err))
	}
	status, err := o.at(notes).Status(ctx, h.bearer())
	if err != nil {
		return fmt.Errorf("node status: %w", err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, status, "", "  "); err != nil {
		return fmt.Errorf("node status: the node's answer is not JSON: %w", err)
	}
	fmt.Fprintln(out, printable(indented.String()))
	return nil
}

func nodeLogs(ctx context.Context, o operatorOptions, out, notes io.Writer) error {
	h, err := o.openFor("node logs", hullmark.MayLook, notes)
	if err != nil {
		return fmt.Errorf("node logs: %w", tell(err))
	}
	if err := o.at(notes).Journal(ctx, h.bearer(), safe{out}); err != nil {
		return fmt.Errorf("node logs: %w", err)
	}
	return nil
}
