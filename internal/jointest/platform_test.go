package jointest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/prover/provider"
	"github.com/hullmark/hullmark/attest/verifier/evidence"
	verifierside "github.com/hullmark/hullmark/attest/verifier/provider"
	"github.com/hullmark/hullmark/attest/verifier/snp"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/internal/hcltest"
	"github.com/hullmark/hullmark/internal/providertest"
	"github.com/hullmark/hullmark/internal/sevtest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// paravisor is a platform of a test: a chip, and a policy's demands of it.
type paravisor struct {
	chip  *sevtest.Chip
	guest sevtest.Guest
	rule  measurements.Platform
}

func newParavisor(t *testing.T) *paravisor {
	t.Helper()
	amd := sevtest.NewAt(t, snp.Genoa, time.Now())
	p := &paravisor{chip: amd.Chip(sevtest.TCB{10, 2, 0, 0, 0, 0, 27, 87}, ""), guest: sevtest.Good(snp.Genoa)}
	p.guest.IDKey = [48]byte{7}
	demands, err := json.Marshal(map[string]any{
		"idKeys": []evidence.Hex{p.guest.IDKey[:]}, "crls": [][]byte{amd.CRL(false)},
		"testRoots": []snp.TestRoot{{Product: snp.Genoa, Key: snp.VCEK, Bundle: amd.Bundle()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.rule = measurements.Platform{Kind: hullmark.PlatformAzureSNP, Demands: demands}
	return p
}

// evidence is what the agent finds on such a machine, whose TPM is its paravisor's.
func (p *paravisor) evidence(t *testing.T, s *Site) func(context.Context, transport.TPM) (*prover.Platform, error) {
	t.Helper()
	keys, err := prover.Open(s.tpm, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	claims := hcltest.Claims(t, keys.Identity().EKPublic, nil)
	if err := keys.Close(); err != nil {
		t.Fatal(err)
	}
	guest := p.guest
	guest.ReportData = hcltest.Bound(claims)
	frame := hcltest.Frame(hcltest.SNP, p.chip.Report(guest), claims)
	return func(context.Context, transport.TPM) (*prover.Platform, error) {
		return &prover.Platform{Kind: hullmark.PlatformAzureSNP, Report: frame, Certificates: [][]byte{p.chip.Certificate}}, nil
	}
}

// demand puts a policy in force by which both roles have to be of the test's class.
func (s *Site) demand(t *testing.T, p *paravisor) {
	t.Helper()
	s.putPolicy(t, hullmark.TrustTestParavisor, p.rule)
}

// putPolicy puts a policy in force by which both roles have to be of a class.
func (s *Site) putPolicy(t *testing.T, least hullmark.TrustClass, rule measurements.Platform) {
	t.Helper()
	policy := s.Service.Policy.Policy()
	policy.Version++
	policy.Trust = measurements.LeastTrust{ControlPlane: least, Worker: least}
	policy.Platforms = []measurements.Platform{rule}
	signer := *s.Cluster
	signed := s.Service.Policy.Signed()
	documents := make([]measurements.Document, 0, len(signed.Documents))
	for _, encoded := range signed.Documents {
		document, err := measurements.Parse(encoded)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, document)
	}
	if err := signer.SetPolicy(policy, documents...); err != nil {
		t.Fatal(err)
	}
	if taken, err := s.Service.Policy.Offer(joinservice.SignedPolicy{Envelope: signer.Policy, Documents: signer.Documents}); !taken || err != nil {
		t.Fatal(taken, err)
	}
}

// TestAgentShowsItsPlatform lets an agent in that shows what its policy demands, and leaves one waiting that cannot gather it, which
// it says in its log.
func TestAgentShowsItsPlatform(t *testing.T) {
	t.Parallel()
	s, p := New(t, hullmark.Worker), newParavisor(t)
	s.demand(t, p)
	s.Serve(t)
	s.Agent.Platform = func(context.Context, transport.TPM) (*prover.Platform, error) {
		return nil, errors.New("the metadata service is gone")
	}
	end := s.Boot(t)
	s.Await(t, "the reason", func(d firstboot.Document) bool {
		return d.Joining != nil && bytes.Contains(s.Agent.Status.Document(), []byte("trust-too-low"))
	})
	end()
	if !strings.Contains(s.Log.String(), "the metadata service is gone") {
		t.Errorf("the log says\n%s", s.Log)
	}
	if len(s.Kubernetes.Joins) != 0 {
		t.Error("it joined")
	}

	s = New(t, hullmark.Worker)
	s.demand(t, p)
	s.Serve(t)
	s.Agent.Platform = p.evidence(t, s)
	end = s.Boot(t)
	s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	end()
	m, _, err := s.Records.Load(t.Context(), s.EKID)
	if err != nil || m.Platform.Trust != hullmark.TrustTestParavisor || m.Record.Trust != hullmark.TrustTestParavisor {
		t.Errorf("the record says %+v, disk of %q, %v", m.Platform, m.Record.Trust, err)
	}
}

// TestProviderCertifiesItsTPM lets a machine in whose provider certified its TPM's key, which is no confidential one: a policy that
// wants more refuses it, and so does one that knows another provider.
func TestProviderCertifiesItsTPM(t *testing.T) {
	t.Parallel()
	google, stranger := providertest.New(t), providertest.New(t)
	rule := func(p *providertest.Provider) measurements.Platform {
		demands, err := json.Marshal(verifierside.Demands{Roots: [][]byte{p.Root}, Intermediates: [][]byte{p.Issuer}})
		if err != nil {
			t.Fatal(err)
		}
		return measurements.Platform{Kind: hullmark.PlatformGCP, Demands: demands}
	}
	for _, c := range []struct {
		name  string
		rule  measurements.Platform
		least hullmark.TrustClass
		code  string // empty: it is let in
	}{
		{"as it is demanded", rule(google), hullmark.TrustProvider, ""},
		{"a confidential machine is demanded", rule(google), hullmark.TrustParavisor, "trust-too-low"},
		{"another provider is demanded", rule(stranger), hullmark.TrustProvider, "denied"},
	} {
		s := New(t, hullmark.Worker)
		google.Google(s.tpm, providertest.Instance{Zone: "zone", Project: "project", ID: 7, Name: "node"})
		s.putPolicy(t, c.least, c.rule)
		s.Serve(t)
		s.Agent.Platform = provider.Evidence
		end := s.Boot(t)
		if c.code == "" {
			s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
		} else {
			s.Await(t, c.code, func(d firstboot.Document) bool {
				return d.Joining != nil && bytes.Contains(s.Agent.Status.Document(), []byte(c.code))
			})
		}
		end()
		if m, _, err := s.Records.Load(t.Context(), s.EKID); c.code == "" && (err != nil || m.Platform.Trust != hullmark.TrustProvider || m.Platform.Platform != hullmark.PlatformGCP) {
			t.Errorf("%s: the record says %+v, %v", c.name, m.Platform, err)
		}
		if (len(s.Kubernetes.Joins) == 0) != (c.code != "") {
			t.Errorf("%s: %d joins", c.name, len(s.Kubernetes.Joins))
		}
	}
}
