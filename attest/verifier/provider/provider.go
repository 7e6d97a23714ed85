// Package provider verifies machines whose TPM is their host's, and whose provider says by certificates that it is: Shielded VMs of
// Google, and Trusted Launch of Azure. What such a TPM says, the provider can forge; others cannot.
//
// The provider certified a key of its own choice, of which it says that it signs nothing but what its TPM composed. So the machine
// has that key quote the registers, for this exchange, beside the exchange's own quote. Both have to say the same.
package provider

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	"github.com/hullmark/hullmark/pcrs"
)

const (
	// maxDemands bounds what Parse reads, in bytes.
	maxDemands = 64 << 10
	// maxCertificates bounds a chain.
	maxCertificates = 4
)

// Demands say what a machine has to show. The zero value accepts none: it names no roots.
type Demands struct {
	// Roots are the provider's, and Intermediates those between, which machines may not have; each in DER.
	Roots         [][]byte `json:"roots"`
	Intermediates [][]byte `json:"intermediates,omitempty"`
	// Projects are the accepted ones of Google; empty accepts any.
	Projects []string `json:"projects,omitempty"`
}

// Platform judges the evidence of one kind, within an exchange.
type Platform struct {
	kind                 string
	roots, intermediates *x509.CertPool
	projects             []string
}

// Parse reads what a policy demands of a kind: hullmark.PlatformGCP or hullmark.PlatformAzureTL.
func Parse(kind string, text []byte) (*Platform, error) {
	var d Demands
	if err := hullmark.DecodeStrict(text, maxDemands, &d); err != nil {
		return nil, err
	}
	return New(kind, d)
}

// New prepares demands.
func New(kind string, d Demands) (*Platform, error) {
	p := &Platform{kind: kind, roots: x509.NewCertPool(), intermediates: x509.NewCertPool(), projects: d.Projects}
	if kind != hullmark.PlatformGCP && kind != hullmark.PlatformAzureTL {
		return nil, fmt.Errorf("%q is no platform whose provider certifies a TPM's key", kind)
	}
	if len(d.Roots) == 0 {
		return nil, errors.New("roots: want the provider's")
	}
	if len(d.Projects) > 0 && kind != hullmark.PlatformGCP {
		return nil, errors.New("projects: Google alone has them")
	}
	for _, list := range []struct {
		ders [][]byte
		pool *x509.CertPool
		name string
	}{{d.Roots, p.roots, "roots"}, {d.Intermediates, p.intermediates, "intermediates"}} {
		for _, der := range list.ders {
			c, err := parseCertificate(der)
			if err == nil && !c.IsCA {
				err = errors.New("it is no authority's")
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list.name, err)
			}
			list.pool.AddCert(c)
		}
	}
	return p, nil
}

// subjectAltName of TPMs' certificates names a directory entry, which package x509 does not read (TCG EK Credential Profile §3.2.9).
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

func parseCertificate(der []byte) (*x509.Certificate, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if len(c.Raw) != len(der) {
		return nil, errors.New("certificate: data after its end")
	}
	c.UnhandledCriticalExtensions = slices.DeleteFunc(c.UnhandledCriticalExtensions, subjectAltName.Equal)
	return c, nil
}

// Verify implements evidence.Platform. Shown.Report is the certified key, a TPMT_PUBLIC; the first of the certificates is its own.
func (p *Platform) Verify(shown evidence.Shown, at time.Time) (evidence.Proven, error) {
	var reasons evidence.Reasons
	if len(shown.Quote) > 0 {
		reasons.Add(evidence.Malformed, "a quote of somebody else's, of which this platform has none")
	}
	leaf, err := p.chain(shown.Certificates, at, &reasons)
	if err != nil {
		return evidence.Proven{}, evidence.Refuse(p.kind, evidence.Chain, "the attestation key's certificate", err)
	}
	if err := verifier.MatchKey(shown.Report, leaf.PublicKey); err != nil {
		reasons.Add(evidence.NotBound, "attestation key: %v", err)
	}
	if err := p.quoted(shown); err != nil {
		reasons.Add(evidence.NotBound, "the certified key's quote: %v", err)
	}
	proven := evidence.Proven{
		Claims: hullmark.PlatformClaims{Trust: hullmark.TrustProvider, Platform: p.kind},
		Notes:  []string{"revocation of the certificates: the provider publishes no list that is stored"},
	}
	if p.kind == hullmark.PlatformGCP {
		proven.Instance = p.instance(leaf, &reasons)
	}
	if err := reasons.Refusal(p.kind); err != nil {
		return evidence.Proven{}, err
	}
	return proven, nil
}

// chain verifies the certificates up to the provider's root, at a time.
func (p *Platform) chain(ders [][]byte, at time.Time, reasons *evidence.Reasons) (*x509.Certificate, error) {
	if len(ders) == 0 || len(ders) > maxCertificates {
		return nil, fmt.Errorf("%d certificates, want 1 to %d", len(ders), maxCertificates)
	}
	between := p.intermediates.Clone()
	var leaf *x509.Certificate
	for i, der := range ders {
		c, err := parseCertificate(der)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			leaf = c
			continue
		}
		between.AddCert(c)
	}
	if leaf.IsCA || leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return nil, errors.New("it is no signing key's")
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: p.roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		reasons.Add(evidence.Expired, "attestation key: %v", err)
		return leaf, nil
	}
	return leaf, err
}

// quoted checks the quote of the certified key, which is a TPM2B_ATTEST and a TPMT_SIGNATURE.
func (p *Platform) quoted(shown evidence.Shown) error {
	quote := shown.Returned
	if len(quote) < 2 || int(binary.BigEndian.Uint16(quote)) > len(quote)-2 {
		return errors.New("it is missing, or cut off")
	}
	length := int(binary.BigEndian.Uint16(quote))
	if len(shown.Binding) != len(attest.Binding{}) {
		return errors.New("no exchange that it could be bound to")
	}
	var registers attest.Registers
	for _, n := range attest.Quoted() {
		copy(registers[n][:], shown.Registers[pcrs.Register(n)])
	}
	return verifier.CheckQuote(shown.Report, quote[2:2+length], quote[2+length:], attest.Binding(shown.Binding), registers)
}

// googleInstance is an extension of Google's certificates.
var googleInstance = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 1, 21}

// instance is what Google signs of a machine; security properties are passed over, but for production.
type instance struct {
	Zone          string `asn1:"utf8"`
	ProjectNumber int64
	Project       string `asn1:"utf8"`
	ID            int64
	Name          string        `asn1:"utf8"`
	Properties    asn1.RawValue `asn1:"explicit,tag:0,optional"`
}

// instance returns the name of the machine that Google signed.
func (p *Platform) instance(leaf *x509.Certificate, reasons *evidence.Reasons) string {
	i, err := readInstance(leaf)
	if err != nil {
		reasons.Add(evidence.Malformed, "instance: %v", err)
		return ""
	}
	if len(p.projects) > 0 && !slices.Contains(p.projects, i.Project) {
		reasons.Differ(evidence.Instance, strings.Join(p.projects, ", "), i.Project, "the machine is of a project that is not on the list")
	}
	return fmt.Sprintf("%s/%s/%d", i.Project, i.Zone, uint64(i.ID))
}

func readInstance(leaf *x509.Certificate) (i instance, err error) {
	for _, e := range leaf.Extensions {
		if !e.Id.Equal(googleInstance) {
			continue
		}
		rest, err := asn1.Unmarshal(e.Value, &i)
		switch {
		case err != nil:
			return i, err
		case len(rest) > 0:
			return i, errors.New("data after its end")
		case i.Zone == "" || i.Project == "" || strings.ContainsFunc(i.Zone+i.Project, unprintable):
			return i, errors.New("no zone, no project, or none that can be printed")
		}
		return i, nil
	}
	return i, errors.New("the certificate names none")
}

func unprintable(r rune) bool { return r <= ' ' || r > '~' || r == '/' }
