package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// site is a control plane's files as systemd hands them over, and a worker that booted its image.
type site struct {
	cluster            *cluster.Cluster
	node               *nodetest.Node
	credentials, state string
	policy             measurements.Policy
	documents          map[measurements.DocumentID][]byte
}

func newSite(t *testing.T) *site {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	return siteOf(t, c)
}

// siteOf is a site of a cluster whose keys are in use already.
func siteOf(t *testing.T, c *cluster.Cluster) *site {
	t.Helper()
	s := &site{cluster: c, credentials: t.TempDir(), state: t.TempDir()}
	s.node = nodetest.New(t, s.cluster.ID())
	s.node.Boot(t, "image")
	s.writePolicy(t)
	s.writeCluster(t)
	s.write(t, "initialising.json", []byte("null"))
	return s
}

// writeCluster writes what the cluster file has for a control plane.
func (s *site) writeCluster(t *testing.T) {
	t.Helper()
	files, err := s.cluster.Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Base(f.GetPath())
		if filepath.Dir(f.GetPath()) == "/etc/kubernetes/pki/etcd" {
			name = "etcd-" + name
		}
		s.write(t, name, f.GetContent())
	}
	settings, err := joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "settings.json", settings)
}

func (s *site) write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.credentials, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *site) writePolicy(t *testing.T) {
	t.Helper()
	s.documents = map[measurements.DocumentID][]byte{}
	document := nodetest.Document(t, "image")
	encoded, err := document.Encode()
	if err != nil {
		t.Fatal(err)
	}
	policy, err := joinservice.FirstPolicy(measurements.Policy{}, document, measurements.Member{EKID: s.node.ID, Role: hullmark.Worker, Name: "worker-1"})
	if err != nil {
		t.Fatal(err)
	}
	s.policy, s.documents[policy.Documents[0].Document] = policy, encoded
	s.sign(t, document)
	s.write(t, documentPrefix+policy.Documents[0].Document.String()+".json", encoded)
}

// sign signs the site's policy, in the place of what was signed before, and returns its signed form: it commits to the cluster's keys.
func (s *site) sign(t *testing.T, documents ...measurements.Document) []byte {
	t.Helper()
	s.cluster.Policy = nil
	if err := s.cluster.SetPolicy(s.policy, documents...); err != nil {
		t.Fatal(err)
	}
	return s.cluster.Policy
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// The API does not answer: the service runs, tells nodes to come again, and counts.
func TestServiceWithoutAPI(t *testing.T) {
	s := newSite(t)
	o, stop := s.start(t, "https://"+freeAddress(t))
	if err := s.node.Dial(t.Context(), o.listen, s.cluster.ID()); err != nil {
		t.Fatal(err)
	}
	if told := s.node.Denied(); told == nil || told.Code != "api-unreachable" || !told.Retry {
		t.Errorf("the node was told %+v", told)
	}
	text := get(t, o.http, "/metrics")
	for _, line := range []string{`hullmark_exchanges_total{outcome="api-unreachable"} 1`, "hullmark_exchanges_in_flight 0", "hullmark_policy_version 1"} {
		if !strings.Contains(text, line) {
			t.Errorf("the metrics do not say %s", line)
		}
	}
	if get(t, o.http, "/healthz") != "ok\n" {
		t.Error("the service is not healthy")
	}
	stop()
}

// start runs the program until stop, and returns once it said that it is ready.
func (s *site) start(t *testing.T, api string) (o options, stop func()) {
	t.Helper()
	return s.startWith(t, options{api: api})
}

// startWith starts the service at addresses of its own, with the URLs that are given.
func (s *site) startWith(t *testing.T, o options) (_ options, stop func()) {
	t.Helper()
	ready := make(chan struct{})
	var once sync.Once
	o.credentials, o.files.Folder, o.listen, o.http = s.credentials, s.state, freeAddress(t), freeAddress(t)
	o.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	o.notify = func(line string) {
		if line == "READY=1" {
			once.Do(func() { close(ready) })
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the service ended with %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return o, stop
}

func get(t *testing.T, address, path string) string {
	t.Helper()
	reply, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	content, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, reply.Status, err)
	}
	return string(content)
}

func TestCredentialsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *site){
		"another cluster's online CA": func(t *testing.T, s *site) {
			s.write(t, "root.crt", mustRead(t, filepath.Join(newSite(t).credentials, "root.crt")))
		},
		"another key": func(t *testing.T, s *site) {
			s.write(t, "ca.key", mustRead(t, filepath.Join(s.credentials, "online-ca.key")))
		},
		"no keyset":             func(t *testing.T, s *site) { s.write(t, "keyset.json", nil) },
		"no settings":           func(t *testing.T, s *site) { s.write(t, "settings.json", []byte("{}")) },
		"a document of no name": func(t *testing.T, s *site) { s.write(t, documentPrefix+"x.json", nil) },
		"no number":             func(t *testing.T, s *site) { s.write(t, rotationCredential, []byte("1\n")) },
		"an unknown field":      func(t *testing.T, s *site) { s.write(t, "initialising.json", []byte(`{"more":1}`)) },
		"too large":             func(t *testing.T, s *site) { s.write(t, "policy", make([]byte, maxCredential+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if _, err := readCredentials(s.credentials); err != nil {
				t.Fatal(err)
			}
			spoil(t, s)
			if _, err := readCredentials(s.credentials); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestFirstNodeIsTheOperators(t *testing.T) {
	s := newSite(t)
	record, err := json.Marshal(joinservice.FirstRecord{EKID: s.node.ID, Disk: hullmark.UUID{7}, Committed: 3, Issued: 4})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "initialising.json", record)
	osRelease := filepath.Join(t.TempDir(), "os-release")
	if err := os.WriteFile(osRelease, []byte("ID=debian\nHULLMARK_KUBERNETES=v1.36.3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := prepare(options{credentials: s.credentials, files: servicefiles.Files{Folder: s.state}, api: apiServer, osRelease: osRelease, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if a.versions.Kubernetes.String() != "v1.36.3" {
		t.Errorf("the image has Kubernetes %v", a.versions.Kubernetes)
	}
	first, ok := a.firstNode()
	if !ok || first.Name != "worker-1" || first.Record != (joinservice.Record{Disk: hullmark.UUID{7}, Committed: 3, Issued: 4}) {
		t.Errorf("got %+v, %v", first, ok)
	}
}

// The API server sees the service's user, without a group, and another certificate once the first is too old.
func TestAPIClientCertificate(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	ca := tls.Certificate{Certificate: [][]byte{c.Kubernetes.Certificate.Raw}, PrivateKey: c.Kubernetes.Key, Leaf: c.Kubernetes.Certificate}
	clients := make(chan *x509.Certificate, 2)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { clients <- r.TLS.PeerCertificates[0] }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serverCertificate(t, c)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	server.TLS.ClientCAs.AddCert(c.Kubernetes.Certificate)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var journal bytes.Buffer
	a := newAPI(server.URL, ca, c.KubernetesCA(), slog.New(slog.NewTextHandler(&journal, nil)))
	first := ask(t, a, clients)
	if first.Subject.CommonName != registry.User || len(first.Subject.Organization) != 0 || time.Until(first.NotAfter) > clientValidity {
		t.Errorf("the client is %v until %v", first.Subject, first.NotAfter)
	}
	if again := ask(t, a, clients); !again.Equal(first) {
		t.Error("a fresh certificate was replaced")
	}
	if until := time.Unix(a.until.Load(), 0); time.Until(until) > clientValidity || strings.Count(journal.String(), "ends soon") != 1 {
		t.Errorf("the server's certificate is said to end at %v; the journal is %s", until, journal.String())
	}
	a.certificate.made = a.certificate.made.Add(-clientAge)
	if !a.certificate.stale() {
		t.Fatal("an old certificate is not stale")
	}
	a.dialer.CloseAll()
	if later := ask(t, a, clients); later.Equal(first) {
		t.Error("an old certificate was used again")
	}
}

func ask(t *testing.T, a *api, clients <-chan *x509.Certificate) *x509.Certificate {
	t.Helper()
	client, err := rest.HTTPClientFor(a.config)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := client.Get(a.config.Host)
	for end := time.Now().Add(10 * time.Second); err != nil; reply, err = client.Get(a.config.Host) {
		// The transport may not have noticed yet that its connection was closed.
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = reply.Body.Close()
	return <-clients
}

// serverCertificate is an API server's.
func serverCertificate(t *testing.T, c *cluster.Cluster) tls.Certificate {
	t.Helper()
	made, err := newClient(tls.Certificate{PrivateKey: c.Kubernetes.Key, Leaf: c.Kubernetes.Certificate}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	template, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	template.DNSNames, template.ExtKeyUsage = []string{apiServerName}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	made.Certificate[0], err = x509.CreateCertificate(nil, template, c.Kubernetes.Certificate, template.PublicKey, c.Kubernetes.Key)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// A node finds the document that it booted by through what its kernel shows of the TPM; of other registers, and of none, it says nothing.
func TestWhatThisNodeBootedBy(t *testing.T) {
	s := newSite(t)
	a, err := prepare(options{credentials: s.credentials, files: servicefiles.Files{Folder: s.state}, api: apiServer, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	document := nodetest.Document(t, "image")
	predicted := document.Values(pcrs.SHA256)
	dir := t.TempDir()
	show := func(r pcrs.Register, value pcrs.Digest) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(int(r))), fmt.Appendf(nil, "%X\n", []byte(value)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := readRegisters(dir); err == nil {
		t.Error("registers that are not shown were read")
	}
	for r := range pcrs.Register(16) {
		show(r, pcrs.Digest(cmp.Or(string(predicted[r]), strings.Repeat("\x07", 32))))
	}
	booted := func() (hullmark.DocumentID, bool) {
		t.Helper()
		measured, err := readRegisters(dir)
		if err != nil {
			t.Fatal(err)
		}
		return a.policy.BootedBy(measured)
	}
	if id, ok := booted(); !ok || id != s.policy.Documents[0].Document {
		t.Errorf("booted by %v, %t", id, ok)
	}
	for _, r := range s.policy.Judged(document) {
		show(r, bytes.Repeat([]byte{1}, 32))
		if id, ok := booted(); ok {
			t.Errorf("with another register %d: booted by %v", r, id)
		}
		show(r, predicted[r])
	}
}
