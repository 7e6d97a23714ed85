package firstboot

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/kubeadm"
)

const clientCertificate = "/var/lib/kubelet/pki/kubelet-client-2026.pem"

// kubelet puts on the stage's disk what a kubelet knows itself by.
func (s *stage) kubelet(t *testing.T) {
	t.Helper()
	for _, name := range []string{kubeletConf, clientCertificate} {
		file, err := onState(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(s.agent.StateDir+"/var/lib/kubelet/pki", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.agent.StateDir+"/"+file, []byte("ended"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *stage) has(name string) bool {
	_, err := s.agent.readState(name)
	return err == nil
}

// A worker whose certificate has ended lets its kubelet ask for another with the token that Proceed brings, and keeps no token.
func TestRejoinBootstrapsAnew(t *testing.T) {
	s := newStage(t)
	s.comeBack(t, "kubelet.conf")
	s.kubelet(t)
	s.disk.Opened.CertificateEnds = 1767225600
	service := s.service(t)
	s.dials(t, service.address)
	s.machine.Started = func(unit string) {
		if unit != kubeletUnit {
			return
		}
		if s.has(kubeletConf) || s.has(clientCertificate) || !s.has(kubeadm.BootstrapFile) {
			t.Error("the kubelet starts with what has ended, or without a token")
		}
		s.put(t, map[string][]byte{kubeletConf: []byte("new")}) // as kubelets do
	}
	s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	if ends := c.receive().GetOpened().GetCertificateEnds(); ends != 1767225600 {
		t.Errorf("Opened says that the certificate ends at %d", ends)
	}
	c.proceedWith(&wire.Proceed{
		NodeName: "node-1", Role: string(hullmark.Worker), Endpoint: "192.0.2.7:6443",
		Files: []*wire.File{{Path: kubeadm.BootstrapFile, Content: []byte("token"), Mode: 0o600}},
	})
	if _, last := c.finish(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if !s.machine.Has("start " + kubeletUnit) {
		t.Error("the kubelet was not started")
	}
	if s.has(kubeadm.BootstrapFile) {
		t.Error("the token stays")
	}
	if d := s.await(t, "Ready", func(d Document) bool { return d.Ready }); d.Condition != nil {
		t.Errorf("condition %v", d.Condition)
	}
}

// One that lives is left alone; what an earlier boot left of a token is not.
func TestRejoinKeepsItsCertificate(t *testing.T) {
	s := newStage(t)
	s.comeBack(t, "kubelet.conf")
	s.kubelet(t)
	s.put(t, map[string][]byte{kubeadm.BootstrapFile: []byte("token")})
	if last := s.again(t, hullmark.Worker, ""); !last.GetReady() {
		t.Fatal(last)
	}
	if !s.has(clientCertificate) || !s.has(kubeletConf) || s.has(kubeadm.BootstrapFile) {
		t.Error("the kubelet's certificate is gone, or an old token is there still")
	}
}

// A token is for a worker that comes back by a join service.
func TestBootstrapIsChecked(t *testing.T) {
	p := func(role hullmark.Role) *wire.Proceed {
		return &wire.Proceed{Role: string(role), Files: []*wire.File{{Path: kubeadm.BootstrapFile, Mode: 0o600}}}
	}
	rejoin := func() *opened { return openedBy(hullmark.Rejoin, "192.0.2.7:7444", true) }
	fresh, operator := openedBy(hullmark.Join, "192.0.2.7:7444", false), openedBy(hullmark.Recover, "", true)
	if err := rejoin().checkBootstrap(p(hullmark.Worker)); err != nil {
		t.Errorf("a worker that comes back: %v", err)
	}
	for name, err := range map[string]error{
		"control plane": rejoin().checkBootstrap(p(hullmark.ControlPlane)), "join": fresh.checkBootstrap(p(hullmark.Worker)), "operator": operator.checkBootstrap(p(hullmark.Worker)),
	} {
		if err == nil || !strings.Contains(err.Error(), "bootstrap token") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A control plane has what it takes to make its kubelet another certificate, and needs no token.
func TestControlPlanesKubeletIsMadeAnew(t *testing.T) {
	for name, c := range map[string]struct {
		end time.Time
		due bool
	}{"ended": {time.Now().Add(-time.Hour), true}, "lives": {time.Now().Add(time.Hour), false}} {
		s, ca := returning(t, time.Now().Add(year))
		s.kubelet(t)
		text, _ := ca.Issue(t, c.end)
		for file, content := range map[string][]byte{kubeletConf: ca.Kubeconfig(t, "192.0.2.7:6443"), kubeadm.ClientCertificate: text} {
			path, err := onState(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.agent.StateDir+"/"+path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.cluster.Remade = ca.ControlPlaneDisk(t, "192.0.2.7:6443", time.Now().Add(year), "kubernetes", "192.0.2.7")
		s.cluster.Remade[kubeletConf] = ca.Kubeconfig(t, "192.0.2.7:6443")
		if last := s.again(t, hullmark.ControlPlane, "192.0.2.7:6443"); !last.GetReady() {
			t.Fatalf("%s: last = %v", name, last)
		}
		if (len(s.cluster.Renewals) == 1) != c.due || s.has(clientCertificate) == c.due || !s.has(kubeletConf) {
			t.Errorf("%s: renewed %d times; the old certificate is there: %v", name, len(s.cluster.Renewals), s.has(clientCertificate))
		}
		if d := s.document(t); d.Condition != nil {
			t.Errorf("%s: condition %v", name, d.Condition)
		}
	}
}
