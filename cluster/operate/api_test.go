package operate

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
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/cluster"
)

// Whoever speaks to an API server hears, once a command, that its certificate ends soon.
func TestCertificateThatEndsSoon(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		days  int
		warns string
	}{{119, "warning: the certificate of the API server ends on " + time.Now().UTC().AddDate(0, 0, 119).Format(time.DateOnly)}, {121, ""}} {
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.TLS = &tls.Config{Certificates: []tls.Certificate{apiCertificate(t, c, time.Duration(test.days)*24*time.Hour)}}
		server.StartTLS()
		var notes strings.Builder
		progress := func(line string) { fmt.Fprintln(&notes, line) }
		api, err := Connect(&cluster.File{Cluster: c}, APIOptions{Server: server.Listener.Addr().String(), Progress: progress})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := api.client.List(t.Context()); err == nil {
				t.Error("a server without an API answered")
			}
		}
		server.Close()
		if notes := notes.String(); !strings.HasPrefix(notes, test.warns) || strings.Count(notes, "\n") != min(len(test.warns), 1) {
			t.Errorf("with %d days left it says %q", test.days, notes)
		}
	}
}

func apiCertificate(t *testing.T, c *cluster.Cluster, left time.Duration) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(left),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, c.Kubernetes.Certificate, key.Public(), c.Kubernetes.Key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
