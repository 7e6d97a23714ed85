package tdx_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/tdxtest"
)

func collateralOf(i *tdxtest.Intel) tdx.Collateral {
	a := i.Answers()
	return tdx.Collateral{TCBInfo: a.TCBInfo, QEIdentity: a.QEIdentity, TCBInfoChain: a.Chain, QEIdentityChain: a.Chain, PCKCRL: a.PCKCRL, RootCRL: a.RootCRL}
}

func accepting(g tdxtest.Guest) tdx.Demands { return tdx.Demands{MRTDs: []evidence.Hex{g.MRTD[:]}} }

func verify(i *tdxtest.Intel, g tdxtest.Guest, d tdx.Demands) (tdx.Verified, error) {
	return (&tdx.Verifier{TestRoots: [][]byte{i.Root()}}).Verify(i.Quote(g), collateralOf(i), d, g.ReportData, tdxtest.Now)
}

// wantOnly wants a refusal for reasons of one code.
func wantOnly(t *testing.T, name string, err error, code evidence.Code) {
	t.Helper()
	var refusal *evidence.Refusal
	if !errors.As(err, &refusal) || slices.ContainsFunc(refusal.Reasons, func(r evidence.Reason) bool { return r.Code != code }) {
		t.Errorf("%s: %v, want %s alone", name, err, code)
	}
}

func TestGuests(t *testing.T) {
	i := tdxtest.New(t, false)
	for name, c := range map[string]struct {
		change func(*tdxtest.Guest)
		code   evidence.Code
	}{
		"a good one":                 {func(*tdxtest.Guest) {}, ""},
		"version 5":                  {func(g *tdxtest.Guest) { g.Version = 5 }, ""},
		"PKS and PERFMON":            {func(g *tdxtest.Guest) { g.Attributes |= 1<<30 | 1<<63 }, ""},
		"debug":                      {func(g *tdxtest.Guest) { g.Attributes |= 1 }, evidence.Debug},
		"another untrusted bit":      {func(g *tdxtest.Guest) { g.Attributes |= 4 }, evidence.Debug},
		"migratable":                 {func(g *tdxtest.Guest) { g.Attributes |= 1 << 29 }, evidence.Debug},
		"a service TD":               {func(g *tdxtest.Guest) { g.Version, g.ServiceTD[0] = 5, 1 }, evidence.Debug},
		"an unknown attribute":       {func(g *tdxtest.Guest) { g.Attributes |= 1 << 40 }, evidence.Flags},
		"exceptions from the host":   {func(g *tdxtest.Guest) { g.Attributes = 0 }, evidence.Flags},
		"another module's signer":    {func(g *tdxtest.Guest) { g.ModuleSigner[3] = 1 }, evidence.TCB},
		"a module line not listed":   {func(g *tdxtest.Guest) { g.ModuleLine = 7 }, evidence.TCB},
		"a module below all levels":  {func(g *tdxtest.Guest) { g.ModuleSVN = 2 }, evidence.TCB},
		"components below all":       {func(g *tdxtest.Guest) { g.Component-- }, evidence.TCB},
		"an enclave below all":       {func(g *tdxtest.Guest) { g.EnclaveSVN = 7 }, evidence.TCB},
		"an enclave of another hand": {func(g *tdxtest.Guest) { g.EnclaveSigner = 1 }, evidence.Signer},
	} {
		g := tdxtest.Good()
		c.change(&g)
		verified, err := verify(i, g, accepting(g))
		if c.code != "" {
			wantOnly(t, name, err, c.code)
			continue
		}
		if err != nil || !verified.TestRoot || verified.Status != tdx.UpToDate || string(verified.Instance) != "test platform 01" || verified.Evaluation != 20 {
			t.Errorf("%s: %+v, %v", name, verified.Status, err)
		}
	}
	g := tdxtest.Good()
	other := accepting(g)
	other.MRTDs = []evidence.Hex{make([]byte, 48)}
	_, err := verify(i, g, other)
	wantOnly(t, "another MRTD", err, evidence.Measurement)
	_, err = verify(tdxtest.New(t, true), g, accepting(g))
	wantOnly(t, "hyper-threading", err, evidence.Flags)
	_, err = (&tdx.Verifier{}).Verify(i.Quote(g), collateralOf(i), accepting(g), g.ReportData, tdxtest.Now)
	wantOnly(t, "a root for tests that nobody named", err, evidence.Chain)
	_, err = (&tdx.Verifier{TestRoots: [][]byte{tdxtest.New(t, false).Root()}}).Verify(i.Quote(g), collateralOf(i), accepting(g), g.ReportData, tdxtest.Now)
	wantOnly(t, "another root for tests", err, evidence.Chain)
}

// TestLevels rates platform, module and enclave, each by its own level, and joins them.
func TestLevels(t *testing.T) {
	for name, c := range map[string]struct {
		platform, module, enclave string
		want                      tdx.Status
	}{
		"all good":                       {"UpToDate", "UpToDate", "UpToDate", tdx.UpToDate},
		"a platform out of date":         {"OutOfDate", "UpToDate", "UpToDate", tdx.OutOfDate},
		"a module out of date":           {"UpToDate", "OutOfDate", "UpToDate", tdx.OutOfDate},
		"an enclave out of date":         {"UpToDate", "UpToDate", "OutOfDate", tdx.OutOfDate},
		"a module, and configuration":    {"ConfigurationNeeded", "OutOfDate", "UpToDate", tdx.OutOfDateConfigurationNeeded},
		"hardening":                      {"SWHardeningNeeded", "UpToDate", "UpToDate", tdx.SWHardeningNeeded},
		"hardening and an old module":    {"SWHardeningNeeded", "OutOfDate", "UpToDate", tdx.OutOfDate},
		"hardening and configuration":    {"ConfigurationAndSWHardeningNeeded", "UpToDate", "UpToDate", tdx.ConfigurationAndSWHardeningNeeded},
		"both, and an old enclave":       {"ConfigurationAndSWHardeningNeeded", "UpToDate", "OutOfDate", tdx.OutOfDateConfigurationNeeded},
		"a revoked platform":             {"Revoked", "UpToDate", "UpToDate", tdx.Revoked},
		"a revoked module":               {"UpToDate", "Revoked", "UpToDate", tdx.Revoked},
		"a revoked enclave":              {"UpToDate", "UpToDate", "Revoked", tdx.Revoked},
		"a revoked module, configurable": {"OutOfDateConfigurationNeeded", "Revoked", "OutOfDate", tdx.Revoked},
	} {
		i, g := tdxtest.New(t, false), tdxtest.Good()
		i.Platform[0].Status, i.Module[0].Status, i.Enclave[0].Status = c.platform, c.module, c.enclave
		i.Module[0].Advisories = []string{"INTEL-SA-2"}
		i.Platform[0].Advisories = []string{"INTEL-SA-1", "INTEL-SA-2"}
		d := accepting(g)
		verified, err := verify(i, g, d)
		if verified.Status != c.want || (err == nil) != (c.want == tdx.UpToDate) || !slices.Equal(verified.Advisories, []string{"INTEL-SA-1", "INTEL-SA-2"}) {
			t.Errorf("%s: %s, %v, %v", name, verified.Status, verified.Advisories, err)
		}
		// Who accepts the status has to accept each advisory, and nobody accepts what was revoked.
		d.Statuses = []tdx.Status{c.want}
		d.Advisories = []string{"INTEL-SA-1"}
		if _, err := verify(i, g, d); (err == nil) != (c.want == tdx.UpToDate) {
			t.Errorf("%s, with one advisory of two: %v", name, err)
		}
		d.Advisories = append(d.Advisories, "INTEL-SA-2")
		if _, err := verify(i, g, d); (err == nil) != (c.want != tdx.Revoked) {
			t.Errorf("%s, accepted: %v", name, err)
		}
	}
}

// TestFirstLevelThatIsReached takes the highest level, whatever is below.
func TestFirstLevelThatIsReached(t *testing.T) {
	i, g := tdxtest.New(t, false), tdxtest.Good()
	old := tdxtest.Level{SGX: 2, TDX: 2, PCE: 5, Status: "OutOfDate"}
	i.Platform = append(i.Platform, old)
	if verified, err := verify(i, g, accepting(g)); err != nil || verified.Status != tdx.UpToDate {
		t.Errorf("%s, %v", verified.Status, err)
	}
	for name, next := range map[string]tdxtest.Level{
		"SGX": {SGX: tdxtest.SGX + 1, TDX: tdxtest.TDX, PCE: tdxtest.PCE}, "TDX": {SGX: tdxtest.SGX, TDX: tdxtest.TDX + 1, PCE: tdxtest.PCE}, "PCE": {SGX: tdxtest.SGX, TDX: tdxtest.TDX, PCE: tdxtest.PCE + 1},
	} {
		next.Status = "UpToDate"
		i.Platform = []tdxtest.Level{next, old}
		if verified, _ := verify(i, g, accepting(g)); verified.Status != tdx.OutOfDate {
			t.Errorf("one %s component short: %s", name, verified.Status)
		}
	}
	// A module of the first line has no levels of its own: its components are the platform's.
	g.ModuleLine = 0
	i.Platform = []tdxtest.Level{{SGX: tdxtest.SGX, TDX: tdxtest.TDX, PCE: tdxtest.PCE, Status: "UpToDate"}}
	if verified, err := verify(i, g, accepting(g)); err == nil || verified.Status != "" {
		t.Errorf("the first line, two components short: %s, %v", verified.Status, err)
	}
}

func TestCollateral(t *testing.T) {
	g := tdxtest.Good()
	for name, c := range map[string]struct {
		change func(*tdxtest.Intel)
		code   evidence.Code
	}{
		"revoked":               {func(i *tdxtest.Intel) { i.Revoked = true }, evidence.Revoked},
		"the issuer revoked":    {func(i *tdxtest.Intel) { i.RevokedCA = true }, evidence.Revoked},
		"of another model":      {func(i *tdxtest.Intel) { i.FMSPC = []byte{1, 2, 3, 4, 5, 6} }, evidence.NoCollateral},
		"levels twice":          {func(i *tdxtest.Intel) { i.Twice = true }, evidence.NoCollateral},
		"an unknown status":     {func(i *tdxtest.Intel) { i.Platform[0].Status = "Splendid" }, evidence.TCB},
		"an unknown module's":   {func(i *tdxtest.Intel) { i.Module[0].Status = "" }, evidence.TCB},
		"an earlier evaluation": {func(i *tdxtest.Intel) { i.Evaluation = 18 }, evidence.TCB},
	} {
		i := tdxtest.New(t, false)
		c.change(i)
		d := accepting(g)
		d.MinimumEvaluation = 19
		_, err := verify(i, g, d)
		wantOnly(t, name, err, c.code)
	}
	// Collateral of another Intel is none.
	i, other := tdxtest.New(t, false), tdxtest.New(t, false)
	_, err := (&tdx.Verifier{TestRoots: [][]byte{i.Root(), other.Root()}}).Verify(i.Quote(g), collateralOf(other), accepting(g), g.ReportData, tdxtest.Now)
	wantOnly(t, "of another Intel", err, evidence.NoCollateral)
}

// TestOverdueCollateral lets machines in for as long as the policy says.
func TestOverdueCollateral(t *testing.T) {
	i, g := tdxtest.New(t, false), tdxtest.Good()
	quote, collateral, verifier := i.Quote(g), collateralOf(i), &tdx.Verifier{TestRoots: [][]byte{i.Root()}}
	for _, c := range []struct {
		after, overdue int
		fits           bool
	}{{28, 0, true}, {30, 0, false}, {30, 2, true}, {40, 2, false}, {40, 14, true}} {
		d := accepting(g)
		d.Overdue = c.overdue
		_, err := verifier.Verify(quote, collateral, d, g.ReportData, tdxtest.Now.AddDate(0, 0, c.after))
		if c.fits != (err == nil) {
			t.Errorf("after %d days, %d allowed: %v", c.after, c.overdue, err)
		}
	}
	d := accepting(g)
	d.CollateralFrom = tdxtest.Now.AddDate(0, 0, -1)
	if _, err := verifier.Verify(quote, collateral, d, g.ReportData, tdxtest.Now); err != nil {
		t.Errorf("the floor itself: %v", err)
	}
	d.CollateralFrom = d.CollateralFrom.Add(time.Second)
	_, err := verifier.Verify(quote, collateral, d, g.ReportData, tdxtest.Now)
	wantOnly(t, "below the floor", err, evidence.Expired)
}

// TestEveryByte flips each byte of a quote and of its collateral.
func TestEveryByte(t *testing.T) {
	i, g := tdxtest.New(t, false), tdxtest.Good()
	quote, verifier := i.Quote(g), &tdx.Verifier{TestRoots: [][]byte{i.Root()}}
	collateral := collateralOf(i)
	try := func(raw []byte, c tdx.Collateral) error {
		_, err := verifier.Verify(raw, c, accepting(g), g.ReportData, tdxtest.Now)
		return err
	}
	if err := try(quote, collateral); err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for at := range quote {
		changed := slices.Clone(quote)
		changed[at] ^= 1
		if try(changed, collateral) == nil {
			accepted++
		}
	}
	if accepted > 0 {
		t.Errorf("%d changed bytes of the quote were accepted", accepted)
	}
	for at := range collateral.TCBInfo {
		changed := collateral
		changed.TCBInfo = slices.Clone(collateral.TCBInfo)
		changed.TCBInfo[at] ^= 1
		if try(quote, changed) == nil {
			t.Errorf("byte %d of the TCB info: accepted", at)
		}
	}
	for length := range quote {
		if try(quote[:length], collateral) == nil {
			t.Errorf("the first %d bytes were accepted", length)
		}
	}
	if try(append(slices.Clone(quote), 1), collateral) == nil {
		t.Error("a byte after the end was accepted")
	}
}

// TestOneWayToWriteAChain refuses what base64 leaves open: the last bits before padding mean nothing. Signatures' sizes vary, and padding
// with them.
func TestOneWayToWriteAChain(t *testing.T) {
	g := tdxtest.Good()
	for range 50 {
		i := tdxtest.New(t, false)
		quote, verifier := i.Quote(g), &tdx.Verifier{TestRoots: [][]byte{i.Root()}}
		at := bytes.Index(quote, []byte("=\n-----END"))
		if at < 0 {
			continue
		}
		for quote[at-1] == '=' {
			at--
		}
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
		quote[at-1] = alphabet[strings.IndexByte(alphabet, quote[at-1])+1]
		_, err := verifier.Verify(quote, collateralOf(i), accepting(g), g.ReportData, tdxtest.Now)
		wantOnly(t, "bits that mean nothing", err, evidence.Malformed)
		return
	}
	t.Error("50 chains without padding")
}

func TestDemandsCheck(t *testing.T) {
	good := accepting(tdxtest.Good())
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for want, d := range map[string]tdx.Demands{
		"mrtds": {}, "rtmrs[2]": {MRTDs: good.MRTDs, RTMRs: [4][]evidence.Hex{2: {{1}}}},
		"statuses": {MRTDs: good.MRTDs, Statuses: []tdx.Status{tdx.Revoked}}, "overdueDays": {MRTDs: good.MRTDs, Overdue: 400},
	} {
		if err := d.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := verify(tdxtest.New(t, false), tdxtest.Good(), tdx.Demands{}); err == nil {
		t.Error("demands that name no measurement accept a guest")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(tdxtest.New(f, true).Quote(tdxtest.Good()))
	five := tdxtest.Good()
	five.Version = 5
	f.Add(tdxtest.New(f, false).Quote(five))
	f.Fuzz(func(t *testing.T, raw []byte) {
		q, err := tdx.Parse(raw)
		if err == nil && q.Version != 4 && q.Version != 5 {
			t.Errorf("version %d", q.Version)
		}
		_, _ = (&tdx.Verifier{}).Verify(raw, tdx.Collateral{}, tdx.Demands{}, q.ReportData, tdxtest.Now)
	})
}

func FuzzCollateral(f *testing.F) {
	i, g := tdxtest.New(f, false), tdxtest.Good()
	quote, verifier := i.Quote(g), &tdx.Verifier{TestRoots: [][]byte{i.Root()}}
	a := i.Answers()
	f.Add(a.TCBInfo, a.QEIdentity, a.Chain, a.PCKCRL, a.RootCRL)
	f.Fuzz(func(t *testing.T, info, identity, chain, pck, root []byte) {
		c := tdx.Collateral{TCBInfo: info, QEIdentity: identity, TCBInfoChain: chain, QEIdentityChain: chain, PCKCRL: pck, RootCRL: root}
		verified, err := verifier.Verify(quote, c, accepting(g), g.ReportData, tdxtest.Now)
		if err == nil && verified.Evaluation != 20 {
			t.Errorf("other collateral was accepted: evaluation %d", verified.Evaluation)
		}
	})
}
