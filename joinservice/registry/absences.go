package registry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hullmark/hullmark"
)

const (
	// claimPatience is how long a machine's Node is not Ready before its claims of addresses yield: by then Kubernetes gives
	// its pods to others, too.
	claimPatience = 5 * time.Minute
	// lookPace is how often such a Node is looked at while somebody wants an address of its machine, and lookGap how far apart
	// two looks may be for the time between them to count: what the Node was meanwhile nobody knows.
	lookPace, lookGap = 20 * time.Second, time.Minute
	// lookOn is for how long it is looked at after somebody wanted an address last.
	lookOn = 20 * time.Minute
)

// absences are since when this process has seen machines' Nodes not Ready, by its own clock. What others wrote about times is
// compared with itself alone.
type absences struct {
	now func() time.Time

	mutex sync.Mutex
	of    map[hullmark.EKID]*absence
}

// absence is what was seen of one machine.
type absence struct {
	// state tells apart absences between which the Node was Ready.
	state string
	// since and last are the first and the latest look at this state; asked is when somebody wanted an address.
	since, last, asked time.Time
}

// asked notes a look for a machine that wants an address, and reports whether the holder's Node was seen in one state, look by
// look, for as long as a claim lasts. A state is empty as long as the Node is Ready.
func (a *absences) asked(holder hullmark.EKID, state string) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.of == nil {
		a.of = map[hullmark.EKID]*absence{}
	}
	if a.of[holder] == nil {
		a.of[holder] = &absence{}
	}
	a.of[holder].asked = a.now()
	return a.see(holder, state)
}

// saw notes a look that nobody asked for.
func (a *absences) saw(holder hullmark.EKID, state string) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.see(holder, state)
}

// see is called with the mutex held.
func (a *absences) see(holder hullmark.EKID, state string) bool {
	of, now := a.of[holder], a.now()
	if of == nil || state == "" {
		delete(a.of, holder)
		return false
	}
	if of.state != state || now.Sub(of.last) > lookGap {
		of.state, of.since = state, now
	}
	of.last = now
	return now.Sub(of.since) >= claimPatience
}

// due are the machines to look at by now. Those that nobody asks for any more are forgotten.
func (a *absences) due() (holders []hullmark.EKID) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	now := a.now()
	for holder, of := range a.of {
		switch {
		case now.Sub(of.asked) > lookOn:
			delete(a.of, holder)
		case now.Sub(of.last) >= lookPace:
			holders = append(holders, holder)
		}
	}
	return holders
}

// lookAgain looks at the Nodes whose machines' addresses others want, so that an absence is seen as a whole, however seldom
// somebody asks. After an error the time until the next look counts for nothing if it is long.
func (r *Machines) lookAgain(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(abreast)
	for _, holder := range r.absent.due() {
		group.Go(func() error {
			if state, err := r.state(ctx, holder); err == nil {
				r.absent.saw(holder, state)
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns one
}

// state describes in which way a machine is absent; it is empty while its Node is Ready.
func (r *Machines) state(ctx context.Context, holder hullmark.EKID) (string, error) {
	m, version, err := r.Load(ctx, holder)
	if err != nil {
		return "", fmt.Errorf("machine %s: %w", holder, err)
	}
	if version == "" {
		return "no record", nil
	}
	return r.absence(ctx, m.Name)
}

// absence describes the state of a Node that is not Ready, so that it is another once the Node was Ready in between; empty if it is Ready.
func (r *Machines) absence(ctx context.Context, name string) (string, error) {
	node, err := call(ctx, r.connection, "read the Node "+name, func(ctx context.Context) (*corev1.Node, error) {
		return r.nodes.get(ctx, name)
	})
	switch {
	case apierrors.IsNotFound(err):
		return "no Node", nil
	case err != nil:
		return "", err
	case isReady(node):
		return "", nil
	}
	state := "Node " + string(node.UID)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			state += fmt.Sprintf(" %s since %d", c.Status, c.LastTransitionTime.UnixNano())
		}
	}
	return state, nil
}
