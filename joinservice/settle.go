package joinservice

import (
	"context"
	"time"
)

// tokenLife is how long a token that could not be revoked is remembered: it has expired by then.
const tokenLife = 15 * time.Minute

// leaveOver remembers a token that could not be revoked.
func (s *Service) leaveOver(token string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.leftOver == nil {
		s.leftOver = map[string]time.Time{}
	}
	s.leftOver[token] = time.Now()
}

// RevokeLeftOver tries again to revoke the tokens whose revocation failed, as
// all do while the API is down, and returns the first failure.
func (s *Service) RevokeLeftOver(ctx context.Context) error {
	s.mutex.Lock()
	var tokens []string
	for token, since := range s.leftOver {
		if time.Since(since) > tokenLife {
			delete(s.leftOver, token)
			continue
		}
		tokens = append(tokens, token)
	}
	s.mutex.Unlock()
	for _, token := range tokens {
		if err := s.Tokens.Revoke(ctx, token); err != nil {
			return err
		}
		s.mutex.Lock()
		delete(s.leftOver, token)
		s.mutex.Unlock()
	}
	return nil
}

// Settle ends the token of a machine whose node became Ready although its
// exchange was not heard to the end, and records it. A machine that was given a
// later token since it was read is left alone.
func (s *Service) Settle(ctx context.Context, seen Machine) error {
	if err := s.Tokens.Revoke(ctx, seen.Token); err != nil {
		return err
	}
	err := s.change(ctx, seen.Node, &stored{}, func(m *Machine, _ bool) error {
		if m.Token != seen.Token {
			return errSuperseded
		}
		m.State, m.Token, m.Phase, m.Condition = MachineReady, "", "", nil
		return nil
	})
	return err
}
