package recorded

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/endorsement"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/hcl"
	"github.com/hullmark/hullmark/attest/verifier/nitro"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
)

// What is not checked: what nobody demanded, and what the evidence was made for.
const (
	notDemanded = "which launch, product, firmware version and settings are accepted: no demands were given"
	notBound    = "what the report data binds"
)

// snpReport is an SNP guest's report by itself.
type snpReport struct {
	raw          []byte
	report       snp.Report
	certificates [][]byte
}

func openSNP(raw []byte, certificates [][]byte) (platform, error) {
	report, err := snp.Parse(raw)
	return &snpReport{raw, report, certificates}, err
}

func (s *snpReport) says() []Field {
	r := s.report
	return []Field{
		{"version", fmt.Sprint(r.Version)},
		{"launch digest", text(r.Measurement[:])},
		{"report data", text(r.ReportData[:])},
		{"policy", fmt.Sprintf("%#x", r.Policy)},
		{"VMPL", fmt.Sprint(r.VMPL)},
		{"platform info", fmt.Sprintf("%#x", r.PlatformInfo)},
		{"key", string(r.Key)},
		{"guest SVN", fmt.Sprint(r.GuestSVN)},
		{"ID key digest", text(r.IDKeyDigest[:])},
		{"host data", text(r.HostData[:])},
		{"chip", text(r.ChipID[:])},
		{"report ID", text(r.ReportID[:])},
	}
}

// demands are a policy's, or the strict ones that name the report's own launch.
func (s *snpReport) demands(o Options) (snp.Demands, *snp.Verifier, []string, error) {
	if o.Demands != nil {
		p, err := hcl.ParseSNP(o.Demands)
		if err != nil {
			return snp.Demands{}, nil, nil, err
		}
		return p.Demands, p.Verifier, nil, nil
	}
	roots, err := snpRoots(o.Roots)
	r := s.report
	d := snp.Demands{Measurements: []evidence.Hex{r.Measurement[:]}, VMPL: r.VMPL, Keys: []snp.Key{snp.VCEK, snp.VLEK}, AllowNoCRL: true}
	return d, &snp.Verifier{TestRoots: roots}, []string{notDemanded, "revocation: no CRL was given"}, err
}

// snpRoots reads an issuer's certificate and its root's, of which the first names the product.
func snpRoots(bundle []byte) ([]snp.TestRoot, error) {
	if bundle == nil {
		return nil, nil
	}
	block, _ := pem.Decode(bundle)
	if block == nil {
		return nil, errors.New("roots: no PEM certificate")
	}
	issuer, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	_, product, _ := strings.Cut(issuer.Subject.CommonName, "-")
	key := snp.VCEK
	if rest, ok := strings.CutPrefix(product, "VLEK-"); ok {
		key, product = snp.VLEK, rest
	}
	root := snp.TestRoot{Product: product, Key: key, Bundle: bundle}
	verifier := snp.Verifier{TestRoots: []snp.TestRoot{root}}
	return verifier.TestRoots, verifier.Check()
}

func (s *snpReport) verify(o Options) (hullmark.PlatformClaims, []string, error) {
	d, verifier, open, err := s.demands(o)
	if err != nil {
		return hullmark.PlatformClaims{}, nil, err
	}
	v, err := verifier.Verify(s.raw, s.certificates, d, s.report.ReportData, o.At)
	return hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformSNP, Product: v.Product, TCB: v.Current.String()},
		append(append(open, notBound), v.Notes...), err
}

// tdxQuote is a TDX guest's quote by itself.
type tdxQuote struct {
	raw   []byte
	quote tdx.Quote
}

func openTDX(raw []byte) (platform, error) {
	quote, err := tdx.Parse(raw)
	return &tdxQuote{raw, quote}, err
}

func (t *tdxQuote) says() []Field {
	q := t.quote
	fields := []Field{
		{"version", fmt.Sprint(q.Version)},
		{"MRTD", text(q.MRTD[:])},
		{"report data", text(q.ReportData[:])},
		{"attributes", text(q.Attributes[:])},
		{"XFAM", text(q.XFAM[:])},
		{"TEE TCB SVN", text(q.TEETCBSVN[:])},
		{"MRSEAM", text(q.MRSEAM[:])},
		{"MRCONFIGID", text(q.MRConfigID[:])},
		{"MROWNER", text(q.MROwner[:])},
	}
	for n, r := range q.RTMRs {
		fields = append(fields, Field{fmt.Sprintf("RTMR %d", n), text(r[:])})
	}
	return fields
}

func (t *tdxQuote) verify(o Options) (hullmark.PlatformClaims, []string, error) {
	d, collaterals, verifier, open, err := t.demands(o)
	if err != nil {
		return hullmark.PlatformClaims{}, nil, err
	}
	v, err := verifier.Verify(t.raw, tdx.Find(collaterals, t.raw), d, t.quote.ReportData, o.At)
	return hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTDX, Product: v.FMSPC.String(), TCB: string(v.Status)},
		append(open, notBound), err
}

func (t *tdxQuote) demands(o Options) (tdx.Demands, []tdx.Collateral, *tdx.Verifier, []string, error) {
	if o.Demands != nil {
		p, err := hcl.ParseTDX(o.Demands)
		if err != nil {
			return tdx.Demands{}, nil, nil, nil, err
		}
		return p.Demands, append(p.Collaterals, o.Collaterals...), p.Verifier, nil, nil
	}
	verifier := &tdx.Verifier{}
	for rest := o.Roots; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		verifier.TestRoots = append(verifier.TestRoots, block.Bytes)
	}
	q := t.quote
	return tdx.Demands{MRTDs: []evidence.Hex{q.MRTD[:]}}, o.Collaterals, verifier, []string{notDemanded}, nil
}

// azure is a machine of Azure: what its paravisor says, and what the hardware signed for it.
type azure struct {
	frame    hcl.Report
	hardware platform
	// data is what the hardware signed.
	data [64]byte
	kind string
}

func openAzureSNP(frame hcl.Report, certificates [][]byte) (platform, error) {
	inner, err := openSNP(frame.Hardware, certificates)
	if err != nil {
		return nil, fmt.Errorf("paravisor's report: %w", err)
	}
	return &azure{frame, inner, inner.(*snpReport).report.ReportData, hullmark.PlatformAzureSNP}, nil
}

func openAzureTDX(frame hcl.Report, quote []byte) (platform, error) {
	inner, err := openTDX(quote)
	if err != nil {
		return nil, err
	}
	return &azure{frame, inner, inner.(*tdxQuote).quote.ReportData, hullmark.PlatformAzureTDX}, nil
}

func (a *azure) says() []Field {
	return append(a.hardware.says(), Field{"claims", string(a.frame.Claims())})
}

func (a *azure) verify(o Options) (hullmark.PlatformClaims, []string, error) {
	if a.data != a.frame.Bound() {
		return hullmark.PlatformClaims{}, nil, evidence.Refuse(a.kind, evidence.NotBound, "the hardware signed other claims than these", nil)
	}
	claims, open, err := a.hardware.verify(o)
	claims.Platform = a.kind
	open = slices.DeleteFunc(open, func(note string) bool { return note == notBound })
	open = append(open, "that the TPM which has the claimed keys is the machine's: that takes a quote")
	if o.Demands == nil {
		open = append(open, "that the claims are a genuine paravisor's: no demands name who signed it, or its measurement")
	}
	return claims, open, err
}

func (*snpReport) rated() bool { return false }
func (*tdxQuote) rated() bool  { return true }
func (a *azure) rated() bool   { return a.hardware.rated() }

// nitroDocument is what AWS says of an instance or of an enclave.
type nitroDocument struct {
	raw      []byte
	document nitro.Document
}

func openNitro(raw []byte) (platform, error) {
	document, err := nitro.Parse(raw)
	return &nitroDocument{raw, document}, err
}

func (n *nitroDocument) says() []Field {
	d := n.document
	fields := []Field{
		{"module", d.Module},
		{"instance", d.Instance()},
		{"time", d.Time.Format(time.RFC3339)},
		{"TPM", fmt.Sprint(d.TPM)},
		{"nonce", text(d.Nonce)},
		{"user data", text(d.UserData)},
		{"public key", text(d.PublicKey)},
	}
	for _, register := range slices.Sorted(maps.Keys(d.Registers)) {
		fields = append(fields, Field{fmt.Sprintf("PCR %d", register), text(d.Registers[register])})
	}
	return fields
}

func (n *nitroDocument) verify(o Options) (hullmark.PlatformClaims, []string, error) {
	verifier, d := &nitro.Verifier{}, nitro.Demands{Enclaves: true, AnyNonce: true}
	open := []string{"the nonce, and which instance and registers are accepted: no demands were given"}
	if o.Demands != nil {
		d, open = nitro.Demands{AnyNonce: true}, []string{"the nonce"}
		if err := hullmark.DecodeStrict(o.Demands, MaxFile, &d); err != nil {
			return hullmark.PlatformClaims{}, nil, err
		}
	}
	for rest := o.Roots; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		verifier.TestRoots = append(verifier.TestRoots, block.Bytes)
	}
	_, err := verifier.Verify(n.raw, d, o.At)
	return hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformAWS}, append(open, "that the TPM of the document is the one that a machine quotes"), err
}

func (*nitroDocument) rated() bool { return true }

// launchEndorsement is what Google signs of its firmware.
type launchEndorsement struct{ endorsement endorsement.Endorsement }

func openEndorsement(raw []byte) (platform, error) {
	e, err := endorsement.Parse(raw)
	return &launchEndorsement{e}, err
}

func (l *launchEndorsement) says() []Field {
	e := l.endorsement
	fields := []Field{{"firmware", text(e.Firmware)}, {"time", e.Time.Format(time.RFC3339)}, {"SNP SVN", fmt.Sprint(e.SNPSVN)}}
	for _, processors := range slices.Sorted(maps.Keys(e.SNP)) {
		fields = append(fields, Field{fmt.Sprintf("launch digest, %d processors", processors), text(e.SNP[processors])})
	}
	for _, memory := range slices.Sorted(maps.Keys(e.TDX)) {
		for _, mrtd := range e.TDX[memory] {
			fields = append(fields, Field{fmt.Sprintf("MRTD, %d GiB", memory), text(mrtd)})
		}
	}
	return fields
}

// verify needs the root: no certificate of Google's for this is built in.
func (l *launchEndorsement) verify(o Options) (hullmark.PlatformClaims, []string, error) {
	if o.Demands != nil {
		return hullmark.PlatformClaims{}, nil, errors.New("demands: an endorsement is of a firmware, not of a machine")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(o.Roots) {
		return hullmark.PlatformClaims{}, nil, errors.New("roots: want Google's root of endorsements in PEM (GCE-cc-tcb-root)")
	}
	return hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformGCP},
		[]string{"that any machine runs this firmware: compare its report's launch digest, or its quote's MRTD", "revocation of the signer"}, l.endorsement.Verify(roots, o.At)
}

func (*launchEndorsement) rated() bool { return true }
