// Package providertest is a provider of machines for tests, which certifies a key of a TPM and leaves key and certificate there, where
// Azure's Trusted Launch or Google do. It imports nothing of prover and verifier.
package providertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// Provider has a root and an issuer below it.
type Provider struct {
	t         testing.TB
	keys      [2]*ecdsa.PrivateKey
	Root      []byte
	Issuer    []byte
	authority [2]*x509.Certificate
}

// New makes one.
func New(t testing.TB) *Provider {
	t.Helper()
	p := &Provider{t: t}
	for i := range p.keys {
		var err error
		if p.keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: []string{"Test Root", "Test Issuer"}[i]},
			NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(5, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		p.authority[i] = p.make(template, p.keys[i].Public(), i-1)
	}
	p.Root, p.Issuer = p.authority[0].Raw, p.authority[1].Raw
	return p
}

// make signs a certificate by an authority; below the first one, by itself.
func (p *Provider) make(template *x509.Certificate, public crypto.PublicKey, by int) *x509.Certificate {
	p.t.Helper()
	parent, key := template, p.keys[0]
	if by >= 0 {
		parent, key = p.authority[by], p.keys[by]
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// Instance is the extension of Google's certificates.
type Instance struct {
	Zone          string `asn1:"utf8"`
	ProjectNumber int64
	Project       string `asn1:"utf8"`
	ID            int64
	Name          string `asn1:"utf8"`
}

// Certificate certifies a signing key; instance may be nil.
func (p *Provider) Certificate(public crypto.PublicKey, instance *Instance) []byte {
	p.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: "machine"}, NotBefore: time.Now().AddDate(0, 0, -1), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if instance != nil {
		value, err := asn1.Marshal(*instance)
		if err != nil {
			p.t.Fatal(err)
		}
		template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 1, 21}, Value: value}}
	}
	return p.make(template, public, 1).Raw
}

// template is that of a restricted signing key.
var template = tpm2.TPMTPublic{
	Type: tpm2.TPMAlgRSA, NameAlg: tpm2.TPMAlgSHA256,
	ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true, Restricted: true, SignEncrypt: true},
	Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
		Scheme:  tpm2.TPMTRSAScheme{Scheme: tpm2.TPMAlgRSASSA, Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgRSASSA, &tpm2.TPMSSigSchemeRSASSA{HashAlg: tpm2.TPMAlgSHA256})},
		KeyBits: 2048,
	}),
}

// Azure leaves a key and its certificate where Trusted Launch does, with zeros behind the certificate.
func (p *Provider) Azure(tpm transport.TPM) {
	p.t.Helper()
	made, public := p.makeKey(tpm)
	_, err := tpm2.EvictControl{
		Auth:         tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		ObjectHandle: &tpm2.NamedHandle{Handle: made.ObjectHandle, Name: made.Name}, PersistentHandle: 0x81000003,
	}.Execute(tpm)
	if err != nil {
		p.t.Fatal(err)
	}
	p.flush(tpm, made.ObjectHandle)
	p.put(tpm, 0x01c101d0, append(p.Certificate(public, nil), make([]byte, 100)...))
}

// Google leaves a certificate and the template of its key where Google does.
func (p *Provider) Google(tpm transport.TPM, instance Instance) {
	p.t.Helper()
	made, public := p.makeKey(tpm)
	p.flush(tpm, made.ObjectHandle)
	p.put(tpm, 0x01c10000, p.Certificate(public, &instance))
	p.put(tpm, 0x01c10001, tpm2.Marshal(template))
}

func (p *Provider) makeKey(tpm transport.TPM) (*tpm2.CreatePrimaryResponse, crypto.PublicKey) {
	p.t.Helper()
	hierarchy := tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)}
	made, err := tpm2.CreatePrimary{PrimaryHandle: hierarchy, InPublic: tpm2.New2B(template)}.Execute(tpm)
	if err != nil {
		p.t.Fatal(err)
	}
	area, err := made.OutPublic.Contents()
	if err != nil {
		p.t.Fatal(err)
	}
	public, err := tpm2.Pub(*area)
	if err != nil {
		p.t.Fatal(err)
	}
	return made, public
}

func (p *Provider) flush(tpm transport.TPM, handle tpm2.TPMHandle) {
	p.t.Helper()
	if _, err := (tpm2.FlushContext{FlushHandle: handle}).Execute(tpm); err != nil {
		p.t.Fatal(err)
	}
}

// put defines an index that its owner reads, and writes it.
func (p *Provider) put(tpm transport.TPM, index tpm2.TPMHandle, content []byte) {
	p.t.Helper()
	owner := tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	_, err := tpm2.NVDefineSpace{AuthHandle: owner, PublicInfo: tpm2.New2B(tpm2.TPMSNVPublic{
		NVIndex: index, NameAlg: tpm2.TPMAlgSHA256, DataSize: uint16(len(content)), Attributes: tpm2.TPMANV{OwnerWrite: true, OwnerRead: true, NoDA: true},
	})}.Execute(tpm)
	if err != nil {
		p.t.Fatal(err)
	}
	for at := 0; at < len(content); at += 512 {
		public, err := tpm2.NVReadPublic{NVIndex: index}.Execute(tpm)
		if err != nil {
			p.t.Fatal(err)
		}
		_, err = tpm2.NVWrite{
			AuthHandle: owner, NVIndex: tpm2.NamedHandle{Handle: index, Name: public.NVName},
			Data: tpm2.TPM2BMaxNVBuffer{Buffer: content[at:min(at+512, len(content))]}, Offset: uint16(at),
		}.Execute(tpm)
		if err != nil {
			p.t.Fatal(err)
		}
	}
}
