package tlog

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/hullmark/hullmark/measurements"
)

// Trust says by which log, and by whose cosignatures, a reader goes.
type Trust struct {
	// Origin is the log's name; empty is the one that its key signs. A key is for one log.
	Origin string
	Key    ed25519.PublicKey
	// Witnesses are keys. A witness is its key, whatever name stands beside it in a checkpoint: a cosignature does not cover the name.
	Witnesses []ed25519.PublicKey
	// Threshold is how many of them have to have cosigned; zero demands none.
	Threshold int
}

// Suffice says how many of the witnesses have to help somebody whose two logs contradict each other, so that both are cosigned by as many
// as the threshold. The others are honest: some of them began with the one log, and some with the other. For half of them or less it is 0.
func Suffice(threshold, witnesses int) int { return max(0, 2*threshold-witnesses) }

// check says what is wrong with it, so that no list of keys counts for more than it is.
func (t Trust) check() error {
	if err := measurements.CheckEd25519(t.Key); err != nil {
		return fmt.Errorf("the log's key: %w", err)
	}
	if len(t.Witnesses) > MaxWitnesses {
		return fmt.Errorf("%d witnesses, want at most %d", len(t.Witnesses), MaxWitnesses)
	}
	for i, w := range t.Witnesses {
		if err := measurements.CheckEd25519(w); err != nil {
			return fmt.Errorf("the key of witness %d: %w", i+1, err)
		}
		switch {
		case w.Equal(t.Key):
			return fmt.Errorf("witness %d has the log's key: a log is no witness of itself", i+1)
		case slices.ContainsFunc(t.Witnesses[:i], func(other ed25519.PublicKey) bool { return other.Equal(w) }):
			return fmt.Errorf("witness %d has the key of another: one witness counts once", i+1)
		}
	}
	if t.Threshold < 0 || t.Threshold > len(t.Witnesses) {
		return fmt.Errorf("%d cosignatures are demanded of %d witnesses", t.Threshold, len(t.Witnesses))
	}
	return nil
}

// Open returns the checkpoint in a signed note of at most MaxCheckpoint bytes. The log's key has to have signed it, and as many
// witnesses as the threshold says; signatures by others are ignored (C2SP signed-note, "Signatures"), one by a known key that
// is wrong is not.
func (t Trust) Open(signed []byte) (Checkpoint, error) {
	c, _, err := t.open(signed)
	if err == nil && len(c.Cosignatures) < t.Threshold {
		err = fmt.Errorf("%d of %d witnesses cosigned it, want %d", len(c.Cosignatures), len(t.Witnesses), t.Threshold)
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
	}
	return c, nil
}

// open is Open without a threshold. The note is for who adds a signature to it.
func (t Trust) open(signed []byte) (Checkpoint, *note.Note, error) {
	if err := t.check(); err != nil {
		return Checkpoint{}, nil, err
	}
	if len(signed) > MaxCheckpoint {
		return Checkpoint{}, nil, fmt.Errorf("%d bytes, want at most %d", len(signed), MaxCheckpoint)
	}
	origin, _, _ := strings.Cut(string(signed), "\n")
	if t.Origin != "" && origin != t.Origin {
		return Checkpoint{}, nil, fmt.Errorf("it is of the log %.200q, want %q", origin, t.Origin)
	}
	known := keys{Trust: t, log: noteKey{origin, plainSignature, t.Key}}
	n, err := note.Open(signed, known)
	var unknown *note.UnverifiedNoteError
	if errors.As(err, &unknown) || err == nil && !known.hasLog(n) {
		err = errors.New("no signature is by the log's key")
	}
	if err == nil {
		err = checkSignatures(n)
	}
	if err != nil {
		return Checkpoint{}, nil, err
	}
	c, err := parseCheckpoint(n.Text)
	c.Cosignatures = known.cosignatures(n)
	return c, n, err
}

// keys finds a key by the name and the ID in a note's signature. It is a note.Verifiers.
type keys struct {
	Trust
	log noteKey
}

// Verifier is note.Verifiers's.
func (k keys) Verifier(name string, hash uint32) (note.Verifier, error) {
	if name == k.log.name && hash == k.log.KeyHash() {
		return k.log, nil
	}
	if i := k.witness(name, hash); i >= 0 {
		return noteKey{name, cosignature, k.Witnesses[i]}, nil
	}
	return nil, &note.UnknownVerifierError{Name: name, KeyHash: hash}
}

// witness returns the index of the witness whose key has that ID under that name, or -1.
func (k keys) witness(name string, hash uint32) int {
	return slices.IndexFunc(k.Witnesses, func(w ed25519.PublicKey) bool { return noteKey{name, cosignature, w}.KeyHash() == hash })
}

// hasLog tells whether the log's key is among those that verified a note.
func (k keys) hasLog(n *note.Note) bool {
	return slices.ContainsFunc(n.Sigs, func(s note.Signature) bool { return s.Name == k.log.name && s.Hash == k.log.KeyHash() })
}

// cosignatures are those that were verified, the first one of each witness.
func (k keys) cosignatures(n *note.Note) []Cosignature {
	var list []Cosignature
	for _, s := range n.Sigs {
		w := k.witness(s.Name, s.Hash)
		if w < 0 || slices.ContainsFunc(list, func(c Cosignature) bool { return c.Witness == w }) {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil || len(raw) < 4 { // It was verified, so it is neither.
			continue
		}
		if at, ok := cosignedAt(raw[4:]); ok {
			list = append(list, Cosignature{Witness: w, Time: time.Unix(at, 0).UTC()})
		}
	}
	return list
}

// MergeLargest returns, of signed checkpoints that witnesses have, the largest that enough of them cosigned, with the cosignatures of all
// of that size (Merge). Witnesses that look at different times have different ones. Whether those of other sizes are of the same log is
// for a Reader to say.
func (t Trust) MergeLargest(signed ...[]byte) ([]byte, error) {
	ofSize := map[int64][][]byte{}
	for _, s := range signed {
		c, _, err := t.open(s)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
		ofSize[c.Size] = append(ofSize[c.Size], s)
	}
	var counts []string
	for _, size := range slices.Backward(slices.Sorted(maps.Keys(ofSize))) {
		merged, err := t.Merge(ofSize[size][0], ofSize[size][1:]...)
		if err != nil {
			return nil, err
		}
		c, _, err := t.open(merged)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
		if len(c.Cosignatures) >= t.Threshold {
			return merged, nil
		}
		counts = append(counts, fmt.Sprintf("one of %d entries by %d", size, len(c.Cosignatures)))
	}
	return nil, fmt.Errorf("checkpoint: of %d witnesses %d have to have cosigned the same, and cosigned are %s: take those that the witnesses have once all have looked at the log again",
		len(t.Witnesses), t.Threshold, strings.Join(counts, ", "))
}

// Merge returns a signed checkpoint with the signatures that others of the same tree have more. Each is signed by the log.
func (t Trust) Merge(first []byte, others ...[]byte) ([]byte, error) {
	c, n, err := t.open(first)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	for _, signed := range others {
		other, more, err := t.open(signed)
		if err == nil && other.Size != c.Size {
			err = fmt.Errorf("one is of %d entries, the other of %d: their cosignatures are of different trees", c.Size, other.Size)
		}
		if err == nil {
			err = other.follows(c)
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
		for _, s := range slices.Concat(more.Sigs, more.UnverifiedSigs) {
			same := func(have note.Signature) bool { return have.Name == s.Name && have.Hash == s.Hash }
			if !slices.ContainsFunc(n.Sigs, same) && !slices.ContainsFunc(n.UnverifiedSigs, same) {
				n.UnverifiedSigs = append(n.UnverifiedSigs, s)
			}
		}
	}
	merged, err := note.Sign(n)
	if err == nil && len(merged) > MaxCheckpoint {
		err = fmt.Errorf("%d bytes with all signatures, want at most %d", len(merged), MaxCheckpoint)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return merged, nil
}
