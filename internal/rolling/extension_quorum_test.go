//go:build quorum

package rolling

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice/registry"
)

const (
	extensionGroup   = "figures.example.com"
	extensionService = "figures.default.svc"
	// extensionPace lies between two requests for it, whether earlier ones have been answered or not.
	extensionPace = 200 * time.Millisecond
)

// extension is a server of an aggregated API, which takes API servers by the certificate that they show, as such servers do: of a CA that
// the cluster tells it of, for the front proxy's name. Clients ask it through API servers all the time.
type extension struct {
	stop func()
	// users ask for it, and for what it is told.
	users []*user
	// trusted are the CAs that it was told of last.
	trusted atomic.Pointer[x509.CertPool]

	mutex sync.Mutex // guards calls
	calls []call
}

// startExtension registers one, and returns once it is asked.
func startExtension(t *testing.T, s *site) *extension {
	t.Helper()
	e := &extension{}
	e.trusted.Store(x509.NewCertPool())
	own := certificateOf(t, extensionService, nil)
	server := httptest.NewUnstartedServer(http.HandlerFunc(e.answer))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{own},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: e.trusted.Load()}, nil
		},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	e.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(e.stop)
	reader := newUser(t, s.admin, 0)
	all.Go(func() { e.follow(ctx, s, reader) })
	e.register(t, s, server.Listener.Addr().String(), own)
	var users []*user // Each has a connection of its own, so that all API servers are asked.
	for range s.planes {
		users = append(users, newUser(t, s.admin, 0))
	}
	e.users = append([]*user{reader}, users...)
	must(t, eventually(t.Context(), func() (err error) {
		for _, c := range users {
			err = errors.Join(err, c.do(t.Context(), http.MethodGet, e.path(), "", nil))
		}
		return err
	}))
	all.Go(func() { e.ask(ctx, &all, users) })
	return e
}

func (e *extension) path() string { return "/apis/" + extensionGroup + "/v1/figures" }

// register tells API servers of it. They reach it by the name that the Service says.
func (e *extension) register(t *testing.T, s *site, address string, own tls.Certificate) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	bundle := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
	must(t, s.planes[0].Apply(t.Context(), fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {name: figures, namespace: default}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%s}
spec:
  group: %s
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  caBundle: %s
  service: {name: figures, namespace: default, port: %s}
`, extensionGroup, extensionGroup, bundle, port)))
}

// follow takes up what the cluster says of the front proxy's CAs, once a second.
func (e *extension) follow(ctx context.Context, s *site, c *user) {
	for ctx.Err() == nil {
		roots := x509.NewCertPool()
		if roots.AppendCertsFromPEM(s.toldCAs(ctx, c, registry.ToldFrontProxy)) {
			e.trusted.Store(roots)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// answer takes the front proxy alone, in the name of somebody.
func (e *extension) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close") // Each request shows a certificate anew.
	switch {
	case r.TLS.PeerCertificates[0].Subject.CommonName != "front-proxy-client" || r.Header.Get("X-Remote-User") == "":
		http.Error(w, "this is not the front proxy", http.StatusUnauthorized)
	case strings.HasPrefix(r.URL.Path, "/openapi"):
		http.NotFound(w, r)
	default:
		_, _ = fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/v1","resources":[]}`, extensionGroup)
	}
}

// ask sends requests at an even pace.
func (e *extension) ask(ctx context.Context, all *sync.WaitGroup, users []*user) {
	tick := time.NewTicker(extensionPace)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all.Go(func() {
			made := call{sent: time.Now()}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			made.err = users[n%len(users)].do(ctx, http.MethodGet, e.path(), "", nil)
			made.ended = time.Now()
			e.mutex.Lock()
			defer e.mutex.Unlock()
			e.calls = append(e.calls, made)
		})
	}
}

// extensionFigures are what the client saw in a time.
type extensionFigures struct {
	asked, failed int
	// silent is the longest time without a successful answer.
	silent time.Duration
	// why is the last failure.
	why string
}

// seen returns what the client saw of requests sent between two times.
func (e *extension) seen(from, to time.Time) (g extensionFigures) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	answered := []time.Time{from, to}
	for _, c := range e.calls {
		switch {
		case c.sent.Before(from) || c.sent.After(to):
			continue
		case c.err == nil:
			answered = append(answered, c.ended)
		default:
			g.failed, g.why = g.failed+1, fmt.Sprintf("%.150s", cause(c.err))
		}
		g.asked++
	}
	g.silent = longest(answered)
	return g
}

// report is a line for people.
func (e *extension) report(from, to time.Time) string {
	g := e.seen(from, to)
	return fmt.Sprintf("%d of %d requests failed; at most %v without an answer; %q", g.failed, g.asked, g.silent.Round(time.Millisecond), g.why)
}

// certificateOf is one for a name, of an authority, or, without one, of itself.
func certificateOf(t *testing.T, name string, by *cluster.Authority) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	made := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	issuer, signer := made, key
	if by != nil {
		issuer, signer = by.Certificate, by.Key
	} else {
		made.DNSNames, made.ExtKeyUsage = []string{name}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		made.KeyUsage, made.IsCA, made.BasicConstraintsValid = made.KeyUsage|x509.KeyUsageCertSign, true, true
	}
	der, err := x509.CreateCertificate(rand.Reader, made, issuer, key.Public(), signer)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
