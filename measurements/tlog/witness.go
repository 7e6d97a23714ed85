package tlog

import (
	"crypto"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// Cosign returns the checkpoint that the log is read at, with a cosignature by a witness's Ed25519 key (C2SP tlog-cosignature). It
// refuses a log that does not go on from last, the checkpoint that the witness cosigned last; nil is a log that it never saw. The
// witness has to have stored the result, in the place of last, before anybody gets it (C2SP tlog-witness, "add-checkpoint").
func (r *Reader) Cosign(last *Checkpoint, key crypto.Signer, now time.Time) ([]byte, error) {
	if last != nil {
		if err := r.GoesOnFrom(*last); err != nil {
			return nil, fmt.Errorf("nothing was cosigned: %w", err)
		}
	}
	signer, err := newSigner(r.Origin, cosignature, key)
	if err != nil {
		return nil, fmt.Errorf("cosign: %w", err)
	}
	if signer.public.Equal(r.trust.Key) {
		return nil, fmt.Errorf("cosign: the key is the log's own: a log is no witness of itself")
	}
	signer.name, signer.at = witnessName(r.Origin, signer.public), now.Unix()
	_, n, err := r.trust.open(r.Note)
	if err != nil {
		return nil, err
	}
	cosigned, err := note.Sign(n, signer)
	if err == nil && len(cosigned) > MaxCheckpoint {
		err = fmt.Errorf("%d bytes with one more cosignature, want at most %d", len(cosigned), MaxCheckpoint)
	}
	if err != nil {
		return nil, fmt.Errorf("cosign: %w", err)
	}
	return cosigned, nil
}
