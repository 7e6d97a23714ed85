// Package nodetest is a node's side of the exchange in one process:
// real TLS, real gRPC and a real TPM emulator, but a disk that is a number and
// a kubeadm that always succeeds. It is the fake against which the verifier's
// side is tested.
package nodetest

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/measurements"
	"github.com/hullmark/hullmark/pcrs"
)

// Node is a machine that waits for its operator. Its methods are the messages that it sends and the answers that tests ask for.
type Node struct {
	wire.UnimplementedNodeServer

	// TPM is the machine's; it is in use until an exchange's Proof is sent.
	TPM *tpmtest.TPM
	// ID is the machine's identity.
	ID hullmark.EKID
	// Config is what it measured into PCR 8.
	Config []byte
	// Disk is what Hello says of its disk.
	Disk hullmark.DiskClaim
	// Epoch is the counter in its disk.
	Epoch uint64
	// Unjoined says that no kubeadm finished on the disk although it is ready.
	Unjoined bool
	// Etcd, if set, is what Opened and the last Progress say that the machine's member of etcd has stored; by default always the same.
	Etcd func() hullmark.EtcdState
	// LastBoot is what Opened says of the last boot.
	LastBoot string
	// CertificateEnds is when Opened says that the kubelet's certificate ends; zero is tomorrow.
	CertificateEnds time.Time
	// Addresses are what Opened names; without any, 192.0.2.7.
	Addresses []string
	// EventLog is what Proof offers as an explanation.
	EventLog []byte
	// EditHello and EditProof let a test tamper with what the node sends; nil for an honest node.
	EditHello func(*wire.Hello)
	// EditProof changes Proof before it is sent.
	EditProof func(*wire.Proof)
	// ForeignChannel makes the node bind its quote to another channel than this one.
	ForeignChannel bool
	// Dialer, if set, is what Dial connects with.
	Dialer *net.Dialer
	// Observe, if set, is told the name of each message, Hello to Progress, when it is sent or has come.
	Observe func(message string)
	// Join, if set, is what the machine does with Proceed, whether its verifier still hears it or not; its error ends the stream.
	Join func(*wire.Proceed) error
	// Phases are what Progress tells before the end.
	Phases []string
	// Fail, if set, is how kubeadm ends.
	Fail *hullmark.Condition
	// Silent makes the node end its stream after Proceed, and go on by itself.
	Silent bool
	// Hold, if set, is waited for after Proceed.
	Hold chan struct{}

	exchange sync.Mutex // held while the TPM is in use
	keys     Keys

	mutex   sync.Mutex // guards what follows
	ticket  *hullmark.Ticket
	proceed *wire.Proceed
	// snapshot is what followed Proceed.
	snapshot []byte
	denied   *hullmark.Condition
}

// New returns an honest machine that booted with config and measured an image.
func New(t testing.TB, root hullmark.ClusterRoot) *Node {
	t.Helper()
	config := configOf(root)
	n := &Node{
		TPM: tpmtest.New(t), Config: config,
		Disk: hullmark.DiskClaim{State: hullmark.DiskBlank, UUID: hullmark.UUID{7}},
	}
	n.TPM.Extend(t, attest.ConfigRegister, hullmark.ConfigEvent(config))
	n.ID = n.identify(t)
	return n
}

// configOf is the node config of a machine of a cluster.
func configOf(root hullmark.ClusterRoot) []byte {
	return []byte(`{"version":1,"clusterRoot":"` + root.String() + `","stateDisk":{"serial":"state"}}`)
}

// Alice returns the demand that a builder of that name has signed a release, and the key by which it would.
func Alice(t testing.TB) (measurements.Builders, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	alice, err := measurements.NewBuilder("alice", public)
	if err != nil {
		t.Fatal(err)
	}
	return measurements.Builders{Threshold: 1, Of: []measurements.Builder{alice}}, private
}

// Document returns a small measurement document; image names what PCR 4 measures. One that is called as a version, such as v1.36.3, says
// that it brings that Kubernetes.
func Document(t testing.TB, image string) measurements.Document {
	t.Helper()
	var prediction pcrs.Prediction
	for _, e := range boot(image) {
		prediction.Log.Events = append(prediction.Log.Events, pcrs.Event{
			Register: pcrs.Register(e.register), Type: pcrs.EvEFIAction, Digests: pcrs.DigestsOf([]byte(e.text), pcrs.PredictedBanks()...),
			Source: &pcrs.Source{Kind: pcrs.FromAction, Name: e.text}, Origin: pcrs.Derived,
		})
	}
	prediction.Registers = []pcrs.Register{1, 4, 7, 9, 11, 12, 13}
	root := RootHash(image)
	described := measurements.Image{ID: "node", Version: "1", Disk: root[:], RootHash: root[:], UKI: root[:], Stub: "257.1"}
	if v, err := hullmark.ParseVersion(image); err == nil {
		described.Versions = hullmark.Versions{Kubernetes: v, Etcd: hullmark.Version{Major: 3, Minor: 6, Patch: 8}}
	}
	document, err := measurements.New(described, measurements.Release{SVN: 1}, pcrs.Machine{}, prediction)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// RootHash is that of an image in its Document.
func RootHash(image string) hullmark.RootHash { return sha256.Sum256([]byte("root of " + image)) }

// event is the measurement of a text.
type event struct {
	register int
	text     string
}

// boot lists what a machine measures that boots image.
func boot(image string) []event {
	return []event{{7, "keys"}, {1, "tables"}, {4, image}, {9, "command line"}, {9, "initrd"}, {11, "sections"}}
}

// Boot measures what Document predicts for the same image.
func (n *Node) Boot(t testing.TB, image string) {
	t.Helper()
	for _, e := range boot(image) {
		n.TPM.Extend(t, e.register, []byte(e.text))
	}
}

// Reboot resets the machine, which then measures its config and boots image.
func (n *Node) Reboot(t testing.TB, image string) {
	t.Helper()
	n.exchange.Lock()
	defer n.exchange.Unlock()
	n.TPM.Reset(t)
	n.keys = nil // They were in the TPM's memory.
	n.TPM.Extend(t, attest.ConfigRegister, hullmark.ConfigEvent(n.Config))
	n.Boot(t, image)
}

// identify reads the machine's identity.
func (n *Node) identify(t testing.TB) hullmark.EKID {
	t.Helper()
	p, err := prover.Open(n.TPM, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return p.Node()
}

// Prepare makes the TPM's keys before the exchanges that use them: an emulator
// takes long for them, during which the verifier would be kept waiting.
func (n *Node) Prepare(t testing.TB) {
	t.Helper()
	n.exchange.Lock()
	defer n.exchange.Unlock()
	p, err := prover.Open(n.TPM, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	n.keys = p
}

// Serve waits for the operator of the cluster that root names, on loopback,
// until the test ends, and returns its address.
func (n *Node) Serve(t *testing.T, root hullmark.ClusterRoot) string {
	t.Helper()
	config, err := channel.NodeTLS(root)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.MaxRecvMsgSize(wire.MaxFromVerifier))
	wire.RegisterNodeServer(server, n)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// Ticket returns the ticket that the node got, or nil.
func (n *Node) Ticket() *hullmark.Ticket {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.ticket
}

// Proceed returns what Proceed brought, or nil.
func (n *Node) Proceed() *wire.Proceed {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.proceed
}

// Snapshot returns the content that followed Proceed.
func (n *Node) Snapshot() []byte {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.snapshot
}

// Denied returns the condition that the node was told, or nil.
func (n *Node) Denied() *hullmark.Condition {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.denied
}

// Status returns a status document.
func (n *Node) Status(_ context.Context, _ *wire.StatusRequest) (*wire.StatusReply, error) {
	return &wire.StatusReply{Json: []byte(`{"state":"ATTEST"}`)}, nil
}

// Journal returns two lines, the second with what a terminal must not see.
func (n *Node) Journal(_ *wire.JournalRequest, stream grpc.ServerStreamingServer[wire.JournalChunk]) error {
	for _, text := range []string{"first line\n", "second\x1b[2J line\n"} {
		if err := stream.Send(&wire.JournalChunk{Text: []byte(text)}); err != nil {
			return err
		}
	}
	return nil
}

// stream is the node's end of an exchange, whoever dialled.
type stream interface {
	Send(*wire.FromNode) error
	Recv() (*wire.FromVerifier, error)
	Context() context.Context
}

// Dial runs the node's side of one exchange with the join service at address,
// as a node of the cluster that root names. It returns nil if the exchange came
// to its end: with a Ready node, or with a denial (Denied).
func (n *Node) Dial(ctx context.Context, address string, root hullmark.ClusterRoot) error {
	dialer := n.Dialer
	if dialer == nil {
		dialer = &net.Dialer{}
	}
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", to) }),
		grpc.WithTransportCredentials(credentials.NewTLS(channel.JoinTLS(root))),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxFromVerifier)))
	if err != nil {
		return err
	}
	defer connection.Close()
	n.mutex.Lock()
	n.proceed, n.denied = nil, nil
	n.mutex.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := wire.NewJoinServiceClient(connection).Exchange(ctx)
	if err != nil {
		return err
	}
	if err := n.release(s); err != nil && !errors.Is(err, errDenied) {
		return err
	}
	// The service ends the stream once it has recorded what it heard.
	if err := s.CloseSend(); err != nil {
		return err
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream's end: %w", err)
	}
	return nil
}

// errDenied ends an exchange in which the verifier said no.
var errDenied = errors.New("denied")

// Again returns the same machine as it dials anew while an older exchange still seems alive.
func (n *Node) Again() *Node {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return &Node{TPM: n.TPM, ID: n.ID, Config: n.Config, Disk: n.Disk, Epoch: n.Epoch, keys: n.keys, ticket: n.ticket}
}

// Exchange runs the node's side of one exchange that an operator dialled.
func (n *Node) Exchange(s grpc.BidiStreamingServer[wire.FromVerifier, wire.FromNode]) error {
	_, err := n.receive(s) // the call
	if err == nil {
		err = n.release(s)
	}
	if errors.Is(err, errDenied) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (n *Node) release(stream stream) error {
	if err := n.prove(stream); err != nil {
		return err
	}
	if err := n.open(stream); err != nil {
		return err
	}
	message, err := n.receive(stream)
	if err != nil {
		return err
	}
	n.mutex.Lock()
	n.proceed = message.GetProceed()
	n.mutex.Unlock()
	n.observe("Proceed")
	if err := n.takeSnapshot(stream); err != nil {
		return err
	}
	return n.finish(stream)
}

// takeSnapshot receives what Proceed announced.
func (n *Node) takeSnapshot(stream stream) error {
	var content []byte
	for uint64(len(content)) < n.Proceed().GetSnapshot().GetSize() {
		message, err := n.receive(stream)
		if err != nil {
			return err
		}
		content = append(content, message.GetSnapshot()...)
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.snapshot = content
	return nil
}

// prove does Hello to Proof.
func (n *Node) prove(stream stream) error {
	n.exchange.Lock()
	defer n.exchange.Unlock()
	p := n.keys
	if p == nil {
		opened, err := prover.Open(n.TPM, hullmark.EKID{})
		if err != nil {
			return err
		}
		defer opened.Close()
		p = opened
	}
	identity := p.Identity()
	hello := &wire.Hello{
		Version: attest.Version, EkPublic: identity.EKPublic, EkCertificate: identity.EKCertificate, AkPublic: identity.AKPublic,
		NodeConfig: n.Config, Disk: wire.FromDiskClaim(n.Disk),
	}
	if n.EditHello != nil {
		n.EditHello(hello)
	}
	raw, err := wire.EncodeHello(hello)
	if err != nil {
		return err
	}
	n.observe("Hello")
	if err := stream.Send(&wire.FromNode{Message: &wire.FromNode_Hello{Hello: raw}}); err != nil {
		return err
	}
	message, err := n.receive(stream)
	if err != nil {
		return err
	}
	n.observe("Challenge")
	secret, err := p.Activate(message.GetChallenge().GetCredential(), message.GetChallenge().GetSecret())
	if err != nil {
		return err
	}
	proof, err := n.quote(p, stream.Context(), secret, raw)
	if err != nil {
		return err
	}
	n.observe("Proof")
	return stream.Send(&wire.FromNode{Message: &wire.FromNode_Proof{Proof: proof}})
}

func (n *Node) quote(p Keys, ctx context.Context, secret hullmark.Secret, hello []byte) (*wire.Proof, error) {
	operator, ok := peer.FromContext(ctx)
	if !ok {
		return nil, errors.New("the stream has no peer")
	}
	channelKey, err := channel.Key(operator)
	if err != nil {
		return nil, err
	}
	if n.ForeignChannel {
		channelKey = make([]byte, attest.ChannelKeySize)
	}
	binding, err := attest.Bind(channelKey, secret, hello)
	if err != nil {
		return nil, err
	}
	evidence, err := p.Prove(binding)
	if err != nil {
		return nil, err
	}
	proof := &wire.Proof{Quoted: evidence.Quoted, Signature: evidence.Signature, PcrValues: evidence.Registers.Bytes(), EventLog: n.EventLog}
	if n.EditProof != nil {
		n.EditProof(proof)
	}
	return proof, nil
}

// open does Ticket and Opened: it holds the ticket to the disk's counter as docs/protocol.md says.
func (n *Node) open(stream stream) error {
	message, err := n.receive(stream)
	if err != nil {
		return err
	}
	ticket, err := message.GetTicket().HullmarkTicket()
	if err != nil {
		return err
	}
	n.observe("Ticket")
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.ticket = &ticket
	read, epoch := n.Epoch, ticket.Disk.Epoch
	if n.Disk.State != hullmark.DiskReady && ticket.Disk.FormatAllowed { // A disk that is formatted begins with the least number of the window.
		read = epoch.Committed
	}
	if !epoch.Unchecked {
		if read < epoch.Committed || read >= epoch.Issued {
			return fmt.Errorf("rollback: the disk's epoch is %d, the ticket's window [%d, %d)", read, epoch.Committed, epoch.Issued)
		}
		n.Epoch = epoch.Issued
	}
	n.observe("Opened")
	return stream.Send(&wire.FromNode{Message: &wire.FromNode_Opened{Opened: &wire.Opened{
		Issued: epoch.Issued, EpochRead: read, Joined: n.Disk.State == hullmark.DiskReady && !n.Unjoined, LastBoot: n.LastBoot, Addresses: n.addresses(),
		CertificateEnds: n.certificateEnds().Unix(), Etcd: n.etcd(),
	}}})
}

func (n *Node) certificateEnds() time.Time {
	if n.CertificateEnds.IsZero() {
		return time.Now().Add(24 * time.Hour)
	}
	return n.CertificateEnds
}

// addresses are what Opened names.
func (n *Node) addresses() []string {
	if n.Addresses == nil {
		return []string{"192.0.2.7"}
	}
	return n.Addresses
}

// etcd is what is said of the member of etcd.
func (n *Node) etcd() *wire.EtcdState {
	if n.Etcd == nil {
		return &wire.EtcdState{Cluster: 1, Member: 1, Term: 1, Vote: 1, Commit: 1, Last: 1, LastTerm: 1}
	}
	return wire.FromEtcdState(n.Etcd())
}

// finish does Progress; from then on the machine's disk is ready.
func (n *Node) finish(stream stream) error {
	if n.Silent {
		return errors.New("the node is silent from here on")
	}
	if n.Hold != nil {
		<-n.Hold
	}
	if n.Join != nil {
		if err := n.Join(n.Proceed()); err != nil {
			return err
		}
	}
	n.observe("Progress")
	for _, phase := range n.Phases {
		err := stream.Send(&wire.FromNode{Message: &wire.FromNode_Progress{Progress: &wire.Progress{Phase: phase}}})
		if err != nil {
			return err
		}
	}
	progress := &wire.Progress{Phase: "KUBEADM", Message: "node is ready", Ready: true, Etcd: n.etcd()}
	if n.Fail != nil {
		progress = &wire.Progress{Phase: "KUBEADM", Failed: wire.FromCondition(n.Fail)}
	}
	return stream.Send(&wire.FromNode{Message: &wire.FromNode_Progress{Progress: progress}})
}

func (n *Node) observe(message string) {
	if n.Observe != nil {
		n.Observe(message)
	}
}

func (n *Node) receive(stream stream) (*wire.FromVerifier, error) {
	message, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := wire.CheckFromVerifier(message); err != nil {
		return nil, err
	}
	if message.GetDenied() != nil {
		n.mutex.Lock()
		defer n.mutex.Unlock()
		n.denied = message.GetDenied().HullmarkCondition()
		return nil, errDenied
	}
	return message, nil
}
