package secureboot

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/authenticode"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/internal/tooltest"
)

// issue makes a certificate for a key; without an issuer it signs itself.
func issue(t testing.TB, name string, key crypto.Signer, issuer *x509.Certificate, issuerKey crypto.Signer, edit func(c *x509.Certificate)) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(name)) + 7), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(-time.Hour), // Firmware asks for no time.
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if edit != nil {
		edit(template)
	}
	if issuer == nil {
		issuer, issuerKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// chainOf is root, CA and signer, all with keys of their own.
type chainOf struct {
	rootKey, caKey, key      crypto.Signer
	root, ca, leaf, stranger *x509.Certificate
}

// keys are those of all chains: making one takes a while.
var keys [4]crypto.Signer

func newChain(t testing.TB, editCA func(c *x509.Certificate)) chainOf {
	t.Helper()
	for i := range keys {
		if keys[i] == nil {
			keys[i] = newKey(t, 2048)
		}
	}
	c := chainOf{rootKey: keys[0], caKey: keys[1], key: keys[2]}
	c.root = issue(t, "root", c.rootKey, nil, nil, nil)
	c.ca = issue(t, "intermediate", c.caKey, c.root, c.rootKey, editCA)
	c.leaf = issue(t, "leaf", c.key, c.ca, c.caKey, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	c.stranger = issue(t, "stranger", keys[3], nil, nil, nil)
	return c
}

// signature is one that brings certificates.
func (c chainOf) signature(t testing.TB, image []byte, embedded ...*x509.Certificate) []byte {
	t.Helper()
	p, err := prepare(image)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := crypto.SignMessage(c.key, rand.Reader, setOf(p.attributes), crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	data := signedData(sequence(oidIndirectData, explicit0(p.content)), c.leaf, p.attributes, signed)
	var raw []byte
	for _, e := range embedded {
		raw = append(raw, e.Raw...)
	}
	// Put the certificates in place of the signer's alone.
	head, body := explicit0(c.leaf.Raw), explicit0(raw)
	at := bytes.Index(value(data), head)
	return contentInfo(sequence(value(data)[:at], body, value(data)[at+len(head):]))
}

func parsed(t testing.TB, der []byte) authenticode.Signature {
	t.Helper()
	s, err := authenticode.ParseSignature(der)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t testing.TB, c *x509.Certificate) *authenticode.Certificate {
	t.Helper()
	got, err := authenticode.ParseCertificate(c.Raw)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != c.Subject.CommonName || got.Issuer != c.Issuer.CommonName || !bytes.Equal(got.Signed, c.RawTBSCertificate) {
		t.Errorf("%q by %q, want %v by %v", got.Name, got.Issuer, c.Subject, c.Issuer)
	}
	return got
}

// TestVerifiedBy decides by the chain, and sbverify, which asks OpenSSL as firmware does, decides alike.
func TestVerifiedBy(t *testing.T) {
	c := newChain(t, nil)
	noCA := newChain(t, func(c *x509.Certificate) { c.IsCA = false })
	short := newChain(t, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	noSigning := newChain(t, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	for name, test := range map[string]struct {
		chain   chainOf
		with    []*x509.Certificate
		trusted *x509.Certificate
		want    bool
	}{
		"the signer's":              {c, []*x509.Certificate{c.leaf}, c.leaf, true},
		"its issuer's":              {c, []*x509.Certificate{c.leaf}, c.ca, true},
		"its issuer's, embedded":    {c, []*x509.Certificate{c.leaf, c.ca}, c.ca, true},
		"the root's":                {c, []*x509.Certificate{c.ca, c.leaf, c.root}, c.root, true},
		"the root's, link missing":  {c, []*x509.Certificate{c.leaf}, c.root, false},
		"a stranger's":              {c, []*x509.Certificate{c.leaf, c.ca, c.root}, c.stranger, false},
		"embedded, and not trusted": {c, []*x509.Certificate{c.leaf, c.stranger}, c.stranger, false},
		"of a CA that is none":      {noCA, []*x509.Certificate{noCA.leaf, noCA.ca}, noCA.root, false},
		"directly by it":            {noCA, []*x509.Certificate{noCA.leaf}, noCA.ca, false},
		"with a path of no more":    {short, []*x509.Certificate{short.leaf, short.ca}, short.root, true},
		"of a CA that may not sign": {noSigning, []*x509.Certificate{noSigning.leaf, noSigning.ca}, noSigning.root, false},
	} {
		der := test.chain.signature(t, image(t), test.with...)
		s := parsed(t, der)
		got, err := s.VerifiedBy(read(t, test.trusted))
		if err != nil || got != test.want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
		}
		signed, err := pe.WithSignatures(image(t), der)
		if err != nil {
			t.Fatal(err)
		}
		if sbverify(t, signed, test.trusted) != test.want {
			t.Errorf("%s: sbverify says %v", name, !test.want)
		}
	}
}

func sbverify(t testing.TB, image []byte, trusted *x509.Certificate) bool {
	t.Helper()
	dir := t.TempDir()
	certificate := writeFile(t, filepath.Join(dir, "certificate"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.Raw}))
	out, err := exec.Command(tooltest.Path(t, "sbsigntool", "sbverify"), "--cert", certificate, writeFile(t, filepath.Join(dir, "image"), image)).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("Signature verification failed")) {
		t.Fatalf("sbverify: %v\n%s", err, out)
	}
	return err == nil
}

// TestParseSignature reads what signing tools write.
func TestParseSignature(t *testing.T) {
	p := signer(t, newKey(t, 2048))
	mine, err := signatures(p.attach(t, image(t)))
	if err != nil {
		t.Fatal(err)
	}
	in, out := writeFile(t, filepath.Join(t.TempDir(), "in"), image(t)), filepath.Join(t.TempDir(), "out")
	tooltest.Run(t, "sbsigntool", "sbsign", "--key", p.keyFile, "--cert", p.certFile, "--output", out, in)
	theirs, err := signatures(readFile(t, out, "sbsigntool"))
	if err != nil {
		t.Fatal(err)
	}
	for _, der := range append(mine, theirs...) {
		s := parsed(t, der)
		if ok, err := s.VerifiedBy(read(t, p.certificate)); !ok || err != nil || s.Hash != crypto.SHA256 || len(s.Digest) != sha256.Size || len(s.Signers()) != 1 {
			t.Errorf("%+v: %v, %v", s, ok, err)
		}
		damaged := bytes.Clone(der)
		damaged[len(bytes.TrimRight(der, "\x00"))-8] ^= 1 // within the signer's signature, which is last
		if ok, err := parsed(t, damaged).VerifiedBy(read(t, p.certificate)); ok || err != nil {
			t.Errorf("a damaged signature: %v, %v", ok, err)
		}
		damaged = bytes.Clone(der)
		damaged[bytes.Index(der, s.Digest)] ^= 1
		if ok, err := parsed(t, damaged).VerifiedBy(read(t, p.certificate)); ok || err != nil {
			t.Errorf("another digest: %v, %v", ok, err)
		}
	}
}

func TestParseSignatureRefuses(t *testing.T) {
	c := newChain(t, nil)
	good := c.signature(t, image(t), c.leaf)
	for name, test := range map[string]struct {
		der  []byte
		want string
	}{
		"empty":              {nil, "DER"},
		"cut off":            {good[:len(good)-1], "DER"},
		"more behind it":     {append(bytes.Clone(good), 1), "DER"},
		"too large":          {make([]byte, authenticode.MaxSignature+1), "at most"},
		"without the signer": {c.signature(t, image(t), c.ca), "is not in it"},
		"another hash":       {bytes.ReplaceAll(good, value(oidSHA256), value(object(2, 16, 840, 1, 101, 3, 4, 2, 9))), "another hash"},
		"another content":    {bytes.ReplaceAll(good, oidIndirectData, append(bytes.Clone(oidIndirectData[:len(oidIndirectData)-1]), 9)), "DER"},
		"many certificates":  {c.signature(t, image(t), bytesOf(c.leaf, 33)...), "more than"},
	} {
		if _, err := authenticode.ParseSignature(test.der); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		}
	}
}

func bytesOf(c *x509.Certificate, n int) (out []*x509.Certificate) {
	for range n {
		out = append(out, c)
	}
	return out
}

// A key that is not RSA may be one that firmware takes.
func TestSignaturesThatAreNotJudged(t *testing.T) {
	c := newChain(t, nil)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.key, c.leaf = curve, issue(t, "curve", curve, c.ca, c.caKey, nil)
	if _, err := parsed(t, c.signature(t, image(t), c.leaf)).VerifiedBy(read(t, c.ca)); !errors.Is(err, authenticode.ErrNotJudged) {
		t.Errorf("a signature by another kind of key: %v", err)
	}
}

// Certificates that all issue each other lead to nobody in more ways than can be tried.
func TestCertificatesThatIssueEachOther(t *testing.T) {
	c := newChain(t, nil)
	var loop []*x509.Certificate
	for i := range 30 {
		loop = append(loop, issue(t, "loop", c.caKey, nil, nil, func(c *x509.Certificate) { c.SerialNumber = big.NewInt(int64(100 + i)) }))
	}
	c.leaf = issue(t, "leaf", c.key, loop[0], c.caKey, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	s := parsed(t, c.signature(t, image(t), append(loop, c.leaf)...))
	if _, err := s.VerifiedBy(read(t, c.stranger)); !errors.Is(err, authenticode.ErrNotJudged) {
		t.Errorf("by a stranger: %v", err)
	}
	if ok, err := s.VerifiedBy(read(t, loop[7])); !ok || err != nil {
		t.Errorf("by one of them: %v, %v", ok, err)
	}
}
