package firstboot

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/kubeadm"
)

const year = 365 * 24 * time.Hour

// returning is a stage with a control plane's disk, whose endpoint was 192.0.2.7:6443.
func returning(t *testing.T, end time.Time) (*stage, *nodetest.Authority) {
	t.Helper()
	s, ca := newStage(t), nodetest.NewAuthority(t)
	s.comeBack(t, "admin.conf")
	s.put(t, ca.ControlPlaneDisk(t, "192.0.2.7:6443", end, "kubernetes", "192.0.2.7"))
	s.put(t, map[string][]byte{kubeletConf: ca.Kubeconfig(t, "192.0.2.7:6443")})
	return s, ca
}

func (s *stage) put(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, content := range files {
		if kept, ok := keptName(name); ok {
			s.keep(kept, string(content))
			continue
		}
		if err := s.agent.storeState(name, content); err != nil {
			t.Fatal(err)
		}
	}
}

// again, and againWith, let a join service take the node, which comes back, with this Proceed.
func (s *stage) again(t *testing.T, role hullmark.Role, endpoint string, names ...string) *wire.Progress {
	t.Helper()
	return s.againWith(t, &wire.Proceed{NodeName: "node-1", Role: string(role), Endpoint: endpoint, Names: names})
}

func (s *stage) againWith(t *testing.T, p *wire.Proceed) *wire.Progress {
	t.Helper()
	service := s.service(t)
	s.dials(t, service.address)
	s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(p)
	_, last := c.finish()
	return last
}

func (s *stage) server(t *testing.T) string {
	t.Helper()
	text, err := s.agent.readState(kubeletConf)
	if err != nil {
		t.Fatal(err)
	}
	found := serverPattern.FindSubmatch(text)
	if found == nil {
		t.Fatalf("kubelet.conf names no server:\n%s", text)
	}
	return string(found[1])
}

var serverPattern = regexp.MustCompile(`server: "?(https://[^",\n]+)`)

func TestCertificatesAreMadeAnew(t *testing.T) {
	for name, c := range map[string]struct {
		end      time.Time
		endpoint string
		names    []string
		due      bool
	}{
		"nothing to do":    {time.Now().Add(year), "192.0.2.7:6443", nil, false},
		"they end soon":    {time.Now().Add(year / 4), "192.0.2.7:6443", nil, true},
		"another name":     {time.Now().Add(year), "192.0.2.7:6443", []string{"api.example.net"}, true},
		"another endpoint": {time.Now().Add(year), "api.example.net:6443", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, ca := returning(t, c.end)
			s.cluster.Remade = ca.ControlPlaneDisk(t, c.endpoint, time.Now().Add(year), "kubernetes", "192.0.2.7", "api.example.net")
			if last := s.again(t, hullmark.ControlPlane, c.endpoint, c.names...); !last.GetReady() {
				t.Fatalf("last = %v", last)
			}
			if (len(s.cluster.Renewals) == 1) != c.due {
				t.Errorf("renewed %d times", len(s.cluster.Renewals))
			}
			if _, err := s.agent.readState(kubeadm.RenewFile); !os.IsNotExist(err) {
				t.Errorf("the documents of the renewal are still there: %v", err)
			}
			if !s.cluster.Access.Local || s.server(t) != "https://192.0.2.7:6443" {
				t.Errorf("the agent asked another API server than its own: %+v; the kubelet uses %s", s.cluster.Access, s.server(t))
			}
			if d := s.document(t); d.Condition != nil {
				t.Errorf("condition %v", d.Condition)
			}
		})
	}
}

// A control plane's kubelet that used the endpoint uses the new one.
func TestKubeletOfAControlPlaneMoves(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	s.put(t, map[string][]byte{kubeletConf: ca.Kubeconfig(t, "old.example.net:6443")})
	s.cluster.Remade = ca.ControlPlaneDisk(t, "api.example.net:6443", time.Now().Add(year), "api.example.net")
	if last := s.again(t, hullmark.ControlPlane, "api.example.net:6443"); !last.GetReady() || s.server(t) != "https://api.example.net:6443" {
		t.Errorf("last = %v; the kubelet uses %s", last, s.server(t))
	}
}

// A renewal that fails restarts the machine, and goes on in the next boot with the same documents: what they say is nowhere else by then.
func TestInterruptedRenewal(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year/4))
	s.cluster.Fail = &hullmark.Condition{Code: "kubeadm-failed", Step: StepKubeadm, Title: "no", Next: "n"}
	if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); last.GetFailed().GetCode() != "kubeadm-failed" {
		t.Fatalf("last = %v", last)
	}
	next := s.rebooted(t)
	next.disk.Claim, next.disk.Opened = s.disk.Claim, s.disk.Opened
	next.cluster.Remade = ca.ControlPlaneDisk(t, "192.0.2.7:6443", time.Now().Add(year), "192.0.2.7")
	if last := next.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if len(next.cluster.Renewals) != 1 || next.cluster.Renewals[0] != s.cluster.Renewals[0] {
		t.Errorf("the documents were\n%s\nand are\n%s", s.cluster.Renewals, next.cluster.Renewals)
	}
	text, err := next.agent.readState("/etc/kubernetes/pki/apiserver.crt")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if c, err := x509.ParseCertificate(block.Bytes); err != nil || time.Until(c.NotAfter) < year/2 {
		t.Errorf("%v, %v", c.NotAfter, err)
	}
}

// Documents that kubeadm refuses are found out while the old certificates are there.
func TestRenewalThatKubeadmRefuses(t *testing.T) {
	s, _ := returning(t, time.Now().Add(year/4))
	s.cluster.Refuse = errors.New("no such field")
	if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() || len(s.cluster.Renewals) != 0 {
		t.Fatalf("last = %v, %d renewals", last, len(s.cluster.Renewals))
	}
	if _, err := s.agent.readState("/etc/kubernetes/pki/apiserver.key"); err != nil {
		t.Error(err)
	}
	if d := s.document(t); d.Condition == nil || d.Condition.Code != "renewal-failed" {
		t.Errorf("condition %v", d.Condition)
	}
}

// With a clock that is off, certificates would end at a wrong time.
func TestRenewalWithAWrongClock(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, time.Minute} {
		s, ca := returning(t, time.Now().Add(year/4))
		s.cluster.Remade = ca.ControlPlaneDisk(t, "192.0.2.7:6443", time.Now().Add(year), "192.0.2.7")
		last := s.againWith(t, &wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane), Endpoint: "192.0.2.7:6443", Time: time.Now().Add(off).Unix()})
		right := off == time.Minute
		if !last.GetReady() || (len(s.cluster.Renewals) == 1) != right || (s.document(t).Condition == nil) != right {
			t.Errorf("off by %v: last = %v, %d renewals, condition %v", off, last, len(s.cluster.Renewals), s.document(t).Condition)
		}
	}
}

// A kubelet stays with the endpoint that it had as long as its own control plane has no certificate for the new one.
func TestKubeletWaitsForItsOwnCertificate(t *testing.T) {
	s, ca := returning(t, time.Now().Add(year))
	s.put(t, map[string][]byte{kubeletConf: ca.Kubeconfig(t, "old.example.net:6443")})
	s.cluster.Refuse = errors.New("no such field")
	if last := s.again(t, hullmark.ControlPlane, "api.example.net:6443"); !last.GetReady() || s.server(t) != "https://old.example.net:6443" {
		t.Errorf("last = %v; the kubelet uses %s", last, s.server(t))
	}
	if d := s.document(t); d.Condition == nil || d.Condition.Code != "renewal-failed" {
		t.Errorf("condition %v", d.Condition)
	}
}

// What cannot be judged stays as it is: the node worked with it.
func TestRenewalThatCannotBePlanned(t *testing.T) {
	s, _ := returning(t, time.Now().Add(year))
	s.put(t, map[string][]byte{"/etc/kubernetes/pki/front-proxy-client.crt": []byte("something else")})
	if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() || len(s.cluster.Renewals) != 0 {
		t.Fatalf("last = %v, %d renewals", last, len(s.cluster.Renewals))
	}
	if d := s.document(t); d.Condition == nil || d.Condition.Code != "renewal-failed" {
		t.Errorf("condition %v", d.Condition)
	}
}

// A worker goes over to an endpoint once its own cluster serves it, and not before; who else answers there is told nothing.
func TestWorkerFollowsTheEndpoint(t *testing.T) {
	for name, c := range map[string]struct {
		stranger bool
		names    string
		why      string // empty: it goes over
	}{
		"served":                        {names: "127.0.0.1"},
		"served under another name":     {names: "kubernetes", why: "x509: cannot validate certificate for 127.0.0.1"},
		"served by a stranger's server": {stranger: true, names: "127.0.0.1", why: "x509: certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			s, ca := newStage(t), nodetest.NewAuthority(t)
			s.comeBack(t, "kubelet.conf")
			before := ca.Kubeconfig(t, "192.0.2.7:6443")
			s.put(t, map[string][]byte{kubeletConf: before})
			by := ca
			if c.stranger {
				by = nodetest.NewAuthority(t)
			}
			url := serveAPI(t, by, c.names)
			endpoint := strings.TrimPrefix(url, "https://")
			if last := s.again(t, hullmark.Worker, endpoint); !last.GetReady() {
				t.Fatalf("last = %v", last)
			}
			if c.why == "" {
				if got := s.document(t).Condition; got != nil || s.server(t) != url {
					t.Errorf("the kubelet uses %s, condition %v", s.server(t), got)
				}
			} else {
				s.checkStays(t, before, endpoint, c.why)
			}
			if info, err := os.Stat(filepath.Join(s.agent.StateDir, "etc-kubernetes/kubelet.conf")); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("kubelet.conf: %v, %v", info, err)
			}
		})
	}
}

// serveAPI is an API server with a certificate for a name, which must not be asked for anything.
func serveAPI(t *testing.T, ca *nodetest.Authority, name string) (url string) {
	t.Helper()
	certificate, key := ca.Issue(t, time.Now().Add(time.Hour), name)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("it was asked for %s", r.URL) }))
	api.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	api.StartTLS()
	t.Cleanup(api.Close)
	return api.URL
}

// checkStays wants the kubelet to go on as before, and the node to say why.
func (s *stage) checkStays(t *testing.T, before []byte, endpoint, why string) {
	t.Helper()
	if now, err := s.agent.readState(kubeletConf); err != nil || !bytes.Equal(now, before) {
		t.Errorf("kubelet.conf was changed, or cannot be read: %v\n%s", err, now)
	}
	got := s.document(t).Condition
	if got == nil || got.Code != "endpoint-not-served" || !strings.Contains(got.Title, ", not "+endpoint+": ") || !strings.Contains(got.Title, why) {
		t.Errorf("condition %v, want endpoint-not-served for %s, because %s", got, endpoint, why)
	}
}

func TestEndpointsAreChecked(t *testing.T) {
	for name, p := range map[string]*wire.Proceed{
		"no endpoint":          {Names: []string{"a.example.net"}},
		"no port":              {Endpoint: "a.example.net"},
		"a name with a colon":  {Endpoint: "a.example.net:1", Names: []string{"b:1"}},
		"an address with zone": {Endpoint: "a.example.net:1", Names: []string{"fe80::1%eth0"}},
	} {
		if err := openedBy(hullmark.Rejoin, "", true).checkEndpoint(p); err == nil {
			t.Errorf("%s: taken", name)
		}
		if err := openedBy(hullmark.Join, "", false).checkEndpoint(&wire.Proceed{Endpoint: "a.example.net:1"}); err == nil {
			t.Error("a node that joins is told an endpoint")
		}
	}
}
