// Package tlog shows that a release is in a transparency log, where everybody sees it: a signed document that is shown to some is
// then seen by all, whoever's key signed it.
//
// The log is a Merkle tree as in RFC 6962 §2.1, over plain files (C2SP tlog-tiles), with a signed checkpoint (C2SP
// tlog-checkpoint, signed-note) that witnesses cosign (C2SP tlog-cosignature, Ed25519). A Proof travels with the document, and is
// checked offline. Neither who serves a log nor who writes it is trusted: the one can show nothing that the other did not sign, and
// the other cannot show different people different logs unless as many witnesses help as Suffice says.
//
// All is computed from what was read. Package place reads and writes the files of a log.
package tlog

import (
	"errors"

	"github.com/hullmark/hullmark"
)

// Limits of what is read, in bytes where nothing else is said.
const (
	// MaxSize is how many entries a log has at most.
	MaxSize = 1 << 20
	// MaxEntry is the largest entry, MaxCheckpoint the largest signed checkpoint, MaxProof the largest proof, in which the lines of a
	// checkpoint take a byte more each.
	MaxEntry      = 8 << 10
	MaxCheckpoint = 32 << 10
	MaxProof      = 2*MaxCheckpoint + 4<<10
	// MaxWitnesses is how many witnesses a Trust names at most.
	MaxWitnesses = 32
)

var (
	// ErrContradiction is a log that shows something else than it showed before, or to others: it forgot entries, or has changed them.
	ErrContradiction = errors.New("the log contradicts what was seen of it")
	// ErrNotInLog is a release that a proof does not show in the log, or that the log does not have.
	ErrNotInLog = errors.New("the release is not in the log")
)

// strict reads what hullmark.CanonicalJSON wrote, of at most limit bytes, and refuses any other spelling of it.
func strict[T any](encoded []byte, limit int, v *T) error {
	if err := hullmark.DecodeStrict(encoded, limit, v); err != nil {
		return err
	}
	return hullmark.CheckCanonicalJSON(encoded, *v)
}
