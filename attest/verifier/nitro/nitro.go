// Package nitro verifies attestation documents of AWS's Nitro system offline: those of NitroTPM, and of enclaves.
//
// The system that signs them is the host of the machine, and its TPM is the host's: a document shows what AWS says of a machine,
// which keeps other tenants out, and not the host.
package nitro

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/pcrs"
)

const (
	// MaxDocument bounds a document, in bytes; recorded ones have 4,526.
	MaxDocument = 16 << 10
	// maxChain bounds the certificates above the signer's.
	maxChain = 8
	// maxField bounds what its requester may put in (AWS, NitroTPM attestation document), in bytes.
	maxField = 1 << 10
	// root is the SHA-256 of AWS's root certificate, which it publishes for all Nitro documents.
	root = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"
	// tpmModule is what the names of modules that speak for a NitroTPM have between instance and number.
	tpmModule = "-tpm"
	kind      = hullmark.PlatformAWS
)

// Document is a decoded document. Nothing of it is verified.
type Document struct {
	// Module names the instance, and what speaks for it.
	Module string
	Time   time.Time
	// TPM reports that the registers are a NitroTPM's, of bank SHA-384; otherwise they are an enclave's.
	TPM       bool
	Registers map[uint64][]byte
	// PublicKey, UserData and Nonce are what the requester put in.
	PublicKey, UserData, Nonce []byte

	certificate, protected, payload, signature []byte
	bundle                                     [][]byte
}

// Instance returns the name of the EC2 instance.
func (d Document) Instance() string {
	at := strings.Index(d.Module, "-")
	if at < 0 {
		return ""
	}
	if next := strings.Index(d.Module[at+1:], "-"); next >= 0 {
		return d.Module[:at+1+next]
	}
	return d.Module
}

// payload is what is signed. Every name stands once, and others are refused.
type payload struct {
	Module      string            `cbor:"module_id"`
	Digest      string            `cbor:"digest"`
	Timestamp   uint64            `cbor:"timestamp"`
	PCRs        map[uint64][]byte `cbor:"pcrs"`
	TPMPCRs     map[uint64][]byte `cbor:"nitrotpm_pcrs"`
	Certificate []byte            `cbor:"certificate"`
	Bundle      [][]byte          `cbor:"cabundle"`
	PublicKey   []byte            `cbor:"public_key"`
	UserData    []byte            `cbor:"user_data"`
	Nonce       []byte            `cbor:"nonce"`
}

// sign1 is a COSE_Sign1 (RFC 9052 §4.2), without its tag, as AWS writes it.
type sign1 struct {
	_           struct{} `cbor:",toarray"`
	Protected   []byte
	Unprotected map[int]cbor.RawMessage
	Payload     []byte
	Signature   []byte
}

// strict reads AWS's maps of indefinite length, but no name twice, none that is not known, no tags and nothing deep.
var strict = func() cbor.DecMode {
	mode, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, ExtraReturnErrors: cbor.ExtraDecErrorUnknownField, TagsMd: cbor.TagsForbidden,
		IndefLength: cbor.IndefLengthAllowed, MaxNestedLevels: 4, MaxArrayElements: 32, MaxMapPairs: 64,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
	}.DecMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

// es384 is the protected header that names ECDSA with SHA-384: {1: -35}.
var es384 = []byte{0xa1, 1, 0x38, 0x22}

// Parse decodes a document.
func Parse(raw []byte) (Document, error) {
	if len(raw) > MaxDocument {
		return Document{}, fmt.Errorf("%d bytes, at most %d are read", len(raw), MaxDocument)
	}
	var s sign1
	if err := strict.Unmarshal(raw, &s); err != nil {
		return Document{}, err
	}
	var p payload
	switch {
	case !bytes.Equal(s.Protected, es384):
		return Document{}, fmt.Errorf("protected header %x, want %x (ES384)", s.Protected, es384)
	case len(s.Unprotected) > 0:
		return Document{}, errors.New("headers that nobody signed")
	case len(s.Signature) != 96:
		return Document{}, fmt.Errorf("signature of %d bytes, want 96", len(s.Signature))
	}
	if err := strict.Unmarshal(s.Payload, &p); err != nil {
		return Document{}, fmt.Errorf("payload: %w", err)
	}
	if err := p.check(); err != nil {
		return Document{}, fmt.Errorf("payload: %w", err)
	}
	d := Document{
		Module: p.Module, Time: time.UnixMilli(int64(p.Timestamp)).UTC(), TPM: p.TPMPCRs != nil, Registers: p.PCRs,
		PublicKey: p.PublicKey, UserData: p.UserData, Nonce: p.Nonce,
		certificate: p.Certificate, bundle: p.Bundle, protected: s.Protected, payload: s.Payload, signature: s.Signature,
	}
	if d.TPM {
		d.Registers = p.TPMPCRs
	}
	return d, nil
}

func (p payload) check() error {
	registers := p.PCRs
	if p.TPMPCRs != nil {
		registers = p.TPMPCRs
	}
	switch {
	case p.Digest != "SHA384":
		return fmt.Errorf("digest %.40q, want SHA384", p.Digest)
	case (p.PCRs == nil) == (p.TPMPCRs == nil):
		return errors.New("want the registers of an enclave, or of a TPM")
	case len(registers) == 0 || len(registers) > 32:
		return fmt.Errorf("%d registers", len(registers))
	case len(p.Bundle) == 0 || len(p.Bundle) > maxChain:
		return fmt.Errorf("%d certificates above the signer's, want 1 to %d", len(p.Bundle), maxChain)
	case p.Timestamp == 0 || p.Timestamp > 1<<46:
		return fmt.Errorf("time %d", p.Timestamp)
	case !strings.HasPrefix(p.Module, "i-") || len(p.Module) > 128 || strings.ContainsFunc(p.Module, notName):
		return fmt.Errorf("module %.140q", p.Module)
	case strings.Contains(p.Module, tpmModule) != (p.TPMPCRs != nil):
		return fmt.Errorf("module %s with registers of another kind", p.Module)
	case len(p.PublicKey) > maxField || len(p.UserData) > maxField || len(p.Nonce) > maxField:
		return fmt.Errorf("a field of its requester of more than %d bytes", maxField)
	}
	for n, value := range registers {
		if n > 31 || len(value) != pcrs.SHA384.Size() {
			return fmt.Errorf("register %d of %d bytes", n, len(value))
		}
	}
	return nil
}

func notName(r rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-", r)
}

// Demands say what a document has to show. The zero value accepts no document.
type Demands struct {
	// Nonce is what it has to carry; nil is refused, since a document without one is anybody's to show again. AnyNonce is for stored
	// documents, which are.
	Nonce    []byte `json:"-"`
	AnyNonce bool   `json:"-"`
	// Instances are the accepted ones; empty accepts any.
	Instances []string `json:"instances,omitempty"`
	// Enclaves accepts documents of enclaves; those of TPMs are accepted in any case.
	Enclaves bool `json:"enclaves,omitempty"`
	// Registers are the accepted values, by number; a register that is not there may have any.
	Registers map[uint64][]evidence.Hex `json:"registers,omitempty"`
}

// Verifier verifies documents; it is safe for concurrent use.
type Verifier struct {
	// TestRoots are certificates, in DER, of roots for tests, accepted beside AWS's.
	TestRoots [][]byte
}

// Verified is what a document proves.
type Verified struct {
	Document Document
	// TestRoot reports that the chain ends at a root for tests.
	TestRoot bool
}

// Verify holds a document to AWS's signature and to demands, at a time. A refusal is an *evidence.Refusal with every reason that was
// found.
func (v *Verifier) Verify(raw []byte, d Demands, at time.Time) (Verified, error) {
	document, err := Parse(raw)
	if err != nil {
		return Verified{}, evidence.Refuse(kind, evidence.Malformed, "the document cannot be read", err)
	}
	verified := Verified{Document: document}
	signer, test, err := v.chain(document, at)
	if err != nil {
		code := evidence.Chain
		if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
			code = evidence.Expired
		}
		return verified, evidence.Refuse(kind, code, "the document's signer", err)
	}
	verified.TestRoot = test
	if err := document.signed(signer); err != nil {
		return verified, evidence.Refuse(kind, evidence.Signature, "the document", err)
	}
	var reasons evidence.Reasons
	d.judge(document, &reasons)
	return verified, reasons.Refusal(kind)
}

func (d Demands) judge(document Document, reasons *evidence.Reasons) {
	if !d.AnyNonce && (len(d.Nonce) == 0 || !bytes.Equal(d.Nonce, document.Nonce)) {
		reasons.Differ(evidence.NotBound, hex.EncodeToString(d.Nonce), hex.EncodeToString(document.Nonce), "the document was made for something else")
	}
	if !document.TPM && !d.Enclaves {
		reasons.Add(evidence.Flags, "the document is an enclave's, not a TPM's")
	}
	if len(d.Instances) > 0 && !slices.Contains(d.Instances, document.Instance()) {
		reasons.Differ(evidence.Instance, strings.Join(d.Instances, ", "), document.Instance(), "the instance is not on the list")
	}
	for n, accepted := range d.Registers {
		if value := document.Registers[n]; !evidence.Contains(accepted, value) {
			reasons.Differ(evidence.Measurement, fmt.Sprint(accepted), hex.EncodeToString(value), "PCR %d", n)
		}
	}
}

// chain follows the certificates from the document's signer up to the root, which has to be the bundle's first.
func (v *Verifier) chain(d Document, at time.Time) (signer *x509.Certificate, test bool, err error) {
	var all []*x509.Certificate
	for _, der := range append(slices.Clone(d.bundle), d.certificate) {
		c, err := x509.ParseCertificate(der)
		if err == nil && len(c.Raw) != len(der) {
			err = errors.New("certificate: data after its end")
		}
		if err != nil {
			return nil, false, err
		}
		all = append(all, c)
	}
	top, signer := all[0], all[len(all)-1]
	test = slices.ContainsFunc(v.TestRoots, func(der []byte) bool { return bytes.Equal(der, top.Raw) })
	if digest := sha256.Sum256(top.Raw); !test && hex.EncodeToString(digest[:]) != root {
		return nil, false, fmt.Errorf("its chain ends at %.80q, which is not AWS's root", top.Subject.CommonName)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(top)
	for _, c := range all[1 : len(all)-1] {
		between.AddCert(c)
	}
	if signer.IsCA {
		return nil, false, errors.New("it is signed by an authority, not by a module")
	}
	_, err = signer.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return signer, test, err
}

// signed checks the signature (RFC 9052 §4.4, Sig_structure).
func (d Document) signed(by *x509.Certificate) error {
	key, ok := by.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P384() {
		return errors.New("the signer's key is not of curve P-384")
	}
	message, err := cbor.Marshal([]any{"Signature1", d.protected, []byte{}, d.payload})
	if err != nil {
		return err
	}
	digest := sha512.Sum384(message)
	r, s := new(big.Int).SetBytes(d.signature[:48]), new(big.Int).SetBytes(d.signature[48:])
	if !ecdsa.Verify(key, digest[:], r, s) {
		return errors.New("its signature does not hold")
	}
	return nil
}
