package tlog

import (
	"crypto"
	"errors"
	"fmt"
	"strings"

	merkle "golang.org/x/mod/sumdb/tlog"

	"github.com/hullmark/hullmark"
)

// ProofSchema names the format of a Proof.
const ProofSchema = "hullmark.log-proof/v1"

// Proof shows offline that a release is in a log: it travels with the document. It holds what a C2SP tlog-proof does, as JSON.
type Proof struct {
	// Schema is ProofSchema.
	Schema string `json:"schema"`
	// Index is the entry's number, from zero.
	Index int64 `json:"index"`
	// Hashes lead from the entry's sibling up to the root (RFC 6962 §2.1.1), in base64.
	Hashes merkle.RecordProof `json:"hashes"`
	// Checkpoint is the signed checkpoint, with the cosignatures of witnesses.
	Checkpoint string `json:"checkpoint"`
}

// Encode returns the one form that ParseProof reads.
func (p Proof) Encode() ([]byte, error) { return hullmark.CanonicalJSON(p) }

// ParseProof strictly reads what Encode wrote, of at most MaxProof bytes. Nothing is verified by that.
func ParseProof(encoded []byte) (Proof, error) {
	var p Proof
	err := strict(encoded, MaxProof, &p)
	switch {
	case err != nil:
	case p.Schema != ProofSchema:
		err = fmt.Errorf("schema %.80q, want %q", p.Schema, ProofSchema)
	case p.Hashes == nil:
		err = errors.New("it has no list of hashes")
	case len(p.Checkpoint) > MaxCheckpoint:
		err = fmt.Errorf("a checkpoint of %d bytes, want at most %d", len(p.Checkpoint), MaxCheckpoint)
	}
	if err != nil {
		return Proof{}, fmt.Errorf("log proof: %w", err)
	}
	return p, nil
}

// Verify checks that an entry is in the log, and returns the checkpoint that it was proven by. An entry that the proof is not about
// is ErrNotInLog.
func (p Proof) Verify(e Entry, t Trust) (Checkpoint, error) {
	c, err := t.Open([]byte(p.Checkpoint))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("log proof: %w", err)
	}
	if err := p.leadsTo(c, e); err != nil {
		return Checkpoint{}, fmt.Errorf("log proof: %w", err)
	}
	return c, nil
}

// LeadsFrom checks that the proof leads from an entry to its checkpoint, whoever signed that: it is for those who hand proofs on.
func (p Proof) LeadsFrom(e Entry) error {
	text, _, _ := strings.Cut(p.Checkpoint, "\n\n")
	c, err := parseCheckpoint(text + "\n")
	if err != nil {
		return fmt.Errorf("log proof: checkpoint: %w", err)
	}
	if err := p.leadsTo(c, e); err != nil {
		return fmt.Errorf("log proof: %w", err)
	}
	return nil
}

func (p Proof) leadsTo(c Checkpoint, e Entry) error {
	encoded, err := e.Encode()
	if err != nil {
		return err
	}
	if merkle.CheckRecord(p.Hashes, c.Size, c.Root, p.Index, merkle.RecordHash(encoded)) != nil {
		return fmt.Errorf("%w: the proof is of another document, of another key's, or was changed", ErrNotInLog)
	}
	return nil
}

// Verify checks offline that a document that key signed is in the log: its proof leads to a checkpoint that the log and enough
// witnesses signed.
func Verify(p Proof, signed []byte, key crypto.PublicKey, t Trust) (Checkpoint, error) {
	e, err := EntryOf(signed, key)
	if err != nil {
		return Checkpoint{}, err
	}
	return p.Verify(e, t)
}
