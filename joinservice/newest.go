package joinservice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/ekcert"
)

// newestTime bounds the reading of the API's policy, so that there is time left to decide by what is in force.
const newestTime = 3 * time.Second

// CodePolicyChanged is the code of the condition that another policy came into force while an exchange went on. It passes by itself.
const CodePolicyChanged = "policy-changed"

// errPolicyChanged is what errors.Is finds in the condition of that code.
var errPolicyChanged = errors.New("another policy is in force by now")

// TakeNewest puts the policy in force that the API holds, if it is a higher one: what was delivered last may be older. While
// the API does not answer, or holds what cannot be taken, what is in force stays, and the error says why.
func (s *Service) TakeNewest(ctx context.Context) error {
	if s.Newest == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, newestTime)
	defer cancel()
	offered, err := s.Newest(ctx, s.Policy.Signed().Envelope)
	if err == nil && len(offered.Envelope) > 0 {
		_, err = s.Policy.Offer(offered)
	}
	return err
}

// checkPolicy is an error once another policy is in force than the one that the exchange goes by: what one admits, the other
// may not, and nobody is given parts of both.
func (p *proved) checkPolicy() error {
	now := p.service.Policy.inForce.Load()
	if now == p.policy {
		return nil
	}
	return fmt.Errorf("%w: %w", errPolicyChanged, &hullmark.Condition{
		Code: CodePolicyChanged, Step: "ATTEST", Title: "another policy came into force while the machine was admitted", Retry: true,
		Expected: fmt.Sprintf("version %d", now.policy.Version), Got: fmt.Sprintf("version %d", p.policy.policy.Version),
		Next: "wait: the node tries again by itself, by that policy",
	})
}

// authorizer returns an authorizer with the policy of the exchange.
func (p *proved) authorizer() *Authorizer {
	a := p.service.authorizer(p.policy)
	a.Servers, a.vouched = p.servers, p.vouched
	return a
}

// authorizer returns an authorizer with a policy.
func (s *Service) authorizer(p *verified) *Authorizer {
	return &Authorizer{Root: s.Root, Policy: p.policy, Documents: p.documents, Keys: s.Keys, references: &p.references, groups: p.groups}
}

// isMember reports whether the policy admits a machine.
func (e *verified) isMember(node hullmark.EKID, ek *ekcert.Certificate) bool {
	if _, named := e.members[node]; named {
		return true
	}
	return groupOf(e.policy, e.groups, node, ek) != nil
}

// mayAdmit reports whether it is worth while to hear a machine out: the policy admits it, or a voucher could.
func (e *verified) mayAdmit(node hullmark.EKID, ek *ekcert.Certificate) bool {
	return e.isMember(node, ek) || e.enrolls(node)
}
