// Package ekcert reads the certificates of endorsement keys as real TPMs have them, and follows the chains of who made them. It
// fetches nothing, and trusts nobody by itself.
package ekcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-tpm/tpm2"
)

const (
	// MaxShown bounds what a machine shows: its certificate and its chain, in bytes.
	MaxShown = 8 << 10
	// maxChain bounds the number of certificates of a chain.
	maxChain = 8
	// maxNamesakes bounds how many of them have one name: a verifier tries them all, at each place of a chain.
	maxNamesakes = 2
	// minModulus and maxModulus bound an RSA key of a chain, in bits: whoever shows one makes others verify with it.
	minModulus, maxModulus = 2048, 4096
)

// Certificate is that of an endorsement key.
type Certificate struct {
	*x509.Certificate
	// Chain are those of CAs that came with it, as a TPM may keep them. Nothing says that they belong to it.
	Chain []*x509.Certificate
	// TPM is what the certificate says of the TPM; zero if it says nothing.
	TPM TPM
}

// TPM is what a certificate says of a TPM (TCG EK Credential Profile 2.5 §3.2.9), as it was written.
type TPM struct {
	// Maker is the TCG's identity of the maker, such as id:49465800, or a text.
	Maker string
	// Model and Version are the maker's own words, and what the version of the firmware was.
	Model, Version string
}

// Parse reads what a machine shows of an endorsement key's certificate: that in DER and, behind it, those of its chain.
func Parse(shown []byte) (*Certificate, error) {
	if len(shown) > MaxShown {
		return nil, fmt.Errorf("%d bytes, at most %d are read", len(shown), MaxShown)
	}
	all, err := split(shown)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(all[0])
	if err != nil {
		return nil, err
	}
	c := &Certificate{Certificate: leaf}
	if err := c.readName(); err != nil {
		return nil, err
	}
	for i, der := range all[1:] {
		ca, err := x509.ParseCertificate(der)
		if err == nil {
			err = errors.Join(checkKey(ca), c.checkNamesakes(ca))
		}
		if err != nil {
			return nil, fmt.Errorf("certificate %d of its chain: %w", i+1, err)
		}
		c.Chain = append(c.Chain, ca)
	}
	return c, nil
}

// Encode returns what Parse reads.
func (c *Certificate) Encode() []byte {
	shown := slices.Clone(c.Raw)
	for _, ca := range c.Chain {
		shown = append(shown, ca.Raw...)
	}
	return shown
}

// split returns the DER values of which there is one at least, and nothing else.
func split(shown []byte) (all [][]byte, err error) {
	for rest := shown; len(rest) > 0 || len(all) == 0; {
		var der []byte
		if der, rest, err = next(rest); err != nil {
			return nil, err
		}
		if all = append(all, der); len(all) > 1+maxChain {
			return nil, fmt.Errorf("a chain of more than %d certificates", maxChain)
		}
	}
	return all, nil
}

// next takes one DER value.
func next(content []byte) (der, rest []byte, err error) {
	var value asn1.RawValue
	if rest, err = asn1.Unmarshal(content, &value); err != nil {
		return nil, nil, err
	}
	if value.Tag != asn1.TagSequence || value.Class != asn1.ClassUniversal {
		return nil, nil, errors.New("no certificate in DER")
	}
	return value.FullBytes, rest, nil
}

// FromIndex returns the certificate that an NV index begins with: many makers reserve more than they need.
func FromIndex(content []byte) (der []byte, err error) {
	der, _, err = next(content)
	return der, err
}

// ChainFromIndexes returns the certificates in the content of all indexes of a chain, one behind the other, up to where the padding
// begins.
func ChainFromIndexes(content []byte) (chain []byte, err error) {
	for rest := content; len(bytes.TrimLeft(rest, "\x00")) > 0 && len(bytes.TrimLeft(rest, "\xff")) > 0; {
		var der []byte
		if der, rest, err = next(rest); err != nil {
			return nil, err
		}
		chain = append(chain, der...)
	}
	return chain, nil
}

// checkKey refuses a CA whose signatures would be costly to verify, or worth nothing.
func checkKey(ca *x509.Certificate) error {
	switch key := ca.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minModulus || bits > maxModulus {
			return fmt.Errorf("an RSA key of %d bits, want %d to %d", bits, minModulus, maxModulus)
		}
		return nil
	case *ecdsa.PublicKey:
		return nil
	}
	return fmt.Errorf("a key of a kind that is not taken: %v", ca.PublicKeyAlgorithm)
}

// checkNamesakes refuses one more CA of a chain with which the ways through it would grow without bound: whoever shows them has others
// verify a signature for each step of each way. The same certificate once more is no other way.
func (c *Certificate) checkNamesakes(ca *x509.Certificate) error {
	others := 0
	for i, other := range c.Chain {
		switch {
		case !bytes.Equal(other.RawSubject, ca.RawSubject), slices.ContainsFunc(c.Chain[:i], other.Equal), other.Equal(ca):
			continue
		case bytes.Equal(other.RawSubjectPublicKeyInfo, ca.RawSubjectPublicKeyInfo):
			return errors.New("another has its name and its key")
		}
		others++
	}
	if others >= maxNamesakes {
		return fmt.Errorf("more than %d have its name", maxNamesakes)
	}
	return nil
}

var (
	subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
	tpmMaker       = asn1.ObjectIdentifier{2, 23, 133, 2, 1}
	tpmModel       = asn1.ObjectIdentifier{2, 23, 133, 2, 2}
	tpmVersion     = asn1.ObjectIdentifier{2, 23, 133, 2, 3}
)

// readName reads the name that the profile has TPMs' makers write into the alternative names of the subject, where crypto/x509 does
// not read it.
func (c *Certificate) readName() error {
	i := slices.IndexFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(subjectAltName) })
	if i < 0 {
		return nil
	}
	var names []asn1.RawValue
	if rest, err := asn1.Unmarshal(c.Extensions[i].Value, &names); err != nil || len(rest) > 0 {
		return errors.New("the alternative names of its subject cannot be read")
	}
	for _, name := range names {
		const directoryName = 4 // RFC 5280 §4.2.1.6
		if name.Class != asn1.ClassContextSpecific || name.Tag != directoryName {
			continue
		}
		var attributes pkix.RDNSequence
		if rest, err := asn1.Unmarshal(name.Bytes, &attributes); err != nil || len(rest) > 0 {
			return errors.New("the directory name of its subject cannot be read")
		}
		for _, a := range slices.Concat(attributes...) {
			c.TPM.take(a)
		}
	}
	if c.TPM != (TPM{}) { // It was understood.
		c.UnhandledCriticalExtensions = slices.DeleteFunc(slices.Clone(c.UnhandledCriticalExtensions), subjectAltName.Equal)
	}
	return nil
}

func (t *TPM) take(a pkix.AttributeTypeAndValue) {
	value, ok := a.Value.(string)
	if !ok {
		return
	}
	for field, id := range map[*string]asn1.ObjectIdentifier{&t.Maker: tpmMaker, &t.Model: tpmModel, &t.Version: tpmVersion} {
		if a.Type.Equal(id) && *field == "" {
			*field = value
		}
	}
}

// MakerName is the TPM's maker as people call it, or as the certificate does.
func (t TPM) MakerName() string {
	code, found := strings.CutPrefix(strings.ToUpper(t.Maker), "ID:")
	if name := makerCodes[code]; found && name != "" {
		return name
	}
	return t.Maker
}

// makerCodes are identities of makers (TCG Vendor ID Registry 1.07).
var makerCodes = map[string]string{
	"414D4400": AMD, "41544D4C": Atmel, "474F4F47": Google, "49424D00": "IBM", "49465800": Infineon, "494E5443": Intel,
	"4D534654": Microsoft, "4E545A00": Nationz, "4E544300": Nuvoton, "51434F4D": "Qualcomm", "53544D20": ST, "53544D00": ST,
	"57454300": "Winbond",
}

// IsFor reports whether the certificate is of a public key. It has to be one that attest.ParseEK reads.
func (c *Certificate) IsFor(public *tpm2.TPMTPublic) bool {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		modulus, err := public.Unique.RSA()
		// A number of more bits than the modulus has room for would make FillBytes panic.
		return public.Type == tpm2.TPMAlgRSA && err == nil && key.E == defaultExponent && key.N.BitLen() <= 8*len(modulus.Buffer) &&
			bytes.Equal(key.N.FillBytes(make([]byte, len(modulus.Buffer))), modulus.Buffer)
	case *ecdsa.PublicKey:
		point, err := public.Unique.ECC()
		parameters, other := public.Parameters.ECCDetail()
		if public.Type != tpm2.TPMAlgECC || err != nil || other != nil {
			return false
		}
		curve, err := parameters.CurveID.Curve()
		uncompressed, bad := key.Bytes()
		return err == nil && bad == nil && key.Curve == curve && bytes.Equal(uncompressed[1:], slices.Concat(point.X.Buffer, point.Y.Buffer))
	}
	return false
}

// defaultExponent is the RSA exponent that a TPM means by 0 (TPM 2.0 Part 2 §12.2.3.5).
const defaultExponent = 65537

// ekUsage is the purpose of an EK's certificate (TCG EK Credential Profile 2.5 §3.2.16, tcg-kp-EKCertificate).
var ekUsage = asn1.ObjectIdentifier{2, 23, 133, 8, 1}

// CheckUse refuses a certificate that says that it is for something else than an endorsement key, which only decrypts or agrees on
// keys: a CA may sign other keys, which are in no TPM. Some CAs write no purpose; they sign nothing else.
func (c *Certificate) CheckUse() error {
	usage := x509.KeyUsageKeyEncipherment
	if c.PublicKeyAlgorithm == x509.ECDSA {
		usage |= x509.KeyUsageKeyAgreement
	}
	purposes := len(c.ExtKeyUsage) + len(c.UnknownExtKeyUsage)
	switch {
	case c.IsCA:
		return errors.New("its certificate is a CA's")
	case c.KeyUsage != 0 && c.KeyUsage&usage == 0:
		return errors.New("its certificate is for a key that neither decrypts nor agrees on keys")
	case purposes != 0 && !c.namesPurpose():
		return errors.New("its certificate is for another purpose than an endorsement key")
	case len(c.UnhandledCriticalExtensions) > 0:
		return fmt.Errorf("its certificate has a critical extension that is not known: %v", c.UnhandledCriticalExtensions[0])
	}
	return nil
}

func (c *Certificate) namesPurpose() bool {
	return slices.ContainsFunc(c.UnknownExtKeyUsage, ekUsage.Equal)
}

// CheckSignedBy returns nil if the certificate is for an endorsement key, and the authority signed it itself. Dates are not looked at:
// an endorsement key is burnt in and outlives them.
func (c *Certificate) CheckSignedBy(authority *x509.Certificate) error {
	if !bytes.Equal(c.RawIssuer, authority.RawSubject) {
		return fmt.Errorf("its certificate was issued by %s", c.Issuer)
	}
	if err := c.CheckUse(); err != nil {
		return err
	}
	return c.CheckSignatureFrom(authority)
}

// CheckLeadsTo returns nil if the certificate is for an endorsement key, and leads to one of some roots by its chain. A root signs
// much, so the certificate has to name its purpose. All certificates have to be good at the time from which the endorsement key's is:
// what ended since has ended for a key that is burnt in, too.
func (c *Certificate) CheckLeadsTo(roots []*x509.Certificate) error {
	if err := c.CheckUse(); err != nil {
		return err
	}
	if !c.namesPurpose() {
		return errors.New("its certificate does not say that it is an endorsement key's, as it has to below a root")
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: c.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, root := range roots {
		options.Roots.AddCert(root)
	}
	for _, ca := range c.Chain {
		options.Intermediates.AddCert(ca)
	}
	chains, err := c.Verify(options)
	if err == nil && !slices.ContainsFunc(chains, certifyEKs) {
		err = errors.New("a CA between its certificate and the root is for another purpose than endorsement keys")
	}
	return err
}

// certifyEKs reports whether the CAs of a chain, between its first certificate and its root, may certify endorsement keys: what a CA says
// of purposes bounds what it signs, as everybody has it (TCG EK Credential Profile 2.5 §3.2.16; crypto/x509 knows no such purpose).
func certifyEKs(chain []*x509.Certificate) bool {
	for _, ca := range chain[1:max(1, len(chain)-1)] {
		named := len(ca.ExtKeyUsage)+len(ca.UnknownExtKeyUsage) > 0
		if named && !slices.Contains(ca.ExtKeyUsage, x509.ExtKeyUsageAny) && !slices.ContainsFunc(ca.UnknownExtKeyUsage, ekUsage.Equal) {
			return false
		}
	}
	return true
}
