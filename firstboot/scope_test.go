package firstboot

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/measurements"
)

// A leaf opens the one verb that it was made for, and no other machine than it names.
func TestOperatorsLeafIsForOneScope(t *testing.T) {
	s := newStage(t)
	address, _ := s.serve(t)
	as := func(e channel.Scope) wire.NodeClient { return dialAs(t, address, s.root, s.rootKey, e) }
	for _, held := range []channel.Verb{channel.VerbInit, channel.VerbRecover, channel.VerbStatus, channel.VerbLogs} {
		client := as(channel.Scope{Verb: held})
		_, err := client.Status(t.Context(), &wire.StatusRequest{})
		if (status.Code(err) == codes.PermissionDenied) != (held != channel.VerbStatus) {
			t.Errorf("status by a leaf for %s: %v", held, err)
		}
		logs, err := client.Journal(t.Context(), &wire.JournalRequest{})
		if err == nil {
			_, err = logs.Recv()
		}
		if (status.Code(err) == codes.PermissionDenied) != (held != channel.VerbLogs) {
			t.Errorf("logs by a leaf for %s: %v", held, err)
		}
		if held == channel.VerbInit {
			continue
		}
		c := dial(t, client)
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
		if _, last := c.rest(); last.GetFailed().GetCode() != "call-refused" || !strings.Contains(last.GetFailed().GetGot(), string(held)) {
			t.Errorf("init by a leaf for %s: %v", held, last)
		}
	}
	other := dial(t, as(channel.Scope{Verb: channel.VerbInit, EKID: hullmark.EKID{1}}))
	if err := other.call(); err != nil {
		t.Fatal(err)
	}
	if _, last := other.rest(); last.GetFailed().GetCode() != "call-refused" {
		t.Errorf("a leaf for another machine: %v", last)
	}
	own := s.node(t)
	c := dial(t, as(channel.Scope{Verb: channel.VerbInit, EKID: own}))
	c.ticket(c.admit(s))
	c.receive()
	c.proceed()
	if _, last := c.rest(); !last.GetReady() {
		t.Errorf("a leaf for this machine: %v", last)
	}
}

// node is the stage's machine.
func (s *stage) node(t *testing.T) hullmark.EKID {
	t.Helper()
	d := s.document(t)
	if d.EKID == nil {
		t.Fatal("the node does not know its TPM yet")
	}
	return *d.EKID
}

// A policy on the node's disk, or among what it is brought, refuses leaves of an earlier time; the newest cluster file's are taken.
func TestPolicyRevokesOperatorsLeaves(t *testing.T) {
	revoking := set{version: 7, number: 1, keyset: "own", edit: func(p *measurements.Policy) { p.OperatorsFrom = 7 }}
	for version, ready := range map[uint64]bool{6: false, 7: true} {
		s, _ := returning(t, time.Now().Add(year))
		s.holds(t, s.signed(t, revoking))
		address, _ := s.serve(t)
		c := dial(t, dialAs(t, address, s.root, s.rootKey, channel.Scope{Verb: channel.VerbRecover, Policy: version}))
		c.kind = hullmark.Recover
		c.ticket(c.admit(s))
		c.receive()
		p := controlPlane()
		p.Manifests = nil
		c.proceedWith(p)
		if _, last := c.rest(); last.GetReady() != ready || !ready && last.GetFailed().GetCode() != "operator-revoked" {
			t.Errorf("a leaf of version %d: %v", version, last)
		}
		talk, of := &conversation{agent: s.agent}, admitted{scope: channel.Scope{Policy: version}}
		if err := (&opened{conversation: talk, admitted: of}).checkOperator(s.signed(t, revoking)); (err == nil) != ready {
			t.Errorf("a leaf of version %d, by the policy that is brought: %v", version, err)
		}
		if err := (&finishing{conversation: talk, admitted: of}).checkOperator(); (err == nil) != ready {
			t.Errorf("a leaf of version %d, by the policy on the disk: %v", version, err)
		}
	}
}

// A leaf that was lent begins a cluster on its machine, and opens no disk that is in use.
func TestLentLeafBegins(t *testing.T) {
	for name, c := range map[string]struct {
		joined bool
		code   string
	}{"a new machine": {}, "one whose init was cut off": {false, "already-begun"}, "one that was Ready": {true, "already-begun"}} {
		s := newStage(t)
		if c.code != "" {
			s.comeBack(t, "admin.conf")
			s.disk.Opened.Joined = c.joined
		}
		address, _ := s.serve(t)
		elsewhere := dial(t, dialAs(t, address, s.root, s.rootKey, channel.Scope{Verb: channel.VerbBegin, EKID: hullmark.EKID{1}}))
		if err := elsewhere.call(); err != nil {
			t.Fatal(err)
		}
		if _, last := elsewhere.rest(); last.GetFailed().GetCode() != "call-refused" {
			t.Errorf("%s: a leaf for another machine: %v", name, last)
		}
		begin := channel.Scope{Verb: channel.VerbBegin, EKID: s.node(t)}
		for _, refused := range []func(wire.NodeClient) error{
			func(n wire.NodeClient) error { _, err := n.Status(t.Context(), &wire.StatusRequest{}); return err },
			func(n wire.NodeClient) error {
				logs, err := n.Journal(t.Context(), &wire.JournalRequest{})
				if err == nil {
					_, err = logs.Recv()
				}
				return err
			},
			func(n wire.NodeClient) error {
				replies, err := n.Update(t.Context(), &wire.UpdateOrder{})
				if err == nil {
					_, err = replies.Recv()
				}
				return err
			},
		} {
			if err := refused(dialAs(t, address, s.root, s.rootKey, begin)); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: another verb: %v", name, err)
			}
		}
		d := dial(t, dialAs(t, address, s.root, s.rootKey, begin))
		if c.code == "" {
			d.ticket(d.admit(s))
			d.receive()
			d.proceed()
		} else if err := d.call(); err != nil { // refused before it says who it is
			t.Fatal(err)
		}
		if _, last := d.rest(); last.GetReady() != (c.code == "") || last.GetFailed().GetCode() != c.code {
			t.Errorf("%s: %v", name, last)
		}
		if r := s.registers(t); (r[attest.FuseRegister] == [32]byte{}) != (c.code != "") {
			t.Errorf("%s: the fuse is %x", name, r[attest.FuseRegister])
		}
	}
}

// A leaf for begin names its machine: one that names none would open any.
func TestLentLeafNamesItsMachine(t *testing.T) {
	s := newStage(t)
	address, _ := s.serve(t)
	client := dialAs(t, address, s.root, s.rootKey, channel.Scope{Verb: channel.VerbBegin})
	if _, err := client.Status(t.Context(), &wire.StatusRequest{}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "bad certificate") {
		t.Errorf("the handshake: %v", err)
	}
}
