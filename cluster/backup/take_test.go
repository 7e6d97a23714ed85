package backup

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Why a member is not reached is said at once, and not that time was up.
func TestTakeSaysWhyNobodyAnswers(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	stranger := httptest.NewTLSServer(http.NotFoundHandler())
	defer stranger.Close()
	for address, says := range map[string]string{closed.Addr().String(): "connection refused", stranger.Listener.Addr().String(): "x509: "} {
		_, err := Source{Endpoint: "https://" + address, TLS: &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}}.Take(t.Context(), io.Discard)
		if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}
