package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/kubeadm"
)

const (
	// apiServer is this node's own, by the name that its certificate always has.
	apiServer, apiServerName = "https://127.0.0.1:6443", "kubernetes"
	// clientValidity is how long a client certificate is good for, clientAge when another one is made.
	clientValidity, clientAge = 24 * time.Hour, 8 * time.Hour
	// skew is how far the API server's clock may be behind: it is this machine's, unless time was just set.
	skew = 5 * time.Minute
	// leafAge is when another online leaf is made.
	leafAge = 24 * time.Hour
	// clockCheck is how often the client certificate is held to the clock.
	clockCheck = time.Minute
)

// rotating is a certificate in memory that is made anew when it is used and too old.
type rotating struct {
	age  time.Duration
	make func(now time.Time) (tls.Certificate, error)

	mutex   sync.Mutex
	made    time.Time
	current *tls.Certificate
}

// fresh reports whether the certificate can be used at a time. The wall clock counts: it is what the other side looks at.
func (r *rotating) fresh(now time.Time) bool {
	return r.current != nil && !now.Before(r.made) && now.Before(r.made.Add(r.age))
}

func (r *rotating) get() (*tls.Certificate, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	now := time.Now().Round(0)
	if r.fresh(now) {
		return r.current, nil
	}
	made, err := r.make(now)
	if err != nil {
		return nil, err
	}
	r.current, r.made = &made, now
	return r.current, nil
}

// stale reports whether connections hold a certificate that get would not return any more.
func (r *rotating) stale() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.current != nil && !r.fresh(time.Now().Round(0))
}

// newClient makes the service's client certificate for the API, or for etcd. It has no group: at the API the service has what
// its user is given and nothing else. kubeadm's etcd knows no users: there any certificate of its CA may do everything.
func newClient(ca tls.Certificate, now time.Time) (tls.Certificate, error) {
	return newClientOf(registry.User, ca, now)
}

// newClientOf makes the client certificate of a user without groups.
func newClientOf(user string, ca tls.Certificate, now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("client certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("client certificate: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: user},
		NotBefore: now.Add(-skew), NotAfter: now.Add(clientValidity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("client certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// api is the way to this node's API server.
type api struct {
	certificate *rotating
	dialer      *connrotation.Dialer
	config      *rest.Config
	// until is when the server's certificate ends, in Unix time; 0 before the first connection.
	until atomic.Int64
}

// newAPI prepares connections to the server at host, which has to have a certificate that is trusted, in PEM, and is shown one of the
// Kubernetes CA. Nothing is dialled yet.
func newAPI(host string, ca tls.Certificate, trusted []byte, log *slog.Logger) *api {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	a := &api{
		certificate: &rotating{age: clientAge, make: func(now time.Time) (tls.Certificate, error) { return newClient(ca, now) }},
		dialer:      connrotation.NewDialer((&net.Dialer{Timeout: 10 * time.Second}).DialContext),
	}
	a.config = &rest.Config{Host: host, Transport: &http.Transport{
		DialContext: a.dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: apiServerName,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.certificate.get() },
			VerifyConnection: func(s tls.ConnectionState) error {
				until := s.PeerCertificates[0].NotAfter
				a.until.Store(until.Unix())
				if time.Until(until) < kubeadm.EndsSoon {
					log.Warn("the API server's certificate ends soon: reboot this control plane, which makes another", "until", until)
				}
				return nil
			},
		},
	}}
	return a
}

// keepFresh ends connections whose certificate is too old, so that the next ones bring another.
func (a *api) keepFresh(ctx context.Context) error {
	tick := time.NewTicker(clockCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if a.certificate.stale() {
				a.dialer.CloseAll()
			}
		}
	}
}

// ignoreEnd makes the end of ctx no error.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}
