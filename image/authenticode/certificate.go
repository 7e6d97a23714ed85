package authenticode

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/rsa"
	"errors"
	"fmt"
	"math/big"
	"unicode/utf16"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// MaxCertificate is the largest certificate that is read, in bytes.
const MaxCertificate = 64 << 10

// maxBits bounds an RSA key, whose checks cost more than its length.
const maxBits = 16384

// Certificate is one of X.509 (RFC 5280), as far as firmware asks about it.
type Certificate struct {
	// Raw is its DER, and Signed what its issuer signed of that.
	Raw, Signed []byte
	// Name and Issuer are its common name and its issuer's, or what else there is of a name; not to be trusted.
	Name, Issuer string

	version         int64
	serial          []byte
	subject, issuer []byte         // DER
	key             *rsa.PublicKey // nil for another kind
	hash            crypto.Hash    // of the issuer's signature, with RSA; 0 for another kind
	signature       []byte
	extensions
}

// extensions are those that decide whether a certificate may be one of a chain.
type extensions struct {
	constrained, ca          bool // basicConstraints
	pathLength               int64
	used, certSign           bool // keyUsage
	subjectKey, authorityKey []byte
	unknown                  bool // a critical one of another kind
}

// Object identifiers, without tag and length.
var (
	oidCommonName    = []byte{0x55, 4, 3}
	oidOrganization  = []byte{0x55, 4, 10}
	oidRSA           = []byte{0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1}
	signatureHashes  = map[byte]crypto.Hash{11: crypto.SHA256, 12: crypto.SHA384, 13: crypto.SHA512} // behind oidRSA but its last byte
	oidExtension     = []byte{0x55, 0x1d}
	noPathLength     = int64(-1)
	errNoCertificate = errors.New("it is not the DER of a certificate")
)

// ParseCertificate reads a certificate.
func ParseCertificate(der []byte) (*Certificate, error) {
	if len(der) > MaxCertificate {
		return nil, fmt.Errorf("certificate: %d bytes, want at most %d", len(der), MaxCertificate)
	}
	c := &Certificate{Raw: der}
	if err := c.parse(der); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return c, nil
}

// Equal reports whether both are the same bytes.
func (c *Certificate) Equal(other *Certificate) bool { return bytes.Equal(c.Raw, other.Raw) }

// SelfIssued reports whether the certificate names itself as its issuer.
func (c *Certificate) SelfIssued() bool { return bytes.Equal(c.subject, c.issuer) }

func (c *Certificate) parse(der []byte) error {
	in := cryptobyte.String(der)
	var whole, signed, algorithm, oid cryptobyte.String
	if !in.ReadASN1(&whole, asn1.SEQUENCE) || !in.Empty() || !whole.ReadASN1Element(&signed, asn1.SEQUENCE) ||
		!whole.ReadASN1(&algorithm, asn1.SEQUENCE) || !whole.ReadASN1BitStringAsBytes(&c.signature) || !whole.Empty() ||
		!algorithm.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) {
		return errNoCertificate
	}
	if prefix, last := oidRSA[:len(oidRSA)-1], len(oid)-1; last == len(prefix) && bytes.HasPrefix(oid, prefix) {
		c.hash = signatureHashes[oid[last]]
	}
	c.Signed = signed
	return c.parseSigned(signed)
}

func (c *Certificate) parseSigned(in cryptobyte.String) error {
	var body, issuer, subject, skipped, key, all cryptobyte.String
	var serial []byte
	var extended bool
	if !in.ReadASN1(&body, asn1.SEQUENCE) || !body.ReadOptionalASN1Integer(&c.version, tag(0), int64(0)) ||
		!readInteger(&body, &serial) || !body.SkipASN1(asn1.SEQUENCE) || !body.ReadASN1Element(&issuer, asn1.SEQUENCE) ||
		!body.SkipASN1(asn1.SEQUENCE) || !body.ReadASN1Element(&subject, asn1.SEQUENCE) || !body.ReadASN1(&key, asn1.SEQUENCE) ||
		!body.ReadOptionalASN1(&skipped, nil, asn1.Tag(1).ContextSpecific()) || !body.ReadOptionalASN1(&skipped, nil, asn1.Tag(2).ContextSpecific()) ||
		!body.ReadOptionalASN1(&all, &extended, tag(3)) || !body.Empty() {
		return errNoCertificate
	}
	c.serial, c.issuer, c.subject = serial, issuer, subject
	c.Name, c.Issuer = nameOf(subject), nameOf(issuer)
	c.pathLength = noPathLength
	if err := c.readKey(key); err != nil {
		return err
	}
	if extended {
		return c.readExtensions(all)
	}
	return nil
}

// readInteger reads the bytes of an integer, which may be one that no serial number should be.
func readInteger(in *cryptobyte.String, out *[]byte) bool {
	var content cryptobyte.String
	if !in.ReadASN1(&content, asn1.INTEGER) {
		return false
	}
	*out = content
	return true
}

func (c *Certificate) readKey(in cryptobyte.String) error {
	var algorithm, oid, pair cryptobyte.String
	var bits []byte
	if !in.ReadASN1(&algorithm, asn1.SEQUENCE) || !algorithm.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) || !in.ReadASN1BitStringAsBytes(&bits) || !in.Empty() {
		return errNoCertificate
	}
	if !bytes.Equal(oid, oidRSA) {
		return nil
	}
	n, e := new(big.Int), 0
	key := cryptobyte.String(bits)
	if !key.ReadASN1(&pair, asn1.SEQUENCE) || !key.Empty() || !pair.ReadASN1Integer(n) || !pair.ReadASN1Integer(&e) || !pair.Empty() {
		return errNoCertificate
	}
	if n.Sign() <= 0 || n.BitLen() > maxBits || e < 3 {
		return fmt.Errorf("an RSA key of %d bits with exponent %d", n.BitLen(), e)
	}
	c.key = &rsa.PublicKey{N: n, E: e}
	return nil
}

func (c *Certificate) readExtensions(in cryptobyte.String) error {
	var all cryptobyte.String
	if !in.ReadASN1(&all, asn1.SEQUENCE) || !in.Empty() {
		return errNoCertificate
	}
	for !all.Empty() {
		var one, oid, value cryptobyte.String
		critical := false
		if !all.ReadASN1(&one, asn1.SEQUENCE) || !one.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) ||
			one.PeekASN1Tag(asn1.BOOLEAN) && !one.ReadASN1Boolean(&critical) || !one.ReadASN1(&value, asn1.OCTET_STRING) || !one.Empty() {
			return errNoCertificate
		}
		known, ok := c.readExtension(oid, value)
		if !ok {
			return errNoCertificate
		}
		c.unknown = c.unknown || critical && !known
	}
	return nil
}

// readExtension reads those of RFC 5280 §4.2.1 that count; known says that firmware knows it, too.
func (c *Certificate) readExtension(oid, value cryptobyte.String) (known, ok bool) {
	if len(oid) != 3 || !bytes.HasPrefix(oid, oidExtension) {
		return false, true
	}
	switch oid[2] {
	case 14:
		return true, value.ReadASN1Bytes(&c.subjectKey, asn1.OCTET_STRING)
	case 15:
		var bits []byte
		ok := readBits(&value, &bits)
		c.used, c.certSign = true, len(bits) > 0 && bits[0]&0x04 != 0
		return true, ok
	case 17, 37: // Names and purposes, about which firmware asks nothing.
		return true, true
	case 19:
		var constraints cryptobyte.String
		c.constrained = true
		return true, value.ReadASN1(&constraints, asn1.SEQUENCE) && (!constraints.PeekASN1Tag(asn1.BOOLEAN) || constraints.ReadASN1Boolean(&c.ca)) &&
			(constraints.Empty() || constraints.ReadASN1Integer(&c.pathLength)) && constraints.Empty()
	case 35:
		var id, key cryptobyte.String
		var has bool
		ok := value.ReadASN1(&id, asn1.SEQUENCE) && id.ReadOptionalASN1(&key, &has, asn1.Tag(0).ContextSpecific())
		c.authorityKey = key
		return true, ok
	}
	return false, true
}

// readBits reads a bit string, whose length need not be one of whole bytes.
func readBits(in *cryptobyte.String, out *[]byte) bool {
	var content cryptobyte.String
	if !in.ReadASN1(&content, asn1.BIT_STRING) || len(content) < 1 {
		return false
	}
	*out = content[1:]
	return true
}

// nameOf finds the common name of a Name, or its organization.
func nameOf(der cryptobyte.String) string {
	var name, set cryptobyte.String
	if !der.ReadASN1(&name, asn1.SEQUENCE) {
		return ""
	}
	var common, organization string
	for name.ReadASN1(&set, asn1.SET) {
		var part, oid, value cryptobyte.String
		var kind asn1.Tag
		if !set.ReadASN1(&part, asn1.SEQUENCE) || !part.ReadASN1(&oid, asn1.OBJECT_IDENTIFIER) || !part.ReadAnyASN1(&value, &kind) {
			break
		}
		switch {
		case bytes.Equal(oid, oidCommonName):
			common = text(kind, value)
		case bytes.Equal(oid, oidOrganization):
			organization = text(kind, value)
		}
	}
	return cmp.Or(common, organization, "without a name")
}

// text reads a string of a name: UTF-16 of a BMPString, else bytes.
func text(kind asn1.Tag, value []byte) string {
	const bmp = 30
	if kind != bmp {
		return string(value)
	}
	var units []uint16
	for ; len(value) >= 2; value = value[2:] {
		units = append(units, uint16(value[0])<<8|uint16(value[1]))
	}
	return string(utf16.Decode(units))
}

// issued reports whether a certificate issued another one, with so many of CAs between that one and the signer's.
func (c *Certificate) issued(other *Certificate, between int) (bool, error) {
	if !bytes.Equal(c.subject, other.issuer) || !c.mayIssue(between) ||
		len(other.authorityKey) > 0 && len(c.subjectKey) > 0 && !bytes.Equal(other.authorityKey, c.subjectKey) {
		return false, nil
	}
	if c.unknown || other.unknown {
		return false, fmt.Errorf("certificate %q, or %q, has an extension that may forbid it: %w", c.Name, other.Name, ErrNotJudged)
	}
	if c.key == nil || other.hash == 0 {
		return false, fmt.Errorf("certificate %q was issued with something else than RSA and SHA-2: %w", other.Name, ErrNotJudged)
	}
	return rsa.VerifyPKCS1v15(c.key, other.hash, sum(other.hash, other.Signed), other.signature) == nil, nil
}

// mayIssue decides as OpenSSL's check_ca and check_issued do (crypto/x509/v3_purp.c).
func (c *Certificate) mayIssue(between int) bool {
	if c.used && !c.certSign {
		return false
	}
	if c.constrained {
		return c.ca && (c.pathLength < 0 || int64(between) <= c.pathLength)
	}
	return c.version == 0 && c.SelfIssued() || c.certSign
}
