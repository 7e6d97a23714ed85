package bench

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/jointest"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

const (
	// machines ask at once, each of them so many times.
	machines = 200
	rounds   = 25
	// places is how many exchanges the service takes whose evidence is not verified. A machine that would be told to
	// come again waits here for a place, and its wait counts.
	places = joinservice.MaxUnauthenticated
)

// The targets of one core: tickets a second, and how long the slowest of a hundred may take.
const (
	wantRate = 1000
	wantWait = 20 * time.Millisecond
)

// BenchmarkAuthorizer lets 200 machines at once ask the service for tickets, on one core and with its records in memory: first each
// of them again as soon as it has its ticket, which shows how many tickets it gives; then evenly, as many a second as it is to give.
// A ticket takes from Hello to Ticket: the challenge, the quote, policy, record and disk key. What TPMs, TLS and gRPC do is not counted.
func BenchmarkAuthorizer(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := newAuthorizer(b)
	defer func(r io.Reader) { rand.Reader = r }(rand.Reader)
	rand.Reader = constant{}
	full, evenly := d.load(b, 0), d.load(b, machines*time.Second/wantRate)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(full.rate, "tickets/s")
	b.ReportMetric(milliseconds(full.percentile(50)), "p50-ms")
	b.ReportMetric(milliseconds(full.percentile(99)), "p99-ms")
	goals = append(
		goals,
		goal{
			fmt.Sprintf("tickets/s to %d machines at once, by one core", machines), fmt.Sprintf("%.0f, %v of processor time each", full.rate, short(full.each)),
			fmt.Sprintf("at least %d", wantRate), full.rate >= wantRate,
		},
		full.goal("how long each waits then"),
		evenly.goal(fmt.Sprintf("how long each waits if they ask for %d tickets/s", wantRate)),
	)
}

// constant is what randomness is for this benchmark: the secret of each challenge is the same, so that evidence can be made before.
type constant struct{}

func (constant) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 7
	}
	return len(p), nil
}

// waits is how long each ticket took, ascending, how many came in a second, and the processor time that one needed.
type waits struct {
	all  []time.Duration
	rate float64
	each time.Duration
}

func (w waits) percentile(percent int) time.Duration { return w.all[(len(w.all)*percent+99)/100-1] }

// goal holds the waits to their target.
func (w waits) goal(what string) goal {
	p50, p99 := w.percentile(50), w.percentile(99)
	return goal{what + ": p50, p99", fmt.Sprintf("%v, %v", short(p50), short(p99)), fmt.Sprintf("p99 at most %v", wantWait), p99 <= wantWait}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// authorizer is a service and the machines that ask it.
type authorizer struct {
	service  *joinservice.Service
	machines []*machine
	peer     *peer.Peer
	places   chan struct{}
}

func newAuthorizer(b *testing.B) *authorizer {
	b.Helper()
	c, err := cluster.New()
	if err != nil {
		b.Fatal(err)
	}
	d := &authorizer{peer: newPeer(b, c), places: make(chan struct{}, places)}
	document := nodetest.Document(b, "image")
	var rules []measurements.Member
	for i := range machines {
		m := newMachine(b, fmt.Sprintf("worker-%d", i), c.ID(), document, d.peer)
		d.machines, rules = append(d.machines, m), append(rules, m.rule)
	}
	records := &memrecords.Store{}
	store := jointest.PolicyStore(b, c, rules...)
	d.service = &joinservice.Service{
		Root: c.ID(), Policy: store, Keys: c.Keys,
		Records: records, Tokens: records, Timeouts: joinservice.ServiceTimeouts(),
		ControlPlanes: joinservice.ControlPlanes{Rotation: store.Policy().Rotation, Keys: store.Policy().Keys},
	}
	return d
}

// newPeer makes one TLS connection, whose key all exchanges are bound to.
func newPeer(b *testing.B, c *cluster.Cluster) *peer.Peer {
	b.Helper()
	leaf, err := channel.NewService(c.Root.Certificate, c.Online.Certificate, c.Online.Key)
	if err != nil {
		b.Fatal(err)
	}
	near, far := net.Pipe()
	client, server := tls.Client(near, channel.JoinTLS(c.ID())), tls.Server(far, channel.ServiceTLS(leaf))
	done := make(chan error, 1)
	go func() { done <- client.Handshake() }()
	if err := errors.Join(server.Handshake(), <-done); err != nil {
		b.Fatal(err)
	}
	return &peer.Peer{AuthInfo: credentials.TLSInfo{State: server.ConnectionState()}}
}

// load lets all machines ask, each once in every interval and as soon as it can if that has passed. A ticket's time counts from
// when it was to be asked for.
func (d *authorizer) load(b *testing.B, interval time.Duration) waits {
	b.Helper()
	runtime.GC() // What was left by others is not this one's.
	took, failed := make([]time.Duration, machines*rounds), make([]error, machines)
	begin, used := time.Now(), processorTime(b)
	var all sync.WaitGroup
	for i, m := range d.machines {
		all.Go(func() {
			due := begin.Add(interval * time.Duration(i) / machines)
			for round := range rounds {
				time.Sleep(time.Until(due))
				ticket, err := d.ask(m)
				if failed[i] = err; err != nil {
					return
				}
				took[i*rounds+round] = ticket.Sub(due)
				if due = due.Add(interval); interval == 0 {
					due = time.Now()
				}
			}
		})
	}
	all.Wait()
	count := len(took)
	w := waits{all: took, rate: float64(count) / time.Since(begin).Seconds(), each: (processorTime(b) - used) / time.Duration(count)}
	if err := errors.Join(failed...); err != nil {
		b.Fatal(err)
	}
	slices.Sort(w.all)
	return w
}

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// ask runs one exchange and returns when its ticket came.
func (d *authorizer) ask(m *machine) (time.Time, error) {
	d.places <- struct{}{}
	defer func() { <-d.places }()
	c := &conversation{peer: d.peer, machine: m}
	if err := d.service.Exchange(c); err != nil || c.failed != nil || c.ticket.IsZero() {
		return time.Time{}, errors.Join(errors.New("no ticket came"), err, c.failed)
	}
	return c.ticket, nil
}

// conversation is the other end of a stream: it answers as a machine does, up to the ticket.
type conversation struct {
	grpc.ServerStream
	peer    *peer.Peer
	machine *machine
	sent    int
	// ticket is when Ticket came.
	ticket time.Time
	failed error
}

// errEnough ends an exchange whose ticket came.
var errEnough = errors.New("the ticket came")

func (c *conversation) Context() context.Context {
	return peer.NewContext(context.Background(), c.peer)
}

func (c *conversation) Send(m *wire.FromVerifier) error {
	switch {
	case m.GetTicket() != nil:
		c.ticket = time.Now()
	case m.GetDenied() != nil:
		c.failed = m.GetDenied().HullmarkCondition()
	}
	return nil
}

func (c *conversation) Recv() (*wire.FromNode, error) {
	runtime.Gosched() // While a message is under way, others go on.
	c.sent++
	switch c.sent {
	case 1:
		return &wire.FromNode{Message: &wire.FromNode_Hello{Hello: c.machine.hello}}, nil
	case 2:
		return &wire.FromNode{Message: &wire.FromNode_Proof{Proof: c.machine.proof}}, nil
	}
	return nil, errEnough
}
