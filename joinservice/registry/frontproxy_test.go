package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/hullmark/hullmark/internal/pemcert"
)

// Of what API servers tell of the front proxy's CA the former one is taken out, and nothing but that: a text without any that is
// trusted, or that is none, stays.
func TestKeepCertificates(t *testing.T) {
	present, next, former := certificate(t), certificate(t), certificate(t)
	for name, c := range map[string]struct {
		text, known, want string
		others            bool
	}{
		"the present one":        {present, present, present, false},
		"both of an exchange":    {former + next, next + former, former + next, false},
		"a former one before it": {former + present, present, present, true},
		"a former one after it":  {present + former, present, present, true},
		"two former ones":        {former + present + next, present, present, true},
		"a former one alone":     {former, present, former, false},
		"nothing":                {"", present, "", false},
	} {
		known, err := pemcert.Split([]byte(c.known))
		if err != nil {
			t.Fatal(err)
		}
		if kept, others, err := keepCertificates(c.text, known); kept != c.want || others != c.others || err != nil {
			t.Errorf("%s: others %t, %v; kept\n%s", name, others, err, kept)
		}
	}
	for name, text := range map[string]string{"no PEM": "x", "torn": former + present[:40]} {
		if kept, others, err := keepCertificates(text, [][]byte{{1}}); err == nil || others || kept != text {
			t.Errorf("%s: %q, %t, %v", name, kept, others, err)
		}
	}
}

// certificate is one in PEM.
func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
