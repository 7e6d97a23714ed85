package operate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/upgrade"
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

// Of a file that was lent no API is asked whether it is the newest copy: it is none.
func TestLentFileReadsNoPolicy(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	lent := *c
	lent.Root.Key, lent.Lease = nil, &cluster.Lease{}
	for name, test := range map[string]struct {
		cluster *cluster.Cluster
		asks    bool
	}{"the cluster file": {c, true}, "a lent file": {&lent, false}} {
		api, err := Connect(&cluster.File{Cluster: test.cluster}, APIOptions{Server: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := api.checkNewest(t.Context()); (err != nil) != test.asks {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whoever follows an upgrade does so for longer than one certificate lasts: an API server refuses one that has ended, which is no reason to
// wait for it for ever.
func TestFollowOutlivesACertificate(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	spec, err := NewUpgrade(upgrade.Spec{Reason: "certificates", Staging: 1, Unavailable: 1, Timeouts: upgrade.DefaultTimeouts()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if len(r.TLS.PeerCertificates) == 0 || time.Now().After(r.TLS.PeerCertificates[0].NotAfter) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`)
			return
		}
		text, err := upgrade.Request{Spec: spec}.Encode()
		if strings.HasSuffix(r.URL.Path, "/"+registry.UpgradeState) {
			state := upgrade.State{Spec: spec, Phase: upgrade.Running}
			if time.Since(began) > upgradePause {
				state.Phase = upgrade.Done
			}
			text, err = state.Encode()
		}
		if err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": "x", "resourceVersion": "1"}, "data": map[string]string{"upgrade": string(text)},
		})
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{apiCertificate(t, c, time.Hour)}, ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer server.Close()
	api, err := Connect(&cluster.File{Cluster: c}, APIOptions{Server: server.Listener.Addr().String(), Validity: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*upgradePause)
	defer cancel()
	last, err := api.FollowUpgrade(ctx, func(upgrade.Change) {})
	if err != nil || last.Phase != upgrade.Done {
		t.Errorf("%v: %+v", err, last)
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
