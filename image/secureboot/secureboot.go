// Package secureboot writes what UEFI Secure Boot reads: signatures of PE images
// (Authenticode), and the keys that verify them, as signature lists, as signed
// updates of firmware variables, and as a file of variables for OVMF.
//
// Nothing here has a signing time: RSA signatures of PKCS #1 v1.5 follow from key
// and content, so signing twice gives the same bytes. The private key may be
// anywhere: Message says what has to be signed, Attach takes the signature.
package secureboot

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte/asn1"

	"github.com/hullmark/hullmark/image/pe"
)

// MinBits is the smallest RSA key in bits that CheckCertificate accepts: the one
// size that all firmware has (UEFI 2.10 §32.6.1).
const MinBits = 2048

// ErrSignature is an error of Attach and of Variable.Sign: the signature is
// another key's, or over something else.
var ErrSignature = errors.New("the signature does not verify with the certificate")

// CheckCertificate fails unless the certificate's key is one that firmware takes
// and whose signatures are always the same: RSA of at least MinBits.
func CheckCertificate(c *x509.Certificate) error {
	key, ok := c.PublicKey.(*rsa.PublicKey)
	if !ok {
		return fmt.Errorf("its key is a %T; firmware takes RSA", c.PublicKey)
	}
	if bits := key.N.BitLen(); bits < MinBits {
		return fmt.Errorf("its RSA key has %d bits, want at least %d", bits, MinBits)
	}
	return nil
}

// Message returns the bytes that a key has to sign, by RSASSA-PKCS1-v1_5 with
// SHA-256, so that firmware accepts the PE image: the DER of the signature's
// attributes, about 75 bytes (RFC 2315 §9.3; Authenticode_PE.docx). They follow
// from the image's Authenticode digest alone, so signatures that it has already
// change nothing.
func Message(image []byte) ([]byte, error) {
	p, err := prepare(image)
	if err != nil {
		return nil, err
	}
	return setOf(p.attributes), nil
}

// Attach returns the image with one signature more: by the certificate's key over
// Message(image). It fails with ErrSignature if the signature is not that.
func Attach(image []byte, certificate *x509.Certificate, signature []byte) ([]byte, error) {
	if err := CheckCertificate(certificate); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	p, err := prepare(image)
	if err != nil {
		return nil, err
	}
	if err := verify(certificate, setOf(p.attributes), signature); err != nil {
		return nil, err
	}
	added := contentInfo(signedData(sequence(oidIndirectData, explicit0(p.content)), certificate, p.attributes, signature))
	return pe.WithSignatures(p.image, append(p.earlier, added)...)
}

func verify(certificate *x509.Certificate, message, signature []byte) error {
	digest := sha256.Sum256(message)
	if rsa.VerifyPKCS1v15(certificate.PublicKey.(*rsa.PublicKey), crypto.SHA256, digest[:], signature) != nil {
		return ErrSignature
	}
	return nil
}

// prepared is an image that is to be signed.
type prepared struct {
	image []byte // filled up as signing tools do, with the signatures that it has
	// earlier are those signatures.
	earlier [][]byte
	// content and attributes are what a signature is about, and what is signed of it.
	content, attributes []byte
}

func prepare(image []byte) (p prepared, err error) {
	if p.earlier, err = signatures(image); err != nil {
		return p, err
	}
	if p.image, err = pe.WithSignatures(image, p.earlier...); err != nil {
		return p, err
	}
	if p.content, err = imageContent(p.image); err != nil {
		return p, err
	}
	p.attributes = imageAttributes(p.content)
	return p, nil
}

func signatures(image []byte) ([][]byte, error) {
	f, err := pe.Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, err
	}
	return f.Signatures()
}

// imageContent is SpcIndirectDataContent: what kind of file it is, and its digest.
func imageContent(image []byte) ([]byte, error) {
	f, err := pe.Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	if err := f.Authenticode(h); err != nil {
		return nil, err
	}
	// SpcPeImageData: no flags, and the text that stands for a file name (0x1c bytes of UTF-16BE).
	file := explicit0(element(0xa2, element(0x80, obsolete)))
	data := sequence(oidImageData, sequence(element(asn1.BIT_STRING, []byte{0}), file))
	return sequence(data, sequence(algorithm(oidSHA256), element(asn1.OCTET_STRING, h.Sum(nil)))), nil
}

// imageAttributes are the content's type and the digest of its value, in DER's order.
func imageAttributes(content []byte) []byte {
	digest := sha256.Sum256(value(content))
	return append(
		sequence(oidContentType, setOf(oidIndirectData)),
		sequence(oidMessageDigest, setOf(element(asn1.OCTET_STRING, digest[:])))...)
}
