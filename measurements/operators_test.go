package measurements

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
)

var alice = hullmark.Operator{Name: "alice", Key: hullmark.OperatorKey{1}, May: []hullmark.Permission{hullmark.MayLook}}

// A policy without operators is, byte for byte, what it was before policies knew any, so that earlier releases take it.
func TestPolicyWithoutOperatorsSaysNothingOfThem(t *testing.T) {
	p := testPolicy(DocumentID{5})
	without, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(without, []byte("perators")) {
		t.Errorf("it speaks of operators:\n%s", without)
	}
	p.Operators = []hullmark.Operator{}
	if empty, err := p.Encode(); err != nil || !bytes.Equal(empty, without) {
		t.Errorf("an empty list is another policy: %v", err)
	}
	spelt := bytes.Replace(without, []byte(`"members": [`), []byte(`"operators": [],`+"\n  "+`"members": [`), 1)
	if _, err := ParsePolicy(spelt); err == nil {
		t.Error("a second spelling of it was read")
	}
}

// Operators are in the policy as they were signed, strictly decoded.
func TestPolicyWithOperators(t *testing.T) {
	key, root := newRoot(t)
	p := testPolicy(DocumentID{5})
	p.Operators = []hullmark.Operator{alice}
	signed, err := SignPolicy(key, root, p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := OpenPolicy(signed, root)
	if err != nil || len(got.Operators) != 1 || got.Operators[0].Key != alice.Key || got.Operators[0].Name != "alice" {
		t.Errorf("%+v, %v", got.Operators, err)
	}
	text, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ old, new, says string }{
		"an unknown permission": {`"look"`, `"policy"`, "unknown"},
		"a permission twice":    {`"look"`, `"look", "look"`, "twice"},
		"recover without look":  {`"look"`, `"recover"`, "comes without look"},
		"no permission":         {`"look"`, ``, "no permission"},
		"a name in capitals":    {`"alice"`, `"Alice"`, "name"},
		"a field more":          {`"name": "alice"`, `"name": "alice", "root": true`, "unknown field"},
		"a key that is short":   {`"key": "01`, `"key": "`, "operator's key"},
	} {
		changed := strings.Replace(string(text), c.old, c.new, 1)
		if changed == string(text) {
			t.Errorf("%s: nothing was changed", name)
		}
		if _, err := ParseEditedPolicy([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	for name, all := range map[string][]hullmark.Operator{
		"a name twice":          {alice, {Name: "alice", Key: hullmark.OperatorKey{2}, May: alice.May}},
		"a key under two names": {alice, {Name: "bob", Key: alice.Key, May: alice.May}},
	} {
		p.Operators = all
		if _, err := SignPolicy(key, root, p); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

// What an operator signs himself is no policy: neither one that grants him more, nor one that changes anything else.
func TestOperatorSignsNoPolicy(t *testing.T) {
	own, ownRoot := newRoot(t)
	_, root := newRoot(t)
	p := testPolicy(DocumentID{5})
	p.Operators = []hullmark.Operator{alice}
	p.Operators[0].May = []hullmark.Permission{hullmark.MayLook, hullmark.MayRecover}
	signed, err := SignPolicy(own, ownRoot, p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPolicy(signed, root); err == nil {
		t.Error("a policy that an operator signed was opened")
	}
	if _, err := SignPolicy(own, root, p); err == nil {
		t.Error("it was signed for a root whose key this is not")
	}
}
