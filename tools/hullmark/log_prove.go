package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements/tlog"
)

func newLogProveCommand() *cobra.Command {
	var o logOptions
	var key, log, out string
	var checkpoints []string
	cmd := &cobra.Command{
		Use:   "prove FILE",
		Short: "Make the proof that a signed measurement document is in a log",
		Long: `Make the proof that a signed measurement document is in a log, for hullmark verify --log-proof.

The proof is of the log's checkpoint, with the cosignatures that it has. With --checkpoint it is of that one, which witnesses cosigned: what
hullmark log witness left in --state. Of several, which have to be of one log, it is of the largest that enough of the named witnesses cosigned.`,
		Example: "  hullmark log prove node.dsse --key release.pub --log https://releases.example/log --log-key log.pub --checkpoint log.checkpoint",
		Args:    exactArg("log prove", "the signed document"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				out = strings.TrimSuffix(args[0], ".dsse") + proofEnding
			}
			if err := notOver(out, append([]string{args[0], key, o.key}, checkpoints...)...); err != nil {
				return fmt.Errorf("log prove: %w", err)
			}
			public, err := readPublicKey(key)
			if err != nil {
				return err
			}
			e, err := entryOf(args[0], public)
			if err != nil {
				return err
			}
			proof, err := o.prove(cmd.Context(), log, checkpoints, e)
			if err != nil {
				return logFailure(err)
			}
			encoded, err := proof.Encode()
			if err != nil {
				return err
			}
			if err := writeWhole(out, encoded, 0o644); err != nil {
				return fmt.Errorf("log prove: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: entry %d\n", out, proof.Index)
			return err
		},
	}
	o.addLog(cmd)
	o.addWitnesses(cmd)
	f := cmd.Flags()
	f.StringVar(&key, "key", "", "public key `FILE` of who signed the document (PEM)")
	f.StringVar(&log, "log", "", "`PLACE` of the log: a folder, or an http or https address")
	f.StringArrayVar(&checkpoints, "checkpoint", nil, "`FILE` with a cosigned checkpoint of the log; repeat it for several")
	f.StringVar(&out, "out", "", "`FILE` to write (default: the document's name with the ending "+proofEnding+")")
	require(cmd, "key", "log", "log-key")
	return cmd
}

// prove makes a proof of an entry at the log's checkpoint, or at those that are named.
func (o *logOptions) prove(ctx context.Context, log string, checkpoints []string, e tlog.Entry) (tlog.Proof, error) {
	files, err := openLog(log)
	if err != nil {
		return tlog.Proof{}, err
	}
	trust, err := o.trust()
	if err != nil {
		return tlog.Proof{}, err
	}
	var seen [][]byte
	for _, file := range checkpoints {
		signed, err := readBounded(file, tlog.MaxCheckpoint)
		if err != nil {
			return tlog.Proof{}, err
		}
		seen = append(seen, signed)
	}
	signed, err := checkpoint(ctx, files, trust, seen)
	if err != nil {
		return tlog.Proof{}, err
	}
	r, err := tlog.ReadAt(ctx, files, trust, signed)
	if err != nil {
		return tlog.Proof{}, err
	}
	for i, signed := range seen {
		if err := agree(ctx, files, trust, r, signed); err != nil {
			return tlog.Proof{}, fmt.Errorf("%s: %w", checkpoints[i], err)
		}
	}
	index, err := r.Find(e)
	if err != nil {
		return tlog.Proof{}, err
	}
	return r.Prove(index)
}

// checkpoint returns the signed checkpoint to prove by: the largest that enough cosigned of those that were named, or the one that the log
// shows.
func checkpoint(ctx context.Context, files tlog.Files, t tlog.Trust, seen [][]byte) ([]byte, error) {
	if len(seen) == 0 {
		return files.ReadFile(ctx, tlog.CheckpointName, tlog.MaxCheckpoint)
	}
	return t.MergeLargest(seen...)
}

// agree checks that another checkpoint, of whatever size, is of the log that is read.
func agree(ctx context.Context, files tlog.Files, t tlog.Trust, r *tlog.Reader, signed []byte) error {
	t.Threshold = 0
	other, err := tlog.ReadAt(ctx, files, t, signed)
	if err != nil {
		return err
	}
	if other.Size > r.Size {
		return other.GoesOnFrom(r.Checkpoint)
	}
	return r.GoesOnFrom(other.Checkpoint)
}
