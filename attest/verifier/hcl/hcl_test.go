package hcl_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/hcl"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/hcltest"
	"github.com/hullmark/hullmark/internal/sevtest"
	"github.com/hullmark/hullmark/internal/tdxtest"
	"github.com/hullmark/hullmark/pcrs"
)

// newEK returns the public area of an endorsement key of the default template.
func newEK(t testing.TB) []byte {
	t.Helper()
	modulus := make([]byte, 256)
	if _, err := rand.Read(modulus); err != nil {
		t.Fatal(err)
	}
	modulus[0] |= 0x80
	public := tpm2.RSAEKTemplate
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus})
	return tpm2.Marshal(public)
}

// azure is an SNP machine on an Azure of a test.
type azure struct {
	chip     *sevtest.Chip
	guest    sevtest.Guest
	ek       []byte
	platform *hcl.SNP
}

var idKey = [48]byte{0x94}

func newAzure(t testing.TB) *azure {
	t.Helper()
	amd := sevtest.New(t, snp.Genoa)
	a := &azure{chip: amd.Chip(sevtest.TCB{10, 2, 0, 0, 0, 0, 27, 87}, ""), guest: sevtest.Good(snp.Genoa), ek: newEK(t)}
	a.guest.IDKey, a.guest.GuestSVN = idKey, 5
	a.platform = &hcl.SNP{
		Verifier: &snp.Verifier{TestRoots: []snp.TestRoot{{Product: snp.Genoa, Key: snp.VCEK, Bundle: amd.Bundle()}}},
		Demands:  snp.Demands{IDKeys: []evidence.Hex{idKey[:]}, MinimumGuestSVN: 5, CRLs: [][]byte{amd.CRL(false)}},
	}
	return a
}

// shown is what the machine shows, with claims as they are given.
func (a *azure) shown(claims []byte) evidence.Shown {
	guest := a.guest
	guest.ReportData = hcltest.Bound(claims)
	return evidence.Shown{Report: hcltest.Frame(hcltest.SNP, a.chip.Report(guest), claims), Certificates: [][]byte{a.chip.Certificate}, EKPublic: a.ek}
}

func wantCode(t *testing.T, name string, err error, code evidence.Code) {
	t.Helper()
	var refusal *evidence.Refusal
	if !errors.As(err, &refusal) || !refusal.Has(code) {
		t.Errorf("%s: %v, want %s", name, err, code)
	}
}

func TestSNP(t *testing.T) {
	a := newAzure(t)
	claims := hcltest.Claims(t, a.ek, newEK(t))
	proven, err := a.platform.Verify(a.shown(claims), sevtest.Now)
	if err != nil || proven.Claims.Trust != hullmark.TrustTestParavisor || proven.Claims.Platform != hullmark.PlatformAzureSNP || proven.Claims.Product != snp.Genoa || proven.Instance == "" ||
		!bytes.Equal(proven.Measured[pcrs.LaunchDigest], a.guest.Measurement[:]) {
		t.Fatalf("%+v, %v", proven, err)
	}
	victim := newAzure(t)
	for name, c := range map[string]struct {
		show func() evidence.Shown
		code evidence.Code
	}{
		"the claims of another machine": {func() evidence.Shown { return a.shown(hcltest.Claims(t, victim.ek, nil)) }, evidence.NotBound},
		"another machine's TPM":         {func() evidence.Shown { s := a.shown(claims); s.EKPublic = victim.ek; return s }, evidence.NotBound},
		"claims that nothing binds": {func() evidence.Shown {
			guest := a.guest
			guest.ReportData = hcltest.Bound([]byte("others"))
			return evidence.Shown{Report: hcltest.Frame(hcltest.SNP, a.chip.Report(guest), claims), Certificates: [][]byte{a.chip.Certificate}, EKPublic: a.ek}
		}, evidence.NotBound},
		"a guest that writes REPORT_DATA itself": {func() evidence.Shown { b := *a; b.guest.IDKey = [48]byte{}; return b.shown(claims) }, evidence.Signer},
		"an older paravisor":                     {func() evidence.Shown { b := *a; b.guest.GuestSVN = 4; return b.shown(claims) }, evidence.TCB},
		"debug":                                  {func() evidence.Shown { b := *a; b.guest.Policy |= 1 << 19; return b.shown(claims) }, evidence.Debug},
		"a lower privilege":                      {func() evidence.Shown { b := *a; b.guest.VMPL = 2; return b.shown(claims) }, evidence.Flags},
		"no endorsement key":                     {func() evidence.Shown { return a.shown([]byte(`{"keys":[]}`)) }, evidence.NotBound},
		"a report of the exchange":               {func() evidence.Shown { s := a.shown(claims); s.Returned = []byte{1}; return s }, evidence.Malformed},
		"TDX in the frame":                       {func() evidence.Shown { s := a.shown(claims); s.Report[32+1184+8] = hcltest.TDX; return s }, evidence.Malformed},
		"the wrong chip's certificate": {func() evidence.Shown {
			s := a.shown(claims)
			s.Certificates = [][]byte{victim.chip.Certificate}
			return s
		}, evidence.Chain},
	} {
		_, err := a.platform.Verify(c.show(), sevtest.Now)
		wantCode(t, name, err, c.code)
	}
}

func TestTDX(t *testing.T) {
	intel, g, ek := tdxtest.New(t, false), tdxtest.Good(), newEK(t)
	claims := hcltest.Claims(t, ek, nil)
	g.ReportData = hcltest.Bound(claims)
	a := intel.Answers()
	collateral := tdx.Collateral{TCBInfo: a.TCBInfo, QEIdentity: a.QEIdentity, TCBInfoChain: a.Chain, QEIdentityChain: a.Chain, PCKCRL: a.PCKCRL, RootCRL: a.RootCRL}
	other := collateral
	other.TCBInfo = []byte(`{"tcbInfo":{"fmspc":"000000000000"}}`)
	p := &hcl.TDX{Verifier: &tdx.Verifier{TestRoots: [][]byte{intel.Root()}}, Demands: tdx.Demands{MRTDs: []evidence.Hex{g.MRTD[:]}}, Collaterals: []tdx.Collateral{other, collateral}}
	shown := evidence.Shown{Report: hcltest.Frame(hcltest.TDX, make([]byte, 1024), claims), Quote: intel.Quote(g), EKPublic: ek}
	proven, err := p.Verify(shown, tdxtest.Now)
	if err != nil || proven.Claims.Trust != hullmark.TrustTestParavisor || proven.Claims.Platform != hullmark.PlatformAzureTDX || len(proven.Measured) != 5 {
		t.Fatalf("%+v, %v", proven, err)
	}
	stranger := tdxtest.Good()
	stranger.MRTD[5] = 1
	stranger.ReportData = g.ReportData
	for name, c := range map[string]struct {
		quote []byte
		code  evidence.Code
	}{
		"no quote": {nil, evidence.Malformed}, "a quote of other claims": {intel.Quote(tdxtest.Good()), evidence.NotBound}, "another paravisor": {intel.Quote(stranger), evidence.Measurement},
	} {
		changed := shown
		changed.Quote = c.quote
		_, err := p.Verify(changed, tdxtest.Now)
		wantCode(t, name, err, c.code)
	}
	p.Collaterals = p.Collaterals[:1]
	_, err = p.Verify(shown, tdxtest.Now)
	wantCode(t, "no collateral of this model", err, evidence.NoCollateral)
}

// TestFrame changes each byte of a frame: what is accepted is outside of what the report binds.
func TestFrame(t *testing.T) {
	a := newAzure(t)
	shown := a.shown(hcltest.Claims(t, a.ek, newEK(t)))
	for i := range shown.Report {
		changed := shown
		changed.Report = slices.Clone(shown.Report)
		changed.Report[i] ^= 1
		_, err := a.platform.Verify(changed, sevtest.Now)
		if outside := i >= 4 && i < 8 || i >= 12 && i < 32; (err == nil) != outside {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	for length := range shown.Report[:len(shown.Report)-100] {
		if _, err := hcl.Decode(shown.Report[:length]); err == nil {
			t.Errorf("the first %d bytes are read", length)
		}
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	ek := newEK(t)
	good := hcltest.Claims(t, ek, nil)
	put := func(at int, value uint32) func([]byte) {
		return func(frame []byte) { binary.LittleEndian.PutUint32(frame[at:], value) }
	}
	for want, change := range map[string]func([]byte){
		"version 2": put(1216+4, 2), "type 3": put(1216+8, 3), "hash 2": put(1216+12, 2), "claims of": put(1216+16, uint32(len(good)+1)),
		"by its header": put(8, 5), "HCLA": put(0, 1), "data after": func(frame []byte) { frame[len(frame)-1] = 1 },
	} {
		frame := hcltest.Frame(hcltest.SNP, nil, good)
		change(frame)
		if _, err := hcl.Decode(frame); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for name, claims := range map[string]string{
		"names twice":      strings.Replace(string(good), `"keys"`, `"keys":[],"keys"`, 1),
		"a key twice":      strings.Replace(string(good), `"keys":[`, `"keys":[`+`{"kid":"HCLEkPub","kty":"RSA","e":"AQAB","n":"`+strings.Repeat("A", 342)+`"},`, 1),
		"another exponent": strings.Replace(string(good), "AQAB", "Aw", 1),
		"a short key":      strings.Replace(string(good), `"n":"`, `"n":"AAAA`, 1),
		"no JSON":          "{",
		"a value after it": string(good) + "{}",
	} {
		if _, err := hcl.Decode(hcltest.Frame(hcltest.SNP, nil, []byte(claims))); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	// A name in another case is another name.
	r, err := hcl.Decode(hcltest.Frame(hcltest.SNP, nil, []byte(strings.Replace(string(good), `"keys"`, `"Keys"`, 1))))
	if err != nil || r.MatchEK(ek) == nil {
		t.Errorf("another case: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	ek := newEK(f)
	f.Add(hcltest.Frame(hcltest.SNP, nil, hcltest.Claims(f, ek, ek)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := hcl.Decode(raw)
		if err != nil {
			return
		}
		if len(r.Hardware) != 1184 || r.MatchEK(ek) == nil && !bytes.Contains(raw, []byte("HCLEkPub")) && !bytes.Contains(raw, []byte(`\u`)) {
			t.Error("a frame is read as what it does not say")
		}
	})
}
