package bench

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/binary"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-sev-guest/abi"
	sevsnp "github.com/google/go-sev-guest/proto/sevsnp"
	sevverify "github.com/google/go-sev-guest/verify"
	sevdata "github.com/google/go-sev-guest/verify/testdata"
	tdxtesting "github.com/google/go-tdx-guest/testing"
	tdxdata "github.com/google/go-tdx-guest/testing/testdata"
	tdxverify "github.com/google/go-tdx-guest/verify"

	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier"
	judged "github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/hcl"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/hcltest"
)

// platforms is how often each side verifies.
const platforms = 101

// sevTime and tdxTime are when the recorded evidence holds.
var (
	sevTime = time.Date(2023, 6, 1, 0, 0, 0, 0, time.UTC)
	tdxTime = time.Date(2023, 7, 1, 1, 0, 0, 0, time.UTC)
)

// BenchmarkPlatform verifies recorded reports of real processors up to their makers' roots, and compares with the libraries of the
// field on the same evidence. Ours also judges what a policy demands, and beside the SNP report the claims of a paravisor and a quote
// of its TPM, which the library does not do.
func BenchmarkPlatform(b *testing.B) {
	raw, certificates := sevdata.AttestationBytes[:snp.ReportSize], [][]byte{sevdata.VcekBytes}
	report, err := snp.Parse(raw)
	if err != nil {
		b.Fatal(err)
	}
	demands := snp.Demands{
		Products: []string{snp.Milan}, Measurements: []judged.Hex{report.Measurement[:]}, VMPL: report.VMPL, AllowSMT: true, AllowNoAliasCheck: true, AllowNoCRL: true,
		Floors: []snp.Floor{{Product: snp.Milan}},
	}
	ours, tpm := &snp.Verifier{}, newClaims(b)
	what := comparison{
		what: "verify SNP report, chain, demands, HCL claims and TPM quote", peer: "go-sev-guest's SnpAttestation of the same report and certificate, without claims and quote", target: 1, atMost: true,
	}
	compare(b, what, platforms, func(int) {
		// The report was recorded with debug allowed, which no demand of ours accepts: everything is judged all the same.
		if _, err := ours.Verify(raw, certificates, demands, report.ReportData, sevTime); !only(err, judged.Debug) {
			b.Fatal(err)
		}
		tpm.verify(b)
	}, func(int) {
		proto, err := abi.ReportToProto(raw)
		if err != nil {
			b.Fatal(err)
		}
		attestation := &sevsnp.Attestation{Report: proto, CertificateChain: &sevsnp.CertificateChain{VcekCert: sevdata.VcekBytes}}
		if err := sevverify.SnpAttestation(attestation, &sevverify.Options{DisableCertFetching: true, Now: sevTime}); err != nil {
			b.Fatal(err)
		}
	})
	benchmarkTDX(b)
}

func only(err error, code judged.Code) bool {
	refusal, ok := err.(*judged.Refusal)
	return ok && len(refusal.Reasons) == 1 && refusal.Has(code)
}

func benchmarkTDX(b *testing.B) {
	b.Helper()
	// Behind the signature of the recorded quote is what its recorder's buffer had.
	const signed = 632
	raw := tdxdata.RawQuote[:signed+4+binary.LittleEndian.Uint32(tdxdata.RawQuote[signed:])]
	quote, err := tdx.Parse(raw)
	if err != nil {
		b.Fatal(err)
	}
	chain := func(header map[string][]string) []byte {
		for _, values := range header {
			text, err := url.QueryUnescape(values[0])
			if err != nil {
				b.Fatal(err)
			}
			return []byte(text)
		}
		return nil
	}
	collateral := tdx.Collateral{
		TCBInfo: bytes.TrimSpace(tdxdata.TcbInfoBody), QEIdentity: bytes.TrimSpace(tdxdata.QeIdentityBody),
		TCBInfoChain: chain(tdxtesting.TcbInfoHeader), QEIdentityChain: chain(tdxtesting.QeIdentityHeader),
		PCKCRL: tdxdata.PckCrlBody, RootCRL: tdxdata.RootCrlBody,
	}
	demands := tdx.Demands{MRTDs: []judged.Hex{quote.MRTD[:]}, AllowSMT: true, AllowSEPTVE: true}
	now := &tdxverify.TimeSet{PckCertChain: tdxTime, TcbInfo: tdxTime, QeIdentity: tdxTime, PckCrl: tdxTime, RootCaCrl: tdxTime}
	what := comparison{what: "verify TDX quote, chain, collateral and demands", peer: "go-tdx-guest's RawTdxQuote of the same quote and collateral, with revocation", target: 1, atMost: true}
	// The recorded platform's firmware is below every level of the recorded collateral: both look at all of it, and refuse it for that.
	compare(b, what, platforms, func(int) {
		if _, err := (&tdx.Verifier{}).Verify(raw, collateral, demands, quote.ReportData, tdxTime); !only(err, judged.TCB) {
			b.Fatal(err)
		}
	}, func(int) {
		if err := tdxverify.RawTdxQuote(raw, &tdxverify.Options{CheckRevocations: true, GetCollateral: true, Getter: tdxtesting.TestGetter, Now: now}); err == nil || !strings.Contains(err.Error(), "no matching TCB level") {
			b.Fatal(err)
		}
	})
}

// claims are a paravisor's, with the quote of a TPM whose keys they name.
type claims struct {
	frame, ek, ak, quoted, signature []byte
	registers                        attest.Registers
}

func newClaims(b *testing.B) *claims {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	c := &claims{ek: endorsementKey(), ak: attestationKey(b, key)}
	proof := quote(b, key, attest.Binding{1}, c.registers)
	c.quoted, c.signature = proof.GetQuoted(), proof.GetSignature()
	c.frame = hcltest.Frame(hcltest.SNP, make([]byte, snp.ReportSize), hcltest.Claims(b, c.ek, nil))
	return c
}

func (c *claims) verify(b *testing.B) {
	report, err := hcl.Decode(c.frame)
	if err != nil {
		b.Fatal(err)
	}
	if err := report.MatchEK(c.ek); err != nil || report.Bound() == [64]byte{} {
		b.Fatal(err)
	}
	if err := verifier.CheckQuote(c.ak, c.quoted, c.signature, attest.Binding{1}, c.registers); err != nil {
		b.Fatal(err)
	}
}
