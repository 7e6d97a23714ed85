// Package recorded reads and verifies evidence that was stored, outside of an exchange: what it says, what was checked of it, and
// what was not. Nothing that it finds lets a machine in, since nothing ties stored evidence to a machine that is there now.
package recorded

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier/endorsement"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/attest/verifier/hcl"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/attest/verifier/tdx"
)

// MaxFile bounds each file, in bytes.
const MaxFile = 256 << 10

// Kind is what a file holds.
type Kind string

// The kinds of files, which are told apart by how they begin.
const (
	SNPReport    Kind = "SEV-SNP report"
	TDXQuote     Kind = "TDX quote"
	HCLReport    Kind = "paravisor's report"
	NitroReport  Kind = "Nitro attestation document"
	Endorsement  Kind = "launch endorsement"
	Certificates Kind = "certificates"
)

// File is a stored piece of evidence.
type File struct {
	Name    string
	Content []byte
}

// Evidence is what belongs to one machine: at most one file of each kind, and certificates of any number.
type Evidence struct {
	report, quote, frame, nitro, endorsement []byte
	certificates                             [][]byte
}

// Read sorts files. A file of no kind that is known, and a second one of a kind, is an error.
func Read(files []File) (Evidence, error) {
	var e Evidence
	for _, f := range files {
		kind, err := kindOf(f.Content)
		if err != nil {
			return Evidence{}, fmt.Errorf("%s: %w", f.Name, err)
		}
		if kind == Certificates {
			certificates, err := readCertificates(f.Content)
			if err != nil {
				return Evidence{}, fmt.Errorf("%s: %w", f.Name, err)
			}
			e.certificates = append(e.certificates, certificates...)
			continue
		}
		into := map[Kind]*[]byte{SNPReport: &e.report, TDXQuote: &e.quote, HCLReport: &e.frame, NitroReport: &e.nitro, Endorsement: &e.endorsement}[kind]
		if *into != nil {
			return Evidence{}, fmt.Errorf("%s: a second %s", f.Name, kind)
		}
		*into = f.Content
	}
	return e, nil
}

// derSequence begins a certificate of more than 255 bytes.
var derSequence = []byte{0x30, 0x82}

func kindOf(content []byte) (Kind, error) {
	switch {
	case len(content) > MaxFile:
		return "", fmt.Errorf("%d bytes, at most %d are read", len(content), MaxFile)
	case bytes.HasPrefix(content, []byte("HCLA")):
		return HCLReport, nil
	case bytes.HasPrefix(content, []byte{0x84, 0x44, 0xa1, 1, 0x38, 0x22}):
		return NitroReport, nil
	case len(content) == snp.ReportSize:
		return SNPReport, nil
	case len(content) > 8 && (content[0] == 4 || content[0] == 5) && content[1] == 0 && bytes.Equal(content[4:8], []byte{0x81, 0, 0, 0}):
		return TDXQuote, nil // It has certificates in it, so it is looked for first.
	case bytes.HasPrefix(content, derSequence) || bytes.Contains(content, []byte("-----BEGIN CERTIFICATE-----")):
		return Certificates, nil
	}
	if _, err := endorsement.Parse(content); err == nil {
		return Endorsement, nil
	}
	return "", errors.New("no evidence that is known: want an SEV-SNP report (1,184 bytes), a TDX quote, a paravisor's report (NV index 0x01400001), a Nitro attestation document, a launch endorsement of Google, or certificates (DER or PEM)")
}

func readCertificates(content []byte) (all [][]byte, err error) {
	if bytes.HasPrefix(content, derSequence) {
		_, err := x509.ParseCertificate(content)
		return [][]byte{content}, err
	}
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all, nil
		}
		if block.Type == "CERTIFICATE" {
			all = append(all, block.Bytes)
		}
	}
}

// Options are what evidence is judged by beside the makers' own roots.
type Options struct {
	// Roots are certificates in PEM that stand in the place of the makers' own: the verdict is then that of a test.
	Roots []byte
	// Demands are a policy's, of the platform's kind; nil checks signatures, times, revocation and firmware's rating alone.
	Demands []byte
	// Collaterals are what Intel says of platforms.
	Collaterals []tdx.Collateral
	// At is the time by which certificates and collateral are judged.
	At time.Time
}

// Result is what was found.
type Result struct {
	Platform string `json:"platform"`
	// Verified says that everything in Checked holds.
	Verified bool                    `json:"verified"`
	Claims   hullmark.PlatformClaims `json:"claims,omitzero"`
	// Says are the fields of the evidence, which are worth nothing while Verified is false.
	Says []Field `json:"says"`
	// Reasons speak against it. Strict are those for which demands without exceptions would refuse it, where none were given.
	Reasons []evidence.Reason `json:"reasons,omitempty"`
	Strict  []evidence.Reason `json:"strict,omitempty"`
	// Checked and NotChecked are for people.
	Checked    []string `json:"checked,omitempty"`
	NotChecked []string `json:"notChecked"`
}

// Field is one that evidence has.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Platforms are the kinds of evidence that can be read.
func Platforms() []string {
	return []string{hullmark.PlatformSNP, hullmark.PlatformTDX, hullmark.PlatformAzureSNP, hullmark.PlatformAzureTDX, hullmark.PlatformAWS, hullmark.PlatformGCP}
}

// platform is how one kind of evidence is read and judged.
type platform interface {
	// says lists the fields.
	says() []Field
	// verify judges them, and says what it could not check. A refusal is an *evidence.Refusal.
	verify(o Options) (hullmark.PlatformClaims, []string, error)
	// rated reports whether the maker rates versions of firmware.
	rated() bool
}

// open decodes the evidence of a platform.
func (e Evidence) open(kind string) (platform, error) {
	var missing []string
	need := func(kind Kind, content []byte) {
		if content == nil {
			missing = append(missing, string(kind))
		}
	}
	switch kind {
	case hullmark.PlatformSNP:
		need(SNPReport, e.report)
	case hullmark.PlatformTDX:
		need(TDXQuote, e.quote)
	case hullmark.PlatformAWS:
		need(NitroReport, e.nitro)
	case hullmark.PlatformGCP:
		need(Endorsement, e.endorsement)
	case hullmark.PlatformAzureSNP:
		need(HCLReport, e.frame)
	case hullmark.PlatformAzureTDX:
		need(HCLReport, e.frame)
		need(TDXQuote, e.quote)
	default:
		return nil, fmt.Errorf("platform %q: want one of %s", kind, strings.Join(Platforms(), ", "))
	}
	if missing != nil {
		return nil, fmt.Errorf("platform %s: no %s among the files", kind, strings.Join(missing, " and no "))
	}
	switch kind {
	case hullmark.PlatformSNP:
		return openSNP(e.report, e.certificates)
	case hullmark.PlatformTDX:
		return openTDX(e.quote)
	case hullmark.PlatformAWS:
		return openNitro(e.nitro)
	case hullmark.PlatformGCP:
		return openEndorsement(e.endorsement)
	}
	frame, err := hcl.Decode(e.frame)
	if err != nil {
		return nil, fmt.Errorf("paravisor's report: %w", err)
	}
	if kind == hullmark.PlatformAzureSNP {
		return openAzureSNP(frame, e.certificates)
	}
	return openAzureTDX(frame, e.quote)
}

// Show decodes evidence and verifies nothing.
func (e Evidence) Show(kind string) (Result, error) {
	p, err := e.open(kind)
	if err != nil {
		return Result{}, err
	}
	return Result{Platform: kind, Says: p.says(), NotChecked: []string{"anything: this only shows what the files say"}}, nil
}

// Verify judges evidence. What keeps it from being read is an error; what speaks against it is in the result.
func (e Evidence) Verify(kind string, o Options) (Result, error) {
	p, err := e.open(kind)
	if err != nil {
		return Result{}, err
	}
	r := Result{Platform: kind, Says: p.says()}
	var refusal *evidence.Refusal
	r.Claims, r.NotChecked, err = p.verify(o)
	switch {
	case errors.As(err, &refusal):
		r.sort(refusal.Reasons, o.Demands == nil, p)
	case err != nil:
		return Result{}, err
	}
	if r.Reasons != nil {
		r.Claims = hullmark.PlatformClaims{}
		return r, nil
	}
	r.Verified = true
	r.Checked = []string{"signatures up to the maker's root", "times, and revocation as far as it was given"}
	if o.Demands != nil {
		r.Checked = append(r.Checked, "every demand of the policy")
	}
	r.NotChecked = append(r.NotChecked, "that the evidence is fresh, and of a machine that is there now: that takes an exchange")
	return r, nil
}

// choice are the codes of what only demands decide.
var choice = []evidence.Code{evidence.Product, evidence.Flags, evidence.Signer, evidence.Instance, evidence.Measurement}

// sort tells what speaks against evidence from what only strict demands would. AMD rates no firmware: its age is a matter of demands,
// Intel's is not.
func (r *Result) sort(reasons []evidence.Reason, undemanded bool, p platform) {
	for _, reason := range reasons {
		chosen := slices.Contains(choice, reason.Code) || reason.Code == evidence.TCB && !p.rated()
		if undemanded && chosen {
			r.Strict = append(r.Strict, reason)
			continue
		}
		r.Reasons = append(r.Reasons, reason)
	}
}

func text(b []byte) string { return hex.EncodeToString(b) }
