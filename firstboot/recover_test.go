package firstboot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/kubeadm/run"
)

// recoverNode calls for recover and plays it to its end.
func (s *stage) recoverNode(t *testing.T, address string) *wire.Progress {
	t.Helper()
	c := dial(t, recoverer(t, address, s))
	c.kind = hullmark.Recover
	c.ticket(c.admit(s))
	if opened := c.receive(); opened.GetOpened() == nil {
		return opened.GetProgress()
	} else if opened.GetOpened().GetEpochRead() != 5 {
		t.Errorf("opened = %v", opened)
	}
	p := controlPlane()
	p.Manifests = nil
	c.proceedWith(p)
	_, last := c.rest()
	return last
}

// A control plane comes back without a record; once the API answers, its disk's epoch is compared with the one recorded there.
func TestRecover(t *testing.T) {
	for record, code := range map[run.DiskRecord]string{
		{Disk: hullmark.UUID{1}, Committed: 5, Issued: 6}: "",
		{Disk: hullmark.UUID{1}, Committed: 4, Issued: 5}: "",
		{Disk: hullmark.UUID{1}, Committed: 6, Issued: 6}: "rollback-detected",
		{Disk: hullmark.UUID{1}, Committed: 3, Issued: 4}: "rollback-detected",
	} {
		s := newStage(t)
		s.comeBack(t, "admin.conf")
		s.cluster.Record = record
		address, _ := s.serve(t)
		if last := s.recoverNode(t, address); !last.GetReady() {
			t.Fatalf("last = %v", last)
		}
		if !s.disk.Grants[0].Epoch.Unchecked || s.disk.Grants[0].FormatAllowed || len(s.cluster.Works) != 0 {
			t.Errorf("grant %+v, kubeadm ran %d times", s.disk.Grants[0].Epoch, len(s.cluster.Works))
		}
		if boot, err := os.ReadFile(filepath.Join(s.agent.RunDir, recoveredFile)); err != nil || len(boot) < 16 {
			t.Errorf("the join service is told of the boot: %q, %v", boot, err)
		}
		if !s.machine.Has("start "+joinServiceUnit) || !s.machine.Has("start "+kubeletUnit) {
			t.Errorf("machine did %q", s.machine.Did())
		}
		d := s.document(t)
		if got := d.Condition; !d.Ready || (got == nil) != (code == "") || got != nil && got.Code != code {
			t.Errorf("status = %+v, want Ready and %q", d, code)
		}
		if code != "" && !strings.Contains(s.console.String(), code) {
			t.Errorf("the console says %q", s.console)
		}
	}
}

func TestRecoverOfAnotherDisk(t *testing.T) {
	f := &finishing{grant: hullmark.DiskGrant{UUID: hullmark.UUID{1}}, disk: statedisk.Opened{EpochRead: 9}}
	if c := f.rolledBack(run.DiskRecord{Disk: hullmark.UUID{2}, Committed: 1}); c == nil || c.Code != "rollback-detected" {
		t.Errorf("condition = %v", c)
	}
}

// There must be a node to recover.
func TestRecoverRefuses(t *testing.T) {
	for code, spoil := range map[string]func(*stage){
		"disk-not-ready":  func(s *stage) { s.disk.Claim.State = hullmark.DiskBlank },
		"not-initialised": func(s *stage) { s.disk.Opened.Joined = false },
	} {
		s := newStage(t)
		s.comeBack(t, "admin.conf")
		spoil(s)
		address, _ := s.serve(t)
		var last *wire.Progress
		if code == "disk-not-ready" {
			c := dial(t, recoverer(t, address, s))
			c.kind = hullmark.Recover
			if err := c.call(); err != nil {
				t.Fatal(err)
			}
			_, last = c.rest()
		} else {
			last = s.recoverNode(t, address)
		}
		if last.GetFailed().GetCode() != code {
			t.Errorf("last = %v, want %s", last, code)
		}
		if r := s.registers(t); r[attest.FuseRegister] != [32]byte{} {
			t.Error("the fuse was blown")
		}
	}
}

// Only who comes back may put the comparison off, and of these only a control plane.
func TestUncheckedEpochsAreForControlPlanes(t *testing.T) {
	s := newStage(t)
	address, _ := s.serve(t)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	ticket := ticketOf(hullmark.Init, c.admit(s))
	ticket.GetTicket().Unchecked = true
	c.send(ticket)
	if _, last := c.rest(); last.GetFailed().GetCode() != "ticket-mismatch" {
		t.Errorf("init: last = %v", last)
	}

	s = newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.comeBack(t, "kubelet.conf")
	s.serve(t)
	c = service.accept()
	ticket = ticketOf(hullmark.Rejoin, c.admit(s))
	ticket.GetTicket().Unchecked = true
	c.send(ticket)
	c.receive()
	c.proceedWith(&wire.Proceed{NodeName: "node-1", Role: string(hullmark.Worker)})
	if _, last := c.finish(); last.GetFailed().GetCode() != "proceed-refused" {
		t.Errorf("a worker's rejoin: last = %v", last)
	}
}

// A join service that does not start is said aloud, and the control plane comes up.
func TestJoinServiceDown(t *testing.T) {
	s := newStage(t)
	s.machine.Fail = "start " + joinServiceUnit
	address, _ := s.serve(t)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	c.ticket(c.admit(s))
	c.receive()
	c.proceed()
	if _, last := c.rest(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	if d := s.document(t); !d.Ready || d.Condition == nil || d.Condition.Code != "join-service-down" {
		t.Errorf("status = %+v", d)
	}
	if _, last := dial(t, operator(t, address, s.root, s.rootKey)).rest(); last != nil {
		t.Errorf("a second exchange: %v", last)
	}
}

// A disk's files have the names that programs see; a kubelet's certificate is a link.
func TestReadState(t *testing.T) {
	s := newStage(t)
	pki := s.agent.StateDir + "/var/lib/kubelet/pki"
	if err := errors.Join(
		os.MkdirAll(pki, 0o755), os.Symlink("/var/lib/kubelet/pki/dated.pem", pki+"/current.pem"), os.Symlink("dated.pem", pki+"/relative.pem"),
		os.Symlink("/etc/shadow", pki+"/out.pem"), os.WriteFile(pki+"/dated.pem", []byte("pem"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"current", "relative", "dated"} {
		if got, err := s.agent.readState("/var/lib/kubelet/pki/" + name + ".pem"); err != nil || string(got) != "pem" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"/var/lib/kubelet/pki/out.pem", "/usr/bin/kubelet", "/var/../etc/shadow"} {
		if got, err := s.agent.readState(name); err == nil {
			t.Errorf("%s: read %d bytes", name, len(got))
		}
	}
}
