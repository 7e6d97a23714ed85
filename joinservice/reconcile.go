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

// Unfinished reports whether a record tells of an exchange whose end nobody recorded: its stream was lost, or the records did
// not take the last word.
func (m Machine) Unfinished() bool {
	return m.Token != "" || m.State == MachineJoining || m.State == MachineFailed && m.Condition != nil && m.Condition.Code == OutcomeEnded
}

// Reconcile records that a machine's node became Ready although its exchange was not heard to the end, and ends its token. A
// machine that was given a later ticket since it was read, or whose exchange is under way here, is left alone.
func (s *Service) Reconcile(ctx context.Context, seen Machine) error {
	if s.Attends(seen.EKID) {
		return nil
	}
	if seen.Token != "" {
		if err := s.Tokens.Revoke(ctx, seen.Token); err != nil {
			return err
		}
	}
	err := s.change(ctx, seen.EKID, &stored{}, func(m *Machine, _ bool) error {
		if m.Token != seen.Token || m.Record.Issued != seen.Record.Issued {
			return errSuperseded
		}
		m.State, m.Token, m.Phase, m.Condition = MachineReady, "", "", nil
		return nil
	})
	return err
}
