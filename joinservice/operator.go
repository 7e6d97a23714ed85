package joinservice

import (
	"context"
	"errors"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/limit"
)

// Operator says whether the policy in force lets an operator ask something of a node. A worker holds no policy, and asks each time, so
// that who was withdrawn is refused there, too, from the moment at which the policy is in force. Nobody has to show who asks: the
// answer tells no more than what the policy says of a key that the asker has seen, costs no records, and grants nothing.
func (s *Service) Operator(ctx context.Context, ask *wire.OperatorAsk) (*wire.OperatorAnswer, error) {
	if !limit.FirstCall(ctx) {
		return &wire.OperatorAnswer{}, nil
	}
	if err := s.permitOperator(ask); err != nil {
		return &wire.OperatorAnswer{Denied: wire.FromCondition(hullmark.AsCondition(err, "OPERATOR", "operator-unknown"))}, nil
	}
	return &wire.OperatorAnswer{May: true}, nil
}

// permitOperator judges by the policy in force, in one of the bounded places for unauthenticated peers.
func (s *Service) permitOperator(ask *wire.OperatorAsk) error {
	if !s.enter() {
		return busy("OPERATOR")
	}
	defer s.leave()
	if err := wire.CheckOperatorAsk(ask); err != nil {
		return err
	}
	if !hullmark.ValidOperatorName(ask.GetName()) {
		return errors.New("the name in the operator's certificate is none")
	}
	policy := s.Policy.Policy()
	named := channel.Named{Name: ask.GetName(), Key: hullmark.OperatorKey(ask.GetKey())}
	if err := named.PermitBy(policy.Operators, channel.Verb(ask.GetVerb())); err != nil {
		return err
	}
	return hullmark.CheckOperatorsFrom(policy.OperatorsFrom, ask.GetPolicy())
}
