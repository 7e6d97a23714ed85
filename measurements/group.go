package measurements

import (
	"bytes"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hullmark/hullmark"
)

// Limits of a policy's groups.
const (
	maxGroups      = 16
	maxAuthorities = 8
	maxSubject     = 8
	maxEnrollers   = 8
	maxAuthority   = 8 << 10
	maxValue       = 256
	// tail is how many characters of a machine's identity end its name, after a hyphen, and identity how many bytes they stand
	// for: 80 bits, so that no two of a million machines meet.
	tail, identity = 16, 10
	// maxGroupName leaves room for them in a DNS label.
	maxGroupName = 63 - 1 - tail
)

// digits are those of base 32 that a DNS label takes.
var digits = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Group is a rule for machines that nobody names. Somebody vouches for each: who makes them, or rents them out, by the certificate
// of its endorsement key, or an enroller by a Voucher. They are workers.
type Group struct {
	// Name begins the names of the group's nodes; it is a DNS label of at most 46 characters.
	Name string `json:"name"`
	// Pool names the pool that the nodes belong to; empty means none.
	Pool string `json:"pool,omitempty"`
	// Authorities are the X.509 certificates (DER) of CAs, each of which signs EK certificates itself, and nothing else that
	// could be taken for one. A group with enrollers may have none.
	Authorities [][]byte `json:"authorities,omitempty"`
	// Roots are the X.509 certificates (DER) of CAs that sign those of the CAs which sign EK certificates: each EK certificate leads
	// to one of them by the certificates that the machine itself shows, unless an authority signed it.
	Roots [][]byte `json:"roots,omitempty"`
	// Subject are attributes that the subject of each EK certificate has exactly once, with exactly this value. There is at least one: who
	// signs certificates for one cluster's machines alone writes that into them.
	Subject []Attribute `json:"subject,omitempty"`
	// Enrollers are the Ed25519 public keys (RFC 8032 §5.1.5) that sign vouchers for the group, in the place of Subject. Without
	// Authorities and Roots each says which machines are real, too: who has such a key may add any that it can pass off as one.
	Enrollers [][]byte `json:"enrollers,omitempty"`
	// Max is how many machines the group may have, from 1 to 10,000.
	Max int `json:"max"`
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

// Member returns the rule that the group has for one of its machines. Its name is the group's with the beginning of the
// machine's identity, so that nobody has to give names.
func (g Group) Member(ekid hullmark.EKID) Member {
	return Member{EKID: ekid, Role: hullmark.Worker, Name: g.Name + "-" + digits.EncodeToString(ekid[:identity]), Pool: g.Pool}
}

// GroupOf returns the group that gave a machine its name, and whether one did.
func GroupOf(name string, ekid hullmark.EKID) (group string, ok bool) {
	return strings.CutSuffix(name, "-"+digits.EncodeToString(ekid[:identity]))
}

// Without returns the policy without a machine: no rule of its own, and no group, admits it.
func (p Policy) Without(ekid hullmark.EKID) Policy {
	p.Members = slices.DeleteFunc(slices.Clone(p.Members), func(m Member) bool { return m.EKID == ekid })
	if !p.Denies(ekid) {
		p.Denied = append(slices.Clone(p.Denied), ekid)
	}
	return p
}

// Denies reports whether no group admits a machine. A rule of its own may do so all the same.
func (p Policy) Denies(ekid hullmark.EKID) bool { return slices.Contains(p.Denied, ekid) }

func (p Policy) checkGroups() error {
	if len(p.Groups) > maxGroups || len(p.Denied) > maxMembers {
		return fmt.Errorf("groups: %d, denied: %d: want at most %d and %d", len(p.Groups), len(p.Denied), maxGroups, maxMembers)
	}
	for i, g := range p.Groups {
		if err := g.check(); err != nil {
			return fmt.Errorf("group %.80q: %w", g.Name, err)
		}
		for _, other := range p.Groups[:i] {
			if other.Name == g.Name {
				return fmt.Errorf("group %s: there are two of this name", g.Name)
			}
			if err := g.CheckApart(other, bytes.Equal); err != nil {
				return err
			}
		}
		if g.Pool != "" && !slices.ContainsFunc(p.Pools, func(pool Pool) bool { return pool.Name == g.Pool }) {
			return fmt.Errorf("group %s: there is no pool %.80q", g.Name, g.Pool)
		}
	}
	seen := map[hullmark.EKID]bool{}
	for _, ekid := range p.Denied {
		if seen[ekid] {
			return fmt.Errorf("denied: %v is listed twice", ekid)
		}
		seen[ekid] = true
	}
	return nil
}

// Certified reports whether the machines of the group need a certificate of their endorsement key.
func (g Group) Certified() bool { return len(g.Authorities)+len(g.Roots) > 0 }

// CheckApart refuses groups of which a machine could be of both: its name and its pool would hang on their order. same reports
// whether two authorities sign the same certificates. One enroller may have several groups, since each voucher names its own;
// but names are the enroller's choice, so that no other group's may begin as they do.
func (g Group) CheckApart(other Group, same func(a, b []byte) bool) error {
	if g.covers(other) || other.covers(g) {
		return fmt.Errorf("groups %s and %s: an enroller of the one could take the names of the other: let neither name begin with the other and a hyphen", other.Name, g.Name)
	}
	enrolled := len(g.Enrollers) > 0 || len(other.Enrollers) > 0 // Authorities alone admit nobody there.
	rooted := len(g.Roots)+len(other.Roots) > 0                  // What is below a root is not known here.
	shared := !enrolled && (rooted || slices.ContainsFunc(g.Authorities, func(a []byte) bool {
		return slices.ContainsFunc(other.Authorities, func(b []byte) bool { return same(a, b) })
	}))
	apart := slices.ContainsFunc(g.Subject, func(a Attribute) bool {
		return slices.ContainsFunc(other.Subject, func(b Attribute) bool { return a.Type == b.Type && a.Value != b.Value })
	})
	if shared && !apart {
		return fmt.Errorf("groups %s and %s could both admit a machine: ask for an attribute in both that tells them apart", other.Name, g.Name)
	}
	return nil
}

// covers reports whether an enroller of the group could choose a name that is another group's to give.
func (g Group) covers(other Group) bool {
	return len(g.Enrollers) > 0 && strings.HasPrefix(other.Name, g.Name+"-")
}

func (g Group) check() error {
	switch {
	case g.Max < 1 || g.Max > maxMembers:
		return fmt.Errorf("max: %d, want 1 to %d", g.Max, maxMembers)
	case len(g.Name) > maxGroupName || !hullmark.ValidNodeName(g.Name):
		return fmt.Errorf("name: want a DNS label of at most %d characters", maxGroupName)
	case len(g.Enrollers) == 0 && !g.Certified() || len(g.Authorities) > maxAuthorities || len(g.Roots) > maxAuthorities:
		return fmt.Errorf("authorities and roots: %d and %d, want 1 at least and %d of each at most", len(g.Authorities), len(g.Roots), maxAuthorities)
	case slices.ContainsFunc(slices.Concat(g.Authorities, g.Roots), func(a []byte) bool { return len(a) == 0 || len(a) > maxAuthority }):
		return fmt.Errorf("authorities: want certificates of at most %d bytes", maxAuthority)
	case len(g.Enrollers) > 0:
		return g.checkEnrollers()
	case len(g.Subject) == 0:
		return errors.New("subject: want at least one attribute: without any, every machine that this CA vouches for would be admitted, whoever owns it")
	case len(g.Subject) > maxSubject:
		return fmt.Errorf("subject: %d attributes, want at most %d", len(g.Subject), maxSubject)
	}
	for i, a := range g.Subject {
		if AttributeTypes()[a.Type] == "" || a.Value == "" || len(a.Value) > maxValue || !utf8.ValidString(a.Value) || strings.ContainsFunc(a.Value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("subject: %.20q = %.80q: want CN, O, OU, L, ST or C, and a value of at most %d bytes", a.Type, a.Value, maxValue)
		}
		if slices.ContainsFunc(g.Subject[:i], func(other Attribute) bool { return other.Type == a.Type }) {
			return fmt.Errorf("subject: %s is asked for twice", a.Type)
		}
	}
	return nil
}

func (g Group) checkEnrollers() error {
	if len(g.Subject) > 0 {
		return errors.New("enrollers: beside a subject: a voucher names one machine, and authorities alone say which keys are real")
	}
	if len(g.Enrollers) > maxEnrollers {
		return fmt.Errorf("enrollers: %d, want at most %d", len(g.Enrollers), maxEnrollers)
	}
	for i, key := range g.Enrollers {
		if err := CheckEd25519(key); err != nil {
			return fmt.Errorf("enrollers: %w", err)
		}
		if slices.ContainsFunc(g.Enrollers[:i], func(other []byte) bool { return bytes.Equal(key, other) }) {
			return fmt.Errorf("enrollers: %x is listed twice", key)
		}
	}
	return nil
}
