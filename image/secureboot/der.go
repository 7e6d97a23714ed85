package secureboot

import (
	"crypto/x509"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// Object identifiers of PKCS #7 (RFC 2315, RFC 2985) and Authenticode.
var (
	oidData          = object(1, 2, 840, 113549, 1, 7, 1)
	oidSignedData    = object(1, 2, 840, 113549, 1, 7, 2)
	oidContentType   = object(1, 2, 840, 113549, 1, 9, 3)
	oidMessageDigest = object(1, 2, 840, 113549, 1, 9, 4)
	oidSHA256        = object(2, 16, 840, 1, 101, 3, 4, 2, 1)
	oidRSA           = object(1, 2, 840, 113549, 1, 1, 1)
	oidIndirectData  = object(1, 3, 6, 1, 4, 1, 311, 2, 1, 4)
	oidImageData     = object(1, 3, 6, 1, 4, 1, 311, 2, 1, 15)
)

// obsolete is "<<<Obsolete>>>" as UTF-16BE, which Authenticode wants for a file name.
var obsolete = []byte("\x00<\x00<\x00<\x00O\x00b\x00s\x00o\x00l\x00e\x00t\x00e\x00>\x00>\x00>")

func object(arcs ...int) []byte {
	var b cryptobyte.Builder
	b.AddASN1ObjectIdentifier(arcs)
	return b.BytesOrPanic() // the constants above
}

// element is a DER element (X.690 §8) of the parts, one after the other.
func element(tag asn1.Tag, parts ...[]byte) []byte {
	var b cryptobyte.Builder
	b.AddASN1(tag, func(b *cryptobyte.Builder) {
		for _, p := range parts {
			b.AddBytes(p)
		}
	})
	return b.BytesOrPanic() // bytes can be added
}

func sequence(parts ...[]byte) []byte { return element(asn1.SEQUENCE, parts...) }
func setOf(parts ...[]byte) []byte    { return element(asn1.SET, parts...) }
func explicit0(parts ...[]byte) []byte {
	return element(asn1.Tag(0).ContextSpecific().Constructed(), parts...)
}
func algorithm(oid []byte) []byte { return sequence(oid, element(asn1.NULL)) }

// value is the content of a DER element that this package made.
func value(der []byte) []byte {
	var content cryptobyte.String
	var tag asn1.Tag
	in := cryptobyte.String(der)
	if !in.ReadAnyASN1(&content, &tag) || !in.Empty() {
		panic("secureboot: not one DER element")
	}
	return content
}

// signedData is a PKCS #7 SignedData (RFC 2315 §9.1) with one certificate and one
// signer. attributes are the authenticated attributes that were signed, or nothing
// where the content itself was.
func signedData(content []byte, c *x509.Certificate, attributes, signature []byte) []byte {
	one := element(asn1.INTEGER, []byte{1})
	var serial cryptobyte.Builder
	serial.AddASN1BigInt(c.SerialNumber)
	var signed []byte
	if attributes != nil {
		signed = explicit0(attributes) // [0] IMPLICIT in place of the set's tag
	}
	signer := sequence(one, sequence(c.RawIssuer, serial.BytesOrPanic()), algorithm(oidSHA256), signed, algorithm(oidRSA), element(asn1.OCTET_STRING, signature))
	return sequence(one, setOf(algorithm(oidSHA256)), content, explicit0(c.Raw), setOf(signer))
}

func contentInfo(signedData []byte) []byte { return sequence(oidSignedData, explicit0(signedData)) }
