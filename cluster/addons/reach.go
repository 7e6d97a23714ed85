package addons

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pause lies between two questions to an API server that did not answer.
const pause = 2 * time.Second

// reach returns a client once the API server answers, within Wait.
func (a *Addons) reach(ctx context.Context) (*client, error) {
	c, err := connect(a.Config)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
		_, err := c.kinds.ServerVersion()
		var answer apierrors.APIStatus
		waited := time.Since(began).Round(time.Second)
		switch {
		case err == nil:
			return c, nil
		case errors.As(err, &answer) && !passes(err):
			return nil, fmt.Errorf("ask the API server: %w", err)
		case waited >= a.Wait:
			return nil, fmt.Errorf("%w at %s: %w; next: look at the API server and etcd of the control plane, or name another (--server)", ErrUnreachable, a.Config.Host, err)
		}
		a.say("waiting for the API server (%v of %v)", waited, a.Wait)
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// sleep waits, unless the context ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
