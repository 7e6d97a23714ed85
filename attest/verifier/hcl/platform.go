package hcl

import (
	"errors"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
)

// SNP verifies an SEV-SNP machine on Azure within an exchange.
type SNP struct {
	Verifier *snp.Verifier
	// Demands have to name the paravisor: IDKeys is how, since its launch digests are not published.
	Demands snp.Demands
}

// TDX verifies a TDX machine on Azure within an exchange.
type TDX struct {
	Verifier *tdx.Verifier
	// Demands have to name the paravisor by its MRTD.
	Demands tdx.Demands
	// Collaterals are those of the models that there may be.
	Collaterals []tdx.Collateral
}

// maxDemands bounds what ParseSNP and ParseTDX read, in bytes.
const maxDemands = 256 << 10

// ParseSNP reads what a policy demands: snp.Demands, and testRoots, which a policy of tests names.
func ParseSNP(text []byte) (*SNP, error) {
	var p struct {
		snp.Demands
		TestRoots []snp.TestRoot `json:"testRoots,omitempty"`
	}
	if err := hullmark.DecodeStrict(text, maxDemands, &p); err != nil {
		return nil, err
	}
	if p.VMPL != 0 {
		return nil, errors.New("vmpl: a paravisor is at level 0")
	}
	verifier := &snp.Verifier{TestRoots: p.TestRoots}
	return &SNP{Verifier: verifier, Demands: p.Demands}, errors.Join(p.Check(), verifier.Check())
}

// ParseTDX reads what a policy demands: tdx.Demands, the collaterals by which machines are judged, and testRoots, which a policy of
// tests names.
func ParseTDX(text []byte) (*TDX, error) {
	var p struct {
		tdx.Demands
		Collaterals []tdx.Collateral `json:"collaterals"`
		TestRoots   [][]byte         `json:"testRoots,omitempty"`
	}
	if err := hullmark.DecodeStrict(text, maxDemands, &p); err != nil {
		return nil, err
	}
	if len(p.Collaterals) == 0 {
		return nil, errors.New("collaterals: want one for each model of processors")
	}
	return &TDX{Verifier: &tdx.Verifier{TestRoots: p.TestRoots}, Demands: p.Demands, Collaterals: p.Collaterals}, p.Check()
}

// bound decodes what is shown and holds the machine's endorsement key to it. The exchange has proven that the key is the machine's,
// and that its quote is of the same TPM.
func bound(kind string, want reportType, shown evidence.Shown) (Report, error) {
	report, err := Decode(shown.Report)
	if err != nil {
		return Report{}, evidence.Refuse(kind, evidence.Malformed, "the paravisor's report", err)
	}
	var reasons evidence.Reasons
	if report.kind != want {
		reasons.Differ(evidence.Malformed, want, report.kind, "the paravisor's report is of other hardware")
	}
	if len(shown.Returned) > 0 {
		reasons.Add(evidence.Malformed, "a report of the exchange, of which this platform has none")
	}
	if err := report.MatchEK(shown.EKPublic); err != nil {
		reasons.Add(evidence.NotBound, "%v", err)
	}
	return report, reasons.Refusal(kind)
}

// claims are those of a machine whose paravisor is genuine.
func claims(kind string, test bool, product, tcb string) hullmark.PlatformClaims {
	c := hullmark.PlatformClaims{Trust: hullmark.TrustParavisor, Platform: kind, Product: product, TCB: tcb}
	if test {
		c.Trust = c.Trust.Tested()
	}
	return c
}

// Verify implements evidence.Platform.
func (p *SNP) Verify(shown evidence.Shown, at time.Time) (evidence.Proven, error) {
	report, err := bound(hullmark.PlatformAzureSNP, typeSNP, shown)
	if err != nil {
		return evidence.Proven{}, err
	}
	verified, err := p.Verifier.Verify(report.Hardware, shown.Certificates, p.Demands, report.Bound(), at)
	if err != nil {
		return evidence.Proven{}, err
	}
	return evidence.Proven{
		Claims:   claims(hullmark.PlatformAzureSNP, verified.TestRoot, verified.Product, verified.Current.String()),
		Measured: verified.Measured(), Instance: verified.Instance(), Notes: verified.Notes,
	}, nil
}

// Verify implements evidence.Platform.
func (p *TDX) Verify(shown evidence.Shown, at time.Time) (evidence.Proven, error) {
	report, err := bound(hullmark.PlatformAzureTDX, typeTDX, shown)
	if err != nil {
		return evidence.Proven{}, err
	}
	verified, err := p.Verifier.Verify(shown.Quote, tdx.Find(p.Collaterals, shown.Quote), p.Demands, report.Bound(), at)
	if err != nil {
		return evidence.Proven{}, err
	}
	return evidence.Proven{
		Claims:   claims(hullmark.PlatformAzureTDX, verified.TestRoot, verified.FMSPC.String(), string(verified.Status)),
		Measured: verified.Measured(), Instance: verified.Instance.String(),
	}, nil
}
