package addons

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pause lies between two questions to an API server that did not answer.
const pause = 2 * time.Second

// reach returns a client once the API server says that it is ready, within Wait. One that has just started refuses everybody.
func (a *Addons) reach(ctx context.Context) (*client, error) {
	c, err := connect(a.Config)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
		err := c.kinds.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		waited := time.Since(began).Round(time.Second)
		switch {
		case err == nil:
			return c, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case waited < a.Wait:
			a.say("waiting for the API server (%v of %v)", waited, a.Wait)
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return nil, fmt.Errorf("the API server at %s refuses the cluster file's administrator: %w; next: use the newest cluster file", a.Config.Host, err)
		default:
			return nil, fmt.Errorf("%w at %s: %w; next: look at the API server and etcd of the control plane, or name another (--server)", ErrUnreachable, a.Config.Host, err)
		}
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
