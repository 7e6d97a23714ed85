package verifier

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/pcrs"
)

// The most that the files of a quote may have, in bytes: of an attestation key, of the quote's TPMS_ATTEST, and of its TPMT_SIGNATURE.
const (
	MaxKeyFile   = 4 << 10
	MaxQuote     = wire.MaxQuoted
	MaxSignature = wire.MaxSignature
)

// selectSize is the largest pcrSelect, in bytes: 24 registers (TPM 2.0 Part 2 §10.6.2).
const selectSize = pcrs.RegisterCount / 8

// Key is the public part of an attestation key that someone else vouches for.
type Key struct {
	// Restricted reports that the key says of itself that it never left its TPM and signs only what
	// that composed. In PEM a key says nothing of itself.
	Restricted bool
	verify     func(message, signature []byte) error
}

// ParseKey reads what tpm2_createak(1) writes with -u: a TPM2B_PUBLIC, or a
// public key in PEM. The key is ECDSA's over P-256 or RSASSA's with 2,048 to 4,096 bits,
// both with SHA-256. A TPM2B_PUBLIC must be of a restricted signing key that is fixed to its TPM.
func ParseKey(file []byte) (Key, error) {
	if len(file) > MaxKeyFile {
		return Key{}, fmt.Errorf("attestation key: %d bytes, at most %d are allowed", len(file), MaxKeyFile)
	}
	parse := parseTPMKey
	if bytes.HasPrefix(file, []byte("-----BEGIN ")) {
		parse = parsePEMKey
	}
	key, err := parse(file)
	if err != nil {
		return Key{}, fmt.Errorf("attestation key: %w", err)
	}
	return key, nil
}

func parseTPMKey(file []byte) (Key, error) {
	if len(file) < 2 || int(binary.BigEndian.Uint16(file)) != len(file)-2 {
		return Key{}, errors.New("it is neither PEM nor a TPM2B_PUBLIC; want what tpm2_createak -u writes")
	}
	public, err := parsePublic(file[2:])
	if err != nil {
		return Key{}, fmt.Errorf("TPM2B_PUBLIC: %w", err)
	}
	if err := checkAttributes(public.ObjectAttributes); err != nil {
		return Key{}, fmt.Errorf("it could sign what is not a quote, or leave its TPM: %w", err)
	}
	verify, err := signatureScheme(public)
	return Key{Restricted: true, verify: verify}, err
}

func parsePEMKey(file []byte) (Key, error) {
	block, rest := pem.Decode(file)
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return Key{}, errors.New("want one PEM block of type PUBLIC KEY")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return Key{}, err
	}
	switch key := parsed.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return Key{}, fmt.Errorf("curve %s, want P-256", key.Curve.Params().Name)
		}
		return Key{verify: func(message, signature []byte) error { return verifyECDSA(key, message, signature) }}, nil
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 || bits > 4096 || key.E != defaultExponent {
			return Key{}, fmt.Errorf("RSA with %d bits and exponent %d, want 2048 to 4096 and %d", bits, key.E, defaultExponent)
		}
		return Key{verify: func(message, signature []byte) error { return verifyRSA(key, message, signature) }}, nil
	}
	return Key{}, fmt.Errorf("%T, want ECDSA or RSA", parsed)
}

// Quote is what a TPM stated about its registers, signed.
type Quote struct {
	// Nonce is what the asker had the TPM include (extraData). Whether it is fresh is for the asker to know.
	Nonce []byte
	// Selection are the registers that the quote covers, in the order in which they were hashed.
	Selection []Selected
	digest    []byte
}

// Selected are the registers of one bank that a quote covers, ascending.
type Selected struct {
	Bank      pcrs.Bank
	Registers []pcrs.Register
}

// OpenQuote checks that key signed a TPM's quote and reads it. message is a
// TPMS_ATTEST and signature a TPMT_SIGNATURE, as tpm2_quote(1) writes them with -m and -s.
// The quote says nothing of values: Check holds them to it.
func OpenQuote(key Key, message, signature []byte) (Quote, error) {
	if len(message) > MaxQuote || len(signature) > MaxSignature {
		return Quote{}, fmt.Errorf("quote: %d bytes with a signature of %d, at most %d and %d are allowed",
			len(message), len(signature), MaxQuote, MaxSignature)
	}
	if key.verify == nil {
		return Quote{}, errors.New("quote: no key to check it with")
	}
	if err := key.verify(message, signature); err != nil {
		return Quote{}, fmt.Errorf("quote: the key did not sign it: %w", err)
	}
	q, err := readQuote(message)
	if err != nil {
		return Quote{}, fmt.Errorf("quote: %w", err)
	}
	return q, nil
}

// readQuote decodes a TPMS_ATTEST that is a quote (TPM 2.0 Part 2 §10.12.12).
func readQuote(message []byte) (Quote, error) {
	statement, err := tpm2.Unmarshal[tpm2.TPMSAttest](message)
	if err != nil {
		return Quote{}, fmt.Errorf("it is no TPMS_ATTEST: %w", err)
	}
	if statement.Magic != tpm2.TPMGeneratedValue || statement.Type != tpm2.TPMSTAttestQuote {
		return Quote{}, fmt.Errorf("magic %#x, type %#x: it is not a TPM's quote", statement.Magic, statement.Type)
	}
	if !bytes.Equal(tpm2.Marshal(statement), message) {
		return Quote{}, errors.New("the encoding is not canonical")
	}
	info, err := statement.Attested.Quote()
	if err != nil {
		return Quote{}, err
	}
	q := Quote{Nonce: statement.ExtraData.Buffer, digest: info.PCRDigest.Buffer}
	for _, selection := range info.PCRSelect.PCRSelections {
		if err := q.add(selection); err != nil {
			return Quote{}, err
		}
	}
	return q, nil
}

// add reads the registers of one bank: the first byte's lowest bit is register 0.
func (q *Quote) add(selection tpm2.TPMSPCRSelection) error {
	s := Selected{Bank: pcrs.Bank(selection.Hash)}
	twice := slices.ContainsFunc(q.Selection, func(other Selected) bool { return other.Bank == s.Bank })
	if !s.Bank.Valid() || twice || len(selection.PCRSelect) > selectSize {
		return fmt.Errorf("it selects registers of %v, which is unknown or there twice, or with %d bytes, want at most %d",
			s.Bank, len(selection.PCRSelect), selectSize)
	}
	for r := range pcrs.Register(8 * len(selection.PCRSelect)) {
		if selection.PCRSelect[r/8]>>(r%8)&1 == 1 {
			s.Registers = append(s.Registers, r)
		}
	}
	q.Selection = append(q.Selection, s)
	return nil
}

// Covered returns the registers of a bank that the quote covers, ascending.
func (q Quote) Covered(bank pcrs.Bank) []pcrs.Register {
	for _, s := range q.Selection {
		if s.Bank == bank {
			return s.Registers
		}
	}
	return nil
}

// Check fails unless values holds every register that the quote covers, with the
// values that were quoted: pcrDigest = SHA-256 of them in the order of the selection
// (TPM 2.0 Part 3 §18.4). Registers beyond these it says nothing about.
func (q Quote) Check(values map[pcrs.Bank]pcrs.Values) error {
	h := sha256.New()
	for _, s := range q.Selection {
		for _, r := range s.Registers {
			value := values[s.Bank][r]
			if len(value) != s.Bank.Size() {
				return fmt.Errorf("quote: it covers %v of bank %v, of which the value is not given", r, s.Bank)
			}
			h.Write(value)
		}
	}
	if !bytes.Equal(h.Sum(nil), q.digest) {
		return errors.New("quote: the given values are not the quoted ones; read the registers and quote them at the same time")
	}
	return nil
}
