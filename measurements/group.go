package measurements

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark"
)

// Limits of a policy's groups.
const (
	maxGroups    = 16
	maxSubject   = 8
	maxAuthority = 8 << 10
	maxValue     = 256
	// tail is how many digits of a machine's identity end its name, after a hyphen.
	tail = 10
	// maxGroupName leaves room for them in a DNS label.
	maxGroupName = 63 - 1 - tail
)

// Group is a rule for machines that nobody names: who makes them, or rents them out, vouches for each by the certificate of its endorsement key. They
// are workers.
type Group struct {
	// Name begins the names of the group's nodes; it is a DNS label of at most 52 characters.
	Name string `json:"name"`
	// Pool names the pool that the nodes belong to; empty means none.
	Pool string `json:"pool,omitempty"`
	// Authority is the X.509 certificate (DER) of the CA that signs the machines' EK certificates itself.
	Authority []byte `json:"authority"`
	// Subject are attributes that the subject of each EK certificate has exactly once, with exactly this value. There is at least one: who
	// signs certificates for one cluster's machines alone writes that into them.
	Subject []Attribute `json:"subject"`
}

// Attribute is one of an X.509 name.
type Attribute struct {
	// Type is one of AttributeTypes.
	Type string `json:"type"`
	// Value is compared byte by byte.
	Value string `json:"value"`
}

// AttributeTypes are the attributes of an X.509 name that a Group can ask for, by their names in RFC 4514 §3, and their object identifiers.
func AttributeTypes() map[string]string {
	return map[string]string{"CN": "2.5.4.3", "C": "2.5.4.6", "L": "2.5.4.7", "ST": "2.5.4.8", "O": "2.5.4.10", "OU": "2.5.4.11"}
}

// Member returns the rule that the group has for one of its machines. Its name is the group's with the beginning of the machine's identity, so that nobody has to give names.
func (g Group) Member(ekid hullmark.NodeID) Member {
	return Member{EKID: ekid, Role: hullmark.Worker, Name: g.Name + "-" + hex.EncodeToString(ekid[:tail/2]), Pool: g.Pool}
}

// Bars reports whether no group admits a machine. A rule of its own may do so all the same.
func (p Policy) Bars(ekid hullmark.NodeID) bool { return slices.Contains(p.Barred, ekid) }

func (p Policy) checkGroups() error {
	if len(p.Groups) > maxGroups || len(p.Barred) > maxMembers {
		return fmt.Errorf("groups: %d, barred: %d: want at most %d and %d", len(p.Groups), len(p.Barred), maxGroups, maxMembers)
	}
	for i, g := range p.Groups {
		if err := g.check(); err != nil {
			return fmt.Errorf("group %.80q: %w", g.Name, err)
		}
		if slices.ContainsFunc(p.Groups[:i], func(other Group) bool { return other.Name == g.Name }) {
			return fmt.Errorf("group %s: there are two of this name", g.Name)
		}
		if g.Pool != "" && !slices.ContainsFunc(p.Pools, func(pool Pool) bool { return pool.Name == g.Pool }) {
			return fmt.Errorf("group %s: there is no pool %.80q", g.Name, g.Pool)
		}
	}
	for i, ekid := range p.Barred {
		if slices.Contains(p.Barred[:i], ekid) {
			return fmt.Errorf("barred: %v is listed twice", ekid)
		}
	}
	return nil
}

func (g Group) check() error {
	switch {
	case len(g.Name) > maxGroupName || !hullmark.ValidNodeName(g.Name):
		return fmt.Errorf("name: want a DNS label of at most %d characters", maxGroupName)
	case len(g.Authority) == 0 || len(g.Authority) > maxAuthority:
		return fmt.Errorf("authority: %d bytes, want a certificate of at most %d", len(g.Authority), maxAuthority)
	case len(g.Subject) == 0:
		return errors.New("subject: want at least one attribute: without any, every machine that this CA vouches for would be admitted, whoever owns it")
	case len(g.Subject) > maxSubject:
		return fmt.Errorf("subject: %d attributes, want at most %d", len(g.Subject), maxSubject)
	}
	for i, a := range g.Subject {
		if AttributeTypes()[a.Type] == "" || a.Value == "" || len(a.Value) > maxValue || strings.ContainsFunc(a.Value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("subject: %.20q = %.80q: want CN, O, OU, L, ST or C, and a value of at most %d bytes", a.Type, a.Value, maxValue)
		}
		if slices.ContainsFunc(g.Subject[:i], func(other Attribute) bool { return other.Type == a.Type }) {
			return fmt.Errorf("subject: %s is asked for twice", a.Type)
		}
	}
	return nil
}
