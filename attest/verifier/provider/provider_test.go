package provider_test

import (
	"crypto/x509"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	proverside "github.com/hullmark/hullmark/attest/prover/provider"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/provider"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/internal/providertest"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/pcrs"
)

var google = providertest.Instance{Zone: "us-central1-a", Project: "a-project", ID: 77, Name: "node"}

// show is what a machine shows in an exchange.
func show(t *testing.T, tpm transport.TPM, binding attest.Binding) evidence.Shown {
	t.Helper()
	p, err := proverside.Evidence(t.Context(), tpm)
	if err != nil || p == nil {
		t.Fatal(p, err)
	}
	returned, err := p.Prove(tpm, binding)
	if err != nil {
		t.Fatal(err)
	}
	registers, err := prover.ReadRegisters(tpm)
	if err != nil {
		t.Fatal(err)
	}
	values := pcrs.Values{}
	for _, n := range attest.Quoted() {
		values[pcrs.Register(n)] = registers[n][:]
	}
	return evidence.Shown{Report: p.Report, Certificates: p.Certificates, Returned: returned, Binding: binding[:], Registers: values}
}

func wantCode(t *testing.T, name string, err error, code evidence.Code) {
	t.Helper()
	var refusal *evidence.Refusal
	if !errors.As(err, &refusal) || !refusal.Has(code) {
		t.Errorf("%s: %v, want %s", name, err, code)
	}
}

func TestProviders(t *testing.T) {
	p, tpm := providertest.New(t), tpmtest.New(t)
	demands := provider.Demands{Roots: [][]byte{p.Root}, Intermediates: [][]byte{p.Issuer}}
	p.Google(tpm, google)
	tpm.Extend(t, 4, []byte("a boot"))
	shown := show(t, tpm, attest.Binding{1})
	judge := func(kind string, d provider.Demands, s evidence.Shown, at time.Time) (evidence.Proven, error) {
		platform, err := provider.New(kind, d)
		if err != nil {
			t.Fatal(err)
		}
		return platform.Verify(s, at)
	}
	proven, err := judge(hullmark.PlatformGCP, demands, shown, time.Now())
	if err != nil || proven.Claims.Trust != hullmark.TrustProvider || proven.Instance != "a-project/us-central1-a/77" || proven.Measured != nil {
		t.Fatalf("%+v, %v", proven, err)
	}
	if _, err := judge(hullmark.PlatformGCP, provider.Demands{Roots: demands.Roots}, withCertificate(shown, p.Issuer), time.Now()); err != nil {
		t.Errorf("an issuer that the machine has: %v", err)
	}
	other, otherTPM := providertest.New(t), tpmtest.New(t)
	p.Google(otherTPM, google)
	others := show(t, otherTPM, attest.Binding{1})
	for name, c := range map[string]struct {
		demands provider.Demands
		change  func(*evidence.Shown)
		at      time.Time
		code    evidence.Code
	}{
		"another provider": {provider.Demands{Roots: [][]byte{other.Root}, Intermediates: [][]byte{p.Issuer}}, nil, time.Now(), evidence.Chain},
		"no issuer":        {provider.Demands{Roots: [][]byte{p.Root}}, nil, time.Now(), evidence.Chain},
		"no certificate":   {demands, func(s *evidence.Shown) { s.Certificates = nil }, time.Now(), evidence.Chain},
		"an authority's":   {demands, func(s *evidence.Shown) { s.Certificates = [][]byte{p.Issuer} }, time.Now(), evidence.Chain},
		"many":             {demands, func(s *evidence.Shown) { s.Certificates = slices.Repeat(s.Certificates, 5) }, time.Now(), evidence.Chain},
		"bytes behind it":  {demands, func(s *evidence.Shown) { s.Certificates = [][]byte{append(slices.Clone(s.Certificates[0]), 0)} }, time.Now(), evidence.Chain},
		"expired":          {demands, nil, time.Now().AddDate(2, 0, 0), evidence.Expired},
		"another exchange": {demands, func(s *evidence.Shown) { s.Binding = append([]byte{2}, s.Binding[1:]...) }, time.Now(), evidence.NotBound},
		"other registers": {demands, func(s *evidence.Shown) {
			s.Registers = pcrs.Values{}
		}, time.Now(), evidence.NotBound},
		"another key":         {demands, func(s *evidence.Shown) { s.Report = others.Report }, time.Now(), evidence.NotBound},
		"another TPM's quote": {demands, func(s *evidence.Shown) { s.Returned = others.Returned }, time.Now(), evidence.NotBound},
		"no quote":            {demands, func(s *evidence.Shown) { s.Returned = nil }, time.Now(), evidence.NotBound},
		"half a quote":        {demands, func(s *evidence.Shown) { s.Returned = s.Returned[:40] }, time.Now(), evidence.NotBound},
		"no exchange":         {demands, func(s *evidence.Shown) { s.Binding = nil }, time.Now(), evidence.NotBound},
		"a stranger's quote":  {demands, func(s *evidence.Shown) { s.Quote = []byte{1} }, time.Now(), evidence.Malformed},
		"another project":     {provider.Demands{Roots: demands.Roots, Intermediates: demands.Intermediates, Projects: []string{"b"}}, nil, time.Now(), evidence.Instance},
	} {
		s := shown
		if c.change != nil {
			c.change(&s)
		}
		_, err := judge(hullmark.PlatformGCP, c.demands, s, c.at)
		wantCode(t, name, err, c.code)
	}
	flipEach(t, shown, func(s evidence.Shown) error {
		_, err := judge(hullmark.PlatformGCP, demands, s, time.Now())
		return err
	})

	azure := tpmtest.New(t)
	p.Azure(azure)
	shown = show(t, azure, attest.Binding{3})
	if proven, err := judge(hullmark.PlatformAzureTL, demands, shown, time.Now()); err != nil || proven.Claims.Platform != hullmark.PlatformAzureTL || proven.Claims.Trust != hullmark.TrustProvider {
		t.Errorf("%+v, %v", proven, err)
	}
	_, err = judge(hullmark.PlatformGCP, demands, shown, time.Now())
	wantCode(t, "Azure as Google", err, evidence.Malformed)
	if p, err := proverside.Evidence(t.Context(), tpmtest.New(t)); p != nil || err != nil {
		t.Errorf("a TPM that nobody certified: %v, %v", p, err)
	}
}

func withCertificate(s evidence.Shown, der []byte) evidence.Shown {
	s.Certificates = append(slices.Clone(s.Certificates), der)
	return s
}

// flipEach changes each byte of what is shown: none is outside of what is signed.
func flipEach(t *testing.T, shown evidence.Shown, judge func(evidence.Shown) error) {
	t.Helper()
	for name, of := range map[string]func(s *evidence.Shown) *[]byte{
		"key": func(s *evidence.Shown) *[]byte { return &s.Report }, "quote": func(s *evidence.Shown) *[]byte { return &s.Returned },
		"certificate": func(s *evidence.Shown) *[]byte {
			s.Certificates = slices.Clone(s.Certificates)
			return &s.Certificates[0]
		},
	} {
		for i := range *of(&shown) {
			s := shown
			changed := of(&s)
			*changed = slices.Clone(*changed)
			(*changed)[i] ^= 1
			// A certificate names a key, not its attributes: that it signs nothing but quotes is the provider's word.
			if attribute := name == "key" && i >= 4 && i < 8; judge(s) == nil && !attribute {
				t.Errorf("byte %d of the %s: accepted", i, name)
			}
		}
	}
}

func TestDemandsThatAreRefused(t *testing.T) {
	p := providertest.New(t)
	root, err := x509.ParseCertificate(p.Root)
	if err != nil {
		t.Fatal(err)
	}
	leaf := p.Certificate(root.PublicKey, nil)
	for want, d := range map[string]provider.Demands{
		"roots: want":      {},
		"roots: it is no":  {Roots: [][]byte{leaf}},
		"intermediates: x": {Roots: [][]byte{p.Root}, Intermediates: [][]byte{{1}}},
		"roots: x509":      {Roots: [][]byte{append(slices.Clone(p.Root), 0)}},
	} {
		if _, err := provider.New(hullmark.PlatformGCP, d); err == nil || !strings.Contains(err.Error(), want[:8]) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := provider.New(hullmark.PlatformAWS, provider.Demands{Roots: [][]byte{p.Root}}); err == nil {
		t.Error("AWS: taken")
	}
	if _, err := provider.New(hullmark.PlatformAzureTL, provider.Demands{Roots: [][]byte{p.Root}, Projects: []string{"a"}}); err == nil {
		t.Error("projects of Azure: taken")
	}
	if _, err := provider.Parse(hullmark.PlatformGCP, []byte(`{"root":[]}`)); err == nil {
		t.Error("another field: taken")
	}
}

// TestGoogle reads the certificates of real machines, and follows them to Google's own root.
func TestGoogle(t *testing.T) {
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/google/go-tpm-tools").Output()
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(strings.TrimSpace(string(folder)), "server", "ca-certs")
	authority := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(at, name))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	demands := provider.Demands{
		Roots:         [][]byte{authority("gcp_ek_ak_ca_root.crt"), authority("tpm_ek_root_1.cer")},
		Intermediates: [][]byte{authority("gcp_ek_ak_ca_intermediate_v3.crt"), authority("tpm_ek_intermediate_2.crt"), authority("tpm_ek_intermediate_3.crt")},
	}
	platform, err := provider.New(hullmark.PlatformGCP, demands)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"uca_tpm_rsa_sign_cert.pem", "uca_tpm_ecc_sign_cert.pem", "pca_tpm_rsa_sign_cert.pem", "pca_tpm_ecc_sign_cert.pem"} {
		text, err := os.ReadFile(filepath.Join(at, "..", "..", "internal", "test", "certificates", name))
		if err != nil {
			t.Fatal(err)
		}
		ders, err := pemcert.Split(text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = platform.Verify(evidence.Shown{Certificates: ders}, time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
		// Nothing was quoted, so it is refused, but neither for its chain nor for its instance.
		wantCode(t, name, err, evidence.NotBound)
		var refusal *evidence.Refusal
		if errors.As(err, &refusal); refusal.Has(evidence.Chain) || refusal.Has(evidence.Malformed) || refusal.Has(evidence.Expired) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
