package tlog

import (
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	merkle "golang.org/x/mod/sumdb/tlog"
)

// Checkpoint is the tree that a log had at one time (C2SP tlog-checkpoint). Extension lines are none of it.
type Checkpoint struct {
	// Origin is the log's name.
	Origin string
	// Size is how many entries the tree has, and Root its root hash.
	Size int64
	Root merkle.Hash
	// Cosignatures are those of witnesses that were trusted when it was opened, one for each.
	Cosignatures []Cosignature
}

// Cosignature says that a witness saw the log go on, from what it saw before to this tree.
type Cosignature struct {
	// Witness is the index of the witness in Trust.Witnesses.
	Witness int
	// Time is when, as the witness says.
	Time time.Time
}

// CosignedAt is when the newest of the cosignatures was made, as its witness says; zero if there is none. Of a log that is shown as it
// once was, that is long ago.
func (c Checkpoint) CosignedAt() time.Time {
	var newest time.Time
	for _, s := range c.Cosignatures {
		if s.Time.After(newest) {
			newest = s.Time
		}
	}
	return newest
}

// originForm is a schema-less URL, as the specification wants an origin; it is the name of the log's key, too.
var originForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~:/-]{0,127}$`)

// Empty is the checkpoint of a log that has no entries yet. Origin is a name of at most 128 characters in the form HOST/PATH, such
// as releases.example/node.
func Empty(origin string) (Checkpoint, error) {
	if !originForm.MatchString(origin) {
		return Checkpoint{}, fmt.Errorf("origin %.200q: want a name HOST/PATH, without a scheme", origin)
	}
	root, err := merkle.TreeHash(0, nil)
	return Checkpoint{Origin: origin, Root: root}, err
}

// text is the note's text.
func (c Checkpoint) text() string { return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, c.Root) }

// Sign returns the checkpoint as the note that a log publishes, signed by its Ed25519 key.
func (c Checkpoint) Sign(key crypto.Signer) ([]byte, error) {
	signer, err := newSigner(c.Origin, plainSignature, key)
	if err != nil {
		return nil, fmt.Errorf("sign checkpoint: %w", err)
	}
	return note.Sign(&note.Note{Text: c.text()}, signer)
}

// parseCheckpoint reads a note's text, and refuses another spelling of it.
func parseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Checkpoint{}, fmt.Errorf("%d lines, want origin, size and root hash", len(lines)-1)
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 0 || size > MaxSize {
		return Checkpoint{}, fmt.Errorf("size %.40q, want 0 to %d", lines[1], MaxSize)
	}
	root, err := merkle.ParseHash(lines[2])
	if err != nil {
		return Checkpoint{}, fmt.Errorf("root hash %.80q: want 32 bytes in base64", lines[2])
	}
	c := Checkpoint{Origin: lines[0], Size: size, Root: root}
	if !originForm.MatchString(c.Origin) || c.text() != text {
		return Checkpoint{}, errors.New("not in canonical form")
	}
	if nothing, err := Empty(c.Origin); err != nil || size == 0 && root != nothing.Root {
		return Checkpoint{}, errors.Join(errors.New("a log without entries has another root hash"), err)
	}
	return c, nil
}

// follows says why a checkpoint cannot be of the log that an earlier one is of, as far as sizes and names tell.
func (c Checkpoint) follows(earlier Checkpoint) error {
	switch {
	case c.Origin != earlier.Origin:
		return fmt.Errorf("it is the log %s, seen before was %s", c.Origin, earlier.Origin)
	case c.Size < earlier.Size:
		return fmt.Errorf("%w: it has %d entries and had %d: it forgot some, or an old state of it is shown", ErrContradiction, c.Size, earlier.Size)
	case c.Size == earlier.Size && c.Root != earlier.Root:
		return fmt.Errorf("%w: of %d entries its root is %v, and was %v: others are shown other releases", ErrContradiction, c.Size, c.Root, earlier.Root)
	}
	return nil
}

// checkSignatures refuses signatures that are written otherwise than they would be written by anybody (RFC 4648 §3.5), so that one
// note has one form.
func checkSignatures(n *note.Note) error {
	for _, list := range [][]note.Signature{n.Sigs, n.UnverifiedSigs} {
		for _, s := range list {
			if _, err := base64.StdEncoding.Strict().DecodeString(s.Base64); err != nil {
				return fmt.Errorf("the signature of %.80q is not in canonical form", s.Name)
			}
		}
	}
	return nil
}
