// Package keys says where disk keys come from: they are derived from a
// cluster's master keys, never recorded, so that a cluster whose records are
// lost can still open its disks.
package keys

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/hullmark/hullmark"
)

const (
	// Size is the length of a master key and of a disk key, in bytes.
	Size = 32
	// maxEncoded bounds an encoded keyset, in bytes, and maxGenerations a keyset, which fits into that.
	maxEncoded     = 64 << 10
	maxGenerations = 1000
)

// Keyset holds a cluster's master keys by generation, from 1. A disk remembers
// the generation that it was formatted under; new disks get the highest.
// The zero value holds none.
type Keyset struct {
	masters map[uint32]hullmark.Secret
}

// New returns a keyset of one generation, read from random.
func New(random io.Reader) (Keyset, error) {
	master, err := hullmark.RandomSecret(random, Size)
	if err != nil {
		return Keyset{}, fmt.Errorf("new keyset: %w", err)
	}
	return Keyset{masters: map[uint32]hullmark.Secret{1: master}}, nil
}

// Next returns the keyset with one more generation, read from random.
func (k Keyset) Next(random io.Reader) (Keyset, error) {
	if len(k.masters) >= maxGenerations || k.Current() == math.MaxUint32 {
		return Keyset{}, fmt.Errorf("next generation: the keyset has %d, the last is %d, and it takes no more", len(k.masters), k.Current())
	}
	master, err := hullmark.RandomSecret(random, Size)
	if err != nil {
		return Keyset{}, fmt.Errorf("next generation: %w", err)
	}
	next := Keyset{masters: maps.Clone(k.masters)}
	next.masters[k.Current()+1] = master
	return next, nil
}

// Current returns the generation for new disks; 0 means that there is none.
func (k Keyset) Current() uint32 {
	var current uint32
	for generation := range k.masters {
		current = max(current, generation)
	}
	return current
}

// DiskKey derives DK, the key of one node's one disk:
// HKDF-SHA256 (RFC 5869) of the generation's master key, with the cluster's first
// root as salt and "hullmark/v1/disk\0" ‖ owner ‖ uuid as info, 32 bytes. The label
// holds the owner, so another node that asks for this disk gets a useless key.
func (k Keyset) DiskKey(generation uint32, first hullmark.ClusterRoot, owner hullmark.EKID, disk hullmark.UUID) (hullmark.Secret, error) {
	master, ok := k.masters[generation]
	if !ok {
		return hullmark.Secret{}, fmt.Errorf("disk key: the keyset has no generation %d", generation)
	}
	info := "hullmark/v1/disk\x00" + string(owner[:]) + string(disk[:])
	key, err := hkdf.Key(sha256.New, master.Expose(), first[:], info, Size)
	if err != nil {
		return hullmark.Secret{}, fmt.Errorf("disk key: %w", err)
	}
	return hullmark.NewSecret(key), nil
}

// equal compares every master key in constant time.
func (k Keyset) equal(other Keyset) bool {
	same := len(k.masters) == len(other.masters)
	for generation, master := range k.masters {
		same = other.masters[generation].Equal(master) && same
	}
	return same
}

// Wipe overwrites every master key.
func (k Keyset) Wipe() {
	for _, master := range k.masters {
		master.Wipe()
	}
}

// document is a keyset as it is written: to the operator's cluster file and,
// unless a keeper wraps it, to control planes' encrypted disks, nowhere else.
type document struct {
	Version int               `json:"version"`
	Masters map[uint32][]byte `json:"masters"`
}

// Encode returns the keyset as JSON. The result is as secret as the keyset.
func (k Keyset) Encode() ([]byte, error) {
	d := document{Version: 1, Masters: map[uint32][]byte{}}
	for generation, master := range k.masters {
		d.Masters[generation] = master.Expose()
	}
	encoded, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode keyset: %w", err)
	}
	return encoded, nil
}

// Parse strictly reads what Encode writes.
func Parse(encoded []byte) (Keyset, error) {
	var d document
	if err := hullmark.DecodeStrict(encoded, maxEncoded, &d); err != nil {
		return Keyset{}, fmt.Errorf("keyset: %w", err)
	}
	if d.Version != 1 || len(d.Masters) == 0 {
		return Keyset{}, fmt.Errorf("keyset: version %d with %d generations, want version 1 with at least one", d.Version, len(d.Masters))
	}
	k := Keyset{masters: map[uint32]hullmark.Secret{}}
	for generation, master := range d.Masters {
		if generation == 0 || len(master) != Size || slices.Max(master) == 0 {
			return Keyset{}, fmt.Errorf("keyset: generation %d: want %d random bytes and a number from 1", generation, Size)
		}
		k.masters[generation] = hullmark.NewSecret(master)
	}
	return k, nil
}
