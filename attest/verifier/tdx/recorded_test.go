//go:build vectors

package tdx_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/vectors"
)

// recordedCollateral reads the layout of the recording, another than ours.
func recordedCollateral(t *testing.T) tdx.Collateral {
	t.Helper()
	var r struct {
		PCKCRL       string `json:"pck_crl"`
		RootCRL      string `json:"root_ca_crl"`
		TCBChain     string `json:"tcb_info_issuer_chain"`
		TCBInfo      string `json:"tcb_info"`
		TCBSignature string `json:"tcb_info_signature"`
		QEChain      string `json:"qe_identity_issuer_chain"`
		QEIdentity   string `json:"qe_identity"`
		QESignature  string `json:"qe_identity_signature"`
	}
	if err := json.Unmarshal(vectors.File(t, "tdx/dcap_collateral.json"), &r); err != nil {
		t.Fatal(err)
	}
	bytes := func(text string) []byte {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	return tdx.Collateral{
		TCBInfo:      []byte(`{"tcbInfo":` + r.TCBInfo + `,"signature":"` + r.TCBSignature + `"}`),
		QEIdentity:   []byte(`{"enclaveIdentity":` + r.QEIdentity + `,"signature":"` + r.QESignature + `"}`),
		TCBInfoChain: []byte(r.TCBChain), QEIdentityChain: []byte(r.QEChain), PCKCRL: bytes(r.PCKCRL), RootCRL: bytes(r.RootCRL),
	}
}

var recordedAt = time.Date(2025, 6, 20, 0, 0, 0, 0, time.UTC)

// demandsOf accept what the quote shows, so that nothing but the evidence itself is judged.
func demandsOf(q tdx.Quote) tdx.Demands {
	return tdx.Demands{MRTDs: []evidence.Hex{q.MRTD[:]}, AllowSMT: true}
}

func TestRecordedQuoteWithCollateral(t *testing.T) {
	raw := vectors.File(t, "tdx/dcap_quote.bin")
	q, err := tdx.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	verifier := &tdx.Verifier{}
	verified, err := verifier.Verify(raw, recordedCollateral(t), demandsOf(q), q.ReportData, recordedAt)
	if err != nil || verified.Status != tdx.UpToDate || verified.TestRoot {
		t.Fatalf("status %s, advisories %v, %v", verified.Status, verified.Advisories, err)
	}
	t.Logf("status %s, advisories %v, model %s, evaluation %d", verified.Status, verified.Advisories, verified.FMSPC, verified.Evaluation)
	for name, c := range map[string]struct {
		change func(*tdx.Demands, *tdx.Collateral, *time.Time)
		code   evidence.Code
	}{
		"hyper-threading":    {func(d *tdx.Demands, _ *tdx.Collateral, _ *time.Time) { d.AllowSMT = false }, evidence.Flags},
		"no measurement":     {func(d *tdx.Demands, _ *tdx.Collateral, _ *time.Time) { d.MRTDs = nil }, evidence.Measurement},
		"another RTMR":       {func(d *tdx.Demands, _ *tdx.Collateral, _ *time.Time) { d.RTMRs[1] = []evidence.Hex{make([]byte, 48)} }, evidence.Measurement},
		"an earlier number":  {func(d *tdx.Demands, _ *tdx.Collateral, _ *time.Time) { d.MinimumEvaluation = verified.Evaluation + 1 }, evidence.TCB},
		"another model":      {func(d *tdx.Demands, _ *tdx.Collateral, _ *time.Time) { d.FMSPCs = []evidence.Hex{{1}} }, evidence.Product},
		"another platform":   {func(d *tdx.Demands, _ *tdx.Collateral, _ *time.Time) { d.Instances = []evidence.Hex{{1}} }, evidence.Instance},
		"older collateral":   {func(d *tdx.Demands, _ *tdx.Collateral, _ *time.Time) { d.CollateralFrom = recordedAt }, evidence.Expired},
		"a year later":       {func(_ *tdx.Demands, _ *tdx.Collateral, at *time.Time) { *at = at.AddDate(1, 0, 0) }, evidence.Expired},
		"a year before":      {func(_ *tdx.Demands, _ *tdx.Collateral, at *time.Time) { *at = at.AddDate(-1, 0, 0) }, evidence.Expired},
		"no collateral":      {func(_ *tdx.Demands, c *tdx.Collateral, _ *time.Time) { *c = tdx.Collateral{} }, evidence.NoCollateral},
		"a changed TCB info": {func(_ *tdx.Demands, c *tdx.Collateral, _ *time.Time) { c.TCBInfo[20] ^= 1 }, evidence.NoCollateral},
		"a changed identity": {func(_ *tdx.Demands, c *tdx.Collateral, _ *time.Time) { c.QEIdentity[30] ^= 1 }, evidence.NoCollateral},
		"a changed CRL":      {func(_ *tdx.Demands, c *tdx.Collateral, _ *time.Time) { c.PCKCRL[len(c.PCKCRL)-1] ^= 1 }, evidence.NoCollateral},
		"a changed root CRL": {func(_ *tdx.Demands, c *tdx.Collateral, _ *time.Time) { c.RootCRL[len(c.RootCRL)-1] ^= 1 }, evidence.NoCollateral},
		"the CRLs exchanged": {func(_ *tdx.Demands, c *tdx.Collateral, _ *time.Time) { c.PCKCRL, c.RootCRL = c.RootCRL, c.PCKCRL }, evidence.NoCollateral},
		"an answer's renamed": {func(_ *tdx.Demands, c *tdx.Collateral, _ *time.Time) {
			c.TCBInfo, c.QEIdentity = c.QEIdentity, c.TCBInfo
		}, evidence.NoCollateral},
	} {
		demands, collateral, at := demandsOf(q), recordedCollateral(t), recordedAt
		c.change(&demands, &collateral, &at)
		_, err := verifier.Verify(raw, collateral, demands, q.ReportData, at)
		var refusal *evidence.Refusal
		if !errors.As(err, &refusal) || !refusal.Has(c.code) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	other := q.ReportData
	other[0] ^= 1
	_, err = verifier.Verify(raw, recordedCollateral(t), demandsOf(q), other, recordedAt)
	var refusal *evidence.Refusal
	if !errors.As(err, &refusal) || !refusal.Has(evidence.NotBound) {
		t.Errorf("another binding: %v", err)
	}
}

// TestRecordedQuotesFlipped changes every byte of a quote. Whatever is accepted is outside of what is signed.
func TestRecordedQuotesFlipped(t *testing.T) {
	raw := vectors.File(t, "tdx/dcap_quote.bin")
	q, err := tdx.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	verifier, collateral, outside := &tdx.Verifier{}, recordedCollateral(t), 0
	for i := range raw {
		changed := append([]byte{}, raw...)
		changed[i] ^= 0x20
		verified, err := verifier.Verify(changed, collateral, demandsOf(q), q.ReportData, recordedAt)
		if err != nil {
			continue
		}
		outside++
		if verified.Quote.MRTD != q.MRTD || verified.Quote.RTMRs != q.RTMRs || verified.Quote.Attributes != q.Attributes || verified.FMSPC.String() == "" {
			t.Errorf("byte %d: accepted with another content", i)
		}
	}
	t.Logf("%d bytes, %d of them outside of what is signed", len(raw), outside)
	if outside > 200 {
		t.Errorf("%d changed bytes were accepted", outside)
	}
}

// TestRecordedQuotes reads the quotes without collateral of their own: their signatures hold, and what is missing is said.
func TestRecordedQuotes(t *testing.T) {
	for name, debug := range map[string]bool{"tdx/tdx_quote_4.dat": true, "azure-tdx/td-quote.bin": false, "tdx/dcap_quote.bin": false} {
		raw := vectors.File(t, name)
		q, err := tdx.Parse(raw)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, err = (&tdx.Verifier{}).Verify(raw, tdx.Collateral{}, tdx.Demands{MRTDs: []evidence.Hex{q.MRTD[:]}, AllowSMT: true, AllowSEPTVE: true}, q.ReportData, recordedAt)
		var refusal *evidence.Refusal
		if !errors.As(err, &refusal) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if refusal.Has(evidence.Debug) != debug {
			t.Errorf("%s: debug %t, %v", name, debug, err)
		}
		for _, reason := range refusal.Reasons {
			if reason.Code != evidence.NoCollateral && reason.Code != evidence.Expired && reason.Code != evidence.Debug {
				t.Errorf("%s: %s: %v", name, reason.Code, reason)
			}
		}
		changed := append([]byte{}, raw...)
		changed[200] ^= 1
		if _, err := (&tdx.Verifier{}).Verify(changed, tdx.Collateral{}, tdx.Demands{}, q.ReportData, recordedAt); !errors.As(err, &refusal) || !refusal.Has(evidence.Signature) {
			t.Errorf("%s: changed: %v", name, err)
		}
	}
}
