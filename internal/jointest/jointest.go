// Package jointest lets the real agent join at the real join service, in one process: TLS, gRPC, a TPM emulator, the policy,
// the authorizer and what kubeadm reads are real. Around the agent stand agenttest's fakes, and the service's records are in memory.
package jointest

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/prover"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/config"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/agenttest"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/tpmtest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// Site is a cluster with a join service, and a machine that its policy names.
type Site struct {
	Cluster *cluster.Cluster
	// Service is what Serve serves; ControlPlanes lets everybody in.
	Service *joinservice.Service
	Records *memrecords.Store
	// Address is the service's, whenever it runs.
	Address string
	// EditOpened and EditProceed change Opened when it has come and Proceed before it is sent, from the next Serve on; nil for honest ends.
	EditOpened  func(*wire.Opened)
	EditProceed func(*wire.Proceed)

	// EKID is the machine's identity.
	EKID  hullmark.EKID
	Agent *firstboot.Agent
	// Disk, Machine and Kubernetes stand around the agent.
	Disk       *agenttest.Disk
	Machine    *agenttest.System
	Kubernetes *agenttest.Cluster
	// Slots are those of the disk that the machine boots from; nil for one without.
	Slots *agenttest.Slots
	// Image is what the next boot measures; New boots "image".
	Image string
	// Console and Log are what the agent writes.
	Console, Log *agenttest.Text

	tpm    *tpmtest.TPM
	server *grpc.Server
	stop   func()
}

// New returns a site whose machine is to join in a role. Nothing runs yet.
func New(t testing.TB, role hullmark.Role) *Site {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &Site{Cluster: c, Records: &memrecords.Store{}, Image: "image", Console: &agenttest.Text{}, Log: &agenttest.Text{}}
	// Whoever dials does so from 127.0.0.1: the port stays free while the service does not run.
	listener, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Address = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	s.newAgent(t)
	s.newService(t, PolicyStore(t, s.Cluster, measurements.Member{EKID: s.EKID, Role: role, Name: "node-2"}), role)
	return s
}

// newAgent makes a machine that booted what the policy accepts, and its agent.
func (s *Site) newAgent(t testing.TB) {
	t.Helper()
	s.tpm = tpmtest.New(t)
	s.Disk = &agenttest.Disk{Claim: hullmark.DiskClaim{State: hullmark.DiskBlank}}
	s.Machine, s.Kubernetes = &agenttest.System{}, &agenttest.Cluster{StateDir: agenttest.NewStateDir(t)}
	s.Disk.StateDir = s.Kubernetes.StateDir
	s.start(t, s.Cluster.ID())
	keys, err := prover.Open(s.tpm, hullmark.EKID{})
	if err != nil {
		t.Fatal(err)
	}
	s.EKID = keys.Node()
	if err := keys.Close(); err != nil {
		t.Fatal(err)
	}
}

// Reboot resets the machine, which has joined, and gives it a configuration that names a root. Boot starts its agent.
func (s *Site) Reboot(t testing.TB, root hullmark.ClusterRoot) {
	t.Helper()
	s.tpm.Reset(t)
	ends := time.Now().Add(24 * time.Hour)
	s.Disk.Opened.Joined, s.Disk.Opened.CertificateEnds = true, ends.Unix()
	s.certify(t, ends)
	s.start(t, root)
}

// certify lists the certificate of the machine's kubelet in its record, as an approver does that sees it issued.
func (s *Site) certify(t testing.TB, ends time.Time) {
	t.Helper()
	m, version, err := s.Records.Load(t.Context(), s.EKID)
	if err != nil {
		t.Fatal(err)
	}
	m.NoteCredential(joinservice.Credential{Fingerprint: strings.Repeat("0a", 32), Ends: ends}, time.Now())
	if _, err := s.Records.Store(t.Context(), m, version); err != nil {
		t.Fatal(err)
	}
}

// start makes the agent of a boot, whose configuration names a root.
func (s *Site) start(t testing.TB, root hullmark.ClusterRoot) {
	t.Helper()
	dir := t.TempDir()
	(&nodetest.Node{TPM: s.tpm}).Boot(t, s.Image)
	text, err := json.Marshal(hullmark.NodeConfig{
		Version: 1, ClusterRoot: root, StateDisk: hullmark.DiskSelector{Serial: "state"}, Endpoints: []string{s.Address},
	})
	if err != nil {
		t.Fatal(err)
	}
	source := config.Source{File: filepath.Join(dir, "fw"), Cache: filepath.Join(dir, "config.json")}
	if err := os.WriteFile(source.File, text, 0o600); err != nil {
		t.Fatal(err)
	}
	resolv := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Agent = &firstboot.Agent{
		OpenTPM: func() (transport.TPMCloser, error) { return kept{s.tpm}, nil },
		Config:  source, Disk: s.Disk, Machine: s.Machine, Cluster: s.Kubernetes, StateDir: s.Kubernetes.StateDir, RunDir: dir, ResolvFile: resolv,
		Listen: "127.0.0.1:0", Timing: firstboot.DefaultTiming(),
		Status: &firstboot.Status{File: filepath.Join(dir, "status.json"), Console: s.Console, Log: s.Log, Notify: func(string) {}},
	}
	if s.Slots != nil {
		s.Agent.Slots = s.Slots
	}
}

// kept is a TPM that stays open from one use to the next.
type kept struct{ transport.TPM }

func (kept) Close() error { return nil }

func (s *Site) newService(t testing.TB, policy *joinservice.PolicyStore, role hullmark.Role) {
	t.Helper()
	s.Service = &joinservice.Service{
		Root: s.Cluster.ID(), Policy: policy, Keys: s.Cluster.Keys, Records: s.Records, Tokens: s.Records,
		Settings: joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}, KubernetesCA: s.Cluster.KubernetesCA(),
		RemoveNode: func(context.Context, string) error { return nil },
		// An emulated TPM takes its time on a busy machine.
		Timeouts: joinservice.Timeouts{Proof: time.Minute, Opened: time.Minute, Progress: time.Minute, Renew: time.Minute},
	}
	s.Service.ControlPlanes = joinservice.ControlPlanes{Rotation: policy.Policy().Rotation, Keys: policy.Policy().Keys}
	if role != hullmark.ControlPlane {
		return
	}
	s.Service.ControlPlanes.Lease, s.Service.ControlPlanes.Files = s.Records, s.sharedFiles
	s.Service.ControlPlanes.RemoveMember = func(context.Context, string, netip.Addr) error { return nil }
	// Loopback is no address at which others could reach a control plane.
	s.EditOpened = func(m *wire.Opened) { m.Addresses = append(m.Addresses, "192.0.2.7") }
}

// sharedFiles are the authorities and keys that all control planes have, but the policy and its documents, which the service has.
func (s *Site) sharedFiles() ([]*wire.File, error) {
	all, err := s.Cluster.Files()
	var shared []*wire.File
	for _, f := range all {
		if strings.HasPrefix(f.GetPath(), "/etc/kubernetes/pki/") || hullmark.Replaced(f.GetPath()) || f.GetPath() == hullmark.RotationFile {
			shared = append(shared, f)
		}
	}
	return shared, err
}

// PolicyStore puts a policy in force that accepts nodetest's image and names members.
func PolicyStore(t testing.TB, c *cluster.Cluster, members ...measurements.Member) *joinservice.PolicyStore {
	t.Helper()
	document := nodetest.Document(t, "image")
	var policy measurements.Policy
	for _, m := range members {
		var err error
		if policy, err = joinservice.FirstPolicy(policy, document, m); err != nil {
			t.Fatal(err)
		}
	}
	signer := *c
	if err := signer.SetPolicy(policy, document); err != nil {
		t.Fatal(err)
	}
	installed := joinservice.SignedPolicy{Envelope: signer.Policy, Documents: signer.Documents}
	store, warning, err := joinservice.OpenPolicyStore(c.ID(), installed, servicefiles.Plain(filepath.Join(t.TempDir(), "policy")))
	if err != nil || warning != nil {
		t.Fatal(err, warning)
	}
	return store
}

// Serve starts the service, for the first time or after Stop.
func (s *Site) Serve(t testing.TB) {
	t.Helper()
	leaf, err := channel.NewService(s.Cluster.Root.Certificate, s.Cluster.Online.Certificate, s.Cluster.Online.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		t.Fatal(err)
	}
	tls := channel.ServiceTLS(channel.WithCrossCertificates(leaf, s.Service.Policy.CrossCertificates()))
	s.server = s.Service.Server(tls)
	if s.EditOpened != nil || s.EditProceed != nil {
		s.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(tls)), grpc.MaxRecvMsgSize(wire.MaxFromNode))
		wire.RegisterJoinServiceServer(s.server, edited{Service: s.Service, opened: s.EditOpened, proceed: s.EditProceed})
	}
	server, served := s.server, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	s.stop = func() {
		server.Stop()
		<-served
	}
	t.Cleanup(s.stop)
}

// Stop ends the service as a kill would; it returns when its exchanges have ended.
func (s *Site) Stop() { s.stop() }

// edited is a join service whose messages are changed on the way.
type edited struct {
	*joinservice.Service
	opened  func(*wire.Opened)
	proceed func(*wire.Proceed)
}

// Exchange runs one exchange.
func (e edited) Exchange(stream wire.JoinService_ExchangeServer) error {
	return e.Service.Exchange(editedStream{stream, e})
}

type editedStream struct {
	wire.JoinService_ExchangeServer
	by edited
}

// Send sends a message.
func (s editedStream) Send(m *wire.FromVerifier) error {
	if p := m.GetProceed(); p != nil && s.by.proceed != nil {
		s.by.proceed(p)
	}
	return s.JoinService_ExchangeServer.Send(m)
}

// Recv receives a message.
func (s editedStream) Recv() (*wire.FromNode, error) {
	m, err := s.JoinService_ExchangeServer.Recv()
	if o := m.GetOpened(); o != nil && s.by.opened != nil {
		s.by.opened(o)
	}
	return m, err
}

// Boot starts the agent, which ends with the test at the latest. end waits until the service has heard its exchanges to their
// ends, and stops both.
func (s *Site) Boot(t testing.TB) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Agent.Run(ctx); ctx.Err() == nil && !s.Machine.Has("reboot") {
			t.Errorf("the agent ended: %v; its log:\n%s", err, s.Log)
		}
	}()
	stop := func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return func() {
		s.server.GracefulStop()
		stop()
	}
}

// Status reads the status document, the zero value before there is one.
func (s *Site) Status(t testing.TB) (d firstboot.Document) {
	t.Helper()
	text, err := os.ReadFile(s.Agent.Status.File)
	if os.IsNotExist(err) {
		return d
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// Await waits until the status document is as wanted.
func (s *Site) Await(t testing.TB, what string, wanted func(firstboot.Document) bool) firstboot.Document {
	t.Helper()
	for range 12000 { // Two minutes: the machine may be busy.
		if d := s.Status(t); wanted(d) {
			return d
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("status = %s, want %s; the agent's log:\n%s", s.Agent.Status.Document(), what, s.Log)
	return firstboot.Document{}
}
