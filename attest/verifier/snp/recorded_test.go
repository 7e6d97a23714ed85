//go:build vectors

package snp_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/internal/vectors"
)

// lenient accepts what a recorded report shows, so that the evidence itself is judged, and returns what it has to carry.
func lenient(t *testing.T, raw []byte) (snp.Demands, [64]byte) {
	t.Helper()
	r, err := snp.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return snp.Demands{
		Products: []string{snp.Milan}, Measurements: []evidence.Hex{r.Measurement[:]}, VMPL: r.VMPL, AllowSMT: true, AllowNoAliasCheck: true, AllowNoCRL: true,
		Floors: []snp.Floor{{Product: snp.Milan}}, Keys: []snp.Key{snp.VCEK, snp.VLEK}, Providers: []string{"CN=cc-us-east-2.amazonaws.com"},
	}, r.ReportData
}

func azureReport(t *testing.T) (report []byte, certificates [][]byte) {
	t.Helper()
	for block, rest := pem.Decode(vectors.File(t, "azure-snp/vcek.pem")); block != nil; block, rest = pem.Decode(rest) {
		certificates = append(certificates, block.Bytes)
	}
	return vectors.File(t, "azure-snp/hcl-report.bin")[32:][:snp.ReportSize], certificates
}

func TestRecordedReports(t *testing.T) {
	azure, azureCertificates := azureReport(t)
	vcek, vlek := vectors.File(t, "snp/test-vcek.der"), vectors.File(t, "snp/test-vlek.der")
	for name, c := range map[string]struct {
		report       []byte
		certificates [][]byte
		at           time.Time
		code         evidence.Code
	}{
		"Milan and its VCEK":    {vectors.File(t, "snp/test-report.bin"), [][]byte{vcek}, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), ""},
		"Azure":                 {azure, azureCertificates, time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), ""},
		"AWS and its VLEK":      {vectors.File(t, "snp/test-vlek-report.bin"), [][]byte{vlek}, vlekTime(t, vlek), ""},
		"an invalid VCEK":       {vectors.File(t, "snp/test-report.bin"), [][]byte{vectors.File(t, "snp/test-vcek-invalid-new.der")}, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), evidence.Chain},
		"a VLEK's for a VCEK's": {vectors.File(t, "snp/test-report.bin"), [][]byte{vlek}, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), evidence.Chain},
		"Azure's for Milan's":   {vectors.File(t, "snp/test-report.bin"), azureCertificates, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), evidence.Signature},
		"a certificate with a byte more": {
			vectors.File(t, "snp/test-report.bin"), [][]byte{append(append([]byte{}, vcek...), 0)}, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), evidence.Chain,
		},
	} {
		demands, data := lenient(t, c.report)
		verified, err := (&snp.Verifier{}).Verify(c.report, c.certificates, demands, data, c.at)
		var refusal *evidence.Refusal
		switch {
		case c.code == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.code != "" && (!errors.As(err, &refusal) || !refusal.Has(c.code)):
			t.Errorf("%s: %v, want %s", name, err, c.code)
		case c.code == "":
			t.Logf("%s: version %d, %s, %s key of %q, current %v", name, verified.Report.Version, verified.Product, verified.Report.Key, verified.Provider, verified.Current)
		}
	}
}

// vlekTime is within the year of a VLEK's certificate.
func vlekTime(t *testing.T, der []byte) time.Time {
	t.Helper()
	s, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return s.NotBefore.Add(time.Hour)
}

func TestRecordedReportFlipped(t *testing.T) {
	report := vectors.File(t, "snp/test-report.bin")
	demands, data := lenient(t, report)
	verifier, certificates, at := &snp.Verifier{}, [][]byte{vectors.File(t, "snp/test-vcek.der")}, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range report {
		changed := append([]byte{}, report...)
		changed[i] ^= 1
		if _, err := verifier.Verify(changed, certificates, demands, data, at); err == nil {
			t.Errorf("byte %#x: accepted", i)
		}
	}
	if _, err := verifier.Verify(report, certificates, demands, data, at); err != nil {
		t.Error(err)
	}
	// By default, a Milan is out, and so is much else of it.
	_, err := verifier.Verify(report, certificates, snp.Demands{}, data, at)
	var refusal *evidence.Refusal
	if !errors.As(err, &refusal) || !refusal.Has(evidence.Product) || !refusal.Has(evidence.Measurement) || !refusal.Has(evidence.NoCollateral) {
		t.Errorf("the zero value: %v", err)
	}
}
