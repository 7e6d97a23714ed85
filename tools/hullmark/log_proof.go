package main

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/measurements/publish"
	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/measurements/tlog/place"
)

// proofEnding ends the name of a proof beside the document NAME.dsse.
const proofEnding = ".proof.json"

// proofOptions are what hullmark verify goes by when a release has to be in a log.
type proofOptions struct {
	logOptions
	proof string
}

func (o *proofOptions) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.proof, "log-proof", "", "also check this proof `FILE` that the document is in a transparency log")
	o.addLog(cmd)
	o.addWitnesses(cmd)
}

// loggedIn says in which log a document is.
type loggedIn struct {
	Origin string `json:"origin"`
	// Index is the entry's number, and Size how many entries the log had by then.
	Index int64 `json:"index"`
	Size  int64 `json:"size"`
	// Cosigned is how many of the named witnesses cosigned, Witnesses how many are named, and CosignedAt when the last one did.
	Cosigned   int       `json:"cosigned"`
	Witnesses  int       `json:"witnesses"`
	CosignedAt time.Time `json:"cosignedAt,omitzero"`
}

func loggedAt(index int64, c tlog.Checkpoint, t tlog.Trust) loggedIn {
	return loggedIn{c.Origin, index, c.Size, len(c.Cosignatures), len(t.Witnesses), c.CosignedAt()}
}

func (l loggedIn) String() string {
	return fmt.Sprintf("log         entry %d of %d in %s, %s", l.Index, l.Size, l.Origin, cosigned(l.Cosigned, l.Witnesses, l.CosignedAt))
}

// cosigned says how many witnesses cosigned, and when the last one did, so that people see a log that stands still.
func cosigned(by, of int, last time.Time) string {
	text := fmt.Sprintf("cosigned by %d of %d witnesses", by, of)
	if !last.IsZero() {
		text += ", last at " + last.Format(time.RFC3339)
	}
	return text
}

// check verifies the named proof, if there is one, for the document that one of the keys signed in that file.
func (o *proofOptions) check(file string, keys []crypto.PublicKey, document measurements.Document) (logged *loggedIn, err error) {
	for _, key := range keys {
		checked, failed := o.checkBy(file, key, document)
		if failed == nil {
			return checked, nil
		}
		err = cmp.Or(err, failed)
	}
	return nil, err
}

// checkBy verifies it for what one key signed.
func (o *proofOptions) checkBy(file string, key crypto.PublicKey, document measurements.Document) (*loggedIn, error) {
	if (o.proof == "") != (o.key == "") || o.proof == "" && (o.origin != "" || len(o.witnesses) > 0 || o.threshold != 0) {
		return nil, withCode(exitUsage, errors.New("verify: a log is checked with --log-proof and --log-key together"))
	}
	if o.proof == "" {
		return nil, nil
	}
	trust, err := o.trust()
	if err != nil {
		return nil, err
	}
	e, err := entryOf(file, key)
	if err != nil {
		return nil, err
	}
	if id, err := document.Digest(); err != nil || e.Document != id {
		return nil, errors.Join(fmt.Errorf("%s: it was changed while it was read", file), err)
	}
	proof, err := readProof(o.proof)
	if err != nil {
		return nil, err
	}
	c, err := proof.Verify(e, trust)
	if err != nil {
		return nil, logFailure(fmt.Errorf("%s: %w", o.proof, err))
	}
	logged := loggedAt(proof.Index, c, trust)
	return &logged, nil
}

// entryOf returns the entry of a signed document.
func entryOf(file string, key crypto.PublicKey) (tlog.Entry, error) {
	signed, err := readBounded(file, measurements.MaxEnvelope)
	if err != nil {
		return tlog.Entry{}, err
	}
	e, err := tlog.EntryOf(signed, key)
	if err != nil {
		return e, fmt.Errorf("%s: %w", file, err)
	}
	return e, nil
}

func readProof(file string) (tlog.Proof, error) {
	text, err := readBounded(file, tlog.MaxProof)
	if err != nil {
		return tlog.Proof{}, err
	}
	p, err := tlog.ParseProof(text)
	if err != nil {
		return p, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// appendOptions are what hullmark publish knows of a log.
type appendOptions struct{ folder, key, passphraseFile, proof string }

func (o *appendOptions) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.folder, "log", "", "append the document to the transparency log in this `FOLDER`")
	f.StringVar(&o.key, "log-key", "", "private key `FILE` of the log (PEM, PKCS #8, Ed25519)")
	f.StringVar(&o.passphraseFile, "log-passphrase-file", "", "`FILE` whose first line is that key's passphrase (default: ask, if the key is encrypted)")
	f.StringVar(&o.proof, "log-proof", "",
		"`FILE` for the proof that it is in the log (default: the document's name with the ending "+proofEnding+"); without --log, a proof to publish with it")
}

// check tells whether the flags go together.
func (o *appendOptions) check() error {
	if (o.folder == "") != (o.key == "") {
		return withCode(exitUsage, errors.New("publish: a log is written with --log and --log-key together"))
	}
	return nil
}

// run puts a document into the log before it is published, so that nothing is announced that is not in there, and its proof beside it.
func (o *appendOptions) run(cmd *cobra.Command, file string, signed []byte, key crypto.PublicKey, to publish.Store) error {
	if o.folder == "" && o.proof == "" {
		return nil
	}
	if o.folder == "" {
		proof, err := readBounded(o.proof, tlog.MaxProof)
		if err != nil {
			return err
		}
		return logFailure(publish.PutLogProof(to, signed, key, proof))
	}
	if o.proof == "" {
		o.proof = strings.TrimSuffix(file, ".dsse") + proofEnding
	}
	if err := notOver(o.proof, file, o.key, o.passphraseFile); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	proof, err := o.append(cmd, signed, key)
	if err != nil {
		return err
	}
	if err := writeWhole(o.proof, proof, 0o644); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if err := publish.PutLogProof(to, signed, key, proof); err != nil && !errors.Is(err, publish.ErrNoProofs) {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: the proof that it is in the log in %s\n", o.proof, o.folder)
	return err
}

func (o *appendOptions) append(cmd *cobra.Command, signed []byte, key crypto.PublicKey) ([]byte, error) {
	e, err := tlog.EntryOf(signed, key)
	if err != nil {
		return nil, err
	}
	signer, err := readPrivateKey(o.key, o.passphraseFile, cmd.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	proof, err := place.Append(cmd.Context(), o.folder, signer, e)
	if err != nil {
		return nil, err
	}
	return proof.Encode()
}

// fetchLogProof fetches the proof beside a signed document into a file.
func fetchLogProof(ctx context.Context, from publish.Source, signed []byte, key crypto.PublicKey, to string) error {
	proof, err := publish.FetchLogProof(ctx, from, signed, key)
	if err != nil {
		return err
	}
	if err := writeWhole(to, proof, 0o644); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	return nil
}
