//go:build long

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/flood"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/measurements"
)

const (
	// floodedVariable makes of a test's program the service with records in memory.
	floodedVariable = "HULLMARK_TEST_FLOODED"
	// joiners are machines that join again and again, each from an address of its own.
	joiners = 4
	// mostMemory is what the service may have during a flood: half of what its unit allows.
	mostMemory = 256 << 20
)

// serveInMemory is the service at the addresses of its arguments, with records in memory: no API is waited for.
func serveInMemory(args []string) error {
	o := options{
		credentials: os.Getenv("CREDENTIALS_DIRECTORY"), files: servicefiles.Files{Folder: os.Getenv("STATE_DIRECTORY")}, listen: args[0], http: args[1], api: "https://127.0.0.1:1", profile: true,
		notify: func(string) {}, log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	a, err := prepare(o)
	if err != nil {
		return err
	}
	records := &memrecords.Store{}
	a.service.Records, a.service.Tokens = attentive{records, a.outage}, records
	a.service.RemoveNode = func(context.Context, string) error { return nil }
	return a.run(context.Background())
}

// flooded is the service as a process, machines that join, and what a stranger may have seen of one of them.
type flooded struct {
	*site
	service *testenv.Process
	o       options
	each    []func() error
	seen    flood.Flood
}

func newFlooded(t *testing.T) *flooded {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(flood.StepAside())
	s := &flooded{site: newSite(t), o: options{listen: freeAddress(t), http: freeAddress(t)}}
	nodes := []*nodetest.Node{s.node}
	for i := 1; i < joiners; i++ {
		node := nodetest.New(t, s.cluster.ID())
		node.Boot(t, "image")
		nodes = append(nodes, node)
		s.policy.Members = append(s.policy.Members, measurements.Member{EKID: node.ID, Role: hullmark.Worker, Name: fmt.Sprintf("worker-%d", i+1)})
	}
	s.write(t, "policy", s.sign(t))
	var err error
	s.service, err = flood.Server(t.Context(), t.TempDir(), s.o.listen,
		[]string{floodedVariable + "=1", "CREDENTIALS_DIRECTORY=" + s.credentials, "STATE_DIRECTORY=" + s.state}, s.o.listen, s.o.http)
	must(err)
	t.Cleanup(func() {
		if err := s.service.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.seen = flood.Flood{Address: s.o.listen, Root: s.cluster.ID()}
	s.node.EditHello, s.node.EditProof = s.see(t)
	for i, node := range nodes {
		node.Prepare(t)
		node.Dialer = flood.Dialer(1, i)
		s.each = append(s.each, func() error { return s.join(t.Context(), node) })
		must(s.each[i]())
		grant := node.Ticket().Disk
		node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	}
	s.node.EditHello, s.node.EditProof = nil, nil
	return s
}

// see keeps the messages that a flood replays.
func (s *flooded) see(t *testing.T) (func(*wire.Hello), func(*wire.Proof)) {
	note := func(m *wire.FromNode) []byte {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Error(err)
		}
		return raw
	}
	return func(h *wire.Hello) {
			raw, err := wire.EncodeHello(h)
			if err != nil {
				t.Error(err)
			}
			s.seen.Hello = note(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: raw}})
		}, func(p *wire.Proof) {
			s.seen.Proof = note(&wire.FromNode{Message: &wire.FromNode_Proof{Proof: p}})
		}
}

// join runs one exchange to Ready.
func (s *flooded) join(ctx context.Context, node *nodetest.Node) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := node.Dial(ctx, s.o.listen, s.cluster.ID()); err != nil {
		return err
	}
	if denied := node.Denied(); denied != nil {
		return denied
	}
	return nil
}

// Strangers do all that they can; every machine joins, at its first attempt, and the service has no more memory than it may.
func TestFlood(t *testing.T) {
	s := newFlooded(t)
	flood.Floods{
		Server: s.service, Each: s.each, Flood: s.seen, Kinds: flood.Kinds(), Probe: "replayed evidence", Memory: mostMemory,
	}.Run(t, "join service")
}
