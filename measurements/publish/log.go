package publish

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/hullmark/hullmark/measurements/tlog"
)

// proofEnding ends the name of a proof that a document is in a transparency log, beside the document.
const proofEnding = ".proof.json"

// proofs is a place that has proofs beside documents: a folder, or a tree on the web.
type proofs interface {
	// proof returns what there is for a document, by its digest; it may be anything.
	proof(ctx context.Context, digest string) ([]byte, error)
}

// ErrNoProofs is a registry, which holds no proofs.
var ErrNoProofs = errors.New("a registry holds no proofs of a log: hand the file on, or make one with hullmark log prove")

// PutLogProof puts a proof beside a signed document, which is published then or before. It has to be of that document.
func PutLogProof(to Store, signed []byte, key crypto.PublicKey, proof []byte) error {
	dir, ok := to.(folder)
	if !ok {
		return fmt.Errorf("publish log proof: %w", ErrNoProofs)
	}
	e, err := checkProof(signed, key, proof)
	if err != nil {
		return fmt.Errorf("publish log proof: %w", err)
	}
	if err := makeFolder(filepath.Join(dir.dir, "sha256")); err != nil {
		return fmt.Errorf("publish log proof: %w", err)
	}
	return dir.putEnvelope(digestPath(e.Document.String(), proofEnding), proof)
}

// FetchLogProof returns the proof beside a signed document. It is of that document; whether the log is one to go by, and who cosigned,
// tlog.Verify says.
func FetchLogProof(ctx context.Context, from Source, signed []byte, key crypto.PublicKey) ([]byte, error) {
	place, ok := from.(proofs)
	if !ok {
		return nil, fmt.Errorf("fetch log proof: %w", ErrNoProofs)
	}
	e, err := tlog.EntryOf(signed, key)
	if err != nil {
		return nil, fmt.Errorf("fetch log proof: %w", err)
	}
	proof, err := place.proof(ctx, e.Document.String())
	if err != nil {
		return nil, fmt.Errorf("fetch log proof: %w", err)
	}
	if _, err := checkProof(signed, key, proof); err != nil {
		return nil, fmt.Errorf("fetch log proof: %w", err)
	}
	return proof, nil
}

// checkProof makes sure that a proof leads from a document to the root that it names.
func checkProof(signed []byte, key crypto.PublicKey, proof []byte) (tlog.Entry, error) {
	e, err := tlog.EntryOf(signed, key)
	if err != nil {
		return e, err
	}
	p, err := tlog.ParseProof(proof)
	if err != nil {
		return e, err
	}
	return e, p.LeadsFrom(e)
}

func (t tree) proof(ctx context.Context, digest string) ([]byte, error) {
	in, err := t.open(ctx, digestPath(digest, proofEnding), 0, -1)
	if err != nil {
		return nil, err
	}
	proof, err := io.ReadAll(io.LimitReader(in, tlog.MaxProof+1))
	return proof, errors.Join(err, in.Close())
}

// Standing says what a place knows of a release in a log.
type Standing string

// What can be said of an entry. All but Announced is for somebody to look into.
const (
	// Announced is a release that is published, as the entry says it.
	Announced Standing = "announced"
	// NotAnnounced is one that the place does not have: somebody may have been given it, and others not.
	NotAnnounced Standing = "not announced"
	// ByAnotherKey is a release that none of the keys signed that one knows.
	ByAnotherKey Standing = "by another key"
	// AnotherStatement is an entry that has the digest of a published document and is not of it: whoever writes the log hides something.
	AnotherStatement Standing = "not the statement that is announced"
)

// StandingOf looks for an entry's release at a place, and holds it to what is published there. It is an error if that cannot be read, or
// is not what the key signed.
func StandingOf(ctx context.Context, from Source, e tlog.Entry, keys []crypto.PublicKey) (Standing, error) {
	key, err := keyOf(e, keys)
	if key == nil {
		return ByAnotherKey, err
	}
	signed, _, err := Fetch(ctx, from, e.Document.String(), key, 0)
	if isAbsent(err) {
		return NotAnnounced, nil
	}
	if err != nil {
		return "", err
	}
	published, err := tlog.EntryOf(signed, key)
	if err != nil {
		return "", err
	}
	want, err := published.Encode()
	if err != nil {
		return "", err
	}
	got, err := e.Encode()
	if err != nil || !bytes.Equal(got, want) {
		return AnotherStatement, err
	}
	return Announced, nil
}

// keyOf returns the key that an entry names, or nil.
func keyOf(e tlog.Entry, keys []crypto.PublicKey) (crypto.PublicKey, error) {
	for _, key := range keys {
		digest, err := tlog.KeyDigest(key)
		if err != nil {
			return nil, err
		}
		if digest.Equal(e.Key) {
			return key, nil
		}
	}
	return nil, nil
}
