package wire_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hullmark/hullmark/attest/wire"
)

func TestReceive(t *testing.T) {
	silent := func() (string, error) { select {} }
	over, broken := make(chan struct{}), errors.New("broken")
	close(over)
	for name, c := range map[string]struct {
		recv    func() (string, error)
		limit   time.Duration
		over    chan struct{}
		message string
		err     error
	}{
		"a message":     {func() (string, error) { return "hello", nil }, time.Minute, nil, "hello", nil},
		"an end":        {func() (string, error) { return "", broken }, time.Minute, nil, "", broken},
		"silence":       {silent, time.Millisecond, nil, "", wire.ErrSilent},
		"another begun": {silent, time.Minute, over, "", wire.ErrOver},
	} {
		if message, err := wire.Receive(c.recv, c.limit, c.over); message != c.message || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v", name, message, err)
		}
	}
}
