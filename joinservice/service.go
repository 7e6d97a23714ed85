package joinservice

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/limit"
)

const (
	// MaxUnauthenticated bounds the connections, and the exchanges, whose evidence is not verified yet.
	// Beyond them, only members have streams, each member one.
	MaxUnauthenticated = 128
	// MaxDecisions bounds the tickets that are decided at once: records that are asked for more of them have none ready in time.
	MaxDecisions = 32
	// maxHeaders bounds the headers of a call, in bytes.
	maxHeaders = 8 << 10
	// handshake bounds TLS and HTTP/2 handshakes, and how long a connection stays without a stream.
	handshake = 15 * time.Second
	// probe is how long a connection is silent before it is probed: a node that lost its power ends no stream.
	probe = time.Minute
)

// Service is the verifier's side of join and rejoin, which nodes dial. Any
// number of replicas may run: they share nothing but Records. All exported
// fields are set before it is served. What one exchange does is with its stages; the methods here are
// what exchanges, the approver and the loops of a replica share.
type Service struct {
	wire.UnimplementedJoinServiceServer

	// Root is the one of Policy's store: whoever signs has to be it, or come from it by cross-certificates.
	Root hullmark.ClusterRoot
	// Policy holds the policy in force.
	Policy *PolicyStore
	// Newest returns the policy that the cluster's API holds, unless it is the one whose envelope is held: then the zero value. Without it,
	// or while it fails, what was delivered last counts.
	Newest func(ctx context.Context, held []byte) (SignedPolicy, error)
	// Keys derives disk keys.
	Keys DiskKeys
	// Records keeps the machines, Tokens makes what a joining kubelet authenticates with.
	Records Records
	Tokens  Tokens
	// Vouchers are looked for where the policy has groups with enrollers. Without it, nobody has one.
	Vouchers Vouchers
	// RemoveNode deletes the Node that an earlier machine, or disk, left under the name of a node that joins. One that is
	// Ready is left: the error is a *hullmark.Condition with Retry.
	RemoveNode func(ctx context.Context, name string) error
	// ControlPlanes lets further control planes join.
	ControlPlanes ControlPlanes
	// Outage lets control planes come back although no record can be read. Without it, none may.
	Outage Outage
	// Directions say what nodes are to do with their slots. Without it, nothing.
	Directions Directions
	// Settings are the cluster's, for nodes that join.
	Settings Settings
	// Lookup asks DNS, for warnings alone; without it there are none.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// KubernetesCA are the certificates, in PEM, to which nodes hold the API server: one, or the two of an exchange.
	KubernetesCA []byte
	// Timeouts is ServiceTimeouts in all but tests.
	Timeouts Timeouts
	// Ended is told how each exchange ended: OutcomeReady, another outcome or the code of a condition.
	Ended func(outcome string)
	// Log gets a line for each exchange of a verified machine, and now and then one for another's.
	Log *slog.Logger

	unauthenticated atomic.Int64
	inFlight        atomic.Int64
	// lookups are for those whose vouchers are looked for, decisions for those whose tickets are decided.
	lookups, decisions places
	// refusalLogged is the second (Unix time) in which the refusal of an unauthenticated peer was logged last.
	refusalLogged atomic.Int64

	mutex sync.Mutex // guards sessions and leftOver
	// sessions holds how to end the exchange of each machine that has one.
	sessions map[hullmark.EKID]*session
	// leftOver are the public halves of tokens whose revocation failed, and since when.
	leftOver map[string]time.Time
	// planes are nil until a ticket is asked for, and once a control plane has got one.
	planes atomic.Pointer[planes]
}

// The outcomes of an exchange that no condition of the service describes.
const (
	// OutcomeReady is an exchange that ended with a Ready node.
	OutcomeReady = "ready"
	// OutcomeNodeFailed is one in which the node said what failed.
	OutcomeNodeFailed = "node-failed"
	// OutcomeEnded is one whose stream ended early, or fell silent, or was malformed.
	OutcomeEnded = "stream-ended"
	// OutcomeSuperseded is one whose machine began another.
	OutcomeSuperseded = "superseded"
)

// InFlight returns how many exchanges are under way.
func (s *Service) InFlight() int64 { return s.inFlight.Load() }

// Server returns a server of the exchange, bounded against unauthenticated peers, over
// TLS; config is channel.ServiceTLS's. It is served behind a limit.Listener with MaxUnauthenticated slots.
func (s *Service) Server(config *tls.Config) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)),
		grpc.MaxRecvMsgSize(wire.MaxFromNode),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(1),
		grpc.ConnectionTimeout(handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: handshake, Time: probe, Timeout: handshake}),
	)
	wire.RegisterJoinServiceServer(server, s)
	return server
}

// Exchange runs one exchange. Its end is never a status with a reason: a machine
// that is refused learns what Conversation says, and nothing from the stream.
func (s *Service) Exchange(stream wire.JoinService_ExchangeServer) error {
	if !limit.FirstCall(stream.Context()) {
		return nil // A node has one exchange on a connection.
	}
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	x := &exchange{service: s, conversation: Converse(stream, s.Timeouts), ctx: context.WithoutCancel(stream.Context())}
	p, err := x.run()
	outcome := outcomeOf(err)
	if s.Ended != nil {
		s.Ended(outcome)
	}
	s.log(p, outcome, err)
	return nil
}

func outcomeOf(err error) string {
	var reported *NodeError
	var condition *hullmark.Condition
	switch {
	case err == nil:
		return OutcomeReady
	case errors.Is(err, errSuperseded):
		return OutcomeSuperseded
	case errors.As(err, &reported):
		return OutcomeNodeFailed
	case errors.As(err, &condition):
		return condition.Code
	}
	return OutcomeEnded
}

// enter takes one of the places for unauthenticated peers, if there is one.
func (s *Service) enter() bool {
	if s.unauthenticated.Add(1) > MaxUnauthenticated {
		s.unauthenticated.Add(-1)
		return false
	}
	return true
}

func (s *Service) leave() { s.unauthenticated.Add(-1) }

// places are for a bounded number of exchanges at once.
type places struct {
	made  sync.Once
	taken chan struct{}
}

// take waits for one of most places, as long as its context lasts. Who waited longest is next.
func (p *places) take(ctx context.Context, most int) (giveBack func(), ok bool) {
	p.made.Do(func() { p.taken = make(chan struct{}, most) })
	select {
	case p.taken <- struct{}{}:
		return func() { <-p.taken }, true
	case <-ctx.Done():
		return nil, false
	}
}

// session is a machine's one exchange at this replica.
type session struct {
	over chan struct{}
}

// beginSession ends the machine's older exchange here, if there is one: a node that
// was reset dials again long before its old stream is known to be dead.
func (s *Service) beginSession(node hullmark.EKID) *session {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if older := s.sessions[node]; older != nil {
		close(older.over)
	}
	if s.sessions == nil {
		s.sessions = map[hullmark.EKID]*session{}
	}
	mine := &session{over: make(chan struct{})}
	s.sessions[node] = mine
	return mine
}

func (s *Service) endSession(node hullmark.EKID, mine *session) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.sessions[node] == mine {
		delete(s.sessions, node)
	}
}

// Attends reports whether a machine's exchange is under way here.
func (s *Service) Attends(node hullmark.EKID) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.sessions[node] != nil
}

// CodeContended is the code of the condition that others changed a record each time. It passes by itself.
const CodeContended = "record-contended"

// attempts bounds how often a compare-and-swap is tried. Only a machine's own exchanges change its record.
const attempts = 4

// stored is a record as somebody stored it; the zero value is none.
type stored struct {
	machine Machine
	version Version
}

// change edits a machine's record by compare-and-swap; whoever loses a race
// reads again and decides anew. edit may be called several times. It begins with last, which
// spares the reading where nobody else changed the record, and leaves there what it stored.
func (s *Service) change(ctx context.Context, node hullmark.EKID, last *stored, edit func(m *Machine, known bool) error) error {
	for range attempts {
		m, version := last.machine, last.version
		if version == "" {
			var err error
			if m, version, err = s.Records.Load(ctx, node); err != nil {
				return err
			}
		}
		*last = stored{}
		if err := edit(&m, version != ""); err != nil {
			return err
		}
		m.Seen = time.Now().UTC().Truncate(time.Second)
		version, err := s.Records.Store(ctx, m, version)
		if err == nil {
			*last = stored{m, version}
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return &hullmark.Condition{
		Code: CodeContended, Step: "ATTEST", Title: "the machine's record was changed by others again and again", Retry: true,
		Next: "wait; if this stays, look for a second machine with this TPM",
	}
}
