package joinservice_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/joinservice"
)

// silence is a stream on which nothing comes. gRPC allows one receiver at a time.
type silence struct {
	ctx       context.Context
	receivers atomic.Int32
	crowded   atomic.Bool
	sent      []*wire.FromVerifier
}

func (s *silence) Context() context.Context { return s.ctx }

func (s *silence) Send(m *wire.FromVerifier) error {
	s.sent = append(s.sent, m)
	return nil
}

func (s *silence) Recv() (*wire.FromNode, error) {
	if s.receivers.Add(1) > 1 {
		s.crowded.Store(true)
	}
	<-s.ctx.Done()
	return nil, io.EOF
}

// A stranger that says nothing is told that it gets nothing, and the one who waited for it stays the only one.
func TestSilentStranger(t *testing.T) {
	s := &silence{ctx: t.Context()}
	_, err := joinservice.Converse(s, joinservice.Timeouts{Proof: time.Millisecond}).Attest(verifier.Demands{Roots: []hullmark.ClusterRoot{{}}})
	if err == nil {
		t.Error("silence was accepted")
	}
	if len(s.sent) != 1 || s.sent[0].GetDenied().GetCode() != "denied" {
		t.Errorf("sent %v", s.sent)
	}
	if s.crowded.Load() {
		t.Error("two receive on one stream at once")
	}
}
