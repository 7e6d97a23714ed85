package tdx_test

import (
	"crypto/x509"
	"net/url"
	"testing"

	tdxtesting "github.com/google/go-tdx-guest/testing"
	tdxverify "github.com/google/go-tdx-guest/verify"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/tdxtest"
)

// TestLibraryPassesRevokedLevels shows why levels are judged here: with a TDX module of 1.5, the field's library takes a platform of
// which Intel says that its firmware is revoked.
func TestLibraryPassesRevokedLevels(t *testing.T) {
	intel := tdxtest.New(t, false)
	guest := tdxtest.Good()
	judge := func() (library, ours error) {
		a := intel.Answers()
		header := func(name string) map[string][]string {
			return map[string][]string{name: {url.QueryEscape(string(a.Chain))}}
		}
		const service = "https://api.trustedservices.intel.com"
		getter := &tdxtesting.Getter{Responses: map[string]tdxtesting.HTTPResponse{
			service + "/tdx/certification/v4/qe/identity":                       {Header: header("Sgx-Enclave-Identity-Issuer-Chain"), Body: a.QEIdentity},
			service + "/tdx/certification/v4/tcb?fmspc=b0c06f000001":            {Header: header("Tcb-Info-Issuer-Chain"), Body: a.TCBInfo},
			service + "/sgx/certification/v4/pckcrl?ca=platform&encoding=der":   {Header: header("Sgx-Pck-Crl-Issuer-Chain"), Body: a.PCKCRL},
			"https://certificates.trustedservices.intel.com/IntelSGXRootCA.der": {Body: a.RootCRL},
		}}
		roots := x509.NewCertPool()
		root, err := x509.ParseCertificate(intel.Root())
		if err != nil {
			t.Fatal(err)
		}
		roots.AddCert(root)
		now := tdxtest.Now
		quote := intel.Quote(guest)
		library = tdxverify.RawTdxQuote(quote, &tdxverify.Options{
			GetCollateral: true, Getter: getter, TrustedRoots: roots,
			Now: &tdxverify.TimeSet{PckCertChain: now, TcbInfo: now, QeIdentity: now, PckCrl: now, RootCaCrl: now},
		})
		collateral := tdx.Collateral{TCBInfo: a.TCBInfo, QEIdentity: a.QEIdentity, TCBInfoChain: a.Chain, QEIdentityChain: a.Chain, PCKCRL: a.PCKCRL, RootCRL: a.RootCRL}
		verifier := &tdx.Verifier{TestRoots: [][]byte{intel.Root()}}
		_, ours = verifier.Verify(quote, collateral, tdx.Demands{MRTDs: []evidence.Hex{guest.MRTD[:]}}, guest.ReportData, now)
		return library, ours
	}
	if library, ours := judge(); library != nil || ours != nil {
		t.Fatalf("firmware that is up to date: the library says %v, we say %v", library, ours)
	}
	intel.Platform[0].Status = "Revoked"
	library, ours := judge()
	if library != nil {
		t.Errorf("the library refuses a revoked level by now (%v): judge levels by it", library)
	}
	if ours == nil {
		t.Error("a revoked level is accepted")
	}
}
