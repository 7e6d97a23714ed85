package pemcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// keyAndCertificate is a file as kubelets keep it.
func keyAndCertificate(t testing.TB, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-time.Hour), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("key")}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
}

func TestEnd(t *testing.T) {
	end := time.Unix(1767225600, 0)
	whole := keyAndCertificate(t, end)
	if got, err := End(whole); err != nil || !got.Equal(end) {
		t.Errorf("got %v, %v", got, err)
	}
	if begin, got, err := Span(whole); err != nil || !got.Equal(end) || end.Sub(begin) != time.Hour {
		t.Errorf("got %v to %v, %v", begin, got, err)
	}
	for name, text := range map[string][]byte{"nothing": nil, "a key alone": whole[:80], "torn": whole[:len(whole)-10], "no certificate": []byte("-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n")} {
		if got, err := End(text); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzEnd(f *testing.F) {
	f.Add(keyAndCertificate(f, time.Unix(1767225600, 0)))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := End(text); err == nil && !bytes.Contains(text, []byte("-----BEGIN CERTIFICATE-----")) {
			t.Errorf("%q has no certificate", text)
		}
	})
}
