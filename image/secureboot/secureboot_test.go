package secureboot

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/internal/tooltest"
)

const (
	stubPath     = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"
	templatePath = "/usr/share/OVMF/OVMF_VARS_4M.fd"
	owner        = "11223344-5566-7788-99aa-bbccddeeff00"
)

func readFile(t testing.TB, path, pkg string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: apt-get install %s", err, pkg)
	}
	return b
}

func writeFile(t testing.TB, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pair is a key and its certificate, in memory and as files that other tools read.
type pair struct {
	key               crypto.Signer
	certificate       *x509.Certificate
	keyFile, certFile string
}

// signer makes a certificate for the key.
func signer(t testing.TB, key crypto.Signer) pair {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(0x80), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p := pair{key: key}
	if p.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p.keyFile = writeFile(t, filepath.Join(dir, "key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	p.certFile = writeFile(t, filepath.Join(dir, "cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return p
}

func newKey(t testing.TB, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (p pair) sign(t testing.TB, message []byte) []byte {
	t.Helper()
	signature, err := crypto.SignMessage(p.key, rand.Reader, message, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return signature
}

func (p pair) attach(t testing.TB, image []byte) []byte {
	t.Helper()
	message, err := Message(image)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := Attach(image, p.certificate, p.sign(t, message))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// accepts reports whether sbverify takes the image with the certificate.
func (p pair) accepts(t testing.TB, image []byte) bool {
	t.Helper()
	program := tooltest.Path(t, "sbsigntool", "sbverify")
	out, err := exec.Command(program, "--cert", p.certFile, writeFile(t, filepath.Join(t.TempDir(), "image"), image)).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("Signature verification failed")) {
		t.Fatalf("sbverify: %v\n%s", err, out)
	}
	return err == nil
}

// image is the stub with one byte more: its length is no multiple of 8.
func image(t testing.TB) []byte {
	t.Helper()
	b, err := pe.Append(readFile(t, stubPath, "systemd-boot-efi"), []pe.NewSection{{Name: ".x", Data: []byte("x"), Flags: pe.FlagRead}})
	if err != nil {
		t.Fatal(err)
	}
	return append(b, 1)
}

func TestSignedImages(t *testing.T) {
	ours, others := signer(t, newKey(t, 2048)), signer(t, newKey(t, 3072))
	signed := ours.attach(t, image(t))
	if !ours.accepts(t, signed) || others.accepts(t, signed) {
		t.Error("sbverify does not take the image with its certificate alone")
	}
	if !bytes.Equal(signed, ours.attach(t, image(t))) {
		t.Error("signing twice gives two images")
	}
	both := others.attach(t, signed)
	if !ours.accepts(t, both) || !others.accepts(t, both) {
		t.Error("sbverify does not take the image of two signatures with either certificate")
	}
	changed := bytes.Clone(signed)
	changed[5000] ^= 1
	if ours.accepts(t, changed) {
		t.Error("sbverify takes a changed image")
	}
	found, err := signatures(signed)
	if err != nil {
		t.Fatal(err)
	}
	report := tooltest.Run(t, "openssl", "openssl", "asn1parse", "-inform", "DER", "-in", writeFile(t, filepath.Join(t.TempDir(), "signature"), found[0]))
	if !strings.Contains(report, "messageDigest") || strings.Contains(report, "signingTime") {
		t.Errorf("the signature is to hold a digest and no time:\n%s", report)
	}
}

func TestAttachRefuses(t *testing.T) {
	ours, others := signer(t, newKey(t, 2048)), signer(t, newKey(t, 2048))
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	message, err := Message(image(t))
	if err != nil {
		t.Fatal(err)
	}
	good := ours.sign(t, message)
	for name, c := range map[string]struct {
		image     []byte
		by        pair
		signature []byte
		want      string
	}{
		"another key's":     {image(t), ours, others.sign(t, message), "does not verify"},
		"another message's": {image(t), ours, ours.sign(t, message[1:]), "does not verify"},
		"of another image":  {readFile(t, stubPath, "systemd-boot-efi"), ours, good, "does not verify"},
		"none":              {image(t), ours, nil, "does not verify"},
		"cut off":           {image(t), ours, good[:255], "does not verify"},
		"no RSA":            {image(t), signer(t, curve), good, "firmware takes RSA"},
		"no image":          {[]byte("MZ"), ours, good, "truncated"},
	} {
		_, err := Attach(c.image, c.by.certificate, c.signature)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(c.want, "verify") != errors.Is(err, ErrSignature) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	t.Setenv("GODEBUG", "rsa1024min=0")
	if err := CheckCertificate(signer(t, newKey(t, 1024)).certificate); err == nil || !strings.Contains(err.Error(), "1024 bits") {
		t.Errorf("a short key: got %v", err)
	}
}

// TestEnrolmentEqualsEfitools compares signature lists and signed updates with those that efitools make, byte for byte.
func TestEnrolmentEqualsEfitools(t *testing.T) {
	p, at := signer(t, newKey(t, 2048)), time.Date(2026, 2, 3, 14, 5, 6, 0, time.UTC)
	list := List(efi.MustGUID(owner), p.certificate.Raw)
	dir := t.TempDir()
	esl, auth := filepath.Join(dir, "esl"), filepath.Join(dir, "auth")
	tooltest.Run(t, "efitools", "cert-to-efi-sig-list", "-g", owner, p.certFile, esl)
	if !bytes.Equal(list, readFile(t, esl, "efitools")) {
		t.Error("the signature list is another than efitools'")
	}
	for _, name := range []string{"PK", "KEK", "db"} {
		t.Setenv("TZ", "UTC")
		tooltest.Run(t, "efitools", "sign-efi-sig-list", "-t", at.Format("2006-01-02 15:04:05"), "-k", p.keyFile, "-c", p.certFile, name, esl, auth)
		got, err := Variable{Name: name, Data: list, Time: at.In(time.FixedZone("elsewhere", 3600))}.Sign(p.certificate, p.key)
		if err != nil || !bytes.Equal(got, readFile(t, auth, "efitools")) {
			t.Errorf("%s: the signed update is another than efitools': %v", name, err)
		}
	}
	if _, err := (Variable{Name: "db", Data: list, Time: at}).Sign(signer(t, newKey(t, 2048)).certificate, p.key); !errors.Is(err, ErrSignature) {
		t.Errorf("a key of another certificate: got %v", err)
	}
}

// TestEmptyStoreIsOVMFs holds the file of variables to the one that comes with OVMF.
func TestEmptyStoreIsOVMFs(t *testing.T) {
	store, err := Store()
	if err != nil || !bytes.Equal(store, readFile(t, templatePath, "ovmf")) {
		t.Errorf("an empty store is another than %s: %v", templatePath, err)
	}
	if _, err := Store(Variable{Name: "db", Data: make([]byte, storeEnd)}); err == nil || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("a variable larger than the store: %v", err)
	}
}
