package joinservice_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/kubeadm"
	"github.com/hullmark/hullmark/measurements"
)

// comesBack lets the machine, which has joined, come back with a certificate that ends then, and returns the token's kubeconfig
// that Proceed brought, if any.
func (s *site) comesBack(t *testing.T, ends time.Time) []byte {
	t.Helper()
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	s.node.CertificateEnds = ends
	s.join(t)
	i := slices.IndexFunc(s.node.Proceed().GetFiles(), func(f *wire.File) bool { return f.GetPath() == kubeadm.BootstrapFile })
	if i < 0 {
		return nil
	}
	return s.node.Proceed().GetFiles()[i].GetContent()
}

// A node that was off beyond its certificate's life is brought a token: for its own name, for this time, and by the service's clock.
func TestRejoinBringsATokenOnceTheCertificateHasEnded(t *testing.T) {
	s := newSite(t)
	s.join(t)
	issued := s.records.Issued()
	for name, c := range map[string]struct {
		ends  time.Time
		token bool
	}{
		"ended":             {time.Now().Add(-time.Hour), true},
		"none":              {time.Unix(0, 0), true},
		"ends in a moment":  {time.Now().Add(time.Minute), true},
		"lives":             {time.Now().Add(time.Hour), false},
		"lives for decades": {time.Now().Add(1 << 60), false},
	} {
		kubeconfig := s.comesBack(t, c.ends)
		if c.token != (kubeconfig != nil) || c.token && !strings.Contains(string(kubeconfig), "https://192.0.2.1:6443") {
			t.Errorf("%s: brought %q", name, kubeconfig)
		}
		if c.token {
			issued++
		}
		if s.records.Issued() != issued || len(s.records.Tokens()) > 0 {
			t.Errorf("%s: %d tokens were made, want %d; %v are left of them", name, s.records.Issued(), issued, s.records.Tokens())
		}
	}
}

// Whatever a node says of its certificate, the token that it gets is its own machine's, and recorded before it is sent.
func TestLieOfACertificateEarnsAnOwnToken(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.node.Join = func(p *wire.Proceed) error {
		m := s.machine(t)
		if owner, ok := s.records.Tokens()[m.Token]; !ok || owner != s.node.ID || m.FirstKey != "" {
			t.Errorf("the record names the token %q, which is %v's", m.Token, owner)
		}
		return nil
	}
	if s.comesBack(t, time.Unix(0, 0)) == nil {
		t.Error("no token came")
	}
}

// Another token begins the life of another certificate: none that the machine had before is its own any more, whoever has it by
// now. Until when they last stays known.
func TestAnotherTokenForgetsCertificates(t *testing.T) {
	for name, comeBack := range map[string]func(s *site){
		"an empty disk": func(s *site) {
			s.accept(t, func(p *measurements.Policy) {
				p.Resets = []measurements.Reset{{EKID: s.node.ID, OldUUID: s.node.Disk.UUID}}
			}, "image")
			s.node.Disk, s.node.Epoch = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{9}}, 0
			s.join(t)
		},
		"a certificate that has ended": func(s *site) {
			if s.comesBack(t, time.Now().Add(-time.Hour)) == nil {
				t.Error("no token came")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			ends := time.Now().Add(73 * time.Hour).UTC().Truncate(time.Second)
			s.join(t)
			stolen := joinservice.Credential{Fingerprint: strings.Repeat("0b", 32), Ends: ends}
			s.store(t, func(m *joinservice.Machine) {
				m.FirstKey, m.Credentials = "its key", nil
				m.NoteCredential(stolen, time.Now())
			})
			s.reboot()
			s.node.Join = func(*wire.Proceed) error {
				if m := s.machine(t); m.Holds(stolen.Fingerprint) || m.FirstKey != "" || !m.CertificateEnds.Equal(ends) {
					t.Errorf("the record has %+v, %q, until %v", m.Credentials, m.FirstKey, m.CertificateEnds)
				}
				return nil
			}
			comeBack(s)
		})
	}
	// One that comes back as it was keeps what it has.
	s := newSite(t)
	s.join(t)
	s.store(t, func(m *joinservice.Machine) { m.FirstKey = "its key" })
	s.reboot()
	if m := s.join(t); !m.Holds(lasting().Fingerprint) || m.FirstKey != "its key" || s.records.Issued() != 1 {
		t.Errorf("a reboot forgot %+v, %q; %d tokens were made", m.Credentials, m.FirstKey, s.records.Issued())
	}
}

// A certificate that nobody saw issued, in an outage or before a backup was taken, cannot be renewed: the machine gets another
// when it comes back.
func TestRejoinBringsATokenForACertificateThatNobodySaw(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.store(t, func(m *joinservice.Machine) { m.Credentials = nil })
	if s.comesBack(t, time.Now().Add(72*time.Hour)) == nil {
		t.Error("no token came")
	}
}

// A worker's certificate is not a control plane's, which is recognised by its name: a machine that changes its role waits until
// it has ended.
func TestWorkersCertificateIsNoControlPlanes(t *testing.T) {
	s := newSite(t)
	s.join(t)
	s.controlPlanes(t)
	s.accept(t, func(p *measurements.Policy) {
		p.Members = []measurements.Member{{EKID: s.node.ID, Role: hullmark.ControlPlane, Name: "worker-1"}}
		p.Resets = []measurements.Reset{{EKID: s.node.ID, OldUUID: s.node.Ticket().Disk.UUID}}
	}, "image")
	s.node.Disk, s.node.Epoch = hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{9}}, 0
	s.denied(t, joinservice.CodeNameRests, true, "certificates may be in other hands")
	s.store(t, func(m *joinservice.Machine) { m.CertificateEnds = time.Now().Add(-time.Second) })
	if m := s.join(t); m.Role != hullmark.ControlPlane {
		t.Errorf("it joined as %s", m.Role)
	}
}

func TestNoteCredential(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	note := func(m *joinservice.Machine, fingerprint string, life time.Duration) {
		m.NoteCredential(joinservice.Credential{Fingerprint: fingerprint, Ends: now.Add(life)}, now)
	}
	m := joinservice.Machine{CertificateEnds: now.Add(time.Hour)}
	note(&m, "first", time.Minute)
	note(&m, "first", time.Minute)
	if len(m.Credentials) != 1 || !m.Holds("first") || m.Holds("") || m.Holds("second") || !m.CertificateEnds.Equal(now.Add(time.Hour)) {
		t.Errorf("got %+v", m)
	}
	for i := range 2 * joinservice.MaxCredentials {
		note(&m, strconv.Itoa(i), time.Duration(i+2)*time.Hour)
	}
	last := now.Truncate(time.Second).Add(time.Duration(2*joinservice.MaxCredentials+1) * time.Hour)
	if len(m.Credentials) != joinservice.MaxCredentials || m.Holds("first") || !m.Holds("15") || !m.CertificateEnds.Equal(last) {
		t.Errorf("got %+v until %v", m.Credentials, m.CertificateEnds)
	}
	// What has ended goes, though not at once: it may have asked for another.
	m = joinservice.Machine{}
	note(&m, "over", -3*time.Hour)
	note(&m, "just over", -time.Hour)
	note(&m, "lives", time.Hour)
	if m.Holds("over") || !m.Holds("just over") || !m.Holds("lives") {
		t.Errorf("got %+v", m.Credentials)
	}
}
