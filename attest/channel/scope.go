package channel

import (
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
)

// Verb is one thing that an operator asks of a node.
type Verb string

// The verbs. Each needs a leaf of its own.
const (
	VerbInit Verb = "init"
	// VerbBegin is VerbInit for whoever is lent it: on the one machine that the leaf names, while its disk is empty.
	VerbBegin   Verb = "begin"
	VerbRecover Verb = "recover"
	VerbStatus  Verb = "status"
	VerbLogs    Verb = "logs"
	VerbUpdate  Verb = "update"
)

// Scope is all that an operator's leaf is good for. Its URI says it: "hullmark:operator:" VERB ":" POLICY [":" NODE].
type Scope struct {
	// Verb is the one call that the leaf opens.
	Verb Verb
	// Policy is the version of the policy in the cluster file by which the leaf was made: a later one can refuse it.
	Policy uint64
	// EKID is the one machine to which it opens it; zero if the operator knows none.
	EKID hullmark.EKID
}

func (e Scope) uri() string {
	uri := operatorURI + string(e.Verb) + ":" + strconv.FormatUint(e.Policy, 10)
	if e.EKID != (hullmark.EKID{}) {
		uri += ":" + e.EKID.String()
	}
	return uri
}

var scopePattern = regexp.MustCompile(`^hullmark:operator:(init|begin|recover|status|logs|update):(0|[1-9][0-9]{0,19})(:[0-9a-f]{64})?$`)

// scopeOf reads the one URI of an operator's leaf.
func scopeOf(leaf *x509.Certificate) (Scope, error) {
	if len(leaf.URIs) != 1 {
		return Scope{}, fmt.Errorf("the leaf has %d names, want one", len(leaf.URIs))
	}
	found := scopePattern.FindStringSubmatch(leaf.URIs[0].String())
	if found == nil {
		return Scope{}, fmt.Errorf("the leaf is not named %sVERB:POLICY or %sVERB:POLICY:NODE", operatorURI, operatorURI)
	}
	e := Scope{Verb: Verb(found[1])}
	var err error
	if e.Policy, err = strconv.ParseUint(found[2], 10, 64); err != nil {
		return Scope{}, err
	}
	switch {
	case found[3] != "":
		e.EKID, err = hullmark.ParseEKID(strings.TrimPrefix(found[3], ":"))
	case e.Verb == VerbBegin:
		err = errors.New("the leaf is for begin, and names no machine")
	}
	return e, err
}

// LeafScope returns what an operator's leaf is good for.
func LeafScope(leaf *x509.Certificate) (Scope, error) {
	scope, err := scopeOf(leaf)
	if err != nil {
		return Scope{}, fmt.Errorf("operator's scope: %w", err)
	}
	return scope, nil
}

// ScopeOf returns what the operator's leaf is good for that a node has seen in the handshake of a channel, which p describes.
func ScopeOf(p *peer.Peer) (Scope, error) {
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return Scope{}, errors.New("operator's scope: the channel has shown no certificate")
	}
	return scopeOf(info.State.PeerCertificates[0])
}
