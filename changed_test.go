package hullmark

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func keyName(t *testing.T, key *ecdsa.PrivateKey) OperatorKey {
	t.Helper()
	spki, err := spkiOf(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return OperatorKeyOf(spki)
}

// editable is a policy whose parts a test changes.
type editable map[string]any

func (e editable) with(name string, value any) editable {
	next := maps.Clone(e)
	if next[name] = value; value == nil {
		delete(next, name)
	}
	return next
}

func (e editable) encode(t *testing.T) []byte {
	t.Helper()
	encoded, err := CanonicalJSON(e)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// An operator changes what he may, of the last policy that the root signed, and nothing else.
func TestOperatorsSignWhatTheyMayChange(t *testing.T) {
	root, dora, alice, stranger := newKey(t), newKey(t), newKey(t), newKey(t)
	plane, worker := map[string]any{"role": "control-plane", "name": "control-plane-1"}, map[string]any{"role": "worker", "name": "worker-1"}
	base := editable{
		"schema": "a policy", "version": 7, "minimumSVN": 3, "documents": []any{"a"}, "members": []any{plane, worker}, "keys": "k", "pools": []any{"p"},
		"operators": []Operator{
			{Name: "alice", Key: keyName(t, alice), May: []Permission{MayLook}},
			{Name: "dora", Key: keyName(t, dora), May: []Permission{MayChange, MayLook}},
		},
	}
	last, err := SignPolicyDocument(root, base.encode(t))
	if err != nil {
		t.Fatal(err)
	}
	if next, err := last.NextVersion(); err != nil || next != 7+ChangesPerPolicy {
		t.Errorf("the root's next version is %d, %v", next, err)
	}
	legal := map[string]editable{
		"documents": base.with("documents", []any{"a", "b"}), "none": base.with("documents", []any{}), "a worker": base.with("members", []any{plane, worker, map[string]any{"role": "worker", "name": "worker-2"}}),
		"without a worker": base.with("members", []any{plane}), "a group": base.with("groups", []any{"g"}), "a denied machine": base.with("denied", []any{"d"}), "a security version": base.with("minimumSVN", 4),
	}
	for what, policy := range legal {
		s, err := SignChangedPolicy(dora, last, policy.with("version", 8).encode(t))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		encoded, err := CanonicalJSON(s)
		if err != nil {
			t.Fatal(err)
		}
		read, err := ParseSigned(encoded, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read.Open(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if who, ok := read.Changer(); !ok || who.Name != "dora" || read.Root() != last.Root() || !read.FollowsSame(last) {
			t.Errorf("%s: changed by %+v, %t, root %v", what, who, ok, read.Root())
		}
		if next, err := read.NextVersion(); err != nil || next != 7+ChangesPerPolicy {
			t.Errorf("%s: the root's next version is %d, %v", what, next, err)
		}
		again, err := SignChangedPolicy(dora, read, base.with("version", 9).encode(t))
		if err != nil || !again.FollowsSame(read) {
			t.Errorf("%s: a change of a change: %v", what, err)
		}
	}
	changed := base.with("version", 8)
	reserved := map[string]editable{
		"the same version": base, "a lower version": base.with("version", 6), "a version of the root's": base.with("version", 7+ChangesPerPolicy), "no version": base.with("version", nil),
		"a lower security version": changed.with("minimumSVN", 2), "no security version": changed.with("minimumSVN", nil),
		"another key": changed.with("keys", "l"), "no pools": changed.with("pools", nil), "another schema": changed.with("schema", "b"),
		"himself with more": changed.with("operators", []Operator{{Name: "dora", Key: keyName(t, dora), May: []Permission{MayChange, MayLook, MayRecover}}}),
		"nobody":            changed.with("operators", nil), "builders": changed.with("builders", "none"), "another operatorsFrom": changed.with("operatorsFrom", 1),
		"another spelling": changed.with("Operators", []Operator{}), "a part that nobody knows": changed.with("x", 1),
		"another control plane": changed.with("members", []any{plane, worker, map[string]any{"role": "control-plane", "name": "control-plane-2"}}),
		"no control plane":      changed.with("members", []any{worker}), "no members": changed.with("members", nil),
		"a control plane's other name": changed.with("members", []any{map[string]any{"role": "control-plane", "name": "other"}, worker}),
	}
	for what, policy := range reserved {
		if _, err := SignChangedPolicy(dora, last, policy.encode(t)); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for what, key := range map[string]*ecdsa.PrivateKey{"one who may look": alice, "a stranger": stranger} {
		if _, err := SignChangedPolicy(key, last, changed.encode(t)); !errors.Is(err, ErrReserved) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is put together otherwise than by SignChangedPolicy is refused.
func TestChangedPoliciesThatAreForged(t *testing.T) {
	root, dora := newKey(t), newKey(t)
	policy := func(version int, may ...Permission) []byte {
		return editable{"version": version, "minimumSVN": 0, "members": []any{}, "operators": []Operator{{Name: "dora", Key: keyName(t, dora), May: may}}}.encode(t)
	}
	last, err := SignPolicyDocument(root, policy(1, MayChange, MayLook))
	if err != nil {
		t.Fatal(err)
	}
	good, err := SignChangedPolicy(dora, last, policy(2, MayChange, MayLook))
	if err != nil {
		t.Fatal(err)
	}
	sign := func(key *ecdsa.PrivateKey, kind string, document []byte) []byte {
		digest := sha256.Sum256(SigningInput(kind, good.Root(), document))
		signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return signature
	}
	spki, err := spkiOf(newKey(t).Public())
	if err != nil {
		t.Fatal(err)
	}
	for what, forge := range map[string]func(s *Signed){
		"the root's signature in the place of his":   func(s *Signed) { s.Signature = sign(root, PolicyKind, s.Policy) },
		"his signature of another kind":              func(s *Signed) { s.Signature = sign(dora, PolicyKind, s.Policy) },
		"his signature over another":                 func(s *Signed) { s.Signature = sign(dora, ChangedPolicyKind, policy(3, MayChange, MayLook)) },
		"his signature as the root's":                func(s *Signed) { s.Changed = nil },
		"his signature under the policy before":      func(s *Signed) { s.Changed.Signature = sign(dora, PolicyKind, s.Changed.Policy) },
		"the policy before with more in it":          func(s *Signed) { s.Changed.Policy = policy(1, MayChange, MayLook, MayRecover) },
		"what he changed in the place of the before": func(s *Signed) { s.Changed.Policy, s.Changed.Signature = s.Policy, s.Signature },
		"another root":                               func(s *Signed) { s.RootKey = spki },
		"another key of his":                         func(s *Signed) { s.Changed.Key = spki },
		"no key":                                     func(s *Signed) { s.Changed.Key = nil },
		"a part twice":                               func(s *Signed) { resign(s, sign, dora, `{"version":2,"version":3,"members":[],"minimumSVN":0}`) },
		"a part twice in another case":               func(s *Signed) { resign(s, sign, dora, `{"version":2,"Version":3,"members":[],"minimumSVN":0}`) },
		"a member without a role": func(s *Signed) {
			resign(s, sign, dora, `{"version":2,"members":[{"Role":"control-plane"}],"minimumSVN":0}`)
		},
		"a member with two roles": func(s *Signed) {
			resign(s, sign, dora, `{"version":2,"members":[{"role":"worker","ROLE":"control-plane"}],"minimumSVN":0}`)
		},
		"data after the end": func(s *Signed) { resign(s, sign, dora, string(policy(2, MayChange, MayLook))+"{}") },
		"no object":          func(s *Signed) { resign(s, sign, dora, `[]`) },
		"a part cut off":     func(s *Signed) { resign(s, sign, dora, `{"version":2,`) },
	} {
		changed := *good.Changed
		forged := good
		forged.Changed = &changed
		forge(&forged)
		if _, err := forged.Open(); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	if _, err := good.Open(); err != nil {
		t.Error(err)
	}
}

func resign(s *Signed, sign func(*ecdsa.PrivateKey, string, []byte) []byte, key *ecdsa.PrivateKey, policy string) {
	s.Policy = []byte(policy)
	s.Signature = sign(key, ChangedPolicyKind, s.Policy)
}

// FuzzOpenChanged: whatever is taken as changed has the control planes and operators of the policy before.
func FuzzOpenChanged(f *testing.F) {
	f.Add([]byte(`{"version":2,"minimumSVN":0,"members":[]}`))
	f.Add([]byte(`{"version":2,"minimumSVN":0,"members":[{"role":"worker"}],"Operators":[]}`))
	key := OperatorKey{1}
	before := []byte(fmt.Sprintf(`{"version":1,"minimumSVN":0,"members":[],"operators":[{"name":"dora","key":%q,"may":["change","look"]}]}`, key))
	f.Fuzz(func(t *testing.T, after []byte) {
		if checkChanged(before, after, key) != nil {
			return
		}
		// As whoever is less strict reads it.
		var read struct {
			Version   uint64
			Members   []struct{ Role Role }
			Operators []Operator
		}
		if err := json.Unmarshal(after, &read); err != nil {
			t.Fatal(err)
		}
		if read.Version <= 1 || len(read.Operators) != 1 || read.Operators[0].Key != key {
			t.Errorf("taken: %+v", read)
		}
		for _, m := range read.Members {
			if m.Role == ControlPlane {
				t.Errorf("taken: %s", after)
			}
		}
	})
}
