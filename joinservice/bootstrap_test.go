package joinservice_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
)

// comesBack lets the machine, which has joined, come back with a certificate that ends then, and returns the token's kubeconfig that M6 brought, if any.
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
