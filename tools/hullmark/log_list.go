package main

import (
	"crypto"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements/publish"
	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/measurements/tlog/place"
)

// logListOptions are the flags of `hullmark log list`.
type logListOptions struct {
	logOptions
	from, state, output string
	keys, seen          []string
}

// loggedReleases are what hullmark log list says, as JSON or as text.
type loggedReleases struct {
	Origin string `json:"origin"`
	Size   int64  `json:"size"`
	Root   string `json:"root"`
	// Cosigned is how many of the named witnesses cosigned, and CosignedAt when the last one did.
	Cosigned   int             `json:"cosigned"`
	CosignedAt time.Time       `json:"cosignedAt,omitzero"`
	Entries    []loggedRelease `json:"entries"`
}

type loggedRelease struct {
	Index int64 `json:"index"`
	tlog.Entry
	// Standing is empty if nothing was asked about it.
	Standing publish.Standing `json:"standing,omitempty"`
}

func newLogListCommand() *cobra.Command {
	var o logListOptions
	cmd := &cobra.Command{
		Use:   "list PLACE",
		Short: "List all releases in a log, and those that nobody announced",
		Long: `List all releases in a log, each proven to be in the tree that its checkpoint names, whoever serves it.

With --from and --key each is looked for where releases are published; those that are not there, or that another key signed, are for somebody to look
into. With --state the log has to go on from what was seen the last time, which is kept in that file; with --seen from checkpoints that others saw, so
that people learn whether they are shown the same log.

Exit codes: 0 all is right, 3 the log contradicts what was seen of it, or a release is not announced, 5 it is not reached, 1 anything else is wrong, 2 usage.`,
		Example: "  hullmark log list https://releases.example/log --log-key log.pub --state log.checkpoint --from https://releases.example --key release.pub",
		Args:    exactArg("log list", "the log's folder or address"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return logFailure(o.run(cmd, args[0]))
		},
	}
	o.addLog(cmd)
	o.addWitnesses(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "`PLACE` where releases are announced: a folder, an http or https address, or oci://HOST/NAME:TAG")
	f.StringArrayVar(&o.keys, "key", nil, "public key `FILE` of who releases (PEM); repeat it for several")
	f.StringVar(&o.state, "state", "", "`FILE` that keeps the checkpoint that was seen last")
	f.StringArrayVar(&o.seen, "seen", nil, "`FILE` with a checkpoint that somebody else saw; repeat it for several")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	require(cmd, "log-key")
	return cmd
}

func (o *logListOptions) run(cmd *cobra.Command, from string) error {
	if err := checkOutput("log list", o.output); err != nil {
		return err
	}
	if (o.from == "") != (len(o.keys) == 0) {
		return withCode(exitUsage, errors.New("log list: --from and --key go together: what is announced is what the key signed"))
	}
	files, err := openLog(from)
	if err != nil {
		return err
	}
	trust, err := o.trust()
	if err != nil {
		return err
	}
	r, err := tlog.Read(cmd.Context(), files, trust)
	if err != nil {
		return err
	}
	standing, err := o.standing(cmd)
	if err != nil {
		return err
	}
	listed := loggedReleases{
		Origin: r.Origin, Size: r.Size, Root: r.Root.String(), Cosigned: len(r.Cosignatures), CosignedAt: r.CosignedAt(), Entries: []loggedRelease{},
	}
	suspect := 0
	if err := r.Each(func(index int64, e tlog.Entry) error {
		s, err := standing(e)
		if err != nil {
			return err
		}
		if s != "" && s != publish.Announced {
			suspect++
		}
		listed.Entries = append(listed.Entries, loggedRelease{index, e, s})
		return nil
	}); err != nil {
		return err
	}
	if err := o.compare(r, trust); err != nil {
		return err
	}
	if err := o.write(cmd.OutOrStdout(), listed, len(trust.Witnesses)); err != nil {
		return err
	}
	if suspect > 0 {
		return withCode(exitMismatch, fmt.Errorf("log list: %d of %d releases are not announced in %s", suspect, r.Size, o.from))
	}
	return nil
}

// standing returns what asks where releases are announced.
func (o *logListOptions) standing(cmd *cobra.Command) (func(tlog.Entry) (publish.Standing, error), error) {
	if o.from == "" {
		return func(tlog.Entry) (publish.Standing, error) { return "", nil }, nil
	}
	source, err := openSource(o.from)
	if err != nil {
		return nil, err
	}
	var keys []crypto.PublicKey
	for _, file := range o.keys {
		key, err := readPublicKey(file)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return func(e tlog.Entry) (publish.Standing, error) {
		return publish.StandingOf(cmd.Context(), source, e, keys)
	}, nil
}

// compare holds the log to what others saw, and to what was seen before.
func (o *logListOptions) compare(r *tlog.Reader, t tlog.Trust) error {
	t.Threshold = 0 // Others saw it before witnesses did, perhaps.
	for _, file := range o.seen {
		signed, err := readBounded(file, tlog.MaxCheckpoint)
		if err != nil {
			return err
		}
		c, err := t.Open(signed)
		if err == nil {
			err = r.GoesOnFrom(c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if o.state == "" {
		return nil
	}
	if err := notOver(o.state, append(append([]string{o.key}, o.keys...), o.witnesses...)...); err != nil {
		return err
	}
	_, err := place.Follow(r, t, o.state)
	return err
}

func (o *logListOptions) write(out io.Writer, l loggedReleases, witnesses int) error {
	if o.output == "json" {
		return writeJSON(out, l)
	}
	fmt.Fprintf(out, "log %s: %d entries, root %s, %s\n", l.Origin, l.Size, l.Root, cosigned(l.Cosigned, witnesses, l.CosignedAt))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "entry\timage\trelease\tsvn\tdocument\tkey\t\n")
	for _, e := range l.Entries {
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%v\t%.12v…\t%s\n", e.Index, oneLine(e.Image), oneLine(e.Release), e.SVN, e.Document, e.Key.String(), e.Standing)
	}
	return t.Flush()
}
