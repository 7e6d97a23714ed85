package hullmark

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Permission is something that whoever holds a cluster's root key can grant an operator.
type Permission string

// The permissions.
const (
	// MayLook lets an operator see how a cluster is: a node's status and its journal, the list of nodes, a report.
	MayLook Permission = "look"
	// MayRecover lets an operator bring a control plane back when no other is up to do it. It comes with MayLook, by which he fetches the
	// newest policy: he verifies the machine by what his file holds.
	MayRecover Permission = "recover"
	// MayChange lets an operator change which releases the policy accepts, and which machines join as workers, and sign that himself
	// (Signed.Changed). It comes with MayLook, by which he fetches the policy that he changes.
	MayChange Permission = "change"
)

// permissions are all that there are, ascending.
var permissions = []Permission{MayChange, MayLook, MayRecover}

// ParsePermissions reads at least one permission, with commas between them, each once and in ascending order, as FormatPermissions
// writes them.
func ParsePermissions(list string) ([]Permission, error) {
	var read []Permission
	for word := range strings.SplitSeq(list, ",") {
		read = append(read, Permission(word))
	}
	return read, checkPermissions(read)
}

// FormatPermissions writes what ParsePermissions reads.
func FormatPermissions(all []Permission) string {
	words := make([]string, len(all))
	for i, p := range all {
		words[i] = string(p)
	}
	return strings.Join(words, ",")
}

// checkPermissions wants at least one, each once, in their order, and none without what it comes with.
func checkPermissions(all []Permission) error {
	if len(all) == 0 {
		return errors.New("no permission is named")
	}
	for i, p := range all {
		if !slices.Contains(permissions, p) {
			return fmt.Errorf("permission %.40q is unknown; there are: %s", p, FormatPermissions(permissions))
		}
		if i > 0 && p <= all[i-1] {
			return fmt.Errorf("permission %s comes twice, or out of order; want them as in %s", p, FormatPermissions(permissions))
		}
	}
	if len(all) > 0 && !slices.Contains(all, MayLook) {
		return fmt.Errorf("permission %s comes without %s, by which its owner fetches the newest policy", all[0], MayLook)
	}
	return nil
}

// OperatorKey names an operator's key: the SHA-256 of its SubjectPublicKeyInfo (RFC 5280 §4.1.2.7, DER).
type OperatorKey [sha256.Size]byte

// OperatorKeyOf returns the name of a key given as DER SubjectPublicKeyInfo.
func OperatorKeyOf(spki []byte) OperatorKey { return sha256.Sum256(spki) }

// String returns the name as 64 lower-case hexadecimal digits.
func (k OperatorKey) String() string { return hex.EncodeToString(k[:]) }

// MarshalText writes String's form.
func (k OperatorKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (k *OperatorKey) UnmarshalText(text []byte) error {
	var read OperatorKey
	if err := decodeHex(read[:], string(text)); err != nil {
		return fmt.Errorf("operator's key: %w", err)
	}
	*k = read
	return nil
}

// Operator is somebody whom a policy lets do some of what whoever holds the root key does, by a key of his own.
type Operator struct {
	// Name is what people call him (ValidOperatorName).
	Name string `json:"name"`
	// Key is that of the key in his file.
	Key OperatorKey `json:"key"`
	// May are his permissions, ascending.
	May []Permission `json:"may"`
}

// MaxOperators is how many operators a policy may name.
const MaxOperators = 64

// operatorName is a short label: it stands in certificates, in journals and in names of users.
var operatorName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// ValidOperatorName reports whether an operator can have the name: at most 32 lower-case letters, digits and hyphens. Whoever holds
// the root key is none, and nobody is called as if he did.
func ValidOperatorName(name string) bool { return operatorName.MatchString(name) && name != "root" }

// User is what the Kubernetes API calls the operator. It ends in the beginning of his key, so that a name that is given anew is
// another user.
func (o Operator) User() string { return "hullmark:operator:" + o.Name + ":" + o.Key.String()[:16] }

// CheckOperators says why a policy cannot name these: none has another's name or key, and each has permissions that there are.
func CheckOperators(all []Operator) error {
	if len(all) > MaxOperators {
		return fmt.Errorf("operators: %d, want at most %d", len(all), MaxOperators)
	}
	for i, o := range all {
		if !ValidOperatorName(o.Name) {
			return fmt.Errorf("operators: name %.80q: want at most 32 lower-case letters, digits and hyphens, and not root", o.Name)
		}
		if o.Key == (OperatorKey{}) {
			return fmt.Errorf("operators: %s has no key", o.Name)
		}
		if err := checkPermissions(o.May); err != nil {
			return fmt.Errorf("operators: %s: %w", o.Name, err)
		}
		for _, other := range all[:i] {
			if other.Name == o.Name {
				return fmt.Errorf("operators: %s is there twice", o.Name)
			}
			if other.Key == o.Key {
				return fmt.Errorf("operators: %s and %s have the same key, so that nobody could tell who of them it was", other.Name, o.Name)
			}
		}
	}
	return nil
}

// CheckOperatorsFrom refuses an operator's certificate that was made by a policy's version below from, which the policy in force says. The
// error is a *Condition.
func CheckOperatorsFrom(from, version uint64) error {
	if version >= from {
		return nil
	}
	return &Condition{
		Code: "operator-revoked", Title: "the policy in force refuses operators' certificates of that time",
		Expected: fmt.Sprintf("made by policy version %d or later", from), Got: fmt.Sprintf("version %d", version), Next: "use the newest cluster file, or another operator's file that is made with it",
	}
}

// PermitOperator lets whoever shows a key do what needs a permission, if the operators of a policy have that key and it was granted
// him there. verb is what he asks for, and name what he is called where the policy does not know him any more. The error is a
// *Condition.
func PermitOperator(operators []Operator, name string, key OperatorKey, verb string, need Permission) error {
	i := slices.IndexFunc(operators, func(o Operator) bool { return o.Key == key })
	if i < 0 {
		return &Condition{
			Code: "operator-withdrawn", Title: fmt.Sprintf("%s needs the permission %q, and the policy in force names no operator with the key of %s", verb, need, name),
			Got: "key " + key.String(), Next: "ask whoever holds the cluster file: the operator was withdrawn, has another file by now, or the policy that names him was not pushed yet",
		}
	}
	if o := operators[i]; !slices.Contains(o.May, need) {
		return &Condition{
			Code: "operator-not-permitted", Title: fmt.Sprintf("%s needs the permission %q, which operator %s does not have", verb, need, o.Name),
			Expected: string(need), Got: FormatPermissions(o.May), Next: "ask whoever holds the cluster file to do it, or to grant the permission (hullmark operator new --replace)",
		}
	}
	return nil
}
