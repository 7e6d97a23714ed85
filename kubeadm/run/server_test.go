package run_test

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm/run"
)

var fresh = time.Now().Add(364 * 24 * time.Hour)

// An endpoint counts once a server with a certificate for its own name, of the cluster's own authority, answers there.
func TestServes(t *testing.T) {
	ca := nodetest.NewAuthority(t)
	certificate, key := ca.Issue(t, fresh, "127.0.0.1", "kubernetes")
	address := serve(t, certificate, key)
	access := func(a *nodetest.Authority) run.Access {
		return run.Access{Kubeconfig: "kubelet.conf", Read: func(string) ([]byte, error) { return a.Kubeconfig(t, "192.0.2.7:6443"), nil }}
	}
	if err := run.Serves(t.Context(), access(ca), address); err != nil {
		t.Error(err)
	}
	if shown, err := run.ServerCertificate(t.Context(), ca.PEM, address); err != nil || shown.VerifyHostname("127.0.0.1") != nil {
		t.Error(shown, err)
	}
	if err := run.Serves(t.Context(), access(nodetest.NewAuthority(t)), address); err == nil || !strings.Contains(err.Error(), "x509: certificate signed by unknown authority") {
		t.Errorf("a stranger's certificate: %v", err)
	}
	certificate, key = ca.Issue(t, fresh, "kubernetes")
	if err := run.Serves(t.Context(), access(ca), serve(t, certificate, key)); err == nil || !strings.Contains(err.Error(), "x509: cannot validate certificate for 127.0.0.1") {
		t.Errorf("a certificate for another name: %v", err)
	}
}

func serve(t *testing.T, certificate, key []byte) (address string) {
	t.Helper()
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.Config.ErrorLog = nil
	server.StartTLS()
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "https://")
}
