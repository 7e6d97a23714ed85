package firstboot

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-tpm/tpm2/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// unclosed keeps a test's TPM open from one use to the next.
type unclosed struct{ transport.TPM }

func (unclosed) Close() error { return nil }

// stage is a node with a real TPM and fakes around it, and its operator.
type stage struct {
	agent   *Agent
	disk    *agenttest.Disk
	machine *agenttest.System
	cluster *agenttest.Cluster
	tpm     *tpmtest.TPM
	console *bytes.Buffer
	root    *x509.Certificate
	rootKey *ecdsa.PrivateKey
}

func newStage(t *testing.T) *stage {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root, err := channel.NewRoot(key)
	if err != nil {
		t.Fatal(err)
	}
	dir, state := t.TempDir(), agenttest.NewStateDir(t)
	s := &stage{
		disk:    &agenttest.Disk{StateDir: state, Claim: hullmark.DiskClaim{State: hullmark.DiskBlank}},
		machine: &agenttest.System{}, cluster: &agenttest.Cluster{StateDir: state},
		tpm: tpmtest.New(t), console: &bytes.Buffer{}, root: root, rootKey: key,
	}
	resolv := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("# by systemd-resolved\nnameserver 192.0.2.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.agent = &Agent{
		OpenTPM: func() (transport.TPMCloser, error) { return unclosed{s.tpm}, nil },
		Config:  config.Source{File: filepath.Join(dir, "fw"), Cache: filepath.Join(dir, "config.json")},
		Disk:    s.disk, Machine: s.machine, Cluster: s.cluster, StateDir: state, RunDir: dir, Release: hullmark.RootHash{9}, SystemdDir: filepath.Join(dir, "systemd"), ForwardFile: filepath.Join(dir, "forward.json"), ResolvFile: resolv, Timing: DefaultTiming(),
		Status: &Status{File: filepath.Join(dir, "status.json"), Console: s.console, Log: io.Discard, Notify: func(string) {}},
	}
	s.cluster.Intent = func() (string, error) { return s.agent.intent() }
	s.configure(t, hullmark.NodeConfig{
		Version: 1, ClusterRoot: hullmark.ClusterRootOf(root.RawSubjectPublicKeyInfo), StateDisk: hullmark.DiskSelector{Serial: "state"},
	})
	return s
}

// keep puts a file into the manifest that the disk has when it is opened.
func (s *stage) keep(name, content string) {
	if s.disk.Files == nil {
		s.disk.Files = map[string]string{}
	}
	s.disk.Files[name] = content
}

// open opens the disk as a ticket does.
func (s *stage) open(t *testing.T) {
	t.Helper()
	g := hullmark.DiskGrant{Key: hullmark.NewSecret([]byte(ticketKey)), Generation: 1, UUID: hullmark.UUID{1}, Owner: hullmark.EKID{2}, Epoch: hullmark.EpochWindow{Issued: 6}}
	keys, err := deriveKeys(g, g.Owner)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := s.disk.Open(t.Context(), hullmark.DiskSelector{}, g)
	if err != nil {
		t.Fatal(err)
	}
	s.agent.kept.stateDir, s.agent.kept.keysPath = s.agent.StateDir, filepath.Join(s.agent.RunDir, keysFile)
	s.agent.kept.take(keys, opened.Manifest)
}

func (s *stage) configure(t *testing.T, c hullmark.NodeConfig) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.agent.Config.File, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// serve prepares the node and lets it wait for its operator. The channel gets what ended that.
func (s *stage) serve(t *testing.T) (address string, ended chan error) {
	t.Helper()
	if err := (setup{s.agent}).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	tls, err := channel.NodeTLS(s.agent.config.ClusterRoot)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- s.agent.serveOn(t.Context(), listener, credentials.NewTLS(tls))
	}()
	t.Cleanup(func() { <-done }) // before the TPM goes
	return listener.Addr().String(), ended
}

// operator dials the node with certificates of the given root: one for each verb, and init's for an exchange.
func operator(t *testing.T, address string, root *x509.Certificate, key *ecdsa.PrivateKey) wire.NodeClient {
	t.Helper()
	return verbs{
		NodeClient: dialAs(t, address, root, key, channel.Scope{Verb: channel.VerbInit}),
		status:     dialAs(t, address, root, key, channel.Scope{Verb: channel.VerbStatus}), logs: dialAs(t, address, root, key, channel.Scope{Verb: channel.VerbLogs}),
	}
}

// recoverer is operator for recover.
func recoverer(t *testing.T, address string, s *stage) wire.NodeClient {
	t.Helper()
	return dialAs(t, address, s.root, s.rootKey, channel.Scope{Verb: channel.VerbRecover})
}

type verbs struct {
	wire.NodeClient
	status, logs wire.NodeClient
}

func (v verbs) Status(ctx context.Context, r *wire.StatusRequest, o ...grpc.CallOption) (*wire.StatusReply, error) {
	return v.status.Status(ctx, r, o...)
}

func (v verbs) Journal(ctx context.Context, r *wire.JournalRequest, o ...grpc.CallOption) (grpc.ServerStreamingClient[wire.JournalChunk], error) {
	return v.logs.Journal(ctx, r, o...)
}

// dialAs dials the node with a certificate for a scope.
func dialAs(t *testing.T, address string, root *x509.Certificate, key *ecdsa.PrivateKey, e channel.Scope) wire.NodeClient {
	t.Helper()
	certificate, err := channel.NewOperator(root, key, e)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(channel.OperatorCredentials(certificate)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return wire.NewNodeClient(conn)
}

// call is the verifier's side of an exchange that an honest one plays: an operator's, or a join service's.
type call struct {
	t      *testing.T
	stream interface {
		Send(*wire.FromVerifier) error
		Recv() (*wire.FromNode, error)
		Context() context.Context
	}
	// kind is what the operator calls for; a join service calls for nothing.
	kind hullmark.TicketKind
	// end ends a join service's stream.
	end func()
}

func dial(t *testing.T, client wire.NodeClient) call {
	t.Helper()
	stream, err := client.Exchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return call{t: t, stream: stream, kind: hullmark.Init}
}

func (c call) send(m *wire.FromVerifier) {
	c.t.Helper()
	if err := c.stream.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

func (c call) receive() *wire.FromNode {
	c.t.Helper()
	m, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// admit plays Hello to Proof and returns what the verifier found.
func (c call) admit(s *stage) attest.Claims {
	c.t.Helper()
	claims, err := c.tryAdmit(s)
	if err != nil {
		c.t.Fatal(err)
	}
	return claims
}

// call says what the operator wants.
func (c call) call() error {
	if c.kind == "" {
		return nil
	}
	return c.stream.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Call{Call: &wire.Call{Kind: string(c.kind)}}})
}

func (c call) tryAdmit(s *stage) (attest.Claims, error) {
	if err := c.call(); err != nil {
		return attest.Claims{}, err
	}
	message, err := c.stream.Recv()
	if err != nil {
		return attest.Claims{}, err
	}
	exchange, err := c.begin(s, message.GetHello())
	if err != nil {
		return attest.Claims{}, err
	}
	credential, secret, err := exchange.Challenge(rand.Reader)
	if err != nil {
		return attest.Claims{}, err
	}
	challenge := &wire.FromVerifier{Message: &wire.FromVerifier_Challenge{Challenge: &wire.Challenge{Credential: credential, Secret: secret}}}
	if err := c.stream.Send(challenge); err != nil {
		return attest.Claims{}, err
	}
	if message, err = c.stream.Recv(); err != nil {
		return attest.Claims{}, err
	}
	return exchange.Verify(message.GetProof())
}

func (c call) begin(s *stage, hello []byte) (*verifier.Exchange, error) {
	from, _ := peer.FromContext(c.stream.Context())
	key, err := channel.Key(from)
	if err != nil {
		return nil, err
	}
	message, err := wire.DecodeHello(hello)
	if err != nil {
		return nil, err
	}
	node := hullmark.EKIDOf(message.GetEkPublic())
	return verifier.Begin(hello, key, verifier.Demands{Roots: []hullmark.ClusterRoot{s.agent.config.ClusterRoot}, Anchor: verifier.Anchor{EKID: &node}})
}

const ticketKey = "thirty-two bytes of a disk's key"

// ticket gives what fits: the operator's kind, or what a join service makes of the disk.
func (c call) ticket(claims attest.Claims) {
	c.t.Helper()
	kind := c.kind
	switch {
	case kind == "" && claims.Disk.State == hullmark.DiskReady:
		kind = hullmark.Rejoin
	case kind == "":
		kind = hullmark.Join
	}
	c.send(ticketOf(kind, claims))
}

func ticketOf(kind hullmark.TicketKind, claims attest.Claims) *wire.FromVerifier {
	return &wire.FromVerifier{Message: &wire.FromVerifier_Ticket{Ticket: wire.FromTicket(hullmark.Ticket{
		Kind: kind, Disk: hullmark.DiskGrant{
			Key: hullmark.NewSecret([]byte(ticketKey)), Generation: 1, UUID: claims.Disk.UUID, Owner: claims.EKID, FormatAllowed: true,
			Epoch: hullmark.EpochWindow{Issued: 1, Unchecked: kind == hullmark.Recover},
		},
	})}}
}

func (c call) proceed() {
	c.t.Helper()
	c.send(&wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: controlPlane()}})
}

// controlPlane is Proceed of a cluster's first node.
func controlPlane() *wire.Proceed {
	return &wire.Proceed{
		NodeName: "node-1", Role: string(hullmark.ControlPlane), KubeadmDocuments: []byte("documents"), Manifests: [][]byte{[]byte("a: 1"), []byte("b: 2")},
		Files: []*wire.File{
			{Path: "/etc/kubernetes/pki/sa.key", Content: []byte("key"), Mode: 0o600},
			{Path: "/var/lib/hullmark/policy.json", Content: []byte("policy"), Mode: 0o644},
		},
	}
}

// rest reads progress until the end, and returns the phases and the last message.
func (c call) rest() (phases []string, last *wire.Progress) {
	c.t.Helper()
	for {
		m, err := c.stream.Recv()
		if err != nil {
			return phases, last
		}
		last = m.GetProgress()
		phases = append(phases, last.GetPhase())
	}
}
