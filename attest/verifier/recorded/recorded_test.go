package recorded_test

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gce-tcb-verifier/testing/devkeys"
	"github.com/google/go-tpm/tpm2"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/recorded"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
	"github.com/hullmark/hullmark/internal/endorsetest"
	"github.com/hullmark/hullmark/internal/hcltest"
	"github.com/hullmark/hullmark/internal/nitrotest"
	"github.com/hullmark/hullmark/internal/sevtest"
	"github.com/hullmark/hullmark/internal/tdxtest"
)

// scene has stored evidence of a machine of each kind.
type scene struct {
	amd   *sevtest.AMD
	chip  *sevtest.Chip
	intel *tdxtest.Intel
	aws   *nitrotest.AWS
	files map[string][]recorded.File
}

// newEK returns the public area of an endorsement key of the default template.
func newEK(t *testing.T) []byte {
	t.Helper()
	modulus := make([]byte, 256)
	if _, err := rand.Read(modulus); err != nil {
		t.Fatal(err)
	}
	public := tpm2.RSAEKTemplate
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: modulus})
	return tpm2.Marshal(public)
}

func newScene(t *testing.T) *scene {
	t.Helper()
	amd := sevtest.New(t, snp.Genoa)
	s := &scene{amd: amd, chip: amd.Chip(sevtest.TCB{10, 2, 0, 0, 0, 0, 27, 87}, ""), intel: tdxtest.New(t, false)}
	ek := newEK(t)
	claims := hcltest.Claims(t, ek, nil)
	guest, td := sevtest.Good(snp.Genoa), tdxtest.Good()
	s.aws = nitrotest.New(t)
	s.files = map[string][]recorded.File{
		hullmark.PlatformAWS: {{Name: "document", Content: s.aws.Document(s.aws.Good(nil))}},
		hullmark.PlatformSNP: {{Name: "report", Content: s.chip.Report(guest)}, {Name: "vcek", Content: s.chip.Certificate}},
		hullmark.PlatformTDX: {{Name: "quote", Content: s.intel.Quote(td)}},
	}
	guest.ReportData, td.ReportData = hcltest.Bound(claims), hcltest.Bound(claims)
	s.files[hullmark.PlatformAzureSNP] = []recorded.File{
		{Name: "hcl", Content: hcltest.Frame(hcltest.SNP, s.chip.Report(guest), claims)},
		{Name: "vcek.pem", Content: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.chip.Certificate})},
	}
	s.files[hullmark.PlatformAzureTDX] = []recorded.File{
		{Name: "hcl", Content: hcltest.Frame(hcltest.TDX, make([]byte, 1024), claims)}, {Name: "quote", Content: s.intel.Quote(td)},
	}
	return s
}

// options are those by which the evidence of a kind holds.
func (s *scene) options(kind string) recorded.Options {
	if strings.Contains(kind, "snp") {
		return recorded.Options{Roots: s.amd.Bundle(), At: sevtest.Now}
	}
	if kind == hullmark.PlatformAWS {
		return recorded.Options{Roots: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.aws.Root()}), At: nitrotest.Now}
	}
	a := s.intel.Answers()
	return recorded.Options{
		Roots: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.intel.Root()}), At: tdxtest.Now,
		Collaterals: []tdx.Collateral{{TCBInfo: a.TCBInfo, QEIdentity: a.QEIdentity, TCBInfoChain: a.Chain, QEIdentityChain: a.Chain, PCKCRL: a.PCKCRL, RootCRL: a.RootCRL}},
	}
}

func read(t *testing.T, files []recorded.File) recorded.Evidence {
	t.Helper()
	e, err := recorded.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEvidenceOfEachKind(t *testing.T) {
	s := newScene(t)
	for kind, files := range s.files {
		e := read(t, files)
		shown, err := e.Show(kind)
		if err != nil || shown.Verified || len(shown.Says) < 8 {
			t.Errorf("%s: %+v, %v", kind, shown, err)
		}
		r, err := e.Verify(kind, s.options(kind))
		if err != nil || !r.Verified || len(r.Reasons) > 0 || r.Claims.Platform != kind || len(r.NotChecked) < 2 {
			t.Errorf("%s: %+v, %v", kind, r, err)
		}
		if text, err := json.Marshal(r); err != nil || !strings.Contains(string(text), `"verified":true`) {
			t.Errorf("%s: %s, %v", kind, text, err)
		}
		// Without the roots for tests nobody vouches for it, and at another time nobody does any more.
		o := s.options(kind)
		o.Roots = nil
		wantCode(t, kind, e, o, evidence.Chain)
		o = s.options(kind)
		o.At = o.At.AddDate(20, 0, 0)
		wantCode(t, kind, e, o, evidence.Expired)
	}
	o := s.options(hullmark.PlatformTDX)
	o.Collaterals = nil
	wantCode(t, hullmark.PlatformTDX, read(t, s.files[hullmark.PlatformTDX]), o, evidence.NoCollateral)
}

func wantCode(t *testing.T, kind string, e recorded.Evidence, o recorded.Options, code evidence.Code) {
	t.Helper()
	r, err := e.Verify(kind, o)
	has := slices.ContainsFunc(r.Reasons, func(r evidence.Reason) bool { return r.Code == code })
	if err != nil || r.Verified || !has || r.Claims.Trust != "" {
		t.Errorf("%s: %+v, %v, want %s", kind, r, err, code)
	}
}

// TestDemands: what is a choice is listed without demands, and refused with them; debug is refused in any case.
func TestDemands(t *testing.T) {
	s := newScene(t)
	guest := sevtest.Good(snp.Genoa)
	guest.PlatformInfo |= 1 // SMT
	e := read(t, []recorded.File{{Name: "report", Content: s.chip.Report(guest)}, {Name: "vcek", Content: s.chip.Certificate}})
	r, err := e.Verify(hullmark.PlatformSNP, s.options(hullmark.PlatformSNP))
	if err != nil || !r.Verified || len(r.Strict) != 1 || r.Strict[0].Code != evidence.Flags {
		t.Errorf("%+v, %v", r, err)
	}
	o := s.options(hullmark.PlatformSNP)
	demands := map[string]any{
		"measurements": []evidence.Hex{guest.Measurement[:]}, "crls": [][]byte{s.amd.CRL(false)},
		"testRoots": []snp.TestRoot{{Product: snp.Genoa, Key: snp.VCEK, Bundle: s.amd.Bundle()}},
	}
	if o.Demands, err = json.Marshal(demands); err != nil {
		t.Fatal(err)
	}
	wantCode(t, hullmark.PlatformSNP, e, o, evidence.Flags)
	demands["allowSMT"] = true
	if o.Demands, err = json.Marshal(demands); err != nil {
		t.Fatal(err)
	}
	if r, err := e.Verify(hullmark.PlatformSNP, o); err != nil || !r.Verified || len(r.Strict) != 0 || !slices.Contains(r.Checked, "every demand of the policy") {
		t.Errorf("%+v, %v", r, err)
	}
	guest.Policy |= 1 << 19
	wantCode(t, hullmark.PlatformSNP, read(t, []recorded.File{{Name: "report", Content: s.chip.Report(guest)}, {Name: "vcek", Content: s.chip.Certificate}}),
		s.options(hullmark.PlatformSNP), evidence.Debug)
}

// TestOthersClaims puts the claims of one machine beside the signature of another.
func TestOthersClaims(t *testing.T) {
	s, other := newScene(t), newScene(t)
	mixed := []recorded.File{other.files[hullmark.PlatformAzureTDX][0], s.files[hullmark.PlatformAzureTDX][1]}
	wantCode(t, hullmark.PlatformAzureTDX, read(t, mixed), s.options(hullmark.PlatformAzureTDX), evidence.NotBound)
}

// TestEndorsement reads what Google signs of a firmware, by its keys for tests; the root has to be given.
func TestEndorsement(t *testing.T) {
	e := read(t, []recorded.File{{Name: "endorsement", Content: endorsetest.Signed(t, nil)}})
	signer, err := x509.ParseCertificate(endorsetest.DER(devkeys.PrimarySigningKeyCert))
	if err != nil {
		t.Fatal(err)
	}
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endorsetest.DER(devkeys.RootCert)})
	o := recorded.Options{Roots: root, At: signer.NotBefore.Add(time.Hour)}
	r, err := e.Verify(hullmark.PlatformGCP, o)
	if err != nil || !r.Verified || !slices.ContainsFunc(r.Says, func(f recorded.Field) bool { return f.Name == "launch digest, 2 processors" }) {
		t.Errorf("%+v, %v", r, err)
	}
	o.At = signer.NotAfter.Add(time.Hour)
	wantCode(t, hullmark.PlatformGCP, e, o, evidence.Expired)
	for _, wrong := range []recorded.Options{{}, {Roots: root, Demands: []byte("{}")}} {
		if _, err := e.Verify(hullmark.PlatformGCP, wrong); err == nil {
			t.Errorf("%+v: taken", wrong)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	s := newScene(t)
	report := s.files[hullmark.PlatformSNP][0]
	for want, files := range map[string][]recorded.File{
		"no evidence that is known": {{Name: "x", Content: []byte("hello")}},
		"a second SEV-SNP report":   {report, report},
		"at most":                   {{Name: "x", Content: make([]byte, recorded.MaxFile+1)}},
		"x509":                      {{Name: "x", Content: []byte{0x30, 0x82, 1}}},
	} {
		if _, err := recorded.Read(files); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	e := read(t, s.files[hullmark.PlatformSNP])
	for kind, want := range map[string]string{"sgx": "want one of", hullmark.PlatformAzureTDX: "no paravisor's report among the files and no TDX quote"} {
		if _, err := e.Show(kind); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), " among the files", ""), strings.ReplaceAll(want, " among the files", "")) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	for _, o := range []recorded.Options{{Roots: []byte("no PEM")}, {Demands: []byte("{")}} {
		if _, err := e.Verify(hullmark.PlatformSNP, o); err == nil {
			t.Errorf("%+v: taken", o)
		}
	}
}

// FuzzRead reads any file as evidence of any kind.
func FuzzRead(f *testing.F) {
	f.Add([]byte("HCLA"))
	f.Add(make([]byte, snp.ReportSize))
	f.Add([]byte{4, 0, 2, 0, 0x81, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, content []byte) {
		e, err := recorded.Read([]recorded.File{{Name: "f", Content: content}})
		if err != nil {
			return
		}
		for _, kind := range recorded.Platforms() {
			if r, err := e.Verify(kind, recorded.Options{}); err == nil && r.Verified {
				t.Errorf("%s: verified", kind)
			}
		}
	})
}
