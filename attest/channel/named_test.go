package channel_test

import (
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
)

// A named operator's leaf says who he is, and the root's chain carries it; what is no such leaf is none.
func TestNamedOperatorsLeaf(t *testing.T) {
	a := newAuthority(t)
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	made, err := channel.NewNamedOperator(a.root, a.rootKey, channel.Named{Name: "alice", May: []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}, Policy: 7, Ends: ends})
	if err != nil {
		t.Fatal(err)
	}
	n, ok, err := channel.LeafNamed(made.Leaf)
	if err != nil || !ok || n.Name != "alice" || !slices.Equal(n.May, []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}) || n.Policy != 7 || !n.Ends.Equal(ends) ||
		n.Key != hullmark.OperatorKeyOf(made.Leaf.RawSubjectPublicKeyInfo) {
		t.Errorf("%+v, %v, %v", n, ok, err)
	}
	if err := channel.CheckOperator([]*x509.Certificate{made.Leaf, a.root}, a.id()); err != nil {
		t.Error(err)
	}
	if _, err := channel.LeafScope(made.Leaf); err == nil {
		t.Error("it is taken for a leaf of whoever holds the root key")
	}
	if _, ok, err := channel.LeafNamed(a.operator(t).Leaf); ok || err != nil {
		t.Errorf("a leaf for init is taken for a named operator's: %v", err)
	}
	for name, n := range map[string]channel.Named{
		"no permission":                {Name: "alice"},
		"an unknown permission":        {Name: "alice", May: []hullmark.Permission{"policy"}},
		"one twice":                    {Name: "alice", May: []hullmark.Permission{hullmark.MayLook, hullmark.MayLook}},
		"out of order":                 {Name: "alice", May: []hullmark.Permission{hullmark.MayRecover, hullmark.MayLook}},
		"recover without look":         {Name: "alice", May: []hullmark.Permission{hullmark.MayRecover}},
		"a permission with a colon":    {Name: "alice", May: []hullmark.Permission{"look:9"}},
		"no name":                      {May: []hullmark.Permission{hullmark.MayLook}},
		"a long name":                  {Name: strings.Repeat("a", 33), May: []hullmark.Permission{hullmark.MayLook}},
		"a name that begins badly":     {Name: "-a", May: []hullmark.Permission{hullmark.MayLook}},
		"a name in capitals":           {Name: "Alice", May: []hullmark.Permission{hullmark.MayLook}},
		"the name of nobody":           {Name: "root", May: []hullmark.Permission{hullmark.MayLook}},
		"a name that is a leaf's part": {Name: "alice:look", May: []hullmark.Permission{hullmark.MayLook}},
	} {
		n.Ends = ends
		odd, err := channel.NewNamedOperator(a.root, a.rootKey, n)
		if err != nil {
			continue
		}
		if err := channel.CheckOperator([]*x509.Certificate{odd.Leaf, a.root}, a.id()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A verb needs its permission, a certificate that has not ended, and what the policy grants by now.
func TestNamedOperatorMay(t *testing.T) {
	now := time.Now()
	n := channel.Named{Name: "alice", May: []hullmark.Permission{hullmark.MayLook}, Key: hullmark.OperatorKey{1}, Ends: now.Add(time.Hour)}
	both := n
	both.May = []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}
	for verb, c := range map[channel.Verb]struct{ look, both string }{
		channel.VerbStatus: {}, channel.VerbLogs: {}, channel.VerbRecover: {look: "operator-not-permitted"},
		channel.VerbInit: {"operator-not-permitted", "operator-not-permitted"}, channel.VerbBegin: {"operator-not-permitted", "operator-not-permitted"},
		channel.VerbUpdate: {"operator-not-permitted", "operator-not-permitted"}, "": {"operator-not-permitted", "operator-not-permitted"},
	} {
		wantCode(t, string(verb)+" by look", n.Check(verb, now), c.look)
		wantCode(t, string(verb)+" by both", both.Check(verb, now), c.both)
		wantCode(t, string(verb)+" by a policy that grants both", n.PermitBy([]hullmark.Operator{{Name: "alice", Key: n.Key, May: both.May}}, verb), c.both)
		wantCode(t, string(verb)+" by a policy that grants look", both.PermitBy([]hullmark.Operator{{Name: "alice", Key: n.Key, May: n.May}}, verb), c.look)
	}
	wantCode(t, "a certificate that has ended", both.Check(channel.VerbStatus, now.Add(2*time.Hour)), "operator-expired")
	wantCode(t, "another key under the name", n.PermitBy([]hullmark.Operator{{Name: "alice", Key: hullmark.OperatorKey{2}, May: both.May}}, channel.VerbStatus), "operator-withdrawn")
	wantCode(t, "no operators", n.PermitBy(nil, channel.VerbStatus), "operator-withdrawn")
	if err := n.Check(channel.VerbRecover, now); err == nil || !strings.Contains(err.Error(), `recover needs the permission "recover"`) {
		t.Errorf("%v names neither the verb nor what is missing", err)
	}
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	var c *hullmark.Condition
	if (err == nil) != (code == "") || err != nil && (!errors.As(err, &c) || c.Code != code || c.Next == "") {
		t.Errorf("%s: got %v, want %q", what, err, code)
	}
}
