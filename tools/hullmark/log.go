package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/measurements/tlog/place"
)

func newLogCommand() *cobra.Command {
	return group("log", "Keep releases in a transparency log, and look at one",
		newLogCreateCommand(), newLogListCommand(), newLogProveCommand(), newLogWitnessCommand())
}

// logOptions are the flags by which a verb goes by a log.
type logOptions struct {
	key, origin string
	witnesses   []string
	threshold   int
}

// addLog adds the flags that name a log.
func (o *logOptions) addLog(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.key, "log-key", "", "public key `FILE` of the log (PEM, Ed25519)")
	f.StringVar(&o.origin, "log-origin", "", "`NAME` that the log has to have (default: the one that its key signed)")
}

// addWitnesses adds the flags that demand cosignatures.
func (o *logOptions) addWitnesses(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.witnesses, "witness", nil, "public key `FILE` of a witness (PEM, Ed25519); repeat it for several")
	f.IntVar(&o.threshold, "witness-threshold", 0, "how `MANY` of them have to have cosigned, more than half (default: all)")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if o.threshold > 0 && tlog.Suffice(o.threshold, len(o.witnesses)) == 0 {
			lines(cmd.ErrOrStderr())(fmt.Sprintf("warning: --witness-threshold %d of %d witnesses: two logs that contradict each other can have that many each, and no witness lies; demand more than half",
				o.threshold, len(o.witnesses)))
		}
	}
}

// trust reads the keys.
func (o *logOptions) trust() (tlog.Trust, error) {
	t := tlog.Trust{Origin: o.origin, Threshold: o.threshold}
	if t.Threshold == 0 {
		t.Threshold = len(o.witnesses)
	}
	if t.Threshold < 0 || t.Threshold > len(o.witnesses) {
		return t, withCode(exitUsage, fmt.Errorf("--witness-threshold %d: %d witnesses are named", o.threshold, len(o.witnesses)))
	}
	var err error
	if t.Key, err = readLogKey(o.key); err != nil {
		return t, err
	}
	for _, file := range o.witnesses {
		w, err := readLogKey(file)
		if err != nil {
			return t, err
		}
		t.Witnesses = append(t.Witnesses, w)
	}
	return t, nil
}

// readLogKey reads the public key of a log or of a witness.
func readLogKey(file string) (ed25519.PublicKey, error) {
	key, err := readPublicKey(file)
	if err != nil {
		return nil, err
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%s: the key is %s, want Ed25519", file, measurements.KeyKind(key))
	}
	return public, nil
}

// openLog opens a log in a folder or on the web.
func openLog(name string) (tlog.Files, error) {
	if !strings.Contains(name, "://") {
		return place.Folder(name), nil
	}
	files, err := place.Web(name)
	if err != nil {
		return nil, withCode(exitUsage, err)
	}
	return files, nil
}

// logFailure gives an error of a log the code that scripts go by.
func logFailure(err error) error {
	var unreachable *net.OpError
	switch {
	case errors.Is(err, tlog.ErrContradiction), errors.Is(err, tlog.ErrNotInLog):
		return withCode(exitMismatch, err)
	case errors.As(err, &unreachable):
		return withCode(exitUnreachable, err)
	}
	return err
}

func newLogCreateCommand() *cobra.Command {
	var origin, key, passphraseFile string
	cmd := &cobra.Command{
		Use:   "create FOLDER",
		Short: "Make a log without entries",
		Long: `Make a log without entries, in a folder that any web server can show.

Its files are C2SP tlog-tiles. hullmark publish --log appends releases. The key is an Ed25519 key of its own, for this log alone, in a PKCS #8 file.`,
		Example: "  hullmark log create /srv/log --origin releases.example/node --log-key log.key",
		Args:    exactArg("log create", "the log's folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			signer, err := readPrivateKey(key, passphraseFile, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := place.Create(args[0], origin, signer); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: the log %s, without entries\n", args[0], origin)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&origin, "origin", "", "`NAME` of the log, for ever: HOST/PATH, where it will be shown")
	f.StringVar(&key, "log-key", "", "private key `FILE` of the log (PEM, PKCS #8, Ed25519)")
	f.StringVar(&passphraseFile, "passphrase-file", "", "`FILE` whose first line is the key's passphrase (default: ask, if the key is encrypted)")
	require(cmd, "origin", "log-key")
	return cmd
}

func newLogWitnessCommand() *cobra.Command {
	var o logOptions
	var w place.Witness
	var key, passphraseFile string
	cmd := &cobra.Command{
		Use:   "witness PLACE",
		Short: "Cosign a log's checkpoint, if the log only grew since the last one",
		Long: `Cosign a log's checkpoint, if the log only grew since the last one that was cosigned.

The last one is kept in --state. A log that forgot entries, changed them, or is another one is not cosigned. --state holds the cosigned checkpoint,
for hullmark log prove; a log in a folder gets the cosignature into its own, too. The first time --first begins: a witness that lost its state
must not begin anew, for it would cosign anything.

Exit codes: 0 it is cosigned, 3 the log contradicts what was seen of it, 5 it is not reached, 1 anything else is wrong, 2 usage.`,
		Example: "  hullmark log witness https://releases.example/log --log-key log.pub --witness-key witness.key --state log.checkpoint --first",
		Args:    exactArg("log witness", "the log's folder or address"),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := openLog(args[0])
			if err != nil {
				return err
			}
			trust, err := o.trust()
			if err != nil {
				return err
			}
			if err := notOver(w.State, o.key, key, passphraseFile); err != nil {
				return err
			}
			if w.Key, err = readPrivateKey(key, passphraseFile, cmd.ErrOrStderr()); err != nil {
				return err
			}
			cosigned, err := w.Cosign(cmd.Context(), files, trust, time.Now())
			if err != nil {
				return logFailure(err)
			}
			c, err := trust.Open(cosigned)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: cosigned %d entries of the log %s\n", w.State, c.Size, c.Origin)
			return err
		},
	}
	o.addLog(cmd)
	f := cmd.Flags()
	f.StringVar(&key, "witness-key", "", "private key `FILE` of the witness (PEM, PKCS #8, Ed25519)")
	f.StringVar(&passphraseFile, "passphrase-file", "", "`FILE` whose first line is the key's passphrase (default: ask, if the key is encrypted)")
	f.StringVar(&w.State, "state", "", "`FILE` with the checkpoint that was cosigned last")
	f.BoolVar(&w.First, "first", false, "begin with this log: there must be no --state yet")
	require(cmd, "log-key", "witness-key", "state")
	return cmd
}
