package joinservice_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/hcltest"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/sevtest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// azureHost is the hardware of an Azure of a test, and who vouches for it.
type azureHost struct {
	amd   *sevtest.AMD
	chip  *sevtest.Chip
	guest sevtest.Guest
}

var azureIDKey = [48]byte{0x94}

func newAzureHost(t *testing.T) *azureHost {
	t.Helper()
	amd := sevtest.NewAt(t, snp.Genoa, time.Now())
	h := &azureHost{amd: amd, chip: amd.Chip(sevtest.TCB{10, 2, 0, 0, 0, 0, 27, 87}, ""), guest: sevtest.Good(snp.Genoa)}
	h.guest.IDKey = azureIDKey
	return h
}

// demands are what a policy says of such machines.
func (h *azureHost) demands(t *testing.T, change func(map[string]any)) measurements.Platform {
	t.Helper()
	d := map[string]any{
		"idKeys": []string{strings.Repeat("0", 96)}, "crls": [][]byte{h.amd.CRL(false)},
		"testRoots": []snp.TestRoot{{Product: snp.Genoa, Key: snp.VCEK, Bundle: h.amd.Bundle()}},
	}
	d["idKeys"] = []string{"94" + strings.Repeat("0", 94)}
	change(d)
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return measurements.Platform{Kind: hullmark.PlatformAzureSNP, Demands: text}
}

// run gives the machine that hardware: its paravisor names the EK that ek returns for its own.
func (h *azureHost) run(t *testing.T, n *nodetest.Node, ek func(own []byte) []byte) {
	n.EditHello = func(hello *wire.Hello) {
		claims := hcltest.Claims(t, ek(hello.GetEkPublic()), nil)
		guest := h.guest
		guest.ReportData = hcltest.Bound(claims)
		hello.Platform = &wire.Platform{
			Kind: hullmark.PlatformAzureSNP, Report: hcltest.Frame(hcltest.SNP, h.chip.Report(guest), claims), Certificates: [][]byte{h.chip.Certificate},
		}
	}
}

func own(ek []byte) []byte { return ek }

// demand puts a policy in force that wants a class of both roles, and evidence as the host's.
func (h *azureHost) demand(t *testing.T, s *site, class hullmark.TrustClass, change func(map[string]any)) {
	t.Helper()
	s.accept(t, func(p *measurements.Policy) {
		p.Trust = measurements.LeastTrust{ControlPlane: class, Worker: class}
		p.Platforms = []measurements.Platform{h.demands(t, change)}
	}, "image")
}

// TestPlatformEarnsItsClass lets a machine in by its platform's evidence, over the real service, holds it to its class when it comes
// back, and refuses what a host could make of the same image and the same TPM.
func TestPlatformEarnsItsClass(t *testing.T) {
	s, h := newSite(t), newAzureHost(t)
	h.demand(t, s, hullmark.TrustTestParavisor, func(map[string]any) {})
	another := func(own []byte) []byte {
		other := bytes.Clone(own)
		other[len(other)-1] ^= 1
		return other
	}
	for name, c := range map[string]struct {
		change func(h *azureHost)
		ek     func([]byte) []byte
		says   string
	}{
		"debug is on":              {func(h *azureHost) { h.guest.Policy |= 1 << 19 }, own, "debug is allowed"},
		"no genuine paravisor":     {func(h *azureHost) { h.guest.IDKey = [48]byte{} }, own, "another ID key"},
		"another privilege level":  {func(h *azureHost) { h.guest.VMPL = 1 }, own, "privilege level"},
		"another machine's claims": {func(*azureHost) {}, another, "the report is another machine's"},
	} {
		t.Log(name)
		forged := *h
		c.change(&forged)
		forged.run(t, s.node, c.ek)
		s.refused(t, "platform-refused", c.says)
	}
	s.node.EditHello = nil
	s.denied(t, "trust-too-low", false, "lesser class", "test-cvm-paravisor", "tpm, of platform tpm")

	h.run(t, s.node, own)
	record := s.join(t)
	if record.Platform.Trust != hullmark.TrustTestParavisor || record.Platform.Platform != hullmark.PlatformAzureSNP || record.Platform.Product != snp.Genoa || record.Record.Trust != hullmark.TrustTestParavisor {
		t.Errorf("the record says %+v, disk of %s", record.Platform, record.Record.Trust)
	}
	s.reboot()
	s.node.Epoch = 1
	s.join(t)

	// The disk is now one of that class: less is refused even where the policy wants less.
	s.accept(t, func(p *measurements.Policy) { p.Trust, p.Platforms = measurements.LeastTrust{}, nil }, "image")
	s.denied(t, "trust-lowered", false, "a higher class", "test-cvm-paravisor", "tpm")
	h.demand(t, s, hullmark.TrustParavisor, func(map[string]any) {})
	s.denied(t, "trust-too-low", false, "lesser class", "cvm-paravisor", "azure-snp")
}

// TestPlatformsThatEarnNothing refuses a policy that names them.
func TestPlatformsThatEarnNothing(t *testing.T) {
	h := newAzureHost(t)
	fits := h.demands(t, func(map[string]any) {})
	for want, p := range map[string]measurements.Platform{
		"no fuse":           {Kind: hullmark.PlatformSNP, Demands: fits.Demands},
		"cannot extend":     {Kind: hullmark.PlatformTDX, Demands: fits.Demands},
		"no driver":         {Kind: hullmark.PlatformSVSM, Demands: fits.Demands},
		"is the host's":     {Kind: hullmark.PlatformAWS, Demands: fits.Demands},
		"no such platform":  {Kind: "abacus", Demands: fits.Demands},
		"unknown field":     h.demands(t, func(d map[string]any) { d["debug"] = true }),
		"want at least one": h.demands(t, func(d map[string]any) { delete(d, "idKeys") }),
		"at level 0":        h.demands(t, func(d map[string]any) { d["vmpl"] = 2 }),
		"certificates":      h.demands(t, func(d map[string]any) { d["testRoots"] = []snp.TestRoot{{Product: snp.Genoa, Key: snp.VCEK}} }),
		"collaterals":       {Kind: hullmark.PlatformAzureTDX, Demands: []byte(`{"mrtds":["` + strings.Repeat("00", 48) + `"]}`)},
	} {
		if err := joinservice.CheckPlatforms(measurements.Policy{Platforms: []measurements.Platform{p}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := joinservice.CheckPlatforms(measurements.Policy{Platforms: []measurements.Platform{fits}}); err != nil {
		t.Errorf("the positive control: %v", err)
	}
}

// TestLaunchDigestOfAnotherMachine holds what hardware signed to the measurement document: another firmware, or another number of
// processors, is another digest; and hardware cannot speak for the TPM's registers.
func TestLaunchDigestOfAnotherMachine(t *testing.T) {
	authorizer := newAuthorizer(t)
	predicted := authorizer.Documents[0].Prediction()
	launched := func(what string) pcrs.Digest { return pcrs.DigestsOf([]byte(what), pcrs.SHA384)[pcrs.SHA384] }
	source := pcrs.Source{Kind: pcrs.FromLaunch, Name: "a guest"}
	predicted.Log.Events = append(predicted.Log.Events, pcrs.Event{
		Register: pcrs.LaunchDigest, Type: pcrs.EvLaunch, Digests: pcrs.Digests{pcrs.SHA384: launched("two processors")}, Source: &source, Origin: pcrs.Derived,
	})
	predicted.Registers = append(predicted.Registers, pcrs.LaunchDigest)
	document, err := measurements.New(authorizer.Documents[0].Image, authorizer.Documents[0].Release, pcrs.Machine{}, predicted)
	if err != nil {
		t.Fatal(err)
	}
	id, err := document.Digest()
	if err != nil {
		t.Fatal(err)
	}
	authorizer.Policy.Documents = []measurements.Accepted{{Document: id}}
	authorizer.Documents = []measurements.Document{document}
	for name, c := range map[string]struct {
		measured pcrs.Values
		fits     bool
	}{
		"the predicted launch":  {pcrs.Values{pcrs.LaunchDigest: launched("two processors")}, true},
		"three processors":      {pcrs.Values{pcrs.LaunchDigest: launched("three processors")}, false},
		"no hardware":           {nil, false},
		"hardware beside a TPM": {pcrs.Values{pcrs.LaunchDigest: launched("two processors"), 4: launched("another image")}, true},
	} {
		shown := claims(t, "image", blank())
		shown.Measured = c.measured
		if got := authorizer.Judge(shown).Accepted(); got != c.fits {
			t.Errorf("%s: accepted %t, want %t", name, got, c.fits)
		}
	}
	shown := claims(t, "another image", blank())
	shown.Measured = pcrs.Values{pcrs.LaunchDigest: launched("two processors")}
	for r, value := range document.Values(pcrs.SHA256) {
		if r.PCR() {
			shown.Measured[r] = value
		}
	}
	if authorizer.Judge(shown).Accepted() {
		t.Error("hardware spoke for the registers of the TPM")
	}
}
