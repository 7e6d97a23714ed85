package hullmark

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// changeable are the parts of a policy that an operator may change who has MayChange: which releases are accepted, and which machines
// join as workers. Who is an operator or a builder, what keys there are, what evidence is demanded, pools and all else are the root's.
var changeable = []string{"version", "minimumSVN", "documents", "members", "groups", "denied"}

// ChangesPerPolicy bounds the versions of operators' changes to a policy that the root signed: they lie between that one's and this many
// above it, where none of the root's lies. So of two policies the one of the higher version is in force, whoever signed them: what the
// root signs next is above all that operators whom it withdraws have signed or may sign yet.
const ChangesPerPolicy = 1 << 16

// ErrReserved is a change of a policy that its operator may not make.
var ErrReserved = errors.New("this is for whoever holds the root key")

// changedPolicy is what decides of a policy whether an operator could change it.
type changedPolicy struct {
	parts      map[string]json.RawMessage
	version    uint64
	minimumSVN uint32
	operators  []Operator
	planes     []json.RawMessage
}

// readChanged reads it from an encoded policy.
func readChanged(policy []byte) (p changedPolicy, err error) {
	if p.parts, err = jsonParts(policy); err != nil {
		return p, err
	}
	for name, into := range map[string]any{"version": &p.version, "minimumSVN": &p.minimumSVN, "operators": &p.operators} {
		if raw, ok := p.parts[name]; ok {
			if err := json.Unmarshal(raw, into); err != nil {
				return p, fmt.Errorf("%s: %w", name, explainJSON(err))
			}
		}
	}
	var members []json.RawMessage
	if raw, ok := p.parts["members"]; ok {
		if err := json.Unmarshal(raw, &members); err != nil {
			return p, fmt.Errorf("members: %w", explainJSON(err))
		}
	}
	for _, member := range members {
		parts, err := jsonParts(member)
		if err != nil {
			return p, fmt.Errorf("members: %w", err)
		}
		var role Role
		if err := json.Unmarshal(parts["role"], &role); err != nil || !role.Valid() {
			return p, errors.New("members: one has no role that there is")
		}
		if role == ControlPlane {
			p.planes = append(p.planes, member)
		}
	}
	return p, nil
}

// checkChanged holds a policy to what an operator with a key may have made of another, which the root signed.
func checkChanged(before, after []byte, key OperatorKey) error {
	from, err := readChanged(before)
	if err != nil {
		return fmt.Errorf("the policy before: %w", err)
	}
	to, err := readChanged(after)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(from.operators, func(o Operator) bool { return o.Key == key })
	if i < 0 || !slices.Contains(from.operators[i].May, MayChange) {
		return fmt.Errorf("the policy before, which the root signed, does not let whoever has this key change it: %w", ErrReserved)
	}
	if to.version <= from.version || to.version-from.version >= ChangesPerPolicy {
		return fmt.Errorf("its version is %d, want one of the %d after %d", to.version, ChangesPerPolicy-1, from.version)
	}
	if to.minimumSVN < from.minimumSVN {
		return fmt.Errorf("minimumSVN is %d, below %d: %w", to.minimumSVN, from.minimumSVN, ErrReserved)
	}
	for name := range to.parts {
		if _, known := from.parts[name]; !known && !slices.Contains(changeable, name) {
			return fmt.Errorf("%.80q is new: %w", name, ErrReserved)
		}
	}
	for name, was := range from.parts {
		if !slices.Contains(changeable, name) && !bytes.Equal(was, to.parts[name]) {
			return fmt.Errorf("%s is another: %w", name, ErrReserved)
		}
	}
	if !slices.EqualFunc(from.planes, to.planes, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		return fmt.Errorf("its control planes are others: %w", ErrReserved)
	}
	return nil
}

// jsonParts takes a JSON object apart. Names that come twice, or differ from another in nothing but case, are refused: encoding/json takes
// either for the same.
func jsonParts(object []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("want a JSON object")
	}
	parts, folded := map[string]json.RawMessage{}, map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, explainJSON(err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, explainJSON(err)
		}
		key, _ := name.(string)
		if folded[strings.ToLower(key)] {
			return nil, fmt.Errorf("%.80q comes twice", key)
		}
		folded[strings.ToLower(key)], parts[key] = true, value
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, explainJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the end of the value")
	}
	return parts, nil
}

// Changer returns the operator who signed the policy, as the one before names him; ok is false if the root did. It is for a policy that
// Open has checked.
func (s Signed) Changer() (o Operator, ok bool) {
	if s.Changed == nil {
		return Operator{}, false
	}
	from, err := readChanged(s.Changed.Policy)
	if err != nil {
		return Operator{}, false
	}
	i := slices.IndexFunc(from.operators, func(o Operator) bool { return o.Key == OperatorKeyOf(s.Changed.Key) })
	if i < 0 {
		return Operator{}, false
	}
	return from.operators[i], true
}

// FollowsSame reports whether two policies are of one that the root signed: one is that, or both were changed from it.
func (s Signed) FollowsSame(other Signed) bool {
	mine, _ := s.byRoot()
	others, _ := other.byRoot()
	return bytes.Equal(mine, others) && bytes.Equal(s.RootKey, other.RootKey)
}

// RootVersion is the version of the policy that the root signed: this one, or that from which an operator changed it.
func (s Signed) RootVersion() (uint64, error) {
	policy, _ := s.byRoot()
	from, err := readChanged(policy)
	return from.version, err
}

// NextVersion is the lowest version of what the root signs after this policy: above all that operators may have signed.
func (s Signed) NextVersion() (uint64, error) {
	policy, _ := s.byRoot()
	from, err := readChanged(policy)
	if err != nil {
		return 0, err
	}
	if slices.ContainsFunc(from.operators, func(o Operator) bool { return slices.Contains(o.May, MayChange) }) {
		return from.version + ChangesPerPolicy, nil
	}
	return from.version + 1, nil
}
