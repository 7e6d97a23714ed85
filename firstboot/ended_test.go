package firstboot

import (
	"crypto/tls"
	"encoding/json"
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
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/pemcert"
	"github.com/hullmark/hullmark/kubeadm"
)

// outage is a cluster around a node that is Ready, whose certificate ends.
type outage struct {
	*stage
	service *fakeService
	ca      *nodetest.Authority
	// ready is what the API server's /readyz answers.
	ready atomic.Int64
	ended chan error
}

// out brings a node to Ready whose certificate, of earlier boots, ends then, by a join service's clock, which says that it is
// now, and by Proceed's role.
func out(t *testing.T, role hullmark.Role, ends time.Duration) *outage {
	return outAhead(t, role, ends, 0)
}

// outAhead does so with a join service whose clock is ahead.
func outAhead(t *testing.T, role hullmark.Role, ends, ahead time.Duration) *outage {
	t.Helper()
	o := &outage{stage: newStage(t), ca: nodetest.NewAuthority(t)}
	o.ready.Store(http.StatusServiceUnavailable)
	o.comeBack(t, map[hullmark.Role]string{hullmark.Worker: "kubelet.conf", hullmark.ControlPlane: "admin.conf"}[role])
	o.kubelet(t)
	o.disk.Opened.CertificateEnds = o.certificate(t, ends)
	o.put(t, map[string][]byte{kubeletConf: o.ca.Kubeconfig(t, o.readyz(t, o.ca))})
	o.service = o.stage.service(t)
	o.dials(t, o.service.address)
	o.agent.Timing.Certificate, o.agent.Timing.Restart = 20*time.Millisecond, time.Millisecond
	o.machine.SetUptime(time.Hour)
	_, o.ended = o.serve(t)
	c := o.service.accept()
	c.ticket(c.admit(o.stage))
	c.receive()
	c.proceedWith(&wire.Proceed{NodeName: "node-1", Role: string(role), Time: time.Now().Add(ahead).Unix()})
	if _, last := c.finish(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	return o
}

// certificate gives the kubelet one that ends then, and returns its end.
func (o *outage) certificate(t *testing.T, ends time.Duration) int64 {
	t.Helper()
	end := time.Now().Add(ends)
	o.certify(t, end)
	return end.Unix()
}

// certify gives the kubelet one that ends at a time.
func (o *outage) certify(t *testing.T, end time.Time) {
	t.Helper()
	text, _ := o.ca.Issue(t, end)
	if err := os.WriteFile(filepath.Join(o.agent.StateDir, kubeadm.ClientCertificate), text, 0o600); err != nil {
		t.Fatal(err)
	}
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
	end := time.Now().Add(-time.Hour) // by the machine's clock alone: its verifier says that it is 1970
	// In this order: between the two, the agent would see a certificate that has ended by its verifier's clock.
	if err := o.agent.writeMark(mark{Role: hullmark.Worker, Began: 1000, Ready: 2000, Ends: end.Unix()}); err != nil {
		t.Fatal(err)
	}
	o.certify(t, end)
	if o.restarts() || o.document(t).Condition != nil {
		t.Error("the machine's clock restarts it")
	}
}

// One join service whose host set its clock ahead: a worker that comes back by it would restart with a certificate that is
// good, again and again.
func TestClockOfOneServiceRestartsNothing(t *testing.T) {
	const hour = time.Hour
	t.Run("days ahead, with the certificate that the machine had", func(t *testing.T) {
		o := outAhead(t, hullmark.Worker, kubeadm.CertificateLife, 96*hour)
		o.ready.Store(http.StatusOK)
		o.condition(t, "clock-disagrees")
		if o.restarts() {
			t.Error("it restarts, with a certificate that the API server took at Ready")
		}
	})
	t.Run("with the certificate of this boot's token", func(t *testing.T) {
		o := outAhead(t, hullmark.Worker, kubeadm.CertificateLife, 48*hour)
		o.ready.Store(http.StatusOK)
		o.certificate(t, kubeadm.CertificateLife+time.Second) // The kubelet has a new one.
		o.noticed(t)
		o.machine.SetUptime(hour + 30*hour) // by the service's clock it ended 6 hours ago
		o.condition(t, "clock-disagrees")
		if o.restarts() {
			t.Fatal("it restarts, with a certificate that is good for two days")
		}
		o.certificate(t, 100*hour) // It was renewed in time.
		o.await(t, "no condition", func(d Document) bool { return d.Condition == nil })
	})
	t.Run("positive control: a certificate of this boot that was not renewed", func(t *testing.T) {
		o := out(t, hullmark.Worker, kubeadm.CertificateLife)
		o.ready.Store(http.StatusOK)
		o.certificate(t, kubeadm.CertificateLife+time.Second)
		o.noticed(t)
		o.machine.SetUptime(hour + o.life(t) + time.Minute)
		if !o.restarts() {
			t.Error("it does not restart although its certificate has ended")
		}
	})
}

// mark is what the agent keeps of this boot.
func (o *outage) mark(t *testing.T) (m mark) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(o.agent.RunDir, readyMark))
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// noticed waits until the agent has seen that a certificate came.
func (o *outage) noticed(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); o.mark(t).Came == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the agent does not see that the kubelet has a new certificate")
		}
	}
}

// life is that of the certificate that the kubelet has.
func (o *outage) life(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(o.agent.StateDir, kubeadm.ClientCertificate))
	if err != nil {
		t.Fatal(err)
	}
	begins, ends, err := pemcert.Span(text)
	if err != nil {
		t.Fatal(err)
	}
	return ends.Sub(begins)
}

// Who answers has to be of the node's cluster.
func TestUnauthenticatedPeersRestartNothing(t *testing.T) {
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
