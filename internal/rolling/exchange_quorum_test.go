//go:build quorum

package rolling

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/joinservice/registry"
)

const (
	// One request in so many may fail while control planes restart, as many as would without an exchange: those that an API server has
	// not answered when it ends. No client may go without an answer for longer than silence.
	oneIn   = 100
	silence = 15 * time.Second
	// recheck is longer than the minute after which each API server looks again at what servers of aggregated APIs are told.
	recheck = 65 * time.Second
)

// The CAs of etcd, of the front proxy and of Kubernetes are exchanged, by the operator's command, in a cluster that runs: three control
// planes restart for each of the nine steps, while clients read, write and watch, and ask an aggregated API. What fails is counted. No step
// is taken before all control planes are at the one before. After each step of the Kubernetes CA clients get the certificates of then, as
// they do when they start again. In the end nothing takes a certificate of the former CAs.
func TestExchangeOfThreePlanes(t *testing.T) {
	s := newSite(t, 3, 0)
	const cheap = 4 // This passphrase guards nothing.
	file, err := cluster.Create(filepath.Join(s.dir, "cluster"), hullmark.NewSecret([]byte("correct horse")), s.cluster, cheap)
	must(t, err)
	api, err := operate.Connect(file, operate.APIOptions{Server: s.balancer.Addr().String(), Wait: time.Minute, Done: func(line string) { t.Log(line) }})
	must(t, err)
	former := *file.Cluster
	e := startExtension(t, s)
	f := startTraffic(t, s.admin)
	began := time.Now()
	for _, what := range []operate.Rotation{operate.RotateEtcdCA, operate.RotateFrontProxyCA, operate.RotateKubernetesCA} {
		for i := range 3 {
			from := time.Now()
			s.exchangeStep(t, api, file, what)
			if what == operate.RotateKubernetesCA {
				s.logIn(t, append(slices.Clone(f.users), e.users...))
			}
			t.Logf("%s, step %d: %s; of an aggregated API: %s", what, i+1, f.report(from, time.Now()), e.report(from, time.Now()))
			want := map[operate.Rotation]map[registry.Told]int{
				operate.RotateEtcdCA:       {registry.ToldFrontProxy: 1, registry.ToldClients: 1},
				operate.RotateFrontProxyCA: {registry.ToldFrontProxy: 2, registry.ToldClients: 1},
				operate.RotateKubernetesCA: {registry.ToldFrontProxy: 2, registry.ToldClients: 2},
			}[what]
			for told, want := range want {
				if got := s.told(t, told); got != want {
					t.Errorf("%s, step %d: servers of aggregated APIs are told of %d CAs as %s, want %d", what, i+1, got, told, want)
				}
			}
		}
	}
	for _, what := range []operate.Rotation{operate.RotateFrontProxyCA, operate.RotateKubernetesCA} {
		if rotated, err := api.Rotate(t.Context(), what, operate.RotateOptions{}); err != nil || !rotated.Ended {
			t.Errorf("the exchange of %s does not end: %+v, %v", what, rotated, err)
		}
	}
	time.Sleep(recheck)
	for _, told := range []registry.Told{registry.ToldFrontProxy, registry.ToldClients} {
		if got := s.told(t, told); got != 1 {
			t.Errorf("servers of aggregated APIs are told of %d CAs as %s in the end", got, told)
		}
	}
	for _, p := range s.planes {
		s.wantPresent(t, p, &former, file.Cluster)
	}
	to := time.Now()
	f.check(t, s.admin)
	e.stop()
	t.Logf("over all exchanges, %v and %d restarts: %s; of an aggregated API: %s", to.Sub(began).Round(time.Second), len(s.taken()), f.report(began, to), e.report(began, to))
	if g := f.seen(began, to); g.failedReads*oneIn > g.reads || g.failedWrites*oneIn > g.writes || g.noRead > silence || g.noWrite > silence {
		t.Errorf("more than one request in %d failed, or none was answered for more than %v: %+v", oneIn, silence, g)
	}
	if g := e.seen(began, to); g.failed*oneIn > g.asked || g.silent > silence {
		t.Errorf("of an aggregated API more than one request in %d failed, or none was answered for more than %v: %+v", oneIn, silence, g)
	}
}

// exchangeStep takes an exchange one step on, and has the control planes boot with what it brings, one after another.
func (s *site) exchangeStep(t *testing.T, api *operate.API, file *cluster.File, what operate.Rotation) {
	t.Helper()
	_, err := api.Rotate(t.Context(), what, operate.RotateOptions{})
	must(t, err)
	policy, err := file.Cluster.OpenPolicy()
	must(t, err)
	for _, p := range s.planes {
		if _, err := api.Rotate(t.Context(), what, operate.RotateOptions{}); !errors.Is(err, operate.ErrDenied) || !strings.Contains(err.Error(), p.name) {
			t.Fatalf("before %s has booted the next step is not refused because of it: %v", p.name, err)
		}
		must(t, s.halt(p))
		time.Sleep(away)
		must(t, errors.Join(p.Exchange(t.Context(), file.Cluster), p.service.WriteCredentials(file.Cluster)))
		must(t, s.boot(t.Context(), t, p))
		must(t, s.noteRotation(t.Context(), p, policy.Rotation))
	}
}

// noteRotation records which keys a control plane holds. A join service does so for the machine that it runs on, and here all run on one.
func (s *site) noteRotation(ctx context.Context, p *plane, rotation uint64) error {
	admin, err := registry.New(s.admin)
	if err != nil {
		return err
	}
	return eventually(ctx, func() error {
		m, version, err := admin.Load(ctx, s.machines[p.name].EKID)
		if err != nil {
			return err
		}
		m.Rotation = rotation
		_, err = admin.Store(ctx, m, version)
		return err
	})
}

// logIn has clients, and what stands before API servers, go by the Kubernetes CA as control planes hold it by now.
func (s *site) logIn(t *testing.T, users []*user) {
	t.Helper()
	now, err := s.planes[0].Config("testenv", "system:masters")
	must(t, err)
	s.admin.TLSClientConfig = now.TLSClientConfig
	must(t, s.balancer.Trust(s.planes[0].Anonymous()))
	for _, c := range users {
		must(t, c.logIn(s.admin))
	}
}

// told is of how many CAs servers of aggregated APIs are told.
func (s *site) told(t *testing.T, what registry.Told) int {
	t.Helper()
	certificates, err := pemcert.Split(s.toldCAs(t.Context(), newUser(t, s.admin, 0), what))
	must(t, err)
	return len(certificates)
}

// toldCAs is what API servers tell the servers of aggregated APIs; nothing if no API server answers.
func (s *site) toldCAs(ctx context.Context, c *user, what registry.Told) []byte {
	var o object
	if err := eventually(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return c.do(ctx, http.MethodGet, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "", &o)
	}); err != nil {
		return nil
	}
	return []byte(o.Data[string(what)])
}

// wantPresent wants a control plane to take certificates of the present CAs, to show one of etcd's, and to take none of the former ones.
func (s *site) wantPresent(t *testing.T, p *plane, former, present *cluster.Cluster) {
	t.Helper()
	config, err := present.EtcdClient(time.Now(), time.Hour)
	must(t, err)
	if err := takes(p.MemberURL(), config); err != nil {
		t.Errorf("%s: its member of etcd, with a certificate of the present CA: %v", p.name, err)
	}
	old, err := former.EtcdClient(time.Now(), time.Hour)
	must(t, err)
	old.RootCAs = config.RootCAs
	if err := takes(p.MemberURL(), old); err == nil {
		t.Errorf("%s: its member of etcd takes a certificate of the former CA", p.name)
	}
	if got := asFrontProxy(t, p, present.FrontProxy.Authority); got != http.StatusOK {
		t.Errorf("%s: its API server says %d to a front proxy of the present CA", p.name, got)
	}
	if got := asFrontProxy(t, p, former.FrontProxy.Authority); got == http.StatusOK {
		t.Errorf("%s: its API server takes a front proxy of the former CA", p.name)
	}
	if got := asAdministrator(t, p, present); got != http.StatusOK {
		t.Errorf("%s: its API server says %d to an administrator of the present CA", p.name, got)
	}
	if got := asAdministrator(t, p, former); got == http.StatusOK {
		t.Errorf("%s: its API server takes an administrator of the former CA", p.name)
	}
}

// asAdministrator asks a control plane's API server for Secrets by what a cluster file makes for that, and returns the status. Its own
// certificate has to be of the present CA.
func asAdministrator(t *testing.T, p *plane, by *cluster.Cluster) int {
	t.Helper()
	certificate, key, err := by.Administrator(time.Now(), time.Hour)
	must(t, err)
	shown, err := tls.X509KeyPair(certificate, key)
	must(t, err)
	return asks(t, p, shown, nil)
}

// takes returns nil if the server at a URL shows and takes certificates as config has them. By TLS 1.3 a client learns of a refusal only
// when it reads.
func takes(url string, config *tls.Config) error {
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", strings.TrimPrefix(url, "https://"), config)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	if _, err := connection.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// asFrontProxy asks a control plane's API server for Secrets, as a front proxy with a certificate of an authority does in the name of an
// administrator, and returns the status.
func asFrontProxy(t *testing.T, p *plane, by cluster.Authority) int {
	t.Helper()
	return asks(t, p, certificateOf(t, "front-proxy-client", &by), map[string]string{"X-Remote-User": "somebody", "X-Remote-Group": "system:masters"})
}

// asks asks a control plane's API server for Secrets, shows it a certificate, and returns the status.
func asks(t *testing.T, p *plane, shown tls.Certificate, headers map[string]string) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.Cluster.KubernetesCA())
	client := http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "kubernetes", Certificates: []tls.Certificate{shown},
	}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://%s/api/v1/namespaces/kube-system/secrets", p.Address), nil)
	must(t, err)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	answer, err := client.Do(request)
	must(t, err)
	must(t, answer.Body.Close())
	return answer.StatusCode
}
