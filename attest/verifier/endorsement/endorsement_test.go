package endorsement_test

import (
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	epb "github.com/google/gce-tcb-verifier/proto/endorsement"
	"github.com/google/gce-tcb-verifier/testing/devkeys"

	"github.com/hullmark/hullmark/attest/verifier/endorsement"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/internal/endorsetest"
)

// scene is the roots, and a time at which the signer's certificate holds.
func scene(t testing.TB) (*x509.CertPool, time.Time) {
	t.Helper()
	root, err := x509.ParseCertificate(endorsetest.DER(devkeys.RootCert))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := x509.ParseCertificate(endorsetest.DER(devkeys.PrimarySigningKeyCert))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	return roots, signer.NotBefore.Add(time.Hour)
}

func TestVerify(t *testing.T) {
	roots, at := scene(t)
	raw := endorsetest.Signed(t, nil)
	e, err := endorsement.Parse(raw)
	if err != nil || len(e.SNP) != 1 || e.SNPSVN != 3 || len(e.TDX[16]) != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	if err := e.Verify(roots, at); err != nil {
		t.Fatal(err)
	}
	foreign, err := endorsement.Parse(endorsetest.Signed(t, func(g *epb.VMGoldenMeasurement) { g.Cert = endorsetest.DER(devkeys.RootCert) }))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		code evidence.Code
	}{
		"no root":        {e.Verify(x509.NewCertPool(), at), evidence.Chain},
		"an ended one":   {e.Verify(roots, at.AddDate(100, 0, 0)), evidence.Expired},
		"by another key": {foreign.Verify(roots, at), evidence.Signature},
	} {
		var refusal *evidence.Refusal
		if !errors.As(c.err, &refusal) || !refusal.Has(c.code) {
			t.Errorf("%s: %v, want %s", name, c.err, c.code)
		}
	}
	for i := range raw {
		changed := slices.Clone(raw)
		changed[i] ^= 1
		if e, err := endorsement.Parse(changed); err == nil && e.Verify(roots, at) == nil {
			t.Errorf("byte %d: accepted", i)
		}
	}
}

func TestEndorsementsThatAreRefused(t *testing.T) {
	for name, raw := range map[string][]byte{
		"nothing":        nil,
		"a long one":     make([]byte, endorsement.MaxEndorsement+1),
		"another field":  append(endorsetest.Signed(t, nil), 0x1a, 1, 0),
		"no time":        endorsetest.Signed(t, func(g *epb.VMGoldenMeasurement) { g.Timestamp = nil }),
		"a short digest": endorsetest.Signed(t, func(g *epb.VMGoldenMeasurement) { g.Digest = g.Digest[1:] }),
		"a short launch": endorsetest.Signed(t, func(g *epb.VMGoldenMeasurement) { g.SevSnp.Measurements[2] = []byte{1} }),
		"a short MRTD":   endorsetest.Signed(t, func(g *epb.VMGoldenMeasurement) { g.Tdx.Measurements[0].Mrtd = []byte{1} }),
	} {
		if _, err := endorsement.Parse(raw); err == nil {
			t.Errorf("%s: read", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(endorsetest.Signed(f, nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if e, err := endorsement.Parse(raw); err == nil && len(e.Firmware) != 48 {
			t.Error("no firmware")
		}
	})
}
