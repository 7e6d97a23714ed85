// Package nitrotest is a Nitro system for tests: a root, an issuer, and documents of TPMs and enclaves. It imports nothing of the
// verifier, so that one checks the other.
package nitrotest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// Now is the time around which everything is made.
var Now = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

// AWS signs documents.
type AWS struct {
	t                    testing.TB
	root, issuer, module authority
}

// New makes one.
func New(t testing.TB) *AWS {
	t.Helper()
	a := &AWS{t: t}
	a.root = a.issue("test.nitro", nil, true, 20)
	a.issuer = a.issue("zone.test.nitro", &a.root, true, 1)
	a.module = a.issue("i-0123456789abcdef0.test", &a.issuer, false, 1)
	return a
}

func (a *AWS) issue(name string, by *authority, ca bool, years int) authority {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(name))), Subject: pkix.Name{CommonName: name}, NotBefore: Now.AddDate(0, 0, -1), NotAfter: Now.AddDate(years, 0, 0),
		IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if ca {
		template.KeyUsage = x509.KeyUsageCertSign
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.certificate, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return authority{key, certificate}
}

// Root returns the root's certificate in DER.
func (a *AWS) Root() []byte { return a.root.certificate.Raw }

// Good are the fields of a document of a TPM, to which nothing speaks against.
func (a *AWS) Good(nonce []byte) map[string]any {
	return map[string]any{
		"module_id": "i-0123456789abcdef0-tpm0123456789abcdef", "digest": "SHA384", "timestamp": uint64(Now.UnixMilli()),
		"nitrotpm_pcrs": map[uint64][]byte{4: make([]byte, 48), 7: make([]byte, 48)},
		"certificate":   a.module.certificate.Raw, "cabundle": [][]byte{a.root.certificate.Raw, a.issuer.certificate.Raw},
		"public_key": nil, "user_data": nil, "nonce": nonce,
	}
}

// Document signs fields.
func (a *AWS) Document(fields map[string]any) []byte {
	a.t.Helper()
	return a.Sign(a.encode(fields))
}

func (a *AWS) encode(content any) []byte {
	a.t.Helper()
	raw, err := cbor.Marshal(content)
	if err != nil {
		a.t.Fatal(err)
	}
	return raw
}

// Sign signs a payload.
func (a *AWS) Sign(payload []byte) []byte {
	a.t.Helper()
	protected := []byte{0xa1, 1, 0x38, 0x22}
	digest := sha512.Sum384(a.encode([]any{"Signature1", protected, []byte{}, payload}))
	r, s, err := ecdsa.Sign(rand.Reader, a.module.key, digest[:])
	if err != nil {
		a.t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 48)), s.FillBytes(make([]byte, 48))...)
	return a.encode([]any{protected, map[int]int{}, payload, signature})
}
