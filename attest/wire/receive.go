package wire

import (
	"errors"
	"time"
)

var (
	// ErrSilent says that a peer sent nothing in time.
	ErrSilent = errors.New("the peer said nothing in time")
	// ErrOver says that the exchange was over before the peer sent anything.
	ErrOver = errors.New("the exchange is over")
)

// Receive waits for the next message of a stream, whose Recv is given, for at most limit, and until over is closed, which may be nil.
// The error is ErrSilent, ErrOver or Recv's. After the first two the caller has to end the stream: Recv still waits.
func Receive[Message any](recv func() (Message, error), limit time.Duration, over <-chan struct{}) (Message, error) {
	type result struct {
		message Message
		err     error
	}
	arrived := make(chan result, 1)
	go func() {
		message, err := recv()
		arrived <- result{message, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var none Message
	select {
	case r := <-arrived:
		return r.message, r.err
	case <-over:
		return none, ErrOver
	case <-timer.C:
		return none, ErrSilent
	}
}
