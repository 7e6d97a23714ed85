//go:build quorum || bench

package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark/internal/testenv"
)

const (
	// clients have a connection each, and a watch; together they read, and write, as often as rate says in a second.
	clients = 6
	rate    = 20
	// patience is how long a request may take. None is sent again by the clients.
	patience = 10 * time.Second
	// keys are written in turn, so that two writes of one are further apart than patience.
	keys = 50

	objects = "/api/v1/namespaces/default/configmaps"
)

// call is a request that has ended.
type call struct {
	write bool
	// client, key and number are what a write wrote.
	client, key, number int
	sent, ended         time.Time
	err                 error
}

// broken is a watch that ended before its time, and was begun again.
type broken struct{ at, again time.Time }

// traffic is what clients do with the API, until it is stopped.
type traffic struct {
	stop  func()
	users []*user

	mutex  sync.Mutex // guards what follows
	calls  []call
	broken []broken
	// watched is the last version that each client's watch saw of its object, and lost counts watches that could not go on where they were.
	watched [clients]uint64
	lost    int
}

// startTraffic begins with it, as this user of the API.
func startTraffic(t testing.TB, config *rest.Config) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &traffic{}
	var all sync.WaitGroup
	f.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(f.stop)
	for i := range clients {
		c := newUser(t, config, i)
		f.users = append(f.users, c)
		must(t, c.do(ctx, http.MethodPost, objects, fmt.Sprintf(`{"metadata":{"name":%q}}`, c.object), nil))
		all.Go(func() { f.watch(ctx, c) })
		for _, write := range []bool{false, true} {
			all.Go(func() { f.send(ctx, &all, c, write) })
		}
	}
	return f
}

// user is one client.
type user struct {
	http         atomic.Pointer[http.Client]
	host, object string
	number       int
}

func newUser(t testing.TB, config *rest.Config, number int) *user {
	t.Helper()
	c := &user{host: config.Host, object: fmt.Sprintf("traffic-%d", number), number: number}
	must(t, c.logIn(config))
	return c
}

// logIn has what is sent from now on go by other certificates, as those of a client that starts again.
func (c *user) logIn(config *rest.Config) error {
	own := rest.CopyConfig(config)
	own.Dial = (&net.Dialer{}).DialContext // a connection of its own
	client, err := rest.HTTPClientFor(own)
	if err != nil {
		return err
	}
	if former := c.http.Swap(client); former != nil {
		former.CloseIdleConnections()
	}
	return nil
}

// send sends requests at an even pace, whether earlier ones have been answered or not. Clients take turns.
func (f *traffic) send(ctx context.Context, all *sync.WaitGroup, c *user, write bool) {
	time.Sleep(time.Second * time.Duration(c.number) / rate)
	tick := time.NewTicker(time.Second * clients / rate)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all.Go(func() {
			made := call{write: write, client: c.number, key: n % keys, number: n, sent: time.Now()}
			// What is under way when the traffic stops is answered.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			if write {
				made.err = c.do(ctx, http.MethodPatch, objects+"/"+c.object, fmt.Sprintf(`{"data":{"k%d":"%d"}}`, made.key, n), nil)
			} else {
				made.err = c.do(ctx, http.MethodGet, objects+"/"+c.object, "", nil)
			}
			made.ended = time.Now()
			f.mutex.Lock()
			defer f.mutex.Unlock()
			f.calls = append(f.calls, made)
		})
	}
}

// do sends one request, and reads its answer.
func (c *user) do(ctx context.Context, method, path, body string, into any) error {
	answer, err := c.ask(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

func (c *user) ask(ctx context.Context, method, path, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.host+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := c.http.Load().Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1024))
		_ = answer.Body.Close()
		return nil, fmt.Errorf("%s: %.300s", answer.Status, text)
	}
	return answer, nil
}

// object is what counts of an object, or of an event's.
type object struct {
	Metadata struct{ ResourceVersion string }
	Data     map[string]string
}

// watch watches a client's object, and begins again where the watch ends.
func (f *traffic) watch(ctx context.Context, c *user) {
	version := ""
	var ended time.Time
	for ctx.Err() == nil {
		var err error
		if version == "" {
			var o object
			if err = c.do(ctx, http.MethodGet, objects+"/"+c.object, "", &o); err == nil {
				version = o.Metadata.ResourceVersion
			}
		}
		if err == nil {
			version, err = f.follow(ctx, c, version, ended)
		}
		if ctx.Err() == nil && (ended.IsZero() || err == nil) {
			ended = time.Now()
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// follow reads one watch to its end, and returns the last version that it saw. An error says that it was not begun.
func (f *traffic) follow(ctx context.Context, c *user, version string, ended time.Time) (string, error) {
	answer, err := c.ask(ctx, http.MethodGet, objects+"?watch=1&fieldSelector=metadata.name%3D"+c.object+"&resourceVersion="+version, "")
	if err != nil {
		return version, err
	}
	defer answer.Body.Close()
	if !ended.IsZero() {
		f.mutex.Lock()
		f.broken = append(f.broken, broken{ended, time.Now()})
		f.mutex.Unlock()
	}
	for decoder := json.NewDecoder(answer.Body); ; {
		var event struct {
			Type   string
			Object object
		}
		if err := decoder.Decode(&event); err != nil {
			return version, nil
		}
		seen, err := strconv.ParseUint(event.Object.Metadata.ResourceVersion, 10, 64)
		f.mutex.Lock()
		if event.Type == "ERROR" || err != nil {
			f.lost++
			f.mutex.Unlock()
			return "", nil
		}
		version, f.watched[c.number] = event.Object.Metadata.ResourceVersion, seen
		f.mutex.Unlock()
	}
}

// check wants whatever was acknowledged to be there, and every watch to have seen it. It waits for the watches, and stops the traffic.
func (f *traffic) check(t testing.TB, config *rest.Config) {
	t.Helper()
	f.mutex.Lock()
	acknowledged, sent := [clients][keys]int{}, len(f.calls)
	for _, c := range f.calls {
		if c.write && c.err == nil {
			acknowledged[c.client][c.key] = max(acknowledged[c.client][c.key], c.number)
		}
	}
	f.mutex.Unlock()
	if sent == 0 {
		t.Fatal("nothing was sent")
	}
	for i := range clients {
		var o object
		c := newUser(t, config, i)
		must(t, c.do(t.Context(), http.MethodGet, objects+"/"+c.object, "", &o))
		for key, number := range acknowledged[i] {
			if there, err := strconv.Atoi(o.Data[fmt.Sprint("k", key)]); number > 0 && (err != nil || there < number) {
				t.Errorf("client %d: key %d was acknowledged as %d, and is %d, %v", i, key, number, there, err)
			}
		}
		want, err := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64)
		must(t, err)
		must(t, eventually(t.Context(), func() error {
			f.mutex.Lock()
			defer f.mutex.Unlock()
			if f.watched[i] < want {
				return errors.New("a watch has not seen what was written")
			}
			return nil
		}))
	}
	f.stop()
	if f.lost > 0 {
		t.Errorf("%d watches could not go on where they were", f.lost)
	}
}

// eventually waits for what another process is to do.
func eventually(ctx context.Context, done func() error) error {
	return testenv.Poll(ctx, 200*time.Millisecond, done)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
