// Package sevtest is an AMD for tests: roots, issuers, report keys and reports of chips of any product. It imports nothing of the
// verifier, so that one checks the other.
package sevtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"
)

// Now is the time around which everything is made.
var Now = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

// AMD signs the keys of one product's chips.
type AMD struct {
	t            testing.TB
	product      string
	now          time.Time
	rootKey      *rsa.PrivateKey
	directKey    *rsa.PrivateKey
	root, direct *x509.Certificate
}

// New makes one. The keys are shorter than AMD's own, which take seconds to make.
func New(t testing.TB, product string) *AMD {
	t.Helper()
	return NewAt(t, product, Now)
}

// NewAt makes one whose certificates and CRL are of another time.
func NewAt(t testing.TB, product string, now time.Time) *AMD {
	t.Helper()
	a := &AMD{t: t, product: product, now: now, rootKey: rsaKey(t), directKey: rsaKey(t)}
	a.root = a.issue("ARK-"+product, a.rootKey.Public(), nil, a.rootKey)
	a.direct = a.issue("SEV-"+product, a.directKey.Public(), a.root, a.rootKey)
	return a
}

func rsaKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *AMD) issue(name string, public any, parent *x509.Certificate, by *rsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(name)) + 7), Subject: pkix.Name{CommonName: name}, NotBefore: a.now.AddDate(-1, 0, 0), NotAfter: a.now.AddDate(5, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SignatureAlgorithm: x509.SHA384WithRSAPSS,
	}
	if parent == nil {
		parent = template
	}
	return a.make(template, parent, public, by)
}

func (a *AMD) make(template, parent *x509.Certificate, public any, by *rsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		a.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return certificate
}

// Bundle returns the issuer's certificate and the root's, in PEM.
func (a *AMD) Bundle() (text []byte) {
	for _, c := range []*x509.Certificate{a.direct, a.root} {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

// CRL returns the root's, on which its issuer is or is not.
func (a *AMD) CRL(revoked bool) []byte {
	a.t.Helper()
	template := &x509.RevocationList{
		Number: big.NewInt(4), ThisUpdate: a.now.AddDate(0, 0, -1), NextUpdate: a.now.AddDate(0, 0, 29), SignatureAlgorithm: x509.SHA384WithRSAPSS,
	}
	if revoked {
		template.RevokedCertificateEntries = []x509.RevocationListEntry{{SerialNumber: a.direct.SerialNumber, RevocationTime: a.now}}
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, a.root, a.rootKey)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

// TCB is a version of firmware as it stands in reports: eight bytes.
type TCB [8]byte

// Chip is a processor with its report key.
type Chip struct {
	amd *AMD
	key *ecdsa.PrivateKey
	// ID is its own, TCB its firmware.
	ID  [64]byte
	TCB TCB
	// Certificate is that of its report key, in DER.
	Certificate []byte
	provider    string
}

// Chip makes one of the product; with a provider, its key is that provider's, not the chip's.
func (a *AMD) Chip(tcb TCB, provider string) *Chip {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &Chip{amd: a, key: key, TCB: tcb, provider: provider}
	size := 64
	if a.product == "Turin" {
		size = 8
	}
	if _, err := rand.Read(c.ID[:size]); err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "SEV-VCEK"}, NotBefore: a.now.AddDate(0, 0, -1), NotAfter: a.now.AddDate(1, 0, 0),
		SignatureAlgorithm: x509.SHA384WithRSAPSS, ExtraExtensions: c.extensions(size),
	}
	c.Certificate = a.make(template, a.direct, key.Public(), a.directKey).Raw
	return c
}

// extensions are those of a report key's certificate.
func (c *Chip) extensions(chip int) []pkix.Extension {
	places := map[int]int{1: 0, 2: 1, 3: 6, 8: 7}
	if c.amd.product == "Turin" {
		places = map[int]int{9: 0, 1: 1, 2: 2, 3: 3, 8: 7}
	}
	out := []pkix.Extension{c.extension(c.amd.product+"-B0", 2)}
	for _, n := range []int{1, 2, 3, 8, 9} {
		if at, ok := places[n]; ok {
			out = append(out, c.extension(int(c.TCB[at]), 3, n))
		}
	}
	if c.provider != "" {
		return append(out, c.extension(c.provider, 5))
	}
	return append(out, pkix.Extension{Id: oid(4), Value: slices.Clone(c.ID[:chip])})
}

func oid(more ...int) asn1.ObjectIdentifier {
	return append(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 3704, 1}, more...)
}

func (c *Chip) extension(value any, id ...int) pkix.Extension {
	c.amd.t.Helper()
	params := ""
	if _, ok := value.(string); ok {
		params = "ia5"
	}
	der, err := asn1.MarshalWithParams(value, params)
	if err != nil {
		c.amd.t.Fatal(err)
	}
	return pkix.Extension{Id: oid(id...), Value: der}
}

// Guest is what a report says of a guest and of its platform.
type Guest struct {
	Version, GuestSVN, VMPL uint32
	Policy, PlatformInfo    uint64
	ReportData              [64]byte
	Measurement             [48]byte
	HostData                [32]byte
	IDKey                   [48]byte
	// Family and Model are the processor's.
	Family, Model byte
	// Masked hides the chip's ID.
	Masked bool
	// Reported, Committed and Launch replace the chip's own firmware.
	Reported, Committed, Launch *TCB
	Mitigations                 uint64
}

// Good is a guest to which nothing speaks against, on a processor of the product.
func Good(product string) Guest {
	g := Guest{Version: 5, Policy: 1 << 17, PlatformInfo: 1 << 5, Measurement: [48]byte{1}, ReportData: [64]byte{9}, Family: 0x19, Mitigations: 3}
	switch product {
	case "Genoa":
		g.Model = 0x11
	case "Turin":
		g.Family, g.Model = 0x1a, 2
	}
	return g
}

// Report makes and signs one.
func (c *Chip) Report(g Guest) []byte {
	c.amd.t.Helper()
	r, le := make([]byte, 0x4a0), binary.LittleEndian
	le.PutUint32(r, g.Version)
	le.PutUint32(r[4:], g.GuestSVN)
	le.PutUint64(r[8:], g.Policy)
	le.PutUint32(r[0x30:], g.VMPL)
	le.PutUint32(r[0x34:], 1)
	le.PutUint64(r[0x40:], g.PlatformInfo)
	le.PutUint32(r[0x48:], c.flags(g))
	copy(r[0x50:], g.ReportData[:])
	copy(r[0x90:], g.Measurement[:])
	copy(r[0xc0:], g.HostData[:])
	copy(r[0xe0:], g.IDKey[:])
	for at, t := range map[int]*TCB{0x38: nil, 0x180: g.Reported, 0x1e0: g.Committed, 0x1f0: g.Launch} {
		if t == nil {
			t = &c.TCB
		}
		copy(r[at:], t[:])
	}
	if g.Version >= 3 {
		r[0x188], r[0x189] = g.Family, g.Model
	}
	if g.Version >= 5 {
		le.PutUint64(r[0x1f8:], g.Mitigations)
		le.PutUint64(r[0x200:], g.Mitigations)
	}
	if !g.Masked && c.provider == "" {
		copy(r[0x1a0:], c.ID[:])
	}
	c.sign(r)
	return r
}

func (c *Chip) flags(g Guest) (flags uint32) {
	if c.provider != "" {
		flags = 1 << 2
	}
	if g.Masked {
		flags |= 2
	}
	return flags
}

func (c *Chip) sign(r []byte) {
	c.amd.t.Helper()
	digest := sha512.Sum384(r[:0x2a0])
	x, y, err := ecdsa.Sign(rand.Reader, c.key, digest[:])
	if err != nil {
		c.amd.t.Fatal(err)
	}
	for i, n := range []*big.Int{x, y} {
		bytes := n.FillBytes(make([]byte, 72))
		slices.Reverse(bytes)
		copy(r[0x2a0+72*i:], bytes)
	}
}
