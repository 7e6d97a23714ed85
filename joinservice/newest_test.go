package joinservice_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// A service that somebody gave a number above the signed one hands nothing out, whatever the policy's number is.
func TestServiceGivesNoUnsignedKeys(t *testing.T) {
	s := newSite(t)
	s.controlPlanes(t)
	s.accept(t, func(p *measurements.Policy) { p.Rotation = 1 }, "image")
	s.service.ControlPlanes.Rotation = math.MaxUint64
	s.denied(t, "keys-unsigned", true, "holds other keys than those that the signed policy commits to", "rotation 18446744073709551615", "rotation 1")
	if len(s.records.Tokens()) != 0 {
		t.Error("a machine that was denied got a token")
	}
	s.service.ControlPlanes.Rotation = 1
	s.join(t)
	s.free(t)
}

// issuing calls a function before a token is made.
type issuing struct {
	joinservice.Tokens
	before func()
}

func (i issuing) Issue(ctx context.Context, m joinservice.Machine, confirm func(string) error) (hullmark.Secret, error) {
	i.before()
	return i.Tokens.Issue(ctx, m, confirm)
}

// storing calls a function before a record is claimed for a name, which comes after the decision and before the ticket is stored.
type storing struct {
	joinservice.Records
	before func()
}

func (s storing) Claim(ctx context.Context, name string, node hullmark.EKID) error {
	s.before()
	return s.Records.Claim(ctx, name, node)
}

// An exchange goes by one policy. If another comes into force before the ticket is recorded, that one decides; if one does
// before Proceed, the node is told to try again.
func TestOnePolicyForAnExchange(t *testing.T) {
	pool := func(p *measurements.Policy) {
		p.Members = slices.Clone(p.Members)
		p.Members[0].Pool, p.Pools = "next", []measurements.Pool{{Name: "next", Hooks: []string{"of-the-next.service"}}}
	}
	s := newSite(t)
	changes := 1
	s.service.Tokens = issuing{s.records, func() {
		if changes--; changes == 0 {
			s.accept(t, pool, "image")
		}
	}}
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	s.told(t, joinservice.CodePolicyChanged, true, "another policy came into force", "version 2", "version 1")
	if tokens := s.records.Tokens(); len(tokens) != 0 {
		t.Errorf("tokens are left: %v", tokens)
	}
	s.reboot() // it has opened its disk, and asks again
	if s.join(t); len(s.node.Proceed().GetHooks()) != 1 {
		t.Error("it is not given what the next policy gives it")
	}

	w := newSite(t)
	first := true
	w.service.Records = storing{w.records, func() {
		if first {
			first = false
			w.accept(t, func(p *measurements.Policy) {
				p.Members = slices.Clone(p.Members)
				p.Members[0].Name = "worker-2"
			}, "image")
		}
	}}
	if m := w.join(t); m.Name != "worker-2" || w.node.Proceed().GetNodeName() != "worker-2" {
		t.Errorf("it joined as %s", m.Name)
	}
	w.reboot()
	w.service.Records = storing{w.records, func() { w.accept(t, func(*measurements.Policy) {}, "image") }}
	w.denied(t, joinservice.CodePolicyChanged, true, "another policy came into force")
}

// Before each ticket the higher of the policy in force and the API's counts, not what was delivered last. While the API does
// not answer, or holds what no root of the cluster signed, what is in force does.
func TestTheAPIsPolicyCounts(t *testing.T) {
	s := newSite(t)
	var pushed joinservice.SignedPolicy
	var down error
	s.service.Newest = func(context.Context, []byte) (joinservice.SignedPolicy, error) { return pushed, down }
	s.join(t)
	s.reboot()
	s.node.Reboot(t, "image")

	old := s.policy.Signed()
	pushed = s.next(t, func(p *measurements.Policy) { p.Members = nil }, "image")
	down = errors.New("connection refused")
	s.join(t) // an outage is not a way to another policy, nor one to none
	s.reboot()
	s.node.Reboot(t, "image")
	down = nil
	s.denied(t, "not-a-member", false, "no membership rule admits this machine")
	if v := s.policy.Policy().Version; v != 2 {
		t.Errorf("version %d is in force", v)
	}
	pushed = old
	s.refused(t, "not-a-member", "no membership rule admits this machine")
	foreign := newSite(t)
	pushed = foreign.next(t, func(p *measurements.Policy) { p.Version = 9 }, "image")
	s.accept(t, func(p *measurements.Policy) { p.Members = []measurements.Member{worker(s.node.ID)} }, "image")
	if s.join(t); s.policy.Policy().Version != 3 || !s.journal.says("the API's policy is not taken") {
		t.Errorf("version %d is in force", s.policy.Policy().Version)
	}
	if !strings.Contains(s.machine(t).Name, "worker-1") {
		t.Error("another machine was admitted")
	}
}
