package authenticode

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	_ "crypto/sha256" // what images and certificates are hashed with
	_ "crypto/sha512"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// Limits of a signature that is read.
const (
	// MaxSignature is the largest one, in bytes.
	MaxSignature = 1 << 20
	maxEmbedded  = 32 // certificates in it
	maxSigners   = 8
	maxChain     = 8   // certificates from a signer's to the one that is trusted
	maxIssuers   = 256 // steps from one to the next, of all ways that are tried: certificates may issue each other
)

// ErrNotJudged is why firmware's verdict about a signature is not known here, though it may have one.
var ErrNotJudged = errors.New("whether firmware takes it is not known here")

// Signature is an Authenticode signature of an image: a PKCS #7 SignedData over the image's digest.
type Signature struct {
	// Hash is how the image was hashed, by Authenticode's rules, and Digest what the signature holds of that.
	Hash   crypto.Hash
	Digest []byte

	certificates []*Certificate
	signers      []signerInfo
	content      []byte // the value of SpcIndirectDataContent, which is what signers hash
}

// signerInfo is who signed (RFC 2315 §9.2).
type signerInfo struct {
	certificate *Certificate
	hash        crypto.Hash
	attributes  []byte // the set of authenticated attributes as it is signed; nil if there are none
	digest      []byte // of the content, from the attributes
	signature   []byte
}

// Object identifiers, without tag and length.
var (
	oidSignedData    = []byte{0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2}
	oidMessageDigest = []byte{0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 4}
	oidIndirectData  = []byte{0x2b, 6, 1, 4, 1, 0x82, 0x37, 2, 1, 4}
	oidSHA2          = []byte{0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2} // and one byte that says which
	hashes           = map[byte]crypto.Hash{1: crypto.SHA256, 2: crypto.SHA384, 3: crypto.SHA512}
)

// tag returns the context-specific tag of a constructed element.
func tag(n uint8) asn1.Tag { return asn1.Tag(n).ContextSpecific().Constructed() }

var errDER = errors.New("it is not the DER of a PKCS #7 signature over an image")

// ParseSignature reads an entry of an image's certificate table, as pe.File.Signatures returns them: DER, with nothing after it but
// the zeros that fill up the entry.
func ParseSignature(der []byte) (Signature, error) {
	if len(der) > MaxSignature {
		return Signature{}, fmt.Errorf("signature: %d bytes, want at most %d", len(der), MaxSignature)
	}
	var s Signature
	if err := s.parse(der); err != nil {
		return Signature{}, fmt.Errorf("signature: %w", err)
	}
	return s, nil
}

func (s *Signature) parse(der []byte) error {
	in := cryptobyte.String(der)
	var info, wrapped, data cryptobyte.String
	var version int64
	if !in.ReadASN1(&info, asn1.SEQUENCE) || len(bytes.Trim(in, "\x00")) > 0 || !readObject(&info, oidSignedData) ||
		!info.ReadASN1(&wrapped, tag(0)) || !info.Empty() || !wrapped.ReadASN1(&data, asn1.SEQUENCE) || !wrapped.Empty() || !data.ReadASN1Integer(&version) {
		return errDER
	}
	var algorithms, content, signers cryptobyte.String
	if !data.ReadASN1(&algorithms, asn1.SET) || !data.ReadASN1(&content, asn1.SEQUENCE) {
		return errDER
	}
	// Firmware hashes the image as the first algorithm of the set says.
	var err error
	if s.Hash, err = readHash(&algorithms); err != nil {
		return err
	}
	if err := s.readContent(content); err != nil {
		return err
	}
	if err := s.readCertificates(&data); err != nil {
		return err
	}
	var revoked cryptobyte.String
	if !data.ReadOptionalASN1(&revoked, nil, tag(1)) || !data.ReadASN1(&signers, asn1.SET) || !data.Empty() {
		return errDER
	}
	return s.readSigners(signers)
}

// readObject reads an object identifier that has to be a certain one.
func readObject(in *cryptobyte.String, want []byte) bool {
	var oid cryptobyte.String
	return in.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) && bytes.Equal(oid, want)
}

// readHash reads an AlgorithmIdentifier of a hash.
func readHash(in *cryptobyte.String) (crypto.Hash, error) {
	var algorithm, oid cryptobyte.String
	if !in.ReadASN1(&algorithm, asn1.SEQUENCE) || !algorithm.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) {
		return 0, errDER
	}
	hash := crypto.Hash(0)
	if last := len(oid) - 1; last == len(oidSHA2) && bytes.HasPrefix(oid, oidSHA2) {
		hash = hashes[oid[last]]
	}
	if hash == 0 {
		return 0, fmt.Errorf("it is made with another hash than SHA-256, SHA-384 or SHA-512: %w", ErrNotJudged)
	}
	return hash, nil
}

// readContent reads the ContentInfo with SpcIndirectDataContent, at whose end is the image's digest (Authenticode_PE.docx).
func (s *Signature) readContent(info cryptobyte.String) error {
	var wrapped, content, data, digest, algorithm cryptobyte.String
	if !readObject(&info, oidIndirectData) || !info.ReadASN1(&wrapped, tag(0)) || !info.Empty() ||
		!wrapped.ReadASN1(&content, asn1.SEQUENCE) || !wrapped.Empty() {
		return errDER
	}
	s.content = content
	if !content.ReadASN1(&data, asn1.SEQUENCE) || !content.ReadASN1(&digest, asn1.SEQUENCE) || !content.Empty() ||
		!digest.ReadASN1(&algorithm, asn1.SEQUENCE) || !digest.ReadASN1Bytes(&s.Digest, asn1.OCTET_STRING) || !digest.Empty() {
		return errDER
	}
	return nil
}

func (s *Signature) readCertificates(in *cryptobyte.String) error {
	var all cryptobyte.String
	var present bool
	if !in.ReadOptionalASN1(&all, &present, tag(0)) {
		return errDER
	}
	for !all.Empty() {
		var der cryptobyte.String
		if !all.ReadASN1Element(&der, asn1.SEQUENCE) || len(s.certificates) == maxEmbedded {
			return fmt.Errorf("its certificates are none, or more than %d", maxEmbedded)
		}
		c, err := ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("a certificate in it: %w: %w", err, ErrNotJudged)
		}
		s.certificates = append(s.certificates, c)
	}
	return nil
}

func (s *Signature) readSigners(in cryptobyte.String) error {
	for !in.Empty() {
		var info cryptobyte.String
		if !in.ReadASN1(&info, asn1.SEQUENCE) || len(s.signers) == maxSigners {
			return fmt.Errorf("its signers are none, or more than %d", maxSigners)
		}
		one, err := s.readSigner(info)
		if err != nil {
			return err
		}
		s.signers = append(s.signers, one)
	}
	if len(s.signers) == 0 {
		return errors.New("nobody signed it")
	}
	return nil
}

func (s *Signature) readSigner(in cryptobyte.String) (one signerInfo, err error) {
	var version int64
	var id, issuer, attributes, algorithm, unsigned cryptobyte.String
	var serial []byte
	if !in.ReadASN1Integer(&version) || !in.ReadASN1(&id, asn1.SEQUENCE) || !id.ReadASN1Element(&issuer, asn1.SEQUENCE) || !readInteger(&id, &serial) {
		return one, errDER
	}
	if one.hash, err = readHash(&in); err != nil {
		return one, err
	}
	var has bool
	if !in.ReadOptionalASN1(&attributes, &has, tag(0)) || !in.ReadASN1(&algorithm, asn1.SEQUENCE) || !in.ReadASN1Bytes(&one.signature, asn1.OCTET_STRING) ||
		!in.ReadOptionalASN1(&unsigned, nil, tag(1)) || !in.Empty() {
		return one, errDER
	}
	if has {
		if one.attributes, err = asSet(attributes); err != nil {
			return one, err
		}
		if one.digest, err = messageDigest(attributes); err != nil {
			return one, err
		}
	}
	for _, c := range s.certificates {
		if bytes.Equal(c.issuer, issuer) && bytes.Equal(c.serial, serial) {
			one.certificate = c
			return one, nil
		}
	}
	return one, errors.New("the certificate of who signed it is not in it")
}

// asSet is what is signed of attributes: they are a SET there, whatever tag they have in the signature.
func asSet(attributes []byte) ([]byte, error) {
	var b cryptobyte.Builder
	b.AddASN1(asn1.SET, func(b *cryptobyte.Builder) { b.AddBytes(attributes) })
	return b.Bytes()
}

// messageDigest finds the attribute with the digest of the content.
func messageDigest(attributes cryptobyte.String) (digest []byte, err error) {
	for !attributes.Empty() {
		var attribute, oid, values cryptobyte.String
		if !attributes.ReadASN1(&attribute, asn1.SEQUENCE) || !attribute.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) || !attribute.ReadASN1(&values, asn1.SET) {
			return nil, errDER
		}
		if !bytes.Equal(oid, oidMessageDigest) {
			continue
		}
		if digest != nil || !values.ReadASN1Bytes(&digest, asn1.OCTET_STRING) || !values.Empty() {
			return nil, errDER
		}
	}
	return digest, nil
}

// Signers are the certificates of those who signed.
func (s Signature) Signers() (out []*Certificate) {
	for _, one := range s.signers {
		out = append(out, one.certificate)
	}
	return out
}

// VerifiedBy reports whether the signature verifies with a certificate as the only one that is trusted: that of each signer, or one
// above it in a chain of those that the signature brings, as EDK2's Pkcs7Verify decides it with OpenSSL. Nothing is asked about time,
// purpose or whether a trusted certificate signed itself. Whether Digest is the image's is for the caller to see. An error, with
// ErrNotJudged, is where OpenSSL may decide otherwise than can be said here.
func (s Signature) VerifiedBy(trusted *Certificate) (bool, error) {
	steps := 0
	for _, one := range s.signers {
		ok, err := s.chain(one.certificate, trusted, nil, &steps)
		if err != nil || !ok {
			return false, err
		}
		if ok, err = s.signed(one); err != nil || !ok {
			return false, err
		}
	}
	return len(s.signers) > 0, nil
}

// signed reports whether a signer's signature is one over the content.
func (s Signature) signed(one signerInfo) (bool, error) {
	key := one.certificate.key
	if key == nil {
		return false, fmt.Errorf("it is signed with a key that is not RSA: %w", ErrNotJudged)
	}
	message := s.content
	if one.attributes != nil {
		if !bytes.Equal(one.digest, sum(one.hash, s.content)) {
			return false, nil
		}
		message = one.attributes
	}
	return rsa.VerifyPKCS1v15(key, one.hash, sum(one.hash, message), one.signature) == nil, nil
}

func sum(h crypto.Hash, b []byte) []byte {
	hash := h.New()
	hash.Write(b)
	return hash.Sum(nil)
}

// chain reports whether a certificate is the trusted one or leads to it; below are those under it, from the signer's on, and steps counts
// those to an issuer.
func (s Signature) chain(c, trusted *Certificate, below []*Certificate, steps *int) (bool, error) {
	if c.Equal(trusted) {
		return true, nil
	}
	if len(below) == maxChain {
		return false, nil
	}
	below = append(below[:len(below):len(below)], c)
	for _, issuer := range append([]*Certificate{trusted}, s.certificates...) {
		if slices.ContainsFunc(below, issuer.Equal) {
			continue
		}
		ok, err := issuer.issued(c, len(below)-1)
		if err != nil {
			return false, err
		}
		if !ok {
			continue
		}
		if *steps++; *steps > maxIssuers {
			return false, fmt.Errorf("its certificates issue each other in more than %d ways: %w", maxIssuers, ErrNotJudged)
		}
		if ok, err = s.chain(issuer, trusted, below, steps); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
