package hullmark

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParsePermissions(t *testing.T) {
	for list, says := range map[string]string{
		"look": "", "look,recover": "", "change,look": "", "change,look,recover": "", "change": "permission change comes without look", "recover": "permission recover comes without look",
		"": `permission "" is unknown; there are: change,look,recover`, "look,": "unknown", "policy": `permission "policy" is unknown`, "look,look": "comes twice, or out of order",
		"recover,look": "out of order", "Look": "unknown", " look": "unknown", strings.Repeat("look,", 1000) + "look": "comes twice",
	} {
		read, err := ParsePermissions(list)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v, want %q", list, err, says)
		}
		if err == nil && FormatPermissions(read) != list {
			t.Errorf("%q came back as %q", list, FormatPermissions(read))
		}
	}
}

func TestCheckOperators(t *testing.T) {
	alice := Operator{Name: "alice", Key: OperatorKey{1}, May: []Permission{MayLook}}
	bob := Operator{Name: "bob", Key: OperatorKey{2}, May: []Permission{MayLook, MayRecover}}
	change := func(o Operator, edit func(*Operator)) Operator { edit(&o); return o }
	many := func(n int) (all []Operator) {
		for i := range n {
			all = append(all, Operator{Name: "o" + strings.Repeat("x", i%30) + string(rune('a'+i/30)), Key: OperatorKey{9, byte(i)}, May: []Permission{MayLook}})
		}
		return all
	}
	for name, c := range map[string]struct {
		all  []Operator
		says string
	}{
		"none":                        {nil, ""},
		"two":                         {[]Operator{alice, bob}, ""},
		"as many as there may be":     {many(MaxOperators), ""},
		"one more":                    {many(MaxOperators + 1), "want at most 64"},
		"a name twice":                {[]Operator{alice, change(bob, func(o *Operator) { o.Name = "alice" })}, "alice is there twice"},
		"a key under two names":       {[]Operator{alice, change(bob, func(o *Operator) { o.Key = alice.Key })}, "alice and bob have the same key"},
		"no key":                      {[]Operator{change(alice, func(o *Operator) { o.Key = OperatorKey{} })}, "has no key"},
		"no permission":               {[]Operator{change(alice, func(o *Operator) { o.May = nil })}, "no permission"},
		"an unknown permission":       {[]Operator{change(alice, func(o *Operator) { o.May = []Permission{"policy"} })}, `"policy" is unknown`},
		"a permission twice":          {[]Operator{change(alice, func(o *Operator) { o.May = []Permission{MayLook, MayLook} })}, "comes twice"},
		"recover without look":        {[]Operator{change(bob, func(o *Operator) { o.May = []Permission{MayRecover} })}, "comes without look"},
		"no name":                     {[]Operator{change(alice, func(o *Operator) { o.Name = "" })}, "name"},
		"a long name":                 {[]Operator{change(alice, func(o *Operator) { o.Name = strings.Repeat("a", 33) })}, "name"},
		"a name that writes lines":    {[]Operator{change(alice, func(o *Operator) { o.Name = "a\nb" })}, "name"},
		"a name of whoever holds all": {[]Operator{change(alice, func(o *Operator) { o.Name = "root" })}, "not root"},
	} {
		if err := CheckOperators(c.all); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// A name that is given anew is another user of the API: certificates of the earlier one open nothing.
func TestOperatorsUser(t *testing.T) {
	a, b := Operator{Name: "alice", Key: OperatorKey{1}}, Operator{Name: "alice", Key: OperatorKey{2}}
	if a.User() != "hullmark:operator:alice:0100000000000000" || a.User() == b.User() {
		t.Errorf("%s, %s", a.User(), b.User())
	}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var again Operator
	if err := json.Unmarshal(text, &again); err != nil || again.Key != a.Key {
		t.Errorf("%s came back as %+v, %v", text, again, err)
	}
	if err := json.Unmarshal([]byte(strings.Replace(string(text), `"0100`, `"01AB`, 1)), &again); err == nil {
		t.Error("a key in another spelling was read")
	}
}
