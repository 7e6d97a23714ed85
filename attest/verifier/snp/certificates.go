package snp

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha512"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/google/go-sev-guest/verify/trust"
)

// The products.
const (
	Milan = "Milan"
	Genoa = "Genoa"
	Turin = "Turin"
)

// amd returns AMD's own issuers, per product and kind of key: the one that signs such keys, and the root that signed it.
func amd() map[string][]byte {
	return map[string][]byte{
		Milan + string(VCEK): trust.AskArkMilanVcekBytes, Milan + string(VLEK): trust.AskArkMilanVlekBytes,
		Genoa + string(VCEK): trust.AskArkGenoaVcekBytes, Genoa + string(VLEK): trust.AskArkGenoaVlekBytes,
		Turin + string(VCEK): trust.AskArkTurinVcekBytes, Turin + string(VLEK): trust.AskArkTurinVlekBytes,
	}
}

// issuer signs report keys of one product.
type issuer struct {
	product string
	key     Key
	// direct signed the report key's certificate, and root signed direct's.
	direct, root *x509.Certificate
	test         bool
}

// readIssuer reads two certificates in PEM, and checks that the second signed the first, and itself.
func readIssuer(product string, key Key, bundle []byte) (*issuer, error) {
	var certificates []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := readCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) != 2 {
		return nil, fmt.Errorf("issuer of %s keys for %s: %d certificates, want 2", key, product, len(certificates))
	}
	i := &issuer{product: product, key: key, direct: certificates[0], root: certificates[1]}
	return i, errors.Join(i.root.CheckSignatureFrom(i.root), i.direct.CheckSignatureFrom(i.root))
}

func readCertificate(der []byte) (*x509.Certificate, error) {
	certificate, err := x509.ParseCertificate(der)
	if err == nil && len(certificate.Raw) != len(der) {
		return nil, errors.New("certificate: data after its end")
	}
	return certificate, err
}

// The object identifiers of a report key's extensions (AMD 57230, VCEK Certificate and KDS Interface, Table 8).
var (
	oidProduct  = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 3704, 1, 2}
	oidVersions = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 3704, 1, 3}
	oidChip     = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 3704, 1, 4}
	oidProvider = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 3704, 1, 5}
)

// signer is what a report key's certificate says.
type signer struct {
	certificate *x509.Certificate
	product     string
	tcb         TCB
	// chip is the chip's ID, of a VCEK; provider the owner of a VLEK.
	chip     []byte
	provider string
}

// readSigner reads the certificate of a report key.
func readSigner(der []byte) (s signer, err error) {
	if s.certificate, err = readCertificate(der); err != nil {
		return s, err
	}
	versions := map[int]uint8{}
	for _, e := range s.certificate.Extensions {
		switch {
		case e.Id.Equal(oidProduct):
			s.product, err = readText(e.Value)
			s.product, _, _ = strings.Cut(s.product, "-") // a stepping may follow
		case e.Id.Equal(oidProvider):
			s.provider, err = readText(e.Value)
		case e.Id.Equal(oidChip):
			s.chip, err = readChip(e.Value)
		case len(e.Id) == len(oidVersions)+1 && e.Id[:len(oidVersions)].Equal(oidVersions):
			var n int64
			if err = unmarshal(e.Value, &n); err == nil && (n < 0 || n > 255) {
				err = fmt.Errorf("version %d of %v is no byte", n, e.Id)
			}
			versions[e.Id[len(oidVersions)]] = uint8(n)
		}
		if err != nil {
			return s, fmt.Errorf("certificate: extension %v: %w", e.Id, err)
		}
	}
	s.tcb = TCB{Bootloader: versions[1], TEE: versions[2], SNP: versions[3], Microcode: versions[8], FMC: versions[9]}
	for _, n := range []int{1, 2, 3, 8} {
		if _, ok := versions[n]; !ok {
			return s, fmt.Errorf("certificate: version %d is missing", n)
		}
	}
	return s, nil
}

// unmarshal reads one value with nothing after it.
func unmarshal(der []byte, into any) error {
	rest, err := asn1.Unmarshal(der, into)
	if err == nil && len(rest) > 0 {
		return errors.New("data after its end")
	}
	return err
}

func readText(der []byte) (text string, err error) {
	err = unmarshal(der, &text)
	return text, err
}

// readChip takes the ID as AMD writes it, without a frame or in an OCTET STRING; Turin's has 8 bytes.
func readChip(value []byte) (chip []byte, err error) {
	if len(value) == 64 || len(value) == 8 {
		return value, nil
	}
	if err = unmarshal(value, &chip); err == nil && len(chip) != 64 && len(chip) != 8 {
		err = fmt.Errorf("chip ID of %d bytes", len(chip))
	}
	return chip, err
}

// isChip compares a report's chip ID; one of 8 bytes is followed by zeros there.
func (s signer) isChip(id [64]byte) bool {
	return len(s.chip) > 0 && bytes.Equal(id[:len(s.chip)], s.chip) && !slices.ContainsFunc(id[len(s.chip):], func(b byte) bool { return b != 0 })
}

// signed checks a report's signature.
func (s signer) signed(r *Report) error {
	key, ok := s.certificate.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P384() {
		return errors.New("the certificate's key is not one of P-384")
	}
	x, y, err := r.signatureParts()
	if err != nil {
		return err
	}
	digest := sha512.Sum384(r.signed)
	if !ecdsa.Verify(key, digest[:], new(big.Int).SetBytes(x), new(big.Int).SetBytes(y)) {
		return errors.New("the certificate's key did not sign it")
	}
	return nil
}

// productOf names the product of a processor, as reports do from version 3 on; empty for one that is not known.
func productOf(family, model uint8) string {
	switch {
	case family == 0x19 && model <= 0x0f:
		return Milan
	case family == 0x19 && (model&0xf0 == 0x10 || model&0xf0 == 0xa0):
		return Genoa
	case family == 0x1a && model <= 0x1f:
		return Turin
	}
	return ""
}
