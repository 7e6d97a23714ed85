package verifier

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
)

// parsePublic decodes a TPMT_PUBLIC and requires that it is the only encoding
// of what it says, so that the bytes that are hashed into a name or an identity
// are the key that is used.
func parsePublic(encoded []byte) (*tpm2.TPMTPublic, error) {
	if len(encoded) > wire.MaxPublic {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(encoded), wire.MaxPublic)
	}
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](encoded)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(tpm2.Marshal(public), encoded) {
		return nil, errors.New("the encoding is not canonical")
	}
	return public, nil
}

// checkQuote holds a quote to everything that the exchange demands of one:
// what kind of key made it, that it did, what it states, and that the register
// values are the ones it states.
func checkQuote(ak *tpm2.TPMTPublic, proof *wire.Proof, binding attest.Binding, registers attest.Registers) error {
	if err := checkAttributes(ak.ObjectAttributes); err != nil {
		return refuse("ak-attributes", "the attestation key could sign what is not a quote, or leave its TPM", err)
	}
	verify, err := signatureScheme(ak)
	if err != nil {
		return refuse("ak-attributes", "the attestation key's algorithm is not accepted", err)
	}
	if err := verify(proof.GetQuoted(), proof.GetSignature()); err != nil {
		return refuse("quote-signature", "the quote was not signed by the attestation key", err)
	}
	return checkStatement(proof.GetQuoted(), binding, registers)
}

// checkAttributes wants a key that never left its TPM and signs only what the TPM itself composed.
func checkAttributes(a tpm2.TPMAObject) error {
	switch {
	case !a.FixedTPM:
		return errors.New("fixedTPM is clear")
	case !a.FixedParent:
		return errors.New("fixedParent is clear")
	case !a.SensitiveDataOrigin:
		return errors.New("sensitiveDataOrigin is clear")
	case !a.Restricted:
		return errors.New("restricted is clear")
	case !a.SignEncrypt:
		return errors.New("sign is clear")
	case a.Decrypt:
		return errors.New("decrypt is set")
	}
	return nil
}

// isSelection reports whether s is the one selection that a quote may have, byte by byte.
func isSelection(s tpm2.TPMLPCRSelection) bool {
	return slices.EqualFunc(s.PCRSelections, attest.Selection().PCRSelections, func(got, want tpm2.TPMSPCRSelection) bool {
		return got.Hash == want.Hash && bytes.Equal(got.PCRSelect, want.PCRSelect)
	})
}

// What every quote begins with, and what stands between its firmware's version and the digest of registers: the selection, and the
// digest's length (TPM 2.0 Part 2 §10.12.12 and §10.12.4).
var (
	quoteHead   = []byte{0xff, 'T', 'C', 'G', 0x80, 0x18}
	quoteMiddle = append(tpm2.Marshal(attest.Selection()), 0, sha256.Size)
)

// Lengths within a quote, in bytes: the largest TPM2B_NAME, an algorithm and its hash; TPMS_CLOCK_INFO up to its last field, which
// says yes or no; and the version of firmware.
const (
	maxName      = 2 + sha512.Size
	clockSize    = 8 + 4 + 4
	firmwareSize = 8
)

// states reports whether quoted is the one encoding of a quote that says what is wanted, by comparing. What a TPM says of itself
// there, its key's name, its clock and its firmware's version, may be anything.
func states(quoted []byte, binding attest.Binding, registers attest.Registers) bool {
	rest, ok := bytes.CutPrefix(quoted, quoteHead)
	if !ok || len(rest) < 2 {
		return false
	}
	name, rest := int(binary.BigEndian.Uint16(rest)), rest[2:]
	if name > maxName || len(rest) < name {
		return false
	}
	rest, ok = bytes.CutPrefix(rest[name:], sized(binding[:]))
	if !ok || len(rest) < clockSize+1+firmwareSize || rest[clockSize] > 1 {
		return false
	}
	digest := registers.Digest()
	rest, ok = bytes.CutPrefix(rest[clockSize+1+firmwareSize:], quoteMiddle)
	return ok && bytes.Equal(rest, digest[:])
}

// checkStatement compares a signed TPMS_ATTEST with what it must say.
func checkStatement(quoted []byte, binding attest.Binding, registers attest.Registers) error {
	if states(quoted, binding, registers) {
		return nil
	}
	return readStatement(quoted, binding, registers)
}

// readStatement is checkStatement that says what differs.
func readStatement(quoted []byte, binding attest.Binding, registers attest.Registers) error {
	statement, err := tpm2.Unmarshal[tpm2.TPMSAttest](quoted)
	if err != nil {
		return refuse("quote-malformed", "the signed statement cannot be read", err)
	}
	if statement.Magic != tpm2.TPMGeneratedValue || statement.Type != tpm2.TPMSTAttestQuote {
		return refuse("quote-malformed", "the signed statement is not a TPM's quote", fmt.Errorf("magic %#x, type %#x", statement.Magic, statement.Type))
	}
	info, err := statement.Attested.Quote()
	if err != nil {
		return refuse("quote-malformed", "the signed statement cannot be read", err)
	}
	if !bytes.Equal(statement.ExtraData.Buffer, binding[:]) {
		return refuse("quote-not-bound", "the quote was not made for this channel, this challenge and this first message", nil)
	}
	if !isSelection(info.PCRSelect) {
		return refuse("quote-selection", "the quote covers other registers than SHA-256 0-9 and 11-15", nil)
	}
	if want := registers.Digest(); !bytes.Equal(info.PCRDigest.Buffer, want[:]) {
		return refuse("quote-digest", "the shown register values are not the quoted ones", nil)
	}
	return nil
}

// refuse is the condition of evidence that is not what it should be.
func refuse(code, title string, cause error) *hullmark.Condition {
	c := &hullmark.Condition{
		Code: code, Step: step, Title: title,
		Next: "power the node off and boot it again; if this happens again, someone sits between you and its TPM",
	}
	if cause != nil {
		c.Got = cause.Error()
	}
	return c
}

// signatureScheme returns how to verify a signature of the given key: ECDSA
// over P-256, or RSASSA with 2,048 bits or more, both with SHA-256.
func signatureScheme(ak *tpm2.TPMTPublic) (func(message, signature []byte) error, error) {
	if ak.NameAlg != tpm2.TPMAlgSHA256 {
		return nil, fmt.Errorf("name algorithm %#x, want SHA-256", ak.NameAlg)
	}
	switch ak.Type {
	case tpm2.TPMAlgECC:
		return ecdsaScheme(ak)
	case tpm2.TPMAlgRSA:
		return rsaScheme(ak)
	}
	return nil, fmt.Errorf("key type %#x, want ECC or RSA", ak.Type)
}

// p256Size is the length of a number of P-256 that has all its bytes.
const p256Size = 32

func ecdsaScheme(ak *tpm2.TPMTPublic) (func(message, signature []byte) error, error) {
	parameters, err := ak.Parameters.ECCDetail()
	if err != nil {
		return nil, err
	}
	if parameters.CurveID != tpm2.TPMECCNistP256 || parameters.Scheme.Scheme != tpm2.TPMAlgECDSA {
		return nil, fmt.Errorf("curve %#x with scheme %#x, want ECDSA over P-256", parameters.CurveID, parameters.Scheme.Scheme)
	}
	scheme, err := parameters.Scheme.Details.ECDSA()
	if err != nil || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, errors.New("the scheme's hash is not SHA-256")
	}
	point, err := ak.Unique.ECC()
	if err != nil {
		return nil, err
	}
	key, err := ecdsaKey(point)
	if err != nil {
		return nil, err
	}
	return func(message, signature []byte) error { return verifyECDSA(key, message, signature) }, nil
}

// ecdsaKey reads a point and requires that it lies on P-256.
func ecdsaKey(point *tpm2.TPMSECCPoint) (*ecdsa.PublicKey, error) {
	if len(point.X.Buffer) > p256Size || len(point.Y.Buffer) > p256Size {
		return nil, errors.New("a coordinate has more than 32 bytes")
	}
	uncompressed := make([]byte, 1+2*p256Size)
	uncompressed[0] = 4 // SEC 1 §2.3.3
	copy(uncompressed[1+p256Size-len(point.X.Buffer):], point.X.Buffer)
	copy(uncompressed[1+2*p256Size-len(point.Y.Buffer):], point.Y.Buffer)
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), uncompressed)
}

// ecdsaHead is what an ECDSA signature with SHA-256 begins with, up to its first number if that has all its bytes (TPM 2.0 Part 2 §11.3.4).
var ecdsaHead = []byte{0, 0x18, 0, 0x0b, 0, p256Size}

// splitECDSA returns the numbers of such a signature that has both with all their bytes, by comparing.
func splitECDSA(encoded []byte) (r, s []byte, ok bool) {
	r, ok = bytes.CutPrefix(encoded, ecdsaHead)
	if !ok || len(r) < p256Size {
		return nil, nil, false
	}
	s, ok = bytes.CutPrefix(r[p256Size:], ecdsaHead[4:])
	return r[:p256Size], s, ok && len(s) == p256Size
}

func verifyECDSA(key *ecdsa.PublicKey, message, encoded []byte) error {
	if r, s, ok := splitECDSA(encoded); ok {
		return checkECDSA(key, message, r, s)
	}
	signature, err := tpm2.Unmarshal[tpm2.TPMTSignature](encoded)
	if err != nil {
		return err
	}
	if signature.SigAlg != tpm2.TPMAlgECDSA {
		return fmt.Errorf("signature algorithm %#x, want ECDSA", signature.SigAlg)
	}
	value, err := signature.Signature.ECDSA()
	if err != nil {
		return err
	}
	if value.Hash != tpm2.TPMAlgSHA256 {
		return errors.New("the signature's hash is not SHA-256")
	}
	return checkECDSA(key, message, value.SignatureR.Buffer, value.SignatureS.Buffer)
}

func checkECDSA(key *ecdsa.PublicKey, message, r, s []byte) error {
	digest := sha256.Sum256(message)
	if !ecdsa.Verify(key, digest[:], new(big.Int).SetBytes(r), new(big.Int).SetBytes(s)) {
		return errors.New("the ECDSA signature is wrong")
	}
	return nil
}

func rsaScheme(ak *tpm2.TPMTPublic) (func(message, signature []byte) error, error) {
	parameters, err := ak.Parameters.RSADetail()
	if err != nil {
		return nil, err
	}
	if parameters.KeyBits < 2048 || parameters.Scheme.Scheme != tpm2.TPMAlgRSASSA {
		return nil, fmt.Errorf("%d bits with scheme %#x, want RSASSA with 2048 or more", parameters.KeyBits, parameters.Scheme.Scheme)
	}
	scheme, err := parameters.Scheme.Details.RSASSA()
	if err != nil || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, errors.New("the scheme's hash is not SHA-256")
	}
	modulus, err := ak.Unique.RSA()
	if err != nil {
		return nil, err
	}
	key := &rsa.PublicKey{N: new(big.Int).SetBytes(modulus.Buffer), E: defaultExponent}
	if key.N.BitLen() != int(parameters.KeyBits) || (parameters.Exponent != 0 && parameters.Exponent != defaultExponent) {
		return nil, errors.New("the modulus has not the stated size, or the exponent is not 65537")
	}
	return func(message, signature []byte) error { return verifyRSA(key, message, signature) }, nil
}

func verifyRSA(key *rsa.PublicKey, message, encoded []byte) error {
	signature, err := tpm2.Unmarshal[tpm2.TPMTSignature](encoded)
	if err != nil {
		return err
	}
	if signature.SigAlg != tpm2.TPMAlgRSASSA {
		return fmt.Errorf("signature algorithm %#x, want RSASSA", signature.SigAlg)
	}
	value, err := signature.Signature.RSASSA()
	if err != nil {
		return err
	}
	if value.Hash != tpm2.TPMAlgSHA256 {
		return errors.New("the signature's hash is not SHA-256")
	}
	digest := sha256.Sum256(message)
	return rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], value.Sig.Buffer)
}

// CheckQuote holds a quote under a key other than the exchange's own to what the exchange demands of its own: that a restricted key
// of a TPM signed this binding, and these registers. public is the key's TPMT_PUBLIC, quoted the TPMS_ATTEST, signature the
// TPMT_SIGNATURE.
func CheckQuote(public, quoted, signature []byte, binding attest.Binding, registers attest.Registers) error {
	key, err := parsePublic(public)
	if err != nil {
		return fmt.Errorf("attestation key: %w", err)
	}
	return checkQuote(key, &wire.Proof{Quoted: quoted, Signature: signature}, binding, registers)
}

// MatchKey reports why a TPMT_PUBLIC is not the key of a certificate, which is RSA with exponent 65537, or of curve P-256.
func MatchKey(public []byte, key crypto.PublicKey) error {
	decoded, err := parsePublic(public)
	if err != nil {
		return err
	}
	own, err := tpm2.Pub(*decoded)
	if err != nil {
		return err
	}
	if comparable, ok := own.(interface{ Equal(crypto.PublicKey) bool }); !ok || !comparable.Equal(key) {
		return errors.New("the certificate is for another key")
	}
	return nil
}
