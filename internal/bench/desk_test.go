package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/jointest"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/cluster"
	"github.com/hullmark/hullmark/measurements"
)

// tickets is how many are given; the TPM's own work for each takes far longer than the service's.
const tickets = 201

// BenchmarkDesk times the service from M1 to M4 on one core, with its records in memory: the challenge, the quote, policy, record
// and disk key. What the node and its TPM do in between, and TLS, are not counted. The aim is 1,000 tickets a second.
func BenchmarkDesk(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := newDesk(b)
	times := make([]time.Duration, tickets)
	for i := range times {
		times[i] = d.ticket(b)
	}
	slices.Sort(times)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(time.Second)/float64(times[tickets/2]), "tickets/s")
	b.ReportMetric(float64(times[tickets*99/100].Microseconds()), "p99-µs")
}

// desk is a service and one machine that asks it again and again.
type desk struct {
	service *joinservice.Service
	prover  *prover.Prover
	hello   []byte
	peer    *peer.Peer
}

func newDesk(b *testing.B) *desk {
	b.Helper()
	c, err := cluster.New()
	if err != nil {
		b.Fatal(err)
	}
	machine := nodetest.New(b, c.ID())
	machine.Boot(b, "image")
	d := &desk{peer: channel(b, c)}
	if d.prover, err = prover.Open(machine.TPM); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = d.prover.Close() })
	identity := d.prover.Identity()
	if d.hello, err = wire.EncodeHello(&wire.Hello{
		Version: attest.Version, EkPublic: identity.EKPublic, AkPublic: identity.AKPublic,
		NodeConfig: machine.Config, Disk: wire.FromDiskClaim(machine.Disk),
	}); err != nil {
		b.Fatal(err)
	}
	records, member := &memrecords.Store{}, measurements.Member{EKID: machine.ID, Role: hullmark.Worker, Name: "worker-1"}
	d.service = &joinservice.Service{
		Root: c.ID(), Policy: jointest.PolicyStore(b, c, member), Keys: c.Keys, Records: records, Tokens: records, Patience: joinservice.OperatorPatience(),
	}
	return d
}

// channel makes one TLS connection, whose key all exchanges are bound to.
func channel(b *testing.B, c *cluster.Cluster) *peer.Peer {
	b.Helper()
	leaf, err := attest.NewService(c.Root.Certificate, c.Online.Certificate, c.Online.Key)
	if err != nil {
		b.Fatal(err)
	}
	near, far := net.Pipe()
	client, server := tls.Client(near, attest.JoinConfig(c.ID())), tls.Server(far, attest.ServiceConfig(leaf))
	done := make(chan error, 1)
	go func() { done <- client.Handshake() }()
	if err := errors.Join(server.Handshake(), <-done); err != nil {
		b.Fatal(err)
	}
	return &peer.Peer{AuthInfo: credentials.TLSInfo{State: server.ConnectionState()}}
}

// conversation is the other end of a stream: it answers as a machine does, up to the ticket.
type conversation struct {
	grpc.ServerStream
	desk      *desk
	challenge *wire.Challenge
	begun     bool
	// away is how long the service waited for the machine, ticket when it sent M4.
	away   time.Duration
	ticket time.Time
	failed error
}

// errEnough ends an exchange whose ticket came.
var errEnough = errors.New("the ticket came")

func (c *conversation) Context() context.Context {
	return peer.NewContext(context.Background(), c.desk.peer)
}

func (c *conversation) Send(m *wire.FromVerifier) error {
	switch {
	case m.GetTicket() != nil:
		c.ticket = time.Now()
	case m.GetDenied() != nil:
		c.failed = m.GetDenied().HullmarkCondition()
	}
	c.challenge = m.GetChallenge()
	return nil
}

func (c *conversation) Recv() (*wire.FromNode, error) {
	if !c.begun {
		c.begun = true
		return &wire.FromNode{Message: &wire.FromNode_Hello{Hello: c.desk.hello}}, nil
	}
	if c.challenge == nil {
		return nil, errEnough
	}
	start := time.Now()
	proof, err := c.desk.prove(c.challenge)
	c.away = time.Since(start)
	return &wire.FromNode{Message: &wire.FromNode_Proof{Proof: proof}}, err
}

// prove is the machine's part.
func (d *desk) prove(challenge *wire.Challenge) (*wire.Proof, error) {
	secret, err := d.prover.Activate(challenge.GetCredential(), challenge.GetSecret())
	if err != nil {
		return nil, err
	}
	channelKey, err := attest.ChannelKey(d.peer)
	if err != nil {
		return nil, err
	}
	binding, err := attest.Bind(channelKey, secret, d.hello)
	if err != nil {
		return nil, err
	}
	evidence, err := d.prover.Prove(binding)
	if err != nil {
		return nil, err
	}
	return &wire.Proof{Quoted: evidence.Quoted, Signature: evidence.Signature, PcrValues: evidence.Registers.Bytes()}, nil
}

// ticket runs one exchange and returns what of it was the service's work.
func (d *desk) ticket(b *testing.B) time.Duration {
	b.Helper()
	c := &conversation{desk: d}
	start := time.Now()
	if err := d.service.Release(c); err != nil || c.failed != nil || c.ticket.IsZero() {
		b.Fatalf("no ticket: %v, %v", err, c.failed)
	}
	return c.ticket.Sub(start) - c.away
}
