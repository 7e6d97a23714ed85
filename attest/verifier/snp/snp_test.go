package snp_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-sev-guest/verify/testdata"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/internal/sevtest"
)

// firmware is that of each product's chips, with another byte at each version.
var firmware = map[string]sevtest.TCB{snp.Milan: {4, 1, 0, 0, 0, 0, 24, 219}, snp.Genoa: {10, 2, 0, 0, 0, 0, 27, 87}, snp.Turin: {1, 3, 2, 5, 0, 0, 0, 60}}

// platform is a chip with who vouches for it.
type platform struct {
	amd      *sevtest.AMD
	chip     *sevtest.Chip
	verifier *snp.Verifier
}

func newPlatform(t testing.TB, product, provider string) platform {
	t.Helper()
	p, key := platform{amd: sevtest.New(t, product)}, snp.VCEK
	if provider != "" {
		key = snp.VLEK
	}
	p.chip = p.amd.Chip(firmware[product], provider)
	p.verifier = &snp.Verifier{TestRoots: []snp.TestRoot{{Product: product, Key: key, Bundle: p.amd.Bundle()}}}
	return p
}

func (p platform) accepting(g sevtest.Guest) snp.Demands {
	return snp.Demands{Measurements: []evidence.Hex{g.Measurement[:]}, CRLs: [][]byte{p.amd.CRL(false)}}
}

func (p platform) verify(g sevtest.Guest, d snp.Demands) (snp.Verified, error) {
	return p.verifier.Verify(p.chip.Report(g), [][]byte{p.chip.Certificate}, d, g.ReportData, sevtest.Now)
}

// wantOnly wants a refusal for reasons of one code, or none for an empty one.
func wantOnly(t *testing.T, name string, err error, code evidence.Code) {
	t.Helper()
	var refusal *evidence.Refusal
	if code == "" && err == nil {
		return
	}
	if !errors.As(err, &refusal) || slices.ContainsFunc(refusal.Reasons, func(r evidence.Reason) bool { return r.Code != code }) {
		t.Errorf("%s: %v, want %q alone", name, err, code)
	}
}

func TestProducts(t *testing.T) {
	for _, product := range []string{snp.Milan, snp.Genoa, snp.Turin} {
		p := newPlatform(t, product, "")
		for version := uint32(2); version <= 5; version++ {
			g := sevtest.Good(product)
			g.Version = version
			d := p.accepting(g)
			_, err := p.verify(g, d)
			want := evidence.Code("")
			if product == snp.Milan {
				want = evidence.Product
			}
			wantOnly(t, product, err, want)
			d.Products = []string{product}
			verified, err := p.verify(g, d)
			if err != nil || !verified.TestRoot || verified.Product != product || verified.Current.Microcode != firmware[product][7] || (product == snp.Turin) != (verified.Current.FMC == 1) {
				t.Errorf("%s, version %d: %+v, %v", product, version, verified.Current, err)
			}
		}
	}
}

func TestGuests(t *testing.T) {
	p := newPlatform(t, snp.Genoa, "")
	older := firmware[snp.Genoa]
	older[7]--
	for name, c := range map[string]struct {
		guest  func(*sevtest.Guest)
		demand func(*snp.Demands)
		code   evidence.Code
	}{
		"a good one":              {nil, nil, ""},
		"debug":                   {func(g *sevtest.Guest) { g.Policy |= 1 << 19 }, nil, evidence.Debug},
		"a migration agent":       {func(g *sevtest.Guest) { g.Policy |= 1 << 18 }, nil, evidence.Debug},
		"policy: SMT":             {func(g *sevtest.Guest) { g.Policy |= 1 << 16 }, nil, evidence.Flags},
		"policy: CXL":             {func(g *sevtest.Guest) { g.Policy |= 1 << 21 }, nil, evidence.Flags},
		"policy: an unknown bit":  {func(g *sevtest.Guest) { g.Policy |= 1 << 40 }, nil, evidence.Flags},
		"SMT":                     {func(g *sevtest.Guest) { g.PlatformInfo |= 1 }, nil, evidence.Flags},
		"SMT, allowed":            {func(g *sevtest.Guest) { g.PlatformInfo |= 1; g.Policy |= 1 << 16 }, func(d *snp.Demands) { d.AllowSMT = true }, ""},
		"no alias check":          {func(g *sevtest.Guest) { g.PlatformInfo = 0 }, nil, evidence.Flags},
		"no alias check, allowed": {func(g *sevtest.Guest) { g.PlatformInfo = 0 }, func(d *snp.Demands) { d.AllowNoAliasCheck = true }, ""},
		"platform: bit 6":         {func(g *sevtest.Guest) { g.PlatformInfo |= 1 << 6 }, nil, evidence.Flags},
		"VMPL 1":                  {func(g *sevtest.Guest) { g.VMPL = 1 }, nil, evidence.Flags},
		"VMPL 1, demanded":        {func(g *sevtest.Guest) { g.VMPL = 1 }, func(d *snp.Demands) { d.VMPL = 1 }, ""},
		"the host's own":          {func(g *sevtest.Guest) { g.VMPL = 0xffffffff }, func(d *snp.Demands) { d.VMPL = 0xffffffff }, evidence.Flags},
		"another digest":          {nil, func(d *snp.Demands) { d.Measurements = []evidence.Hex{make([]byte, 48)} }, evidence.Measurement},
		"nothing demanded":        {nil, func(d *snp.Demands) { d.Measurements = nil }, evidence.Measurement},
		"an ID key":               {func(g *sevtest.Guest) { g.IDKey[0] = 1 }, func(d *snp.Demands) { d.IDKeys = []evidence.Hex{append([]byte{1}, make([]byte, 47)...)} }, ""},
		"no ID key":               {nil, func(d *snp.Demands) { d.IDKeys = []evidence.Hex{append([]byte{1}, make([]byte, 47)...)} }, evidence.Signer},
		"an ID key alone": {func(g *sevtest.Guest) { g.IDKey[0], g.GuestSVN = 1, 4 }, func(d *snp.Demands) {
			d.Measurements, d.MinimumGuestSVN, d.IDKeys = nil, 4, []evidence.Hex{append([]byte{1}, make([]byte, 47)...)}
		}, ""},
		"an older guest":          {func(g *sevtest.Guest) { g.GuestSVN = 3 }, func(d *snp.Demands) { d.MinimumGuestSVN = 4 }, evidence.TCB},
		"another HOST_DATA":       {nil, func(d *snp.Demands) { d.HostData = []evidence.Hex{append([]byte{1}, make([]byte, 31)...)} }, evidence.Measurement},
		"another chip":            {nil, func(d *snp.Demands) { d.Chips = []evidence.Hex{make([]byte, 64)} }, evidence.Instance},
		"this chip":               {nil, func(d *snp.Demands) { d.Chips = []evidence.Hex{p.chip.ID[:]} }, ""},
		"a hidden chip":           {func(g *sevtest.Guest) { g.Masked = true }, nil, evidence.Instance},
		"no hidden ciphertext":    {nil, func(d *snp.Demands) { d.CiphertextHiding = true }, evidence.Flags},
		"hidden ciphertext":       {func(g *sevtest.Guest) { g.Policy |= 1 << 24 }, func(d *snp.Demands) { d.CiphertextHiding = true }, ""},
		"swapped pages":           {nil, func(d *snp.Demands) { d.NoPageSwap = true }, evidence.Flags},
		"a mitigation":            {nil, func(d *snp.Demands) { d.Mitigations = 2 }, ""},
		"no mitigation":           {nil, func(d *snp.Demands) { d.Mitigations = 4 }, evidence.TCB},
		"mitigations of old":      {func(g *sevtest.Guest) { g.Version = 4 }, func(d *snp.Demands) { d.Mitigations = 2 }, evidence.TCB},
		"a key of other firmware": {func(g *sevtest.Guest) { g.Reported = &older }, nil, evidence.Chain},
		"provisional firmware":    {func(g *sevtest.Guest) { g.Committed = &older }, nil, evidence.TCB},
		"provisional, with floors": {func(g *sevtest.Guest) { g.Committed = &older }, func(d *snp.Demands) {
			d.Floors = []snp.Floor{{Product: snp.Genoa, Minimum: snp.TCB{Microcode: 87}, Launch: snp.TCB{Microcode: 87}}}
		}, ""},
		"below a floor":             {nil, func(d *snp.Demands) { d.Floors = []snp.Floor{{Product: snp.Genoa, Minimum: snp.TCB{Microcode: 88}}} }, evidence.TCB},
		"launched below a floor":    {func(g *sevtest.Guest) { g.Launch = &older }, func(d *snp.Demands) { d.Floors = []snp.Floor{{Product: snp.Genoa, Launch: snp.TCB{Microcode: 87}}} }, evidence.TCB},
		"another product's numbers": {func(g *sevtest.Guest) { g.Family, g.Model = 0x1a, 2 }, nil, evidence.Product},
		"no CRL":                    {nil, func(d *snp.Demands) { d.CRLs = nil }, evidence.NoCollateral},
		"no CRL, allowed":           {nil, func(d *snp.Demands) { d.CRLs, d.AllowNoCRL = nil, true }, ""},
		"another AMD's CRL":         {nil, func(d *snp.Demands) { d.CRLs = [][]byte{sevtest.New(t, snp.Genoa).CRL(false)} }, evidence.NoCollateral},
		"a revoked issuer":          {nil, func(d *snp.Demands) { d.CRLs = [][]byte{p.amd.CRL(true)} }, evidence.Revoked},
		"a VLEK wanted":             {nil, func(d *snp.Demands) { d.Keys = []snp.Key{snp.VLEK} }, evidence.Signer},
		"another product wanted":    {nil, func(d *snp.Demands) { d.Products = []string{snp.Turin} }, evidence.Product},
	} {
		g := sevtest.Good(snp.Genoa)
		if c.guest != nil {
			c.guest(&g)
		}
		d := p.accepting(g)
		if c.demand != nil {
			c.demand(&d)
		}
		_, err := p.verify(g, d)
		wantOnly(t, name, err, c.code)
	}
}

// TestOthersEvidence mixes what belongs to different machines.
func TestOthersEvidence(t *testing.T) {
	p, g := newPlatform(t, snp.Genoa, ""), sevtest.Good(snp.Genoa)
	second := p.amd.Chip(firmware[snp.Genoa], "")
	report, d := p.chip.Report(g), p.accepting(g)
	_, err := p.verifier.Verify(report, [][]byte{second.Certificate}, d, g.ReportData, sevtest.Now)
	wantOnly(t, "another chip's certificate", err, evidence.Signature)
	_, err = p.verifier.Verify(report, nil, d, g.ReportData, sevtest.Now)
	wantOnly(t, "no certificate", err, evidence.Chain)
	_, err = (&snp.Verifier{}).Verify(report, [][]byte{p.chip.Certificate}, d, g.ReportData, sevtest.Now)
	wantOnly(t, "a root for tests that nobody named", err, evidence.Chain)
	other := g.ReportData
	other[63] = 1
	_, err = p.verifier.Verify(report, [][]byte{p.chip.Certificate}, d, other, sevtest.Now)
	wantOnly(t, "another exchange", err, evidence.NotBound)
	_, err = p.verifier.Verify(report, [][]byte{p.chip.Certificate}, d, g.ReportData, sevtest.Now.AddDate(0, 0, 40))
	wantOnly(t, "an old CRL", err, evidence.Expired)
	_, err = p.verifier.Verify(report, [][]byte{{1}, p.chip.Certificate}, d, g.ReportData, sevtest.Now)
	wantOnly(t, "something else before the certificate", err, "")

	v := newPlatform(t, snp.Genoa, "CN=cloud-1.example")
	d = v.accepting(g)
	d.Keys, d.Providers = []snp.Key{snp.VLEK}, []string{"CN=cloud-1.example"}
	verified, err := v.verify(g, d)
	if err != nil || verified.Instance() != "" || verified.Provider != "CN=cloud-1.example" {
		t.Errorf("a provider's key: %+v, %v", verified.Provider, err)
	}
	d.Providers = []string{"CN=cloud-2.example"}
	_, err = v.verify(g, d)
	wantOnly(t, "another provider's key", err, evidence.Signer)
	d.Keys = nil
	_, err = v.verify(g, d)
	wantOnly(t, "a provider's key where a chip's is wanted", err, evidence.Signer)
}

func TestEveryByte(t *testing.T) {
	p, g := newPlatform(t, snp.Turin, ""), sevtest.Good(snp.Turin)
	report, d := p.chip.Report(g), p.accepting(g)
	if _, err := p.verifier.Verify(report, [][]byte{p.chip.Certificate}, d, g.ReportData, sevtest.Now); err != nil {
		t.Fatal(err)
	}
	for i := range report {
		changed := slices.Clone(report)
		changed[i] ^= 4
		if _, err := p.verifier.Verify(changed, [][]byte{p.chip.Certificate}, d, g.ReportData, sevtest.Now); err == nil {
			t.Errorf("byte %#x of the report: accepted", i)
		}
	}
	for i := range p.chip.Certificate {
		changed := slices.Clone(p.chip.Certificate)
		changed[i] ^= 4
		if _, err := p.verifier.Verify(report, [][]byte{changed}, d, g.ReportData, sevtest.Now); err == nil {
			t.Errorf("byte %#x of the certificate: accepted", i)
		}
	}
	for _, raw := range [][]byte{report[:len(report)-1], append(slices.Clone(report), 0), nil} {
		_, err := p.verifier.Verify(raw, [][]byte{p.chip.Certificate}, d, g.ReportData, sevtest.Now)
		wantOnly(t, "another length", err, evidence.Malformed)
	}
}

// TestLibrarysReport judges the report of the field's library: debug was allowed.
func TestLibrarysReport(t *testing.T) {
	r, err := snp.Parse(testdata.AttestationBytes)
	if err != nil {
		t.Fatal(err)
	}
	d := snp.Demands{Products: []string{snp.Milan}, Measurements: []evidence.Hex{r.Measurement[:]}, VMPL: r.VMPL, AllowSMT: true, AllowNoAliasCheck: true, AllowNoCRL: true, Floors: []snp.Floor{{Product: snp.Milan}}}
	_, err = (&snp.Verifier{}).Verify(testdata.AttestationBytes, [][]byte{testdata.VcekBytes}, d, r.ReportData, sevtest.Now.AddDate(-3, 0, 0))
	wantOnly(t, "debug", err, evidence.Debug)
}

func TestDemandsCheck(t *testing.T) {
	one := []evidence.Hex{make([]byte, 48)}
	if err := (snp.Demands{Measurements: one}).Check(); err != nil {
		t.Error(err)
	}
	for want, d := range map[string]snp.Demands{
		"want at least one": {}, "measurements": {Measurements: []evidence.Hex{{1}}}, "products": {Measurements: one, Products: []string{"milan"}},
		"providers": {Measurements: one, Keys: []snp.Key{snp.VLEK}}, "crls": {Measurements: one, CRLs: [][]byte{{1}}}, "overdueDays": {Measurements: one, Overdue: -1},
		"floors": {Measurements: one, Floors: []snp.Floor{{Product: snp.Genoa}, {Product: snp.Genoa}}}, "chips": {Measurements: one, Chips: one},
	} {
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	p := newPlatform(f, snp.Turin, "")
	f.Add(p.chip.Report(sevtest.Good(snp.Turin)), p.chip.Certificate)
	f.Add(testdata.AttestationBytes, testdata.VcekBytes)
	d := p.accepting(sevtest.Good(snp.Turin))
	f.Fuzz(func(t *testing.T, report, certificate []byte) {
		verified, err := p.verifier.Verify(report, [][]byte{certificate}, d, [64]byte{9}, sevtest.Now)
		if err == nil && verified.Report.Measurement != [48]byte{1} {
			t.Error("a report with another measurement was accepted")
		}
	})
}
