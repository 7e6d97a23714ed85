package firstboot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/waltest"
	"github.com/hullmark/hullmark/kubeadm"
)

// found is what the tests' disk says of its member of etcd: waltest.New's log.
var found = hullmark.EtcdState{Cluster: 1, Member: 2, Term: 3, Vote: 2, Commit: 8, Last: 10, LastTerm: 3}

// oldMember gives the stage the disk of a control plane that was Ready, with data of its member of etcd, and returns the name
// of a file of it.
func (s *stage) oldMember(t *testing.T) (name string) {
	t.Helper()
	s.comeBack(t, "admin.conf")
	s.disk.Opened.Etcd = found
	log := waltest.New()
	name = kubeadm.EtcdData + "/member/wal/" + log.Name
	s.etcdHas(t, name, log.Files[log.Name].Data)
	return name
}

// etcdHas writes a file of the member of etcd.
func (s *stage) etcdHas(t *testing.T, name string, content []byte) {
	t.Helper()
	path, err := onState(name)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(s.agent.StateDir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// A control plane whose member of etcd is not believed gives it up, whole, before kubeadm joins again; a boot that ends in between does not
// take what is left for a node.
func TestControlPlaneJoinsAnew(t *testing.T) {
	for _, fail := range []error{nil, errors.New("the power is cut in the midst of it")} {
		s := newStage(t)
		service := s.service(t)
		s.dials(t, service.address)
		name := s.oldMember(t)
		s.cluster.Fail = fail
		p := s.secondControlPlane(t)
		p.JoinAnew = true
		for _, f := range p.GetFiles() { // It had the same keys all along.
			if name, ok := keptName(f.GetPath()); ok {
				s.keep(name, string(f.GetContent()))
			}
		}
		s.serve(t)
		c := service.accept()
		c.ticket(c.admit(s))
		if got := c.receive().GetOpened().GetEtcd().HullmarkEtcdState(); got != found {
			t.Errorf("Opened says %+v", got)
		}
		if _, err := s.agent.readState(name); err != nil {
			t.Errorf("before Proceed: %v", err)
		}
		c.proceedWith(p)
		_, last := c.finish()
		if _, err := s.agent.readState(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the member's data: %v, want it gone", err)
		}
		for _, name := range kubeadm.ControlPlaneFiles() {
			if _, err := s.agent.readState(name); err != nil {
				t.Errorf("what Proceed brings for the join: %v", err)
			}
		}
		want := statedisk.IntentDone
		if fail != nil {
			want = statedisk.IntentStarted
		}
		if intent, err := s.agent.intent(); err != nil || intent != want || last.GetReady() != (fail == nil) || len(s.cluster.Joins) != 1 {
			t.Errorf("intent = %q, %v, want %q; last = %v, %d joins", intent, err, want, last, len(s.cluster.Joins))
		}
	}
}

// The member of a control plane that is believed stays as it is.
func TestControlPlaneKeepsItsMember(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	name := s.oldMember(t)
	s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(&wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane)})
	if _, last := c.finish(); !last.GetReady() || len(s.cluster.Joins) > 0 {
		t.Fatalf("last = %v, joins %q", last, s.cluster.Joins)
	}
	if _, err := s.agent.readState(name); err != nil {
		t.Error(err)
	}
}

// The disk is mounted twice, and its host can put older sectors under it in between: what the programs see of etcd's log is
// held to what the verifier was told before anything starts with it.
func TestEtcdBetweenTwoMounts(t *testing.T) {
	older := func() *waltest.Log {
		return (&waltest.Log{Files: fstest.MapFS{}}).Cut(0, 0).State(3, 2, 0).Entries(3, 1, 2, 3).State(3, 2, 2)
	}
	newer := func() *waltest.Log { return waltest.New().Entries(3, 11) }
	for name, c := range map[string]struct {
		log  *waltest.Log
		want bool
	}{"the same": {waltest.New(), true}, "more": {newer(), true}, "older sectors": {older(), false}, "none": {nil, false}} {
		s := newStage(t)
		service := s.service(t)
		s.dials(t, service.address)
		file := s.oldMember(t)
		s.serve(t)
		conversation := service.accept()
		conversation.ticket(conversation.admit(s))
		conversation.receive()
		if err := s.agent.removeState(file); err != nil {
			t.Fatal(err)
		}
		if c.log != nil {
			s.etcdHas(t, file, c.log.Files[c.log.Name].Data)
		}
		conversation.proceedWith(&wire.Proceed{NodeName: "node-1", Role: string(hullmark.ControlPlane)})
		_, last := conversation.finish()
		if last.GetReady() != c.want || !c.want && last.GetFailed().GetCode() != "disk-exchanged" {
			t.Errorf("%s: %v", name, last)
		}
		if started := s.machine.Has("start " + kubeletUnit); started != c.want {
			t.Errorf("%s: the kubelet was started: %t", name, started)
		}
	}
}

// openedBy is the stage of a node whose disk is open, and holds a joined node or none, by a ticket of a kind from a service, or
// from an operator.
func openedBy(kind hullmark.TicketKind, service string, joined bool) *opened {
	return &opened{
		conversation: &conversation{agent: &Agent{}, service: service}, admitted: admitted{kind: kind}, disk: statedisk.Opened{Joined: joined},
	}
}

// Nobody but a service that read the record has a control plane give its member up: no operator's exchange, and none without records.
func TestJoinAnewIsRefused(t *testing.T) {
	unchecked := openedBy(hullmark.Rejoin, "s", true)
	unchecked.grant.Epoch.Unchecked = true
	for name, o := range map[string]*opened{
		"a control plane by its record": openedBy(hullmark.Rejoin, "s", true),
		"a worker":                      openedBy(hullmark.Rejoin, "s", true),
		"an init":                       openedBy(hullmark.Init, "", true),
		"a recover":                     openedBy(hullmark.Recover, "", true),
		"a first join":                  openedBy(hullmark.Join, "s", false),
		"without records":               unchecked,
	} {
		p := &wire.Proceed{Role: string(hullmark.ControlPlane), JoinAnew: true}
		if name == "a worker" {
			p.Role = string(hullmark.Worker)
		}
		if err := o.checkAnew(p); (err == nil) != (name == "a control plane by its record") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
