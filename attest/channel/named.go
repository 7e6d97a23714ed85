package channel

import (
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
)

// Named is what the leaf of an operator says whom a policy names: who he is, and the most that it opens. Whether the policy in force
// still grants him that, a node looks at each call. Its URI says it: "hullmark:named-operator:" NAME ":" PERMISSIONS ":" POLICY.
type Named struct {
	// Name is the operator's, and May what he was granted when the leaf was made.
	Name string
	May  []hullmark.Permission
	// Policy is the version of the policy that granted it: a later one can refuse leaves of that time.
	Policy uint64
	// Key is that of the leaf, Ends its end.
	Key  hullmark.OperatorKey
	Ends time.Time
}

func (n Named) uri() string {
	return namedURI + n.Name + ":" + hullmark.FormatPermissions(n.May) + ":" + strconv.FormatUint(n.Policy, 10)
}

// needs are the verbs that a permission opens; the others are for whoever holds the root key.
var needs = map[Verb]hullmark.Permission{VerbStatus: hullmark.MayLook, VerbLogs: hullmark.MayLook, VerbRecover: hullmark.MayRecover}

// Check refuses a verb for which the leaf was not made, or any once it has ended. The error is a *hullmark.Condition.
func (n Named) Check(verb Verb, now time.Time) error {
	need, ok := needs[verb]
	if !ok {
		return &hullmark.Condition{
			Code: "operator-not-permitted", Title: fmt.Sprintf("%s is for whoever holds the cluster file, and no permission lets operator %s do it", verb, n.Name),
			Got: hullmark.FormatPermissions(n.May), Next: "ask whoever holds the cluster file to do it",
		}
	}
	return n.Permit(string(verb), need, now)
}

// Permit is Check for what is asked of somebody else than a node: verb is what it is called, need the permission for it.
func (n Named) Permit(verb string, need hullmark.Permission, now time.Time) error {
	if now.After(n.Ends) {
		return &hullmark.Condition{
			Code: "operator-expired", Title: fmt.Sprintf("the certificate of operator %s has ended", n.Name),
			Expected: "a time up to " + n.Ends.UTC().Format(time.RFC3339), Got: now.UTC().Format(time.RFC3339),
			Next: "ask whoever holds the cluster file for another file (hullmark operator new --replace); or set the clock, if that is ahead",
		}
	}
	return hullmark.PermitOperator([]hullmark.Operator{{Name: n.Name, Key: n.Key, May: n.May}}, n.Name, n.Key, verb, need)
}

// PermitBy refuses a verb that the operators of a policy do not let him do. The error is a *hullmark.Condition.
func (n Named) PermitBy(operators []hullmark.Operator, verb Verb) error {
	need, ok := needs[verb]
	if !ok {
		return n.Check(verb, time.Time{})
	}
	return hullmark.PermitOperator(operators, n.Name, n.Key, string(verb), need)
}

var namedPattern = regexp.MustCompile(`^hullmark:named-operator:([a-z0-9-]{1,32}):([a-z,]{1,64}):(0|[1-9][0-9]{0,19})$`)

// LeafNamed reads the leaf of a named operator; ok is false of a leaf of another kind.
func LeafNamed(leaf *x509.Certificate) (n Named, ok bool, err error) {
	if len(leaf.URIs) != 1 || !strings.HasPrefix(leaf.URIs[0].String(), namedURI) {
		return Named{}, false, nil
	}
	found := namedPattern.FindStringSubmatch(leaf.URIs[0].String())
	if found == nil || !hullmark.ValidOperatorName(found[1]) {
		return Named{}, true, fmt.Errorf("the leaf is not named %sNAME:PERMISSIONS:POLICY", namedURI)
	}
	n = Named{Name: found[1], Key: hullmark.OperatorKeyOf(leaf.RawSubjectPublicKeyInfo), Ends: leaf.NotAfter}
	if n.May, err = hullmark.ParsePermissions(found[2]); err != nil {
		return Named{}, true, fmt.Errorf("the leaf's permissions: %w", err)
	}
	if n.Policy, err = strconv.ParseUint(found[3], 10, 64); err != nil {
		return Named{}, true, err
	}
	return n, true, nil
}

// NamedOf returns what the leaf of a named operator says that a node has seen in the handshake of a channel, which p describes; ok is
// false if the leaf is of another kind.
func NamedOf(p *peer.Peer) (n Named, ok bool, err error) {
	info, tls := p.AuthInfo.(credentials.TLSInfo)
	if !tls || len(info.State.PeerCertificates) == 0 {
		return Named{}, false, errors.New("operator's name: the channel has shown no certificate")
	}
	return LeafNamed(info.State.PeerCertificates[0])
}
