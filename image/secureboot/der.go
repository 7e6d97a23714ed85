package secureboot

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
)

// Tags of DER (X.690 §8).
const (
	tagInteger   = 0x02
	tagBitString = 0x03
	tagOctets    = 0x04
	tagNull      = 0x05
	tagSequence  = 0x30
	tagSet       = 0x31
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
	b, err := asn1.Marshal(asn1.ObjectIdentifier(arcs))
	if err != nil {
		panic(err) // the constants above
	}
	return b
}

// element is a DER element of the parts, one after the other.
func element(tag byte, parts ...[]byte) []byte {
	content := bytes.Join(parts, nil)
	length := []byte{byte(len(content))}
	if len(content) > 127 {
		length = nil
		for n := len(content); n > 0; n >>= 8 {
			length = append([]byte{byte(n)}, length...)
		}
		length = append([]byte{0x80 | byte(len(length))}, length...)
	}
	return bytes.Join([][]byte{{tag}, length, content}, nil)
}

func sequence(parts ...[]byte) []byte  { return element(tagSequence, parts...) }
func setOf(parts ...[]byte) []byte     { return element(tagSet, parts...) }
func explicit0(parts ...[]byte) []byte { return element(0xa0, parts...) }
func algorithm(oid []byte) []byte      { return sequence(oid, element(tagNull)) }

// value is the content of a DER element that this package made.
func value(der []byte) []byte {
	header := 2
	if der[1] >= 0x80 {
		header += int(der[1] & 0x7f)
	}
	return der[header:]
}

// signedData is a PKCS #7 SignedData (RFC 2315 §9.1) with one certificate and one
// signer. attributes are the authenticated attributes that were signed, or nothing
// where the content itself was.
func signedData(content []byte, c *x509.Certificate, attributes, signature []byte) []byte {
	one := element(tagInteger, []byte{1})
	serial, err := asn1.Marshal(c.SerialNumber)
	if err != nil {
		panic(err) // integers can be marshalled
	}
	var signed []byte
	if attributes != nil {
		signed = explicit0(attributes) // [0] IMPLICIT in place of the set's tag
	}
	signer := sequence(one, sequence(c.RawIssuer, serial), algorithm(oidSHA256), signed, algorithm(oidRSA), element(tagOctets, signature))
	return sequence(one, setOf(algorithm(oidSHA256)), content, explicit0(c.Raw), setOf(signer))
}

func contentInfo(signedData []byte) []byte { return sequence(oidSignedData, explicit0(signedData)) }
