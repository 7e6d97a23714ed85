package firstboot

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-tpm/tpm2/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/verifier"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/firstboot/kubeadm"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/tpmtest"
)

// twinDisk is a state disk in memory.
type twinDisk struct {
	claim  hullmark.DiskClaim
	opened statedisk.Opened
	err    error
	grants []hullmark.DiskGrant
	key    []byte
}

func (d *twinDisk) Probe(context.Context, hullmark.DiskSelector) (hullmark.DiskClaim, error) {
	return d.claim, nil
}

func (d *twinDisk) Open(_ context.Context, _ hullmark.DiskSelector, g hullmark.DiskGrant) (statedisk.Opened, error) {
	d.grants, d.key = append(d.grants, g), bytes.Clone(g.Key.Expose())
	return d.opened, d.err
}

// twinMachine remembers what was asked of it.
type twinMachine struct {
	mu      sync.Mutex
	did     []string
	offline int // answers of Online before it is true
	fail    string
}

func (m *twinMachine) note(what string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did = append(m.did, what)
	if what == m.fail {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (m *twinMachine) has(what string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.did, what)
}

func (m *twinMachine) Start(_ context.Context, unit string) error { return m.note("start " + unit) }

func (m *twinMachine) Restart(_ context.Context, unit string) error { return m.note("restart " + unit) }
func (m *twinMachine) Reboot(context.Context) error                 { return m.note("reboot") }

func (m *twinMachine) Online() (bool, error) {
	m.offline--
	return m.offline < 0, nil
}

func (m *twinMachine) Journal(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "the log")
	return err
}

// twinCluster is Kubernetes without Kubernetes.
type twinCluster struct {
	agent *Agent
	works []kubeadm.Work
	// restored are the snapshots that etcd's data was made of; unrestorable, if set, is what Restore returns.
	restored     []string
	unrestorable error
	joins        []string // the documents of each join
	// renewals are the documents of each renewal; remade is what it makes.
	renewals []string
	remade   map[string][]byte
	refuse   error
	fail     error
	intents  []string
	access   kubeadm.Access // of WaitReady
	// notReady is what WaitReady returns.
	notReady error
	// record is that of the machine's disk; recordErr, if set, is returned once before it.
	record    kubeadm.DiskRecord
	recordErr error
}

func (c *twinCluster) Validate(context.Context, []byte) error { return c.refuse }

// Restore wants what etcdutl wants, and leaves what it leaves.
func (c *twinCluster) Restore(_ context.Context, r kubeadm.Restoration) error {
	if err := r.Check(); err != nil {
		return err
	}
	snapshot, err := c.agent.readState(kubeadm.SnapshotFile)
	if err != nil {
		return err
	}
	c.restored = append(c.restored, string(snapshot))
	if err := os.Mkdir(filepath.Join(c.agent.StateDir, "var/lib/etcd"), 0o700); err != nil {
		return err
	}
	return c.unrestorable
}

func (c *twinCluster) Init(_ context.Context, w kubeadm.Work) error {
	c.works = append(c.works, w)
	intent, err := c.agent.intent()
	c.intents = append(c.intents, intent)
	w.Report(kubeadm.Phase{Name: "certs", Text: "making certificates"})
	if err := errors.Join(err, c.fail); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.agent.StateDir, "etc-kubernetes/admin.conf"), []byte("kubeconfig"), 0o600)
}

// Join wants what kubeadm's preflight wants, and leaves what kubeadm and a kubelet leave.
func (c *twinCluster) Join(_ context.Context, documents []byte, report func(kubeadm.Phase)) error {
	c.joins = append(c.joins, string(documents))
	controlPlane := strings.Contains(string(documents), "controlPlane")
	wanted := []string{kubeadm.DiscoveryFile}
	if controlPlane {
		wanted = append(wanted, kubeadm.ControlPlaneFiles()...)
	}
	if err := c.preflight(wanted, append(kubeadm.JoinRemains(), "/etc/kubernetes/pki/kubelet.key")); err != nil {
		return err
	}
	report(kubeadm.Phase{Name: "kubelet-start", Text: "starting the kubelet"})
	if c.fail != nil {
		return c.fail
	}
	kubeconfigs := []string{"kubelet.conf"}
	if controlPlane {
		kubeconfigs = append(kubeconfigs, "admin.conf")
	}
	for _, name := range kubeconfigs {
		if err := os.WriteFile(filepath.Join(c.agent.StateDir, "etc-kubernetes", name), []byte("kubeconfig"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// preflight fails unless the wanted files are there, and nothing else of what an earlier join leaves but the folders of the wanted.
func (c *twinCluster) preflight(wanted, remains []string) error {
	for _, name := range wanted {
		if _, err := c.agent.readState(name); err != nil {
			return err
		}
	}
	for _, name := range remains {
		file, err := onState(name)
		if err != nil {
			return err
		}
		_, err = os.Lstat(filepath.Join(c.agent.StateDir, file))
		needed := slices.ContainsFunc(wanted, func(w string) bool { return w == name || strings.HasPrefix(w, name+"/") })
		if needed != (err == nil) {
			return fmt.Errorf("%s: %v", name, err)
		}
	}
	return nil
}

func (c *twinCluster) WaitReady(_ context.Context, access kubeadm.Access, _ string, _ func(error)) error {
	c.access = access
	_, err := access.Read(access.Kubeconfig)
	return errors.Join(err, c.notReady)
}

func (c *twinCluster) DiskRecord(context.Context, kubeadm.Access, hullmark.NodeID) (kubeadm.DiskRecord, error) {
	return c.record, c.recordErr
}

// unclosed keeps a test's TPM open from one use to the next.
type unclosed struct{ transport.TPM }

func (unclosed) Close() error { return nil }

// stage is a node with a real TPM and twins around it, and its operator.
type stage struct {
	agent   *Agent
	disk    *twinDisk
	machine *twinMachine
	cluster *twinCluster
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
	root, err := attest.NewRoot(key)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{
		disk:    &twinDisk{claim: hullmark.DiskClaim{State: hullmark.DiskBlank}},
		machine: &twinMachine{}, cluster: &twinCluster{}, tpm: tpmtest.New(t), console: &bytes.Buffer{}, root: root, rootKey: key,
	}
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	for _, folder := range []string{"etc-kubernetes", "var/lib/hullmark", statedisk.AgentDir} {
		if err := os.MkdirAll(filepath.Join(state, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.agent = &Agent{
		OpenTPM: func() (transport.TPMCloser, error) { return unclosed{s.tpm}, nil },
		Config:  config.Source{File: filepath.Join(dir, "fw"), Cache: filepath.Join(dir, "config.json")},
		Disk:    s.disk, Machine: s.machine, Cluster: s.cluster, StateDir: state, RunDir: dir, Timing: DefaultTiming(),
		Status: &Status{File: filepath.Join(dir, "status.json"), Console: s.console, Log: io.Discard, Notify: func(string) {}},
	}
	s.cluster.agent = s.agent
	s.configure(t, hullmark.NodeConfig{
		Version: 1, ClusterRoot: hullmark.ClusterRootOf(root.RawSubjectPublicKeyInfo), StateDisk: hullmark.DiskSelector{Serial: "state"},
	})
	return s
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
	if err := s.agent.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	tls, err := attest.NodeConfig(s.agent.config.ClusterRoot)
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

// operator dials the node with a certificate of the given root.
func operator(t *testing.T, address string, root *x509.Certificate, key *ecdsa.PrivateKey) wire.NodeClient {
	t.Helper()
	certificate, err := attest.NewOperator(root, key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(attest.OperatorCredentials(certificate)))
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
	stream, err := client.Release(t.Context())
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

// admit plays M1 to M3 and returns what the verifier found.
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
	key, err := attest.ChannelKey(from)
	if err != nil {
		return nil, err
	}
	message, err := wire.DecodeHello(hello)
	if err != nil {
		return nil, err
	}
	node := hullmark.TPMNodeID(message.GetEkPublic())
	return verifier.Begin(hello, key, s.agent.config.ClusterRoot, verifier.Anchor{Node: &node})
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
			Key: hullmark.NewSecret([]byte(ticketKey)), Generation: 1, UUID: claims.Disk.UUID, Owner: claims.Node, FormatAllowed: true,
			Epoch: hullmark.Epoch{Issued: 1, Unchecked: kind == hullmark.Recover},
		},
	})}}
}

func (c call) proceed() {
	c.t.Helper()
	c.send(&wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: controlPlane()}})
}

// controlPlane is M6 of a cluster's first node.
func controlPlane() *wire.Proceed {
	return &wire.Proceed{
		NodeName: "node-1", Role: string(hullmark.ControlPlane), KubeadmDocuments: []byte("documents"), Manifests: [][]byte{[]byte("a: 1"), []byte("b: 2")},
		Files: []*wire.File{
			{Path: "/etc/kubernetes/pki/ca.key", Content: []byte("key"), Mode: 0o600},
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
