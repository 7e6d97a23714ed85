package main

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/measurements/publish"
	"github.com/hullmark/hullmark/measurements/tlog"
	"github.com/hullmark/hullmark/measurements/tlog/place"
)

// fetchLogOptions are what hullmark fetch knows of a log.
type fetchLogOptions struct {
	logOptions
	place, state, proof string
}

func (o *fetchLogOptions) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.place, "log", "", "take only what is in the transparency log at this `PLACE`, a folder, or an http or https address, and show what in it nobody announced")
	f.StringVar(&o.state, "log-state", "", "`FILE` that keeps what was seen of the log: it has to go on from there, and only what is new in it is looked at")
	f.StringVar(&o.proof, "log-proof", "", "also write the proof that the document is in a transparency log into `FILE`; without --log, the one that is published with it")
	o.addLog(cmd)
	o.addWitnesses(cmd)
}

// check tells whether the flags go together.
func (o *fetchLogOptions) check() error {
	alone := o.place == "" && (o.origin != "" || o.state != "" || len(o.witnesses) > 0 || o.threshold != 0)
	if alone || (o.place == "") != (o.key == "") {
		return withCode(exitUsage, errors.New("fetch: a log is read with --log and --log-key together"))
	}
	return nil
}

// foundInLog says where a fetched document is in the log.
type foundInLog struct {
	loggedIn
	proof tlog.Proof
	// unannounced is the error that the fetch ends with, if other releases are in there that are not announced.
	unannounced error
}

// findInLog finds a fetched document in the log, and shows what is new in there and not announced. Without --log there is nothing to find.
func (o *fetchOptions) findInLog(cmd *cobra.Command, source publish.Source, signed []byte, key crypto.PublicKey) (*foundInLog, error) {
	if o.log.place == "" {
		return nil, nil
	}
	e, err := tlog.EntryOf(signed, key)
	if err != nil {
		return nil, err
	}
	files, err := openLog(o.log.place)
	if err != nil {
		return nil, err
	}
	trust, err := o.log.trust()
	if err != nil {
		return nil, err
	}
	r, err := tlog.Read(cmd.Context(), files, trust)
	if err != nil {
		return nil, err
	}
	kept, err := place.OpenWatch(r, trust, o.log.state, e.Key)
	if err != nil {
		return nil, err
	}
	news, err := publish.Unannounced(cmd.Context(), source, r, kept.Done, key)
	if err != nil {
		return nil, err
	}
	// What was seen is kept, whatever it says of the document.
	if err := errors.Join(o.show(cmd.OutOrStdout(), news), kept.Keep(news.Done)); err != nil {
		return nil, err
	}
	found := &foundInLog{loggedIn: loggedAt(0, r.Checkpoint, trust)}
	if found.Index, err = r.Find(e); err != nil {
		return nil, err
	}
	if n := len(news.Unannounced); n > 0 {
		found.unannounced = withCode(exitMismatch, fmt.Errorf("fetch: %d releases by this key are in the log %s and not announced in %s", n, r.Origin, o.from))
	}
	found.proof, err = r.Prove(found.Index)
	return found, err
}

// show says what is new in a log.
func (o *fetchOptions) show(out io.Writer, news publish.News) error {
	for _, u := range news.Unannounced {
		if _, err := fmt.Fprintf(out, "log         entry %d is %s: image %s, release %s, security version %d, document %v, signed by the key %v\n",
			u.Index, u.Standing, oneLine(u.Image), oneLine(u.Release), u.SVN, u.Document, u.Key); err != nil {
			return err
		}
	}
	if len(news.Unannounced) == publish.MaxUnannounced {
		if _, err := fmt.Fprintln(out, "log         there may be more: hullmark log list shows all"); err != nil {
			return err
		}
	}
	if news.Others == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "log         %d new entries are by other keys: hullmark log list shows them\n", news.Others)
	return err
}

// writeProof writes the proof that a fetched document is in a log: of the log that it was found in, or the one beside the document.
func (o *fetchOptions) writeProof(ctx context.Context, found *foundInLog, source publish.Source, signed []byte, key crypto.PublicKey) error {
	if o.log.proof == "" {
		return nil
	}
	if found == nil {
		return fetchLogProof(ctx, source, signed, key, o.log.proof)
	}
	proof, err := found.proof.Encode()
	if err != nil {
		return err
	}
	if err := writeWhole(o.log.proof, proof, 0o644); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	return nil
}

// end says where the document is, and ends the fetch.
func (l *foundInLog) end(out io.Writer) error {
	if l == nil {
		return nil
	}
	if _, err := fmt.Fprintln(out, l.loggedIn); err != nil {
		return err
	}
	return l.unannounced
}
