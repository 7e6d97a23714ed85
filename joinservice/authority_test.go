package joinservice_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// otherPlane is a control plane beside the site's machine, whose record says a rotation.
func (s *site) otherPlane(t *testing.T, rotation uint64) {
	t.Helper()
	id := hullmark.EKID{8}
	m, v, err := s.records.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	m.Name, m.Role, m.Rotation, m.State = "control-plane-1", hullmark.ControlPlane, rotation, joinservice.MachineReady
	if _, err := s.records.Store(t.Context(), m, v); err != nil {
		t.Fatal(err)
	}
	s.accept(t, func(p *measurements.Policy) {
		if _, ok := p.Member(id); !ok {
			p.Members = append(p.Members, measurements.Member{EKID: id, Role: hullmark.ControlPlane, Name: m.Name})
		}
	}, "image")
}

// Once policies commit to the Kubernetes CA a worker that comes back is brought its certificates, with the policy that commits to them, by
// a service that holds just these, and by no other. Its record says so once it was Ready with them, and all control planes held them when
// it booted.
func TestWorkerIsBroughtTheKubernetesCA(t *testing.T) {
	s := newSite(t)
	held := string(s.service.KubernetesCA)
	own, other := hullmark.DigestCA(s.service.KubernetesCA), hullmark.DigestCA([]byte("another"))
	s.otherPlane(t, 0)
	commit := func(ca hullmark.CADigest, rotation uint64) {
		t.Helper()
		s.accept(t, func(p *measurements.Policy) { p.KubernetesCA, p.Rotation = ca, rotation }, "image")
		s.service.ControlPlanes.Rotation = rotation
	}
	want := func(when string, brought bool, recorded hullmark.CADigest) {
		t.Helper()
		m := s.join(t)
		certificates, policy := s.file(hullmark.KubernetesCACertificate), s.file(hullmark.PolicyFile)
		if brought != (certificates == held) || brought != (policy == string(s.policy.Signed().Envelope)) || !brought && certificates+policy != "" {
			t.Errorf("%s: brought are %q, and a policy of %d bytes", when, certificates, len(policy))
		}
		if m.KubernetesCA != recorded {
			t.Errorf("%s: the record says %s, want %s", when, m.KubernetesCA, recorded)
		}
		s.reboot()
	}
	none := hullmark.CADigest{}
	want("it joins", false, none)
	want("no exchange was begun", false, none)
	commit(own, 1)
	want("a control plane is behind", true, none)
	s.otherPlane(t, 1)
	want("all control planes hold it", true, own)
	want("once more", true, own)
	commit(other, 2)
	want("this service is behind", false, own)
	s.otherPlane(t, 2)
	want("this service alone is behind", false, own)
	commit(own, 3)
	s.otherPlane(t, 3)
	s.node.Fail = &hullmark.Condition{Code: "kubeadm-failed", Step: "KUBEADM", Title: "no", Next: "n"}
	s.store(t, func(m *joinservice.Machine) { m.KubernetesCA = other })
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.outcome() == joinservice.OutcomeNodeFailed })
	if m := s.machine(t); m.KubernetesCA != other {
		t.Errorf("of a boot that failed the record says %s", m.KubernetesCA)
	}
}

// A worker that joins has the CA from the cluster, and is brought the policy that commits to it.
func TestWorkerJoinsByTheKubernetesCA(t *testing.T) {
	s := newSite(t)
	own := hullmark.DigestCA(s.service.KubernetesCA)
	s.accept(t, func(p *measurements.Policy) { p.KubernetesCA = own }, "image")
	m := s.join(t)
	if s.file(hullmark.PolicyFile) != string(s.policy.Signed().Envelope) || s.file(hullmark.KubernetesCACertificate) != "" || m.KubernetesCA != own {
		t.Errorf("brought are %v, and the record says %s", s.node.Proceed().GetFiles(), m.KubernetesCA)
	}
}

// A kubelet whose certificates are of a CA that is trusted no more gets a token for another, as one whose certificates have ended.
func TestTokenForACertificateOfAFormerCA(t *testing.T) {
	s := newSite(t)
	s.join(t)
	for issuer, token := range map[string]bool{joinservice.AuthorityID(s.cluster.Kubernetes.Certificate): false, "": false, strings.Repeat("0c", 20): true} {
		s.store(t, func(m *joinservice.Machine) {
			m.Credentials = []joinservice.Credential{{Fingerprint: strings.Repeat("0a", 32), Ends: time.Now().Add(time.Hour), Issuer: issuer}}
		})
		if brought := s.comesBack(t, time.Now().Add(time.Hour)) != nil; brought != token {
			t.Errorf("a certificate of %q: brought a token: %t", issuer, brought)
		}
	}
}

// A former CA may be given up once no kubelet is known by a certificate of it.
func TestFormerUntil(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	of := func(issuer string, hours int) joinservice.Credential {
		return joinservice.Credential{Fingerprint: issuer, Ends: now.Add(time.Duration(hours) * time.Hour), Issuer: issuer}
	}
	for name, c := range map[string]struct {
		m     joinservice.Machine
		hours int
	}{
		"none":                       {joinservice.Machine{Role: hullmark.Worker}, 0},
		"the present one's":          {joinservice.Machine{Role: hullmark.Worker, Credentials: []joinservice.Credential{of("b", 3)}, CertificateEnds: now.Add(4 * time.Hour)}, 0},
		"the former one's":           {joinservice.Machine{Role: hullmark.Worker, Credentials: []joinservice.Credential{of("a", 2), of("b", 3)}}, 2},
		"one of before":              {joinservice.Machine{Role: hullmark.Worker, Credentials: []joinservice.Credential{of("", 2), of("b", 3)}}, 2},
		"one that ended":             {joinservice.Machine{Role: hullmark.Worker, Credentials: []joinservice.Credential{of("a", 0), of("b", 3)}}, 0},
		"one that nobody saw":        {joinservice.Machine{Role: hullmark.Worker, Credentials: []joinservice.Credential{of("a", -1)}, CertificateEnds: now.Add(4 * time.Hour)}, 4},
		"a control plane's own":      {joinservice.Machine{Role: hullmark.ControlPlane, CertificateEnds: now.Add(4 * time.Hour)}, 0},
		"a control plane's of those": {joinservice.Machine{Role: hullmark.ControlPlane, Credentials: []joinservice.Credential{of("a", 2)}}, 2},
	} {
		want := time.Time{}
		if c.hours > 0 {
			want = now.Add(time.Duration(c.hours) * time.Hour)
		}
		if got := c.m.FormerUntil("b", now); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
