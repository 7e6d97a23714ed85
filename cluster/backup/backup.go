// Package backup takes backups of a cluster's etcd, and makes of one what a new
// etcd begins with.
//
// A backup is a snapshot as etcd streams it: a bbolt file, and the SHA-256 of it.
// It holds the cluster's Secrets: nothing here writes it anywhere but where the
// caller says.
package backup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"

	"github.com/hullmark/hullmark/attest/wire"
)

// MaxSize is the largest backup, in bytes: the largest quota that etcd advises, and the SHA-256 after it.
const MaxSize = wire.MaxSnapshot + sha256.Size

// sector is what the length of every bbolt file is a multiple of, in bytes.
const sector = 512

// errTooLarge says that a snapshot exceeds MaxSize.
var errTooLarge = fmt.Errorf("the snapshot has more than %d bytes, the largest quota that etcd advises: defragment etcd, or delete what fills it", int64(wire.MaxSnapshot))

// trailer holds what is written to it to the SHA-256 that it ends in.
type trailer struct {
	sum hash.Hash
	// last are the bytes that may be the trailer; all others are hashed.
	last []byte
	size int64
}

func newTrailer() *trailer { return &trailer{sum: sha256.New()} }

// Write takes the snapshot's next bytes.
func (t *trailer) Write(p []byte) (int, error) {
	t.size += int64(len(p))
	if t.size > MaxSize {
		return 0, errTooLarge
	}
	t.last = append(t.last, p...)
	if extra := len(t.last) - sha256.Size; extra > 0 {
		t.sum.Write(t.last[:extra])
		t.last = append(t.last[:0], t.last[extra:]...)
	}
	return len(p), nil
}

// check is an error unless all that was written is one whole snapshot.
func (t *trailer) check() error {
	if t.size <= sha256.Size || t.size%sector != sha256.Size {
		return fmt.Errorf("%d bytes are no whole snapshot of etcd's: it was cut off", t.size)
	}
	if !bytes.Equal(t.sum.Sum(nil), t.last) {
		return errors.New("the snapshot does not have the SHA-256 that it ends in: it was damaged")
	}
	return nil
}
