package measurements

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/pcrs"
)

const (
	// PayloadType is what a signed document's envelope says of its content.
	PayloadType = "application/vnd.in-toto+json"
	// PredicateType names the measurement document among the predicates of in-toto statements.
	PredicateType = "https://github.com/hullmark/hullmark/measurement/v2"

	statementType = "https://in-toto.io/Statement/v1"

	// MaxEnvelope is the largest envelope that is opened, in bytes: base64 takes a third more, the statement a little.
	MaxEnvelope   = MaxDocument/3*4 + 1<<16
	maxSignatures = 16
	// maxKeyID is the longest hint of a key, in bytes: mostly there is none, a digest or a URI.
	maxKeyID = 256
)

// envelope is a DSSE envelope (https://github.com/secure-systems-lab/dsse, envelope.md, version 1.0.2).
type envelope struct {
	PayloadType string              `json:"payloadType"`
	Payload     []byte              `json:"payload"`
	Signatures  []envelopeSignature `json:"signatures"`
}

// envelopeSignature is one signature. KeyID is a hint that nothing here needs.
type envelopeSignature struct {
	KeyID string `json:"keyid,omitempty"`
	Sig   []byte `json:"sig"`
}

// statement is an in-toto statement (https://github.com/in-toto/attestation, spec/v1/statement.md) whose predicate is a document.
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Document  `json:"predicate"`
}

// subject is an artefact that the statement is about.
type subject struct {
	Name   string                 `json:"name"`
	Digest map[string]pcrs.Digest `json:"digest"`
}

func statementOf(d Document) statement {
	return statement{
		Type: statementType,
		Subject: []subject{
			{Name: d.Image.ID + lock.DiskEnding, Digest: map[string]pcrs.Digest{"sha256": d.Image.Disk}},
			{Name: uki.Path, Digest: map[string]pcrs.Digest{"sha256": d.Image.UKI}},
		},
		PredicateType: PredicateType,
		Predicate:     d,
	}
}

// Sign wraps a document into an in-toto statement about its disk and its kernel
// image, and that into a DSSE envelope with one signature by an ECDSA P-256 or Ed25519 key.
func Sign(signer crypto.Signer, d Document) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("sign measurement document: %w", err)
	}
	payload, err := hullmark.CanonicalJSON(statementOf(d))
	if err != nil {
		return nil, fmt.Errorf("sign measurement document: %w", err)
	}
	return seal(signer, payload, "sign measurement document")
}

// seal puts a statement into an envelope with one signature.
func seal(signer crypto.Signer, payload []byte, what string) ([]byte, error) {
	signature, err := signMessage(signer, preAuthentication(PayloadType, payload))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return hullmark.CanonicalJSON(envelope{PayloadType: PayloadType, Payload: payload, Signatures: []envelopeSignature{{Sig: signature}}})
}

// Open returns the document in an envelope of at most MaxEnvelope bytes. One of
// its signatures has to be by public, an ECDSA P-256 or Ed25519 key; nothing of
// the payload is decoded before that. The statement has to be about what the document describes.
func Open(signed []byte, public crypto.PublicKey) (Document, error) {
	d, err := open(signed, public)
	if err != nil {
		return Document{}, fmt.Errorf("open signed measurements: %w", err)
	}
	return d, nil
}

// ErrUnsigned is that no signature of an envelope is by one of the keys that it is opened by.
var ErrUnsigned = errors.New("no signature is by a key that is named: it was signed by another, or changed since")

// parseEnvelope reads an envelope of at most MaxEnvelope bytes, and nothing of its payload. No signature is checked.
func parseEnvelope(signed []byte) (e envelope, err error) {
	if err := strict(signed, MaxEnvelope, &e); err != nil {
		return e, err
	}
	if e.PayloadType != PayloadType {
		return e, fmt.Errorf("the payload is %.80q, want %q", e.PayloadType, PayloadType)
	}
	if len(e.Signatures) == 0 || len(e.Signatures) > maxSignatures {
		return e, fmt.Errorf("%d signatures, want 1 to %d", len(e.Signatures), maxSignatures)
	}
	for _, s := range e.Signatures {
		if len(s.Sig) == 0 || len(s.Sig) > maxSignature {
			return e, fmt.Errorf("a signature of %d bytes, want 1 to %d", len(s.Sig), maxSignature)
		}
		if len(s.KeyID) > maxKeyID {
			return e, fmt.Errorf("a signature with a keyid of %d bytes, want at most %d", len(s.KeyID), maxKeyID)
		}
	}
	return e, nil
}

// unseal returns the payload of an envelope that public signed.
func unseal(signed []byte, public crypto.PublicKey) ([]byte, error) {
	e, err := parseEnvelope(signed)
	if err != nil {
		return nil, err
	}
	return e.Payload, verifyAny(public, preAuthentication(e.PayloadType, e.Payload), e.Signatures)
}

// Payload returns what was signed, byte for byte: the statement in an envelope of at most MaxEnvelope bytes, one of whose
// signatures has to be by public. Nothing of it is decoded; Open does that.
func Payload(signed []byte, public crypto.PublicKey) ([]byte, error) {
	payload, err := unseal(signed, public)
	if err != nil {
		return nil, fmt.Errorf("open signed statement: %w", err)
	}
	return payload, nil
}

func open(signed []byte, public crypto.PublicKey) (Document, error) {
	payload, err := unseal(signed, public)
	if err != nil {
		return Document{}, err
	}
	var s statement
	if err := strict(payload, MaxEnvelope, &s); err != nil {
		return Document{}, fmt.Errorf("statement: %w", err)
	}
	if s.Type != statementType || s.PredicateType != PredicateType {
		return Document{}, fmt.Errorf("statement: %.80q of %.80q, want %q of %q", s.PredicateType, s.Type, PredicateType, statementType)
	}
	encoded, err := hullmark.CanonicalJSON(s.Predicate)
	if err != nil {
		return Document{}, err
	}
	d, err := Parse(encoded)
	if err != nil {
		return Document{}, err
	}
	// The one form of a statement about this document: other subjects, or another spelling, are refused with it.
	if err := hullmark.CheckCanonicalJSON(payload, statementOf(d)); err != nil {
		return Document{}, fmt.Errorf("statement: %w", err)
	}
	return d, nil
}

// preAuthentication is what a DSSE signature covers (protocol.md, PAE).
func preAuthentication(payloadType string, payload []byte) []byte {
	b := []byte("DSSEv1 " + strconv.Itoa(len(payloadType)) + " " + payloadType + " " + strconv.Itoa(len(payload)) + " ")
	return append(b, payload...)
}

func signMessage(signer crypto.Signer, message []byte) ([]byte, error) {
	switch key := signer.Public().(type) {
	case ed25519.PublicKey:
		return signer.Sign(rand.Reader, message, crypto.Hash(0))
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			digest := sha256.Sum256(message)
			return signer.Sign(rand.Reader, digest[:], crypto.SHA256)
		}
	}
	return nil, errKey(signer.Public())
}

func verifyAny(public crypto.PublicKey, message []byte, signatures []envelopeSignature) error {
	digest := sha256.Sum256(message)
	for _, s := range signatures {
		good := false
		switch key := public.(type) {
		case ed25519.PublicKey:
			good = CheckEd25519(key) == nil && ed25519.Verify(key, message, s.Sig)
		case *ecdsa.PublicKey:
			if key.Curve != elliptic.P256() {
				return errKey(public)
			}
			good = ecdsa.VerifyASN1(key, digest[:], s.Sig)
		default:
			return errKey(public)
		}
		if good {
			return nil
		}
	}
	return ErrUnsigned
}
