package joinservice_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/measurements"
)

// about asks the site's service about an operator, as a node does.
func (s *site) about(t *testing.T, ask *wire.OperatorAsk) *wire.OperatorAnswer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer, err := nodetest.AskOperator(ctx, s.address, s.cluster.ID(), ask)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// A join service says of an operator what the policy in force does, from the moment at which it is.
func TestServiceKnowsOperators(t *testing.T) {
	s := newSite(t)
	alice := hullmark.Operator{Name: "alice", Key: hullmark.OperatorKey{1}, May: []hullmark.Permission{hullmark.MayLook}}
	bob := hullmark.Operator{Name: "bob", Key: hullmark.OperatorKey{2}, May: []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}}
	ask := func(o hullmark.Operator, verb string) *wire.OperatorAsk {
		return &wire.OperatorAsk{Key: o.Key[:], Name: o.Name, Verb: verb, Policy: 7}
	}
	wants := func(what string, a *wire.OperatorAnswer, code string) {
		t.Helper()
		if a.GetMay() != (code == "") || a.GetDenied().GetCode() != code {
			t.Errorf("%s: %v, want %q", what, a, code)
		}
		if err := wire.CheckOperatorAnswer(a); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	wants("without operators", s.about(t, ask(alice, "status")), "operator-withdrawn")
	s.accept(t, func(p *measurements.Policy) { p.Operators = []hullmark.Operator{alice, bob} }, "image")
	wants("status", s.about(t, ask(alice, "status")), "")
	wants("logs", s.about(t, ask(alice, "logs")), "")
	wants("recover", s.about(t, ask(bob, "recover")), "")
	for what, c := range map[string]struct {
		ask  *wire.OperatorAsk
		code string
	}{
		"what needs another permission": {ask(alice, "recover"), "operator-not-permitted"},
		"what needs the cluster file":   {ask(alice, "update"), "operator-not-permitted"},
		"what is no verb":               {ask(alice, "look"), "operator-not-permitted"},
		"a key of nobody":               {ask(hullmark.Operator{Name: "alice", Key: hullmark.OperatorKey{9}}, "status"), "operator-withdrawn"},
		"a key that is short":           {&wire.OperatorAsk{Key: make([]byte, 31), Name: "alice", Verb: "status"}, "operator-unknown"},
		"no name":                       {ask(hullmark.Operator{Key: alice.Key}, "status"), "operator-unknown"},
		"a name that writes lines":      {ask(hullmark.Operator{Name: "a\nb", Key: alice.Key}, "status"), "operator-unknown"},
		"a name without end":            {ask(hullmark.Operator{Name: strings.Repeat("a", wire.MaxText+1), Key: alice.Key}, "status"), "operator-unknown"},
	} {
		wants(what, s.about(t, c.ask), c.code)
	}
	s.accept(t, func(p *measurements.Policy) { p.OperatorsFrom = p.Version }, "image")
	if from := s.policy.Policy().OperatorsFrom; from >= 7 {
		t.Fatalf("the policy refuses certificates of version 7: %d", from)
	}
	old := ask(alice, "status")
	old.Policy = s.policy.Policy().OperatorsFrom - 1
	wants("a certificate of an earlier time", s.about(t, old), "operator-revoked")
	wants("a later one", s.about(t, ask(alice, "status")), "")
	s.accept(t, func(p *measurements.Policy) { p.Operators = []hullmark.Operator{bob} }, "image")
	wants("withdrawn", s.about(t, ask(alice, "status")), "operator-withdrawn")
	// An older policy that names him is refused, as ever.
	again := s.policy.Policy()
	again.Version, again.Operators, again.Documents = again.Version-1, []hullmark.Operator{alice}, nil
	if taken, err := s.policy.Offer(signed(t, s.cluster, again, "image")); taken || err == nil {
		t.Errorf("an older policy was taken: %v", err)
	}
	wants("after that", s.about(t, ask(alice, "status")), "operator-withdrawn")
}
