package controlplane

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

const (
	// firstPause and lastPause bound the pauses between attempts of a job, each twice as long as the one before.
	firstPause, lastPause = 5 * time.Second, 5 * time.Minute
	// wakePause is how often a job's progress wakes the reconciler at most.
	wakePause = 5 * time.Second
)

// jobs are what goes on in the background, at most one thing for a control plane. It lasts no longer than this process: another one finds
// in the API, and on the machine, how far it came.
type jobs struct {
	mutex   sync.Mutex
	running map[types.UID]*job
	// ending are the jobs that were cancelled last: the next one of their control plane waits for them.
	ending map[types.UID]*job
	ended  sync.WaitGroup
	// wake has a control plane reconciled; nil: nobody listens.
	wake chan event.GenericEvent
}

// job is one machine's beginning.
type job struct {
	// key says what it does: another key is another job.
	key    string
	cancel context.CancelFunc
	// gone is closed when nothing of it runs any more.
	gone chan struct{}
	// plane is woken by it.
	plane *v1alpha1.HullmarkControlPlane

	mutex    sync.Mutex
	progress string
	woken    time.Time
	// outcome is that of the last attempt, over says that there is no other.
	outcome outcome
	over    bool
}

// outcome is how an attempt ended.
type outcome struct {
	// reason and message are those of the condition Begun; empty as long as the first attempt goes on.
	reason, message string
	// again says that another attempt is made.
	again bool
	// done says that the cluster runs.
	done bool
}

// state is what is known of a job now.
func (j *job) state() (progress string, o outcome, over bool) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return j.progress, j.outcome, j.over
}

// ensure returns the control plane's job of a key, which is begun if there is none. A job of another key is cancelled, and has ended
// before this one does anything.
func (j *jobs) ensure(plane *v1alpha1.HullmarkControlPlane, key string, attempt func(context.Context, func(string)) outcome) *job {
	j.mutex.Lock()
	current, ok := j.running[plane.UID]
	j.mutex.Unlock()
	if ok && current.key == key {
		return current
	}
	if ok {
		j.cancel(plane.UID)
	}
	ctx, cancel := context.WithCancel(context.Background())
	begun := &job{key: key, cancel: cancel, gone: make(chan struct{}), plane: plane.DeepCopy()}
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if j.running == nil {
		j.running = map[types.UID]*job{}
	}
	before := j.ending[plane.UID]
	delete(j.ending, plane.UID)
	j.running[plane.UID] = begun
	j.ended.Go(func() {
		defer close(begun.gone)
		if before != nil {
			<-before.gone
		}
		j.loop(ctx, begun, attempt)
	})
	return begun
}

// loop makes attempts until one is final.
func (j *jobs) loop(ctx context.Context, b *job, attempt func(context.Context, func(string)) outcome) {
	defer b.cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		o := attempt(ctx, func(line string) { j.hear(b, line) })
		b.mutex.Lock()
		b.outcome, b.over = o, o.done || !o.again || ctx.Err() != nil
		over := b.over
		b.mutex.Unlock()
		j.rouse(b)
		if over {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// hear keeps the last line of progress, and wakes the reconciler now and then.
func (j *jobs) hear(b *job, line string) {
	b.mutex.Lock()
	b.progress = core.AtMost(printable(line), 1000)
	late := time.Since(b.woken) > wakePause
	if late {
		b.woken = time.Now()
	}
	b.mutex.Unlock()
	if late {
		j.rouse(b)
	}
}

// printable drops from a line what is no text: it may be a node's.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, line)
}

func (j *jobs) rouse(b *job) {
	if j.wake == nil {
		return
	}
	select {
	case j.wake <- event.GenericEvent{Object: b.plane}:
	default: // So many wait that this one is looked at anyway, by its timer.
	}
}

// cancel ends a control plane's job, and does not wait for its end.
func (j *jobs) cancel(plane types.UID) {
	j.mutex.Lock()
	current, ok := j.running[plane]
	delete(j.running, plane)
	if ok {
		if j.ending == nil {
			j.ending = map[types.UID]*job{}
		}
		j.ending[plane] = current
	}
	j.mutex.Unlock()
	if ok {
		current.cancel()
	}
}

// Start ends all jobs with the manager.
func (j *jobs) Start(ctx context.Context) error {
	<-ctx.Done()
	j.stop()
	return nil
}

// stop cancels all jobs and waits for their ends.
func (j *jobs) stop() {
	j.mutex.Lock()
	for _, each := range j.running {
		each.cancel()
	}
	j.running = nil
	j.mutex.Unlock()
	j.ended.Wait()
}
