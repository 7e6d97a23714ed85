package tlog

import (
	"crypto"
	"crypto/sha256"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// EntrySchema names the format of an Entry.
const EntrySchema = "hullmark.log-entry/v1"

// Entry is one leaf of the log: that a key signed a statement about a release. It holds no signature, so that the same statement,
// signed once more by the same key, is the same entry.
type Entry struct {
	// Schema is EntrySchema.
	Schema string `json:"schema"`
	// Statement is the SHA-256 of what was signed, the payload of the envelope.
	Statement pcrs.Digest `json:"statement"`
	// Key is the KeyDigest of who signed it.
	Key pcrs.Digest `json:"key"`
	// Document is the digest that names the document in the statement; Image, Release and SVN are what it says of itself. They follow
	// from the statement, and tell a reader of the log what there is to look for.
	Document measurements.DocumentID `json:"document"`
	Image    string                  `json:"image"`
	Release  string                  `json:"release"`
	SVN      uint32                  `json:"svn"`
}

// EntryOf returns the entry of a signed document. It fails as measurements.Open does if the key did not sign it.
func EntryOf(signed []byte, key crypto.PublicKey) (Entry, error) {
	document, err := measurements.Open(signed, key)
	if err != nil {
		return Entry{}, err
	}
	payload, err := measurements.Payload(signed, key)
	if err != nil {
		return Entry{}, err
	}
	id, err := document.Digest()
	if err != nil {
		return Entry{}, err
	}
	signer, err := KeyDigest(key)
	if err != nil {
		return Entry{}, err
	}
	statement := sha256.Sum256(payload)
	return Entry{
		Schema: EntrySchema, Statement: statement[:], Key: signer,
		Document: id, Image: document.Image.ID, Release: document.Name, SVN: document.SVN,
	}, nil
}

// Encode returns the bytes that are the leaf, the one form that ParseEntry reads.
func (e Entry) Encode() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, fmt.Errorf("log entry: %w", err)
	}
	encoded, err := hullmark.CanonicalJSON(e)
	if err == nil && len(encoded) > MaxEntry {
		err = fmt.Errorf("%d bytes, want at most %d", len(encoded), MaxEntry)
	}
	if err != nil {
		return nil, fmt.Errorf("log entry: %w", err)
	}
	return encoded, nil
}

// ParseEntry strictly reads what Encode wrote, of at most MaxEntry bytes.
func ParseEntry(encoded []byte) (Entry, error) {
	var e Entry
	if err := strict(encoded, MaxEntry, &e); err != nil {
		return Entry{}, fmt.Errorf("log entry: %w", err)
	}
	if err := e.check(); err != nil {
		return Entry{}, fmt.Errorf("log entry: %w", err)
	}
	return e, nil
}

func (e Entry) check() error {
	if e.Schema != EntrySchema {
		return fmt.Errorf("schema %.80q, want %q", e.Schema, EntrySchema)
	}
	if len(e.Statement) != sha256.Size || len(e.Key) != sha256.Size {
		return fmt.Errorf("the digests of statement and key have %d and %d bytes, want %d", len(e.Statement), len(e.Key), sha256.Size)
	}
	return nil
}
