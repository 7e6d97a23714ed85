package registry

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
)

// oneList is an API that has one ConfigMap, whose first write waits until it is let go.
type oneList struct {
	mutex  sync.Mutex
	object corev1.ConfigMap
	writes atomic.Int32
	first  chan struct{} // closed by who lets the first write go
	begun  chan struct{} // closed by the first write
}

func newOneList(t *testing.T) (*oneList, *Registry) {
	l := &oneList{
		object: corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: meta(groupKind, GroupObjects+"cloud")},
		first:  make(chan struct{}), begun: make(chan struct{}),
	}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	return l, connect(t, server.URL)
}

func (l *oneList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut && l.writes.Add(1) == 1 {
		close(l.begun)
		<-l.first
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if r.Method == http.MethodPut {
		l.object = corev1.ConfigMap{}
		if err := json.NewDecoder(r.Body).Decode(&l.object); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(l.object)
}

// Machines that come while a group's list is being written are counted by one write, and each is held to the limit.
func TestMachinesAreCountedTogether(t *testing.T) {
	const machines, most = 20, 15
	l, r := newOneList(t)
	errs := make([]error, machines)
	enrol := func(i int) { errs[i] = r.Enrol(t.Context(), "cloud", hullmark.EKID{byte(i)}, most) }
	var all sync.WaitGroup
	all.Go(func() { enrol(0) })
	<-l.begun
	for i := 1; i < machines; i++ {
		all.Go(func() { enrol(i) })
	}
	for waiting := 0; waiting < machines-1; {
		r.enrolling.mutex.Lock()
		waiting = len(r.enrolling.waiting["cloud"])
		r.enrolling.mutex.Unlock()
	}
	close(l.first)
	all.Wait()
	full := 0
	for i, err := range errs {
		var c *hullmark.Condition
		switch {
		case err == nil:
		case errors.As(err, &c) && c.Code == "group-full":
			full++
		default:
			t.Errorf("machine %d: %v", i, err)
		}
	}
	if writes := l.writes.Load(); writes != 2 || full != machines-most || len(l.object.Data) != most {
		t.Errorf("%d writes, %d refused, %d counted; want 2, %d, %d", writes, full, len(l.object.Data), machines-most, most)
	}
	if err := r.Enrol(t.Context(), "cloud", hullmark.EKID{0}, most); err != nil || l.writes.Load() != 2 {
		t.Errorf("one that is counted comes again: %v, %d writes", err, l.writes.Load())
	}
	for waiting := 1; waiting > 0; { // The last writer forgets the group.
		r.enrolling.mutex.Lock()
		waiting = len(r.enrolling.waiting)
		r.enrolling.mutex.Unlock()
	}
}

// Who gives up waiting is told to come again, and the others are counted.
func TestACountedMachineMayGiveUp(t *testing.T) {
	l, r := newOneList(t)
	var all sync.WaitGroup
	all.Go(func() {
		if err := r.Enrol(t.Context(), "cloud", hullmark.EKID{1}, 3); err != nil {
			t.Error(err)
		}
	})
	<-l.begun
	over, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var c *hullmark.Condition
	if err := r.Enrol(over, "cloud", hullmark.EKID{2}, 3); !errors.As(err, &c) || !c.Retry {
		t.Errorf("got %v", err)
	}
	close(l.first)
	all.Wait()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if _, counted := l.object.Data[hullmark.EKID{1}.String()]; !counted {
		t.Errorf("%v are counted", l.object.Data)
	}
}
