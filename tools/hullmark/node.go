package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

func newNodeCommand() *cobra.Command {
	return group("node", "List nodes, ask one what it does, and replace it; there is no shell on it",
		newNodeListCommand(),
		nodeCommand("status", "Print a node's status document", nodeStatus),
		nodeCommand("logs", "Print a node's journal of this boot", nodeLogs),
		newNodeRemoveCommand(), newNodeResetCommand(), newNodeRebindCommand(),
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

The node answers only an operator whose certificate the cluster's root key signed. The answer is not evidence: whoever has taken
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
	file, err := o.open(notes)
	if err != nil {
		return err
	}
	var reply *wire.StatusReply
	connection, err := o.reach(ctx, file.Cluster, channel.Errand{Verb: channel.VerbStatus}, notes, func(client wire.NodeClient) error {
		attempt, cancel := context.WithTimeout(ctx, firstWord)
		defer cancel()
		reply, err = client.Status(attempt, &wire.StatusRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("node status: %w", err)
	}
	defer connection.Close()
	var indented bytes.Buffer
	if err := json.Indent(&indented, reply.GetJson(), "", "  "); err != nil {
		return fmt.Errorf("node status: the node's answer is not JSON: %w", err)
	}
	fmt.Fprintln(out, printable(indented.String()))
	return nil
}

func nodeLogs(ctx context.Context, o operatorOptions, out, notes io.Writer) error {
	file, err := o.open(notes)
	if err != nil {
		return err
	}
	var chunk *wire.JournalChunk
	var receive func() (*wire.JournalChunk, error)
	connection, err := o.reach(ctx, file.Cluster, channel.Errand{Verb: channel.VerbLogs}, notes, func(client wire.NodeClient) error {
		stream, err := client.Journal(ctx, &wire.JournalRequest{})
		if err != nil {
			return err
		}
		receive = stream.Recv
		if chunk, err = receive(); errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("node logs: %w", err)
	}
	defer connection.Close()
	for chunk != nil {
		fmt.Fprint(out, printable(string(chunk.GetText())))
		if chunk, err = receive(); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("node logs: %w", err)
		}
	}
	return nil
}
