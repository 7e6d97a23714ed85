// Package shares divides a root's key into shares: some of them make the key again, and fewer tell no more of it than its public half
// does (Feldman's verifiable secret sharing, which is Shamir's over the scalars of P-256 with commitments, by which each share is
// checked alone). Whoever makes the key again to sign has it whole, in memory, for that moment.
package shares

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cloudflare/circl/group"
	"github.com/cloudflare/circl/secretsharing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
)

// Schema names the form of a share, as it is in its file, encrypted.
const Schema = "hullmark.root-share/v1"

const (
	// MaxShares is how many shares a key may have.
	MaxShares = 16
	// MaxFile bounds a share's file, in bytes.
	MaxFile = 16 << 10
)

const (
	// scalarSize is the length of a root's key, and of a share of it, in bytes.
	scalarSize = 32
	// pointSize is that of a commitment: a point in its compressed form (SEC 1 §2.3.3).
	pointSize = 1 + scalarSize
)

// Share is one of the shares of a root's key.
type Share struct {
	// Root is the root whose key it is of.
	Root hullmark.ClusterRoot
	// Split tells the shares of one split of the key from those of another: 32 hexadecimal digits.
	Split string
	// Number is the share's own, from 1. Threshold of all Of shares make the key.
	Number, Threshold, Of int
	// File is where it is kept, for errors; it may be empty.
	File string

	value hullmark.Secret
	// commitments are the same in all shares of one split, Threshold points, of which the first is the root's public key.
	commitments [][]byte
}

// name is what an error calls the share.
func (s Share) name() string {
	if s.File != "" {
		return s.File
	}
	return fmt.Sprintf("number %d", s.Number)
}

// Equal reports whether two shares are the same, wherever they are kept.
func (s Share) Equal(other Share) bool {
	return s.Root == other.Root && s.Split == other.Split && s.Number == other.Number && s.Threshold == other.Threshold && s.Of == other.Of &&
		s.value.Equal(other.value) && slices.EqualFunc(s.commitments, other.commitments, bytes.Equal)
}

// document is a Share in its file.
type document struct {
	Schema      string               `json:"schema"`
	Root        hullmark.ClusterRoot `json:"root"`
	Split       string               `json:"split"`
	Number      int                  `json:"number"`
	Threshold   int                  `json:"threshold"`
	Of          int                  `json:"of"`
	Commitments [][]byte             `json:"commitments"`
	Value       []byte               `json:"value"`
}

// check holds what was read, or is to be made, to the limits. What the share and its commitments are Share.part checks.
func (d *document) check() error {
	split, err := hex.DecodeString(d.Split)
	switch {
	case d.Schema != Schema:
		return fmt.Errorf("schema %.40q, want %q", d.Schema, Schema)
	case err != nil || len(split) != 16:
		return errors.New("split: want 32 hexadecimal digits")
	case d.Of > MaxShares || d.Threshold < 2 || d.Threshold > d.Of:
		return fmt.Errorf("%d shares of which %d make the key: want 2 to %d shares, and 2 or more of them, but not more than there are", d.Of, d.Threshold, MaxShares)
	case d.Number < 1 || d.Number > d.Of:
		return fmt.Errorf("number %d of %d shares", d.Number, d.Of)
	case len(d.Value) != scalarSize:
		return fmt.Errorf("value: want %d bytes", scalarSize)
	}
	return nil
}

// Split divides a key into shares, of which threshold make it again. It tries that before it returns them.
func Split(key *ecdsa.PrivateKey, threshold, of int) ([]Share, error) {
	root, err := rootOf(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	var split [16]byte
	_, _ = rand.Read(split[:]) // never fails
	d := document{Schema: Schema, Root: root, Split: hex.EncodeToString(split[:]), Number: 1, Threshold: threshold, Of: of, Value: make([]byte, scalarSize)}
	if err := d.check(); err != nil {
		return nil, err
	}
	raw, err := key.Bytes()
	if err != nil {
		return nil, err
	}
	defer clear(raw)
	secret := group.P256.NewScalar()
	if err := secret.UnmarshalBinary(raw); err != nil {
		return nil, errors.New("the root's key is no scalar of P-256")
	}
	sharing := secretsharing.New(rand.Reader, uint(threshold-1), secret)
	var commitments [][]byte
	for _, point := range sharing.CommitSecret() {
		c, err := point.MarshalBinaryCompress()
		if err != nil {
			return nil, err
		}
		commitments = append(commitments, c)
	}
	var all []Share
	for i, made := range sharing.Share(uint(of)) {
		value, err := made.Value.MarshalBinary()
		if err != nil {
			return nil, err
		}
		all = append(all, Share{Root: root, Split: d.Split, Number: i + 1, Threshold: threshold, Of: of, value: hullmark.NewSecret(value), commitments: commitments})
	}
	return all, try(key, all)
}

// try makes the key again of as many shares as it takes, beginning with each of them.
func try(key *ecdsa.PrivateKey, all []Share) error {
	for i := range all {
		some := append(append([]Share{}, all[i:]...), all[:i]...)[:all[i].Threshold]
		if again, err := Join(some); err != nil || !again.Equal(key) {
			return errors.Join(errors.New("the shares do not make the key again"), err)
		}
	}
	return nil
}

// Join makes the key of its shares, which have to be of one split; more than it takes are not needed, and are checked like the others.
// What it makes is the root's key, or the error says which share is wrong.
func Join(some []Share) (*ecdsa.PrivateKey, error) {
	if len(some) == 0 {
		return nil, errors.New("join the shares: there are none")
	}
	first, seen := some[0], map[int]bool{}
	var parts []secretsharing.Share
	for _, s := range some {
		if seen[s.Number] {
			return nil, fmt.Errorf("join the shares: number %d comes twice", s.Number)
		}
		seen[s.Number] = true
		if err := s.goesWith(first); err != nil {
			return nil, fmt.Errorf("join the shares: %w", err)
		}
		part, err := s.part()
		if err != nil {
			return nil, fmt.Errorf("join the shares: %w", err)
		}
		parts = append(parts, part)
	}
	if len(some) < first.Threshold {
		return nil, fmt.Errorf("join the shares: %d of the %d shares make the key, and here are %d", first.Threshold, first.Of, len(some))
	}
	secret, err := secretsharing.Recover(uint(first.Threshold-1), parts)
	if err != nil {
		return nil, fmt.Errorf("join the shares: %w", err)
	}
	return first.keyOf(secret)
}

// goesWith refuses a share that is not of another's split.
func (s Share) goesWith(other Share) error {
	switch {
	case s.Root != other.Root:
		return fmt.Errorf("they are of two roots: %s of %s, and %s of %s", other.name(), other.Root, s.name(), s.Root)
	case s.Split != other.Split || s.Threshold != other.Threshold || s.Of != other.Of:
		return fmt.Errorf("the key was divided more than once, and %s and %s are not of the same time", other.name(), s.name())
	case !slices.EqualFunc(s.commitments, other.commitments, bytes.Equal):
		return fmt.Errorf("%s and %s have other commitments, and are said to be of one split: one of them was changed", other.name(), s.name())
	}
	return nil
}

// part is the share for the library, once it is found to be what the commitments are of, and these to be of the root.
func (s Share) part() (secretsharing.Share, error) {
	commitments, err := s.points()
	if err != nil {
		return secretsharing.Share{}, fmt.Errorf("%s: %w", s.name(), err)
	}
	value := group.P256.NewScalar()
	if err := value.UnmarshalBinary(s.value.Expose()); err != nil {
		return secretsharing.Share{}, fmt.Errorf("%s is no scalar of P-256", s.name())
	}
	part := secretsharing.Share{ID: group.P256.NewScalar().SetUint64(uint64(s.Number)), Value: value}
	if !secretsharing.Verify(uint(s.Threshold-1), part, commitments) {
		return secretsharing.Share{}, fmt.Errorf("%s is not the share that was made: its value, its number or its commitments were changed", s.name())
	}
	return part, nil
}

// points reads the commitments, and holds them to the root.
func (s Share) points() (secretsharing.SecretCommitment, error) {
	if len(s.commitments) != s.Threshold || s.Threshold < 1 {
		return nil, fmt.Errorf("it has %d commitments, want %d", len(s.commitments), s.Threshold)
	}
	var all secretsharing.SecretCommitment
	for _, c := range s.commitments {
		point := group.P256.NewElement()
		if len(c) != pointSize || point.UnmarshalBinary(c) != nil {
			return nil, fmt.Errorf("its commitments: want points of P-256, of %d bytes each", pointSize)
		}
		all = append(all, point)
	}
	encoded, err := all[0].MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("its commitments: %w", err)
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), encoded)
	if err != nil {
		return nil, fmt.Errorf("its commitments: %w", err)
	}
	if root, err := rootOf(key); err != nil || root != s.Root {
		return nil, errors.New("its commitments are of another root's key than it names")
	}
	return all, nil
}

// keyOf makes a key of its scalar, if it is that of the share's root.
func (s Share) keyOf(secret group.Scalar) (*ecdsa.PrivateKey, error) {
	raw, err := secret.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("join the shares: %w", err)
	}
	defer clear(raw)
	wrong := fmt.Errorf("join the shares: they do not make the key of root %s: one of them was changed", s.Root)
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw)
	if err != nil {
		return nil, wrong // The scalar is zero.
	}
	if root, err := rootOf(&key.PublicKey); err != nil || root != s.Root {
		return nil, wrong
	}
	return key, nil
}

// rootOf is the root of a public key.
func rootOf(key *ecdsa.PublicKey) (hullmark.ClusterRoot, error) {
	if key.Curve != elliptic.P256() {
		return hullmark.ClusterRoot{}, errors.New("the root's key is not ECDSA P-256")
	}
	spki, err := x509.MarshalPKIXPublicKey(key)
	return hullmark.ClusterRootOf(spki), err
}

// Seal encrypts a share under its holder's passphrase, in a cluster file's format.
func (s Share) Seal(passphrase hullmark.Secret, workFactor int) ([]byte, error) {
	d := document{
		Schema: Schema, Root: s.Root, Split: s.Split, Number: s.Number, Threshold: s.Threshold, Of: s.Of,
		Commitments: s.commitments, Value: s.value.Expose(),
	}
	plain, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("seal share: %w", err)
	}
	defer clear(plain)
	sealed, err := cluster.EncryptUnder(passphrase, workFactor, plain)
	if err != nil {
		return nil, fmt.Errorf("seal share: %w", err)
	}
	return sealed, nil
}

// Open reads what Seal wrote, and checks the share alone, without the others. A wrong passphrase is cluster.ErrPassphrase.
func Open(sealed []byte, passphrase hullmark.Secret) (Share, error) {
	if len(sealed) > MaxFile {
		return Share{}, fmt.Errorf("open share: more than %d bytes", MaxFile)
	}
	plain, err := cluster.DecryptUnder(passphrase, sealed)
	if err != nil {
		return Share{}, fmt.Errorf("open share: %w", err)
	}
	defer clear(plain)
	s, err := parse(plain)
	if err != nil {
		return Share{}, fmt.Errorf("open share: %w", err)
	}
	return s, nil
}

// parse strictly reads a share that was decrypted.
func parse(plain []byte) (Share, error) {
	var d document
	if err := hullmark.DecodeStrict(plain, MaxFile, &d); err != nil {
		return Share{}, err
	}
	if err := d.check(); err != nil {
		clear(d.Value)
		return Share{}, err
	}
	s := Share{
		Root: d.Root, Split: d.Split, Number: d.Number, Threshold: d.Threshold, Of: d.Of,
		value: hullmark.NewSecret(d.Value), commitments: d.Commitments,
	}
	if _, err := s.part(); err != nil {
		s.value.Wipe()
		return Share{}, err
	}
	return s, nil
}

// Divide has the root's key of a cluster file in shares from then on, and not in the file. Keep stores the shares, safely; only then the
// file is changed.
func Divide(file *cluster.File, threshold, of int, keep func([]Share) error) error {
	trial := *file.Cluster
	if err := trial.GiveUpRootKey(); err != nil {
		return err
	}
	all, err := Split(file.Cluster.Root.Key, threshold, of)
	if err != nil {
		return fmt.Errorf("divide the root's key: %w", err)
	}
	defer wipe(all)
	if err := keep(all); err != nil {
		return err
	}
	if err := file.Update((*cluster.Cluster).GiveUpRootKey); err != nil {
		return fmt.Errorf("the shares are made, and the cluster file has the root's key still: %w", err)
	}
	return nil
}

func wipe(all []Share) {
	for _, s := range all {
		s.value.Wipe()
	}
}

// Sign signs what a root is asked to sign, as cluster.RemoteRoot has it, with the key that shares make. They are wiped.
func Sign(message []byte, some []Share) ([]byte, error) {
	defer wipe(some)
	key, err := Join(some)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(message)
	return ecdsa.SignASN1(rand.Reader, key, digest[:])
}
