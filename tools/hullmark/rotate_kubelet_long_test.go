//go:build long

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
)

// The kubelets' CA is exchanged a step at each run of the command, and none is taken while a control plane or a kubelet is
// behind, unless the operator names it.
func TestRotateKubeletCAOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	s.run(t, exitFailed, "cluster rotate kubelet-ca", "no policy yet")
	s.run(t, exitUsage, "cluster rotate keyset --except worker-1", "--except is for kubelet-ca and kubernetes-ca alone")
	s.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+hullmark.EKID{7}.String())
	s.run(t, 0, "policy push")
	plane := hullmark.EKID{8}
	s.keep(t, joinservice.Machine{EKID: plane, Name: "control-plane-1", Role: hullmark.ControlPlane, State: joinservice.MachineReady})
	at := func(want cluster.Exchange, rotation uint64) {
		t.Helper()
		if s.reread(t); s.cluster.Exchange(cluster.KubeletCA) != want {
			t.Errorf("the exchange is at %s, want %s", s.cluster.Exchange(cluster.KubeletCA), want)
		}
		if p := s.pushed(t); p.Rotation != rotation {
			t.Errorf("the cluster has rotation %d, want %d", p.Rotation, rotation)
		}
	}
	former := s.open(t).KubeletServing.Authority

	s.run(t, 0, "cluster rotate kubelet-ca", "step 1 of 3", "reboot the control planes")
	s.run(t, exitDenied, "cluster rotate kubelet-ca", "control-plane-1: it holds the keys of rotation 0, not 1", "(--except)")
	s.run(t, exitUsage, "cluster rotate kubelet-ca --except worker-1", "worker-1: no node of that name is behind")
	at(cluster.ExchangeTrusted, 1)
	s.holds(t, plane, 1)
	s.run(t, 0, "cluster rotate kubelet-ca", "step 2 of 3")
	s.run(t, exitDenied, "cluster rotate kubelet-ca", "rotation 1, not 2")
	at(cluster.ExchangeSigning, 2)
	s.holds(t, plane, 2)

	show := s.runKubelet(t, "worker-1")
	show(former)
	s.run(t, exitDenied, "cluster rotate kubelet-ca", "worker-1: its kubelet shows no certificate of the new CA", "x509:")
	at(cluster.ExchangeSigning, 2)
	code, output := hullmarkCLI(t, "cluster", "rotate", "kubelet-ca", "--server", "127.0.0.1:1", "--wait", "1s", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	wantExit(t, code, exitUnreachable, output, joinservice.CodeUnreachable)
	show(s.cluster.KubeletServing.Authority)
	s.run(t, 0, "cluster rotate kubelet-ca", "step 3 of 3", "the exchange is done")
	at(cluster.ExchangeSteady, 3)

	// The API servers still trust the former CA: no other exchange begins. It may, where the operator says so.
	s.run(t, exitDenied, "cluster rotate kubelet-ca", "rotation 2, not 3")
	s.run(t, 0, "cluster rotate kubelet-ca --except control-plane-1", "step 1 of 3")
	// The power was cut before the second step was pushed: it is, and the third is not begun.
	s.holds(t, plane, 4)
	s.update(t, func(c *cluster.Cluster) error { return c.SignWithCA(cluster.KubeletCA) })
	s.run(t, exitDenied, "cluster rotate kubelet-ca", "rotation 4, not 5")
	at(cluster.ExchangeSigning, 5)
}

// holds records which keys a control plane holds, as its join service does.
func (s *apiSite) holds(t *testing.T, node hullmark.EKID, rotation uint64) {
	t.Helper()
	m, version, err := s.client.Load(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	m.Rotation = rotation
	if _, err := s.client.Store(t.Context(), m, version); err != nil {
		t.Fatal(err)
	}
}

// runKubelet runs a double of a kubelet's server where a Node says; what it returns has it show a certificate of an authority.
func (s *apiSite) runKubelet(t *testing.T, node string) (show func(cluster.Authority)) {
	t.Helper()
	var shown atomic.Pointer[tls.Certificate]
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown.Load(), nil }}
	server.StartTLS()
	t.Cleanup(server.Close)
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	if err := s.env.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: v1\nkind: Node\nmetadata: {name: %s}\n", node)); err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf(`-p={"status":{"addresses":[{"type":"InternalIP","address":"%s"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, at.Addr(), at.Port())
	patch, err := s.env.Kubectl(t.Context(), "patch", "node", node, "--subresource=status", "--type=merge", status)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := patch.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func(a cluster.Authority) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(1), DNSNames: []string{node}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}, a.Certificate, key.Public(), a.Key)
		if err != nil {
			t.Fatal(err)
		}
		shown.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	}
}
