package firstboot

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/internal/nodetest"
)

// outage is a cluster around a node that is Ready, whose certificate ends.
type outage struct {
	*stage
	service *serviceTwin
	// ready is what the API server's /readyz answers.
	ready atomic.Int64
	ended chan error
}

// out brings a node to Ready whose certificate ends then, by a join service's clock, which says that it is now, and by M6's role.
func out(t *testing.T, role hullmark.Role, ends time.Duration) *outage {
	t.Helper()
	o := &outage{stage: newStage(t)}
	o.ready.Store(http.StatusServiceUnavailable)
	ca := nodetest.NewAuthority(t)
	o.comeBack(t, map[hullmark.Role]string{hullmark.Worker: "kubelet.conf", hullmark.ControlPlane: "admin.conf"}[role])
	o.kubelet(t)
	text, _ := ca.Issue(t, time.Now().Add(ends))
	if err := os.WriteFile(filepath.Join(o.agent.StateDir, kubeadm.ClientCertificate), text, 0o600); err != nil {
		t.Fatal(err)
	}
	o.put(t, map[string][]byte{kubeletConf: ca.Kubeconfig(t, o.readyz(t, ca))})
	o.service = o.stage.service(t)
	o.dials(t, o.service.address)
	o.agent.Timing.Certificate, o.agent.Timing.Restart = 20*time.Millisecond, time.Millisecond
	o.machine.SetUptime(time.Hour)
	_, o.ended = o.serve(t)
	c := o.service.accept()
	c.ticket(c.admit(o.stage))
	c.receive()
	c.proceedWith(&wire.Proceed{NodeName: "node-1", Role: string(role), Time: time.Now().Unix()})
	if _, last := c.finish(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	return o
}

// readyz is an API server that says whether it is ready, to whoever asks without a certificate, and returns where.
func (o *outage) readyz(t *testing.T, ca *nodetest.Authority) string {
	t.Helper()
	certificate, key := ca.Issue(t, time.Now().Add(time.Hour), "127.0.0.1")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || len(r.TLS.PeerCertificates) > 0 {
			t.Errorf("asked for %s, with %d certificates", r.URL.Path, len(r.TLS.PeerCertificates))
		}
		w.WriteHeader(int(o.ready.Load()))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// restarts reports whether the agent lets the machine restart soon.
func (o *outage) restarts() bool {
	select {
	case err := <-o.ended:
		return errors.Is(err, errReboot)
	case <-time.After(time.Second):
		return false
	}
}

// condition waits for what the status says.
func (o *outage) condition(t *testing.T, code string) {
	t.Helper()
	o.await(t, code, func(d Document) bool { return d.Condition != nil && d.Condition.Code == code })
}

// A worker whose certificate ended while its API was down says so, runs on, and restarts once its cluster answers, whole.
func TestWorkerRestartsWhenItsCertificateHasEnded(t *testing.T) {
	o := out(t, hullmark.Worker, 2*time.Hour)
	if o.restarts() || o.document(t).Condition != nil {
		t.Fatal("a certificate that lives counts as ended")
	}
	o.machine.SetUptime(3*time.Hour + time.Minute)
	o.condition(t, "certificate-ended")
	if o.restarts() {
		t.Fatal("it restarts although the API server is not ready: its pods would be stopped for nothing")
	}
	o.ready.Store(http.StatusOK)
	if !o.restarts() {
		t.Error("it does not restart although its cluster answers")
	}
}

// A host that sets the machine's clock forward makes no certificate end: what counts is the verifier's time and the uptime.
func TestClockOfTheHostRestartsNothing(t *testing.T) {
	o := out(t, hullmark.Worker, time.Hour)
	o.ready.Store(http.StatusOK)
	over, _ := nodetest.NewAuthority(t).Issue(t, time.Now().Add(-time.Hour)) // by the machine's clock alone: its verifier says that it is 1970
	if err := errors.Join(
		os.WriteFile(filepath.Join(o.agent.RunDir, readyMark), []byte(`{"role":"worker","began":1000}`), 0o600),
		os.WriteFile(filepath.Join(o.agent.StateDir, kubeadm.ClientCertificate), over, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	if o.restarts() || o.document(t).Condition != nil {
		t.Error("the machine's clock restarts it")
	}
}

// Who answers has to be of the node's cluster.
func TestStrangersRestartNothing(t *testing.T) {
	o := out(t, hullmark.Worker, 2*time.Hour)
	o.ready.Store(http.StatusOK)
	other := newStage(t).service(t)
	o.agent.config.Endpoints = []string{other.address}
	o.machine.SetUptime(4 * time.Hour)
	o.condition(t, "certificate-ended")
	if o.restarts() {
		t.Error("another cluster's join service restarts it")
	}
}

// A control plane may need its operator to come back, so it is left to that.
func TestControlPlaneDoesNotRestartItself(t *testing.T) {
	o := out(t, hullmark.ControlPlane, 2*time.Hour)
	o.ready.Store(http.StatusOK)
	o.machine.SetUptime(4 * time.Hour)
	o.condition(t, "certificate-ended")
	if o.restarts() {
		t.Error("it restarts")
	}
}
