package registry

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// poked is a store that says when it changed.
type poked struct {
	cache.Store
	changed chan struct{}
}

// poke never waits: one poke that was not heard yet stands for all.
func (p poked) poke(err error) error {
	select {
	case p.changed <- struct{}{}:
	default:
	}
	return err
}

func (p poked) Add(o any) error                         { return p.poke(p.Store.Add(o)) }
func (p poked) Update(o any) error                      { return p.poke(p.Store.Update(o)) }
func (p poked) Delete(o any) error                      { return p.poke(p.Store.Delete(o)) }
func (p poked) Replace(all []any, version string) error { return p.poke(p.Store.Replace(all, version)) }

// mirror keeps a copy of what source lists and watches, and calls changed with
// all of it, which must not be changed, when it has come, after changes and, if
// again is not 0, at that pace. It goes on over outages of the API until ctx ends, and returns ctx's error.
func mirror(ctx context.Context, kind runtime.Object, source cache.ListerWatcher, again time.Duration, changed func(context.Context, []any)) error {
	store := poked{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), changed: make(chan struct{}, 1)}
	reflector := cache.NewReflectorWithOptions(source, kind, store, cache.ReflectorOptions{
		// Nodes that join wait for this watch after an outage: five seconds at most.
		Backoff: &wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.25, Steps: 3, Cap: 4 * time.Second},
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reflector.RunWithContext(ctx)
	}()
	defer func() { <-ended }()
	var tick <-chan time.Time
	if again > 0 {
		ticker := time.NewTicker(again)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-store.changed:
		case <-tick:
		}
		changed(ctx, store.List())
	}
}
