package firstboot

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/attest/channel"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// forged issues a leaf by an online CA, both as the editors want them.
func (s *stage) forged(t *testing.T, editCA, editLeaf func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	name, err := url.Parse("hullmark:join-service")
	if err != nil {
		t.Fatal(err)
	}
	caKey, key := newKey(t), newKey(t)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "online"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, URIs: []*url.URL{name},
	}
	editCA(ca)
	editLeaf(leaf)
	caDER, err := x509.CreateCertificate(rand.Reader, ca, s.root, caKey.Public(), s.rootKey)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{leafDER, caDER, s.root.Raw}, PrivateKey: key}
}

// Who answers without the cluster's chain gets nothing, not even Hello; the reason is shown.
func TestRogueService(t *testing.T) {
	same := func(*x509.Certificate) {}
	strange := func(s *stage, t *testing.T) tls.Certificate {
		key := newKey(t)
		root, err := channel.NewRoot(key)
		if err != nil {
			t.Fatal(err)
		}
		other := &stage{root: root, rootKey: key}
		return other.forged(t, same, same)
	}
	for name, row := range map[string]struct {
		chain func(*stage, *testing.T) tls.Certificate
		want  string
	}{
		"another cluster": {strange, "of another root"},
		"our root appended to a strange chain": {func(s *stage, t *testing.T) tls.Certificate {
			chain := strange(s, t)
			chain.Certificate[2] = s.root.Raw
			return chain
		}, "online CA"},
		"a CA as leaf": {func(s *stage, t *testing.T) tls.Certificate {
			return s.forged(t, same, func(c *x509.Certificate) { c.BasicConstraintsValid, c.IsCA = true, true })
		}, "the leaf is a CA"},
		"a CA that may have CAs below": {func(s *stage, t *testing.T) tls.Certificate {
			return s.forged(t, func(c *x509.Certificate) { c.MaxPathLenZero, c.MaxPathLen = false, 1 }, same)
		}, "path length"},
		"one certificate more": {func(s *stage, t *testing.T) tls.Certificate {
			chain := s.forged(t, same, same)
			chain.Certificate = append(chain.Certificate, s.root.Raw)
			return chain
		}, "a chain of 4"},
		"an operator's certificate": {func(s *stage, t *testing.T) tls.Certificate {
			chain, err := channel.NewOperator(s.root, s.rootKey, channel.Scope{Verb: channel.VerbInit})
			if err != nil {
				t.Fatal(err)
			}
			return chain
		}, "a chain of 2"},
		"another name": {func(s *stage, t *testing.T) tls.Certificate {
			return s.forged(t, same, func(c *x509.Certificate) { c.URIs[0].Opaque = "operator" })
		}, "is not named"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			service := serveChain(t, row.chain(s, t))
			s.dials(t, service.address)
			s.agent.Timing.FirstPause = time.Hour
			s.serve(t)
			d := s.await(t, "a condition", func(d Document) bool { return d.Condition != nil })
			code := "service-untrusted"
			if name == "another cluster" {
				code = "root-mismatch"
			}
			if d.Condition.Code != code || !strings.Contains(d.Condition.Title, row.want) {
				t.Errorf("condition = %+v, want %q", d.Condition, row.want)
			}
			select {
			case <-service.calls:
				t.Error("the node spoke to it")
			default:
			}
		})
	}
}

// A node's clock is its host's: what expired, or is not valid yet, is as good as any.
func TestTimesInTheChainAreIgnored(t *testing.T) {
	s := newStage(t)
	service := serveChain(t, s.forged(t,
		func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Unix(0, 0), time.Unix(1, 0) },
		func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Unix(1<<32, 0), time.Unix(1<<32+1, 0) }))
	s.dials(t, service.address)
	s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(worker())
	if _, last := c.finish(); !last.GetReady() {
		t.Errorf("last = %v", last)
	}
}

// silent accepts connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return listener.Addr().String()
}

// closed is an address at which nobody listens.
func closed(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

// Endpoints that are dead, silent before or silent after the handshake cost their time limit each; then the node joins through
// the one that lives.
func TestStallingEndpoints(t *testing.T) {
	s := newStage(t)
	stalled, dead, mute := s.service(t), closed(t), silent(t)
	s.dials(t, stalled.address, dead, mute)
	s.agent.Timing.Dial, s.agent.Timing.Answer = time.Second, 5*time.Second
	s.serve(t)
	held := stalled.accept() // and never answered
	d := s.await(t, "a condition of each endpoint", func(d Document) bool {
		if d.Joining == nil {
			return false
		}
		for _, e := range d.Joining.Endpoints {
			if e.Condition == nil {
				return false
			}
		}
		return true
	})
	for i, want := range []string{"timeout", "service-unreachable", "service-unreachable"} {
		if got := d.Joining.Endpoints[i].Condition; got.Code != want || !got.Retry {
			t.Errorf("endpoint %d: %+v, want %s", i, got, want)
		}
	}
	held.end()
	c := stalled.accept()
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(worker())
	if _, last := c.finish(); !last.GetReady() {
		t.Errorf("last = %v", last)
	}
}
