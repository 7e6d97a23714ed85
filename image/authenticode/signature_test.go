package authenticode

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shims are two signatures of Debian's shim, each with the CA of Microsoft's that issued the signer's certificate, and that certificate.
var shims = map[string]string{"microsoft-2011.p7": "Microsoft Corporation UEFI CA 2011", "microsoft-2023.p7": "Microsoft UEFI CA 2023"}

func shim(t testing.TB, file string) []byte {
	t.Helper()
	der, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// TestMicrosoftSignatures verifies a shim's signatures by each certificate that they bring.
func TestMicrosoftSignatures(t *testing.T) {
	for file, ca := range shims {
		s, err := ParseSignature(shim(t, file))
		if err != nil || len(s.certificates) < 2 {
			t.Fatalf("%s: %+v, %v", file, s, err)
		}
		for _, c := range s.certificates {
			ok, err := s.VerifiedBy(c)
			if signs := c.Name == ca || c.Equal(s.Signers()[0]); ok != signs || err != nil {
				t.Errorf("%s: %s: %v, %v", file, c.Name, ok, err)
			}
		}
	}
}

func TestParseCertificateRefuses(t *testing.T) {
	s, err := ParseSignature(shim(t, "microsoft-2011.p7"))
	if err != nil {
		t.Fatal(err)
	}
	good := s.certificates[0].Raw
	for name, der := range map[string][]byte{
		"empty":       nil,
		"cut off":     good[:len(good)-1],
		"behind it":   append(bytes.Clone(good), 0),
		"too large":   make([]byte, MaxCertificate+1),
		"another tag": append([]byte{0x31}, good[1:]...),
	} {
		if c, err := ParseCertificate(der); err == nil || !strings.HasPrefix(err.Error(), "certificate: ") {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func FuzzParseCertificate(f *testing.F) {
	for file := range shims {
		s, err := ParseSignature(shim(f, file))
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range s.certificates {
			f.Add(c.Raw)
		}
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		c, err := ParseCertificate(der)
		if err != nil {
			return
		}
		if len(c.Signed) > len(der) {
			t.Error("more is signed than there is")
		}
		_, _ = c.issued(c, 0)
	})
}

func FuzzParseSignature(f *testing.F) {
	var stranger *Certificate
	for file := range shims {
		der := shim(f, file)
		s, err := ParseSignature(der)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
		stranger = s.Signers()[0]
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		s, err := ParseSignature(der)
		if err != nil {
			return
		}
		if len(s.Signers()) == 0 || !s.Hash.Available() {
			t.Error("a signature of nobody, or with no hash")
		}
		_, _ = s.VerifiedBy(stranger)
	})
}
