//go:build vectors

package recorded_test

import (
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/recorded"
	"github.com/hullmark/hullmark/internal/vectors"
)

// TestRecordedEvidence verifies what real machines showed.
func TestRecordedEvidence(t *testing.T) {
	for name, c := range map[string]struct {
		kind  string
		files []string
		at    string
		code  evidence.Code // empty: it is verified
	}{
		"Azure, Milan":              {hullmark.PlatformAzureSNP, []string{"azure-snp/hcl-report.bin", "azure-snp/vcek.pem"}, "2025-06-01", ""},
		"a report, Milan":           {hullmark.PlatformSNP, []string{"snp/test-report.bin", "snp/test-vcek.der"}, "2024-06-01", ""},
		"AWS, VLEK":                 {hullmark.PlatformSNP, []string{"snp/test-vlek-report.bin", "snp/test-vlek.der"}, "2025-06-01", ""},
		"AWS, a year later":         {hullmark.PlatformSNP, []string{"snp/test-vlek-report.bin", "snp/test-vlek.der"}, "2026-06-01", evidence.Expired},
		"another chip's key":        {hullmark.PlatformSNP, []string{"snp/test-report.bin", "snp/test-vcek-invalid-new.der"}, "2024-06-01", evidence.Chain},
		"Azure, TDX, no collateral": {hullmark.PlatformAzureTDX, []string{"azure-tdx/hcl-report.bin", "azure-tdx/td-quote.bin"}, "2024-06-01", evidence.NoCollateral},
		"TDX, no collateral":        {hullmark.PlatformTDX, []string{"tdx/dcap_quote.bin"}, "2025-06-01", evidence.NoCollateral},
	} {
		var files []recorded.File
		for _, f := range c.files {
			files = append(files, recorded.File{Name: f, Content: vectors.File(t, f)})
		}
		at, err := time.Parse(time.DateOnly, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if c.code != "" {
			wantCode(t, c.kind, read(t, files), recorded.Options{At: at}, c.code)
			continue
		}
		r, err := read(t, files).Verify(c.kind, recorded.Options{At: at})
		if err != nil || !r.Verified {
			t.Errorf("%s: %+v, %v", name, r.Reasons, err)
			continue
		}
		t.Logf("%s: %s, %s; strict demands would refuse it for %d reasons", name, r.Claims.Product, r.Claims.TCB, len(r.Strict))
	}
}
