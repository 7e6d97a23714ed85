// Package statedisk knows Hullmark's state disk: the records before the data
// that say whose it is, what counts as blank, which device-mapper tables a
// safely opened disk has, and how the agent asks its privileged helper to open
// one. docs/state-disk.md is the specification. Package volume does the work.
package statedisk

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
)

// The layout of a state disk, in bytes.
const (
	// RecordSize is the length of a record: one sector, which a disk writes whole or not at all.
	RecordSize = 512
	// blockSize is the space a record has for itself, so that writing one never rewrites the other.
	blockSize = 4096
	// OffsetA is where record A lies: formatting began.
	OffsetA = 1 << 20
	// OffsetB is where record B lies: formatting ended.
	OffsetB = OffsetA + blockSize
	// EdgeSize is how much at each end of a disk has to be zero for it to be blank.
	EdgeSize = luks2.DataOffset
	// MinSize is the least size of a state disk.
	MinSize = 256 << 20
)

// Where the agent and the helper keep their notes on the disk's file system.
const (
	// AgentDir is the folder for them, relative to the file system's root.
	AgentDir = "hullmark"
	// IntentFile in the manifest says how far kubeadm came; it does not exist before the first run.
	IntentFile = "agent/kubeadm"
	// IntentStarted and IntentDone are IntentFile's contents.
	IntentStarted = "started\n"
	// IntentDone is written once the node was Ready.
	IntentDone = "done\n"
)

// Fields of a record; numbers are big-endian. What is not listed is zero.
const (
	offVersion    = 16
	offGeneration = 20
	offUUID       = 24
	offOwner      = 40
	offProvided   = 72 // this and the following in B only
	offJournal    = 80
	offInterleave = 84
	offTag        = 88
	offBlock      = 92
	offRest       = 96
	offMAC        = RecordSize - sha256.Size

	// version 2 is of disks with a manifest.
	version = 2
)

const (
	magicA = "hullmark-disk-A\x00"
	magicB = "hullmark-disk-B\x00"
)

// headerKeyInfo and luksKeyInfo name the keys that derive from DK.
const (
	headerKeyInfo = "hullmark/v1/header\x00"
	luksKeyInfo   = "hullmark/v1/luks\x00"
)

// ErrMAC means that a record or the LUKS area was not written under this key:
// they were changed, or the disk belongs to another node or cluster.
var ErrMAC = errors.New("authentication code does not match")

// errVersion means that another release's format is on the disk.
var errVersion = errors.New("a state disk of version")

// Identity says which disk this is and whose.
type Identity struct {
	UUID hullmark.UUID
	// Generation is the keyset generation of the disk's key.
	Generation uint32
	// Owner is the node for which the key was derived.
	Owner hullmark.EKID
}

// Geometry is how dm-integrity laid the disk out. A live device that differs
// was not opened from what was formatted.
type Geometry struct {
	// ProvidedSectors is the usable length, in sectors of 512 bytes.
	ProvidedSectors uint64
	// JournalSectors and InterleaveSectors are in sectors of 512 bytes.
	JournalSectors, InterleaveSectors uint32
	// TagSize and BlockSize are in bytes.
	TagSize, BlockSize uint32
}

// Ready is record B.
type Ready struct {
	Identity
	Geometry
}

// Keys are what derives from a disk's key DK.
type Keys struct {
	// LUKS is the passphrase of the only keyslot.
	LUKS hullmark.Secret
	// Header authenticates the records and the LUKS area.
	Header hullmark.Secret
	// Manifest authenticates the manifest in the file system.
	Manifest hullmark.Secret
}

// DeriveKeys returns the keys of the disk whose DK is key, 32 bytes.
func DeriveKeys(key hullmark.Secret) (Keys, error) {
	header, err := key.Derive(headerKeyInfo, sha256.Size)
	if err != nil {
		return Keys{}, err
	}
	luks, err := key.Derive(luksKeyInfo, sha256.Size)
	if err != nil {
		return Keys{}, err
	}
	manifest, err := ManifestKey(key)
	return Keys{LUKS: luks, Header: header, Manifest: manifest}, err
}

// Wipe overwrites all keys.
func (k Keys) Wipe() {
	k.LUKS.Wipe()
	k.Header.Wipe()
	k.Manifest.Wipe()
}

// EncodeA returns record A under the header key.
func EncodeA(id Identity, headerKey hullmark.Secret) []byte {
	b := encodeIdentity(magicA, id)
	copy(b[offMAC:], mac(headerKey, b[:offMAC]))
	return b
}

// EncodeB returns record B under the header key. area is the LUKS area,
// luks2.AreaSize bytes, which the record authenticates too.
func EncodeB(r Ready, area []byte, headerKey hullmark.Secret) []byte {
	b := encodeIdentity(magicB, r.Identity)
	be := binary.BigEndian
	be.PutUint64(b[offProvided:], r.ProvidedSectors)
	be.PutUint32(b[offJournal:], r.JournalSectors)
	be.PutUint32(b[offInterleave:], r.InterleaveSectors)
	be.PutUint32(b[offTag:], r.TagSize)
	be.PutUint32(b[offBlock:], r.BlockSize)
	copy(b[offMAC:], mac(headerKey, b[:offMAC], area))
	return b
}

func encodeIdentity(magic string, id Identity) []byte {
	b := make([]byte, RecordSize)
	copy(b, magic)
	binary.BigEndian.PutUint32(b[offVersion:], version)
	binary.BigEndian.PutUint32(b[offGeneration:], id.Generation)
	copy(b[offUUID:], id.UUID[:])
	copy(b[offOwner:], id.Owner[:])
	return b
}

func mac(key hullmark.Secret, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key.Expose())
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// DecodeA reads record A. What it says is only a claim until VerifyA.
func DecodeA(b []byte) (Identity, error) {
	id, err := decodeIdentity(b, magicA)
	if err == nil && !zero(b[offProvided:offMAC]) {
		err = errors.New("unknown fields")
	}
	if err != nil {
		return Identity{}, fmt.Errorf("record A: %w", err)
	}
	return id, nil
}

// DecodeB reads record B. What it says is only a claim until VerifyB.
func DecodeB(b []byte) (Ready, error) {
	id, err := decodeIdentity(b, magicB)
	if err == nil && !zero(b[offRest:offMAC]) {
		err = errors.New("unknown fields")
	}
	if err != nil {
		return Ready{}, fmt.Errorf("record B: %w", err)
	}
	be := binary.BigEndian
	return Ready{Identity: id, Geometry: Geometry{
		ProvidedSectors: be.Uint64(b[offProvided:]),
		JournalSectors:  be.Uint32(b[offJournal:]), InterleaveSectors: be.Uint32(b[offInterleave:]),
		TagSize: be.Uint32(b[offTag:]), BlockSize: be.Uint32(b[offBlock:]),
	}}, nil
}

func decodeIdentity(b []byte, magic string) (Identity, error) {
	if len(b) != RecordSize || string(b[:len(magic)]) != magic {
		return Identity{}, errors.New("none here")
	}
	if v := binary.BigEndian.Uint32(b[offVersion:]); v != version {
		return Identity{}, fmt.Errorf("%w %d, want %d: give the node an empty disk", errVersion, v, version)
	}
	id := Identity{Generation: binary.BigEndian.Uint32(b[offGeneration:])}
	copy(id.UUID[:], b[offUUID:])
	copy(id.Owner[:], b[offOwner:])
	if id.UUID == (hullmark.UUID{}) || id.Owner == (hullmark.EKID{}) || id.Generation == 0 {
		return Identity{}, errors.New("uuid, owner or generation is zero")
	}
	return id, nil
}

// VerifyA returns ErrMAC unless record A was written under the header key.
func VerifyA(b []byte, headerKey hullmark.Secret) error {
	if len(b) != RecordSize || !hmac.Equal(b[offMAC:], mac(headerKey, b[:offMAC])) {
		return fmt.Errorf("record A: %w", ErrMAC)
	}
	return nil
}

// VerifyB returns ErrMAC unless record B was written under the header key for this LUKS area.
func VerifyB(b, area []byte, headerKey hullmark.Secret) error {
	if len(b) != RecordSize || len(area) != luks2.AreaSize || !hmac.Equal(b[offMAC:], mac(headerKey, b[:offMAC], area)) {
		return fmt.Errorf("record B and LUKS area: %w", ErrMAC)
	}
	return nil
}
