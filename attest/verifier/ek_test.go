package verifier_test

import (
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

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// A machine of each kind of endorsement key is known by it, and certified by its maker's CA or root, and by no other's.
func TestEndorsementKeys(t *testing.T) {
	tpm := tpmtest.NewCertified(t) // An emulator takes long for an RSA key: this one has one.
	maker, other := newEKMaker(t), newEKMaker(t)
	for _, template := range attest.EKTemplates() {
		t.Run(template.Name, func(t *testing.T) { maker.accepts(t, tpm, template, other) })
	}
}

// accepts has a TPM be certified for this key alone.
func (m ekMaker) accepts(t *testing.T, tpm *tpmtest.TPM, template attest.EKTemplate, other ekMaker) {
	t.Helper()
	for _, each := range attest.EKTemplates() {
		tpm.Store(t, each.Certificate, nil)
	}
	tpm.Store(t, template.Certificate, []byte("its place"))
	keys, err := prover.EKs(tpm)
	if err != nil || len(keys) != 1 || keys[0].Template.Name != template.Name {
		t.Fatalf("%+v, %v", keys, err)
	}
	tpm.Store(t, template.Certificate, append(m.issue(t, keys[0].Public), 0xff, 0xff))
	tpm.Store(t, 0x01c00100, m.ca.Raw)
	tpm.Reset(t)
	s := newScene(t, tpm)
	for name, c := range map[string]struct {
		anchor verifier.Anchor
		wrong  string
	}{
		"the CA":         {verifier.Anchor{Authorities: []*x509.Certificate{m.ca}}, ""},
		"the root":       {verifier.Anchor{Roots: []*x509.Certificate{other.root, m.root}}, ""},
		"another CA":     {verifier.Anchor{Authorities: []*x509.Certificate{other.ca}}, "ek-uncertified"},
		"another root":   {verifier.Anchor{Roots: []*x509.Certificate{other.root}}, "ek-uncertified"},
		"the root as CA": {verifier.Anchor{Authorities: []*x509.Certificate{m.root}}, "ek-uncertified"},
	} {
		exchange, err := verifier.Begin(s.encoded(t), s.channelKey, verifier.Demands{Roots: testRoots, Anchor: c.anchor})
		if c.wrong != "" {
			wantCode(t, err, c.wrong)
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		claims, err := exchange.Verify(s.prove(t, s.bind(t, s.activate(t, exchange))))
		if err != nil || !claims.Certified || claims.EKID != hullmark.EKIDOf(keys[0].Public) {
			t.Errorf("%s: %+v, %v", name, claims, err)
		}
	}
	if err := s.prover.Close(); err != nil {
		t.Fatal(err)
	}
}

// ekMaker is a maker of TPMs, with a root and a CA that signs.
type ekMaker struct {
	root, ca *x509.Certificate
	key      *ecdsa.PrivateKey
}

func newEKMaker(t *testing.T) ekMaker {
	t.Helper()
	var m ekMaker
	var parent *ecdsa.PrivateKey
	for _, name := range []string{"Root", "Manufacturing CA"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(2, 0), // long over
			BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		}
		if parent == nil {
			parent, m.ca = key, template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, m.ca, key.Public(), parent)
		if err != nil {
			t.Fatal(err)
		}
		m.root = m.ca
		if m.ca, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		parent, m.key = key, key
	}
	return m
}

// issue makes the certificate of an endorsement key.
func (m ekMaker) issue(t *testing.T, encoded []byte) []byte {
	t.Helper()
	public, _, ok := attest.ParseEK(encoded)
	if !ok {
		t.Fatal("the TPM shows no EK")
	}
	key, err := tpm2.Pub(public)
	if err != nil {
		t.Fatal(err)
	}
	usage := x509.KeyUsageKeyEncipherment
	if public.Type == tpm2.TPMAlgECC {
		usage = x509.KeyUsageKeyAgreement
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Unix(1, 0), NotAfter: time.Unix(2, 0), KeyUsage: usage,
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{{2, 23, 133, 8, 1}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, m.ca, key, m.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
