package registry

import (
	"context"
	"sync"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// enrolments gathers, by group, the machines that come while the group's list is being written: the next write counts all of them. With a
// write for each, machines that join at once push each other's writes out, and etcd keeps a copy of the list for each of them.
type enrolments struct {
	mutex   sync.Mutex
	waiting map[string][]*enrolment // there is an entry as long as somebody writes
}

// enrolment is one machine that is to be counted. Its result is set before done is closed.
type enrolment struct {
	node   hullmark.EKID
	most   int
	result error
	done   chan struct{}
}

// Enrol counts a machine to a group, for good; see joinservice.Records. Leave, Delete and Rebind take it out. When ctx ends before the
// list is written, the machine may be counted all the same.
func (r *Groups) Enrol(ctx context.Context, group string, node hullmark.EKID, most int) error {
	if ctx.Err() != nil {
		return contended(ctx, GroupObjects+group)
	}
	e := &enrolment{node: node, most: most, done: make(chan struct{})}
	r.enrolling.mutex.Lock()
	others, writing := r.enrolling.waiting[group]
	r.enrolling.waiting[group] = append(others, e)
	r.enrolling.mutex.Unlock()
	if !writing {
		go r.write(context.WithoutCancel(ctx), group)
	}
	select {
	case <-e.done:
		return e.result
	case <-ctx.Done():
		return contended(ctx, GroupObjects+group)
	}
}

// write writes a group's list until nobody waits for that.
func (r *Groups) write(ctx context.Context, group string) {
	for {
		r.enrolling.mutex.Lock()
		all := r.enrolling.waiting[group]
		if len(all) == 0 {
			delete(r.enrolling.waiting, group)
			r.enrolling.mutex.Unlock()
			return
		}
		r.enrolling.waiting[group] = nil
		r.enrolling.mutex.Unlock()
		r.count(ctx, group, all)
	}
}

// count counts machines by one write, each up to its own limit, and gives each its result.
func (r *Groups) count(ctx context.Context, group string, all []*enrolment) {
	ctx, cancel := context.WithTimeout(ctx, joinservice.DecisionTime)
	defer cancel()
	err := r.editGroup(ctx, group, func(machines map[string]string) (changed bool, err error) {
		for _, e := range all {
			e.result = nil // of a try that lost its race
			if _, counted := machines[e.node.String()]; counted {
				continue
			}
			if len(machines) >= e.most {
				e.result = joinservice.GroupFull(group, e.most)
				continue
			}
			machines[e.node.String()] = ""
			changed = true
		}
		return changed, nil
	})
	for _, e := range all {
		if err != nil {
			e.result = err
		}
		close(e.done)
	}
}
