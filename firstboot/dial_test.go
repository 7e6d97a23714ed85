package firstboot

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/kubeadm"
)

// fakeService is a join service that a test plays.
type fakeService struct {
	wire.UnimplementedJoinServiceServer
	t       *testing.T
	address string
	calls   chan call
	// operator answers for the policy; without it the service is of a release that knows no operators.
	operator func(*wire.OperatorAsk) *wire.OperatorAnswer
}

// Operator answers a node's question.
func (s *fakeService) Operator(ctx context.Context, ask *wire.OperatorAsk) (*wire.OperatorAnswer, error) {
	if s.operator == nil {
		return s.UnimplementedJoinServiceServer.Operator(ctx, ask)
	}
	return s.operator(ask), nil
}

// Exchange hands the stream to the test.
func (s *fakeService) Exchange(stream wire.JoinService_ExchangeServer) error {
	ended := make(chan struct{})
	select {
	case s.calls <- call{t: s.t, stream: stream, end: sync.OnceFunc(func() { close(ended) })}:
	case <-stream.Context().Done():
	}
	select {
	case <-ended:
	case <-stream.Context().Done():
	}
	return nil
}

// accept waits for a node.
func (s *fakeService) accept() call {
	s.t.Helper()
	select {
	case c := <-s.calls:
		return c
	case <-time.After(time.Minute):
		s.t.Fatal("no node dialled")
		return call{}
	}
}

// onlineCA makes the cluster's online CA.
func (s *stage) onlineCA(t *testing.T) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	online, err := channel.NewOnlineCA(s.root, s.rootKey, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return online, key
}

// service starts an honest join service of the stage's cluster.
func (s *stage) service(t *testing.T) *fakeService {
	t.Helper()
	online, key := s.onlineCA(t)
	chain, err := channel.NewService(s.root, online, key)
	if err != nil {
		t.Fatal(err)
	}
	return serveChain(t, chain)
}

func serveChain(t *testing.T, chain tls.Certificate) *fakeService {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake := &fakeService{t: t, address: listener.Addr().String(), calls: make(chan call)}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(channel.ServiceTLS(chain))), grpc.MaxRecvMsgSize(wire.MaxFromNode))
	wire.RegisterJoinServiceServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return fake
}

// dials configures the node to dial the endpoints, without long pauses.
func (s *stage) dials(t *testing.T, endpoints ...string) {
	t.Helper()
	s.configure(t, hullmark.NodeConfig{
		Version: 1, ClusterRoot: hullmark.ClusterRootOf(s.root.RawSubjectPublicKeyInfo), StateDisk: hullmark.DiskSelector{Serial: "state"},
		Endpoints: endpoints,
	})
	s.agent.Timing.FirstPause, s.agent.Timing.LongestPause, s.agent.Timing.DeniedPause = time.Millisecond, 10*time.Millisecond, time.Millisecond
}

func worker() *wire.Proceed {
	return &wire.Proceed{
		NodeName: "worker-1", Role: string(hullmark.Worker), KubeadmDocuments: []byte("token: abcdef.0123456789abcdef"), Time: time.Now().Unix(),
		Files: []*wire.File{{Path: kubeadm.DiscoveryFile, Content: []byte("cluster"), Mode: 0o644}},
	}
}

func (c call) proceedWith(p *wire.Proceed) {
	c.t.Helper()
	c.send(&wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: p}})
}

func (c call) deny(condition *hullmark.Condition) {
	c.t.Helper()
	c.send(&wire.FromVerifier{Message: &wire.FromVerifier_Denied{Denied: wire.FromCondition(condition)}})
}

// finish reads progress until the node says that it ended, and ends the service's stream.
func (c call) finish() (phases []string, last *wire.Progress) {
	c.t.Helper()
	defer c.end()
	for !last.GetReady() && last.GetFailed() == nil {
		m, err := c.stream.Recv()
		if err != nil {
			c.t.Errorf("the stream ended after %v: %v", last, err)
			return phases, last
		}
		last = m.GetProgress()
		phases = append(phases, last.GetPhase())
	}
	return phases, last
}

// await waits until the status document is as wanted.
func (s *stage) await(t *testing.T, what string, wanted func(Document) bool) Document {
	t.Helper()
	for range 6000 {
		if d := s.document(t); wanted(d) {
			return d
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("status = %s, want %s", s.agent.Status.Document(), what)
	return Document{}
}

// A worker joins on a disk on which an earlier join did not end.
func TestJoin(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.remains(t)
	address, _ := s.serve(t)
	c := service.accept()
	claims := c.admit(s)
	c.ticket(claims)
	opened := c.receive().GetOpened()
	if got := opened.GetAddresses(); len(got) != 1 || got[0] != "127.0.0.1" {
		t.Errorf("addresses = %v, want the one towards the service", got)
	}
	c.proceedWith(worker())
	phases, last := c.finish()
	if !last.GetReady() || len(s.cluster.Joins) != 1 || !strings.HasPrefix(s.cluster.Joins[0], "token: ") {
		t.Fatalf("phases %v, last %v, joins %q", phases, last, s.cluster.Joins)
	}
	s.checkWorker(t)
	if _, err := dial(t, operator(t, address, s.root, s.rootKey)).stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the operator's exchange after that: %v, want to be told that the node is busy", err)
	}
}

// remains puts there what a join leaves that did not end.
func (s *stage) remains(t *testing.T) {
	t.Helper()
	for _, name := range append(kubeadm.JoinRemains(), "/var/lib/kubelet/pki/kubelet-client.key.tmp") {
		file, err := onState(name)
		if err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(s.agent.StateDir, file)
		if strings.HasSuffix(name, "/pki") {
			file += "/kubelet.key"
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// secondControlPlane is Proceed of a control plane that joins, with a policy that commits to its keys.
func (s *stage) secondControlPlane(t *testing.T) *wire.Proceed {
	t.Helper()
	p := worker()
	p.NodeName, p.Role = "control-plane-2", string(hullmark.ControlPlane)
	p.KubeadmDocuments = append([]byte("controlPlane: {}\n"), p.GetKubeadmDocuments()...)
	for _, name := range kubeadm.ControlPlaneFiles() {
		p.Files = append(p.Files, &wire.File{Path: name, Content: []byte("new"), Mode: 0o600})
	}
	p.Files = s.signed(t, set{version: 1, keyset: "keys", beside: p.GetFiles()})
	return p
}

// A control plane joins on a disk on which an earlier join did not end: of that nothing is left, and its join service runs
// before kubeadm does.
func TestControlPlaneJoins(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.remains(t)
	s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(s.secondControlPlane(t))
	phases, last := c.finish()
	if !last.GetReady() || len(s.cluster.Joins) != 1 || len(s.cluster.Works) != 0 {
		t.Fatalf("phases %v, last %v, joins %q", phases, last, s.cluster.Joins)
	}
	if service, kubelet := slices.Index(phases, "joinservice"), slices.Index(phases, "kubelet-start"); service < 0 || kubelet < service || !s.machine.Has("start "+joinServiceUnit) {
		t.Errorf("phases %v, machine did %q; want the join service before kubeadm", phases, s.machine.Did())
	}
	if intent, err := s.agent.intent(); err != nil || intent != statedisk.IntentDone || s.cluster.Access.Kubeconfig != "/etc/kubernetes/admin.conf" {
		t.Errorf("intent = %q, %v; waited for Ready with %s", intent, err, s.cluster.Access.Kubeconfig)
	}
	if _, err := s.agent.readState(kubeadm.DiscoveryFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("discovery.conf: %v, want it gone", err)
	}
}

// Once kubeadm has joined, a node that is not Ready in time starts its kubelet after the restart; it does not join again.
func TestJoinedIsRecordedBeforeReady(t *testing.T) {
	for _, fail := range []error{nil, errors.New("kubeadm failed")} {
		s := newStage(t)
		service := s.service(t)
		s.dials(t, service.address)
		s.cluster.Fail, s.cluster.NotReady = fail, errors.New("not Ready in time")
		_, ended := s.serve(t)
		c := service.accept()
		c.ticket(c.admit(s))
		c.receive()
		c.proceedWith(s.secondControlPlane(t))
		if _, last := c.finish(); last.GetFailed() == nil {
			t.Fatalf("last = %v", last)
		}
		if err := <-ended; !errors.Is(err, errReboot) {
			t.Errorf("serve ended with %v, want a restart", err)
		}
		want := statedisk.IntentDone
		if fail != nil {
			want = statedisk.IntentStarted
		}
		if intent, err := s.agent.intent(); err != nil || intent != want {
			t.Errorf("kubeadm: %v: intent = %q, %v; want %q", fail, intent, err, want)
		}
	}
}

// checkWorker looks at what a join left.
func (s *stage) checkWorker(t *testing.T) {
	t.Helper()
	for _, name := range []string{"etc-kubernetes/discovery.conf", "var/lib/kubelet/pki", "etc-kubernetes/bootstrap-kubelet.conf"} {
		if _, err := os.Lstat(filepath.Join(s.agent.StateDir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", name, err)
		}
	}
	if s.machine.Has("start " + joinServiceUnit) {
		t.Error("a worker started the join service")
	}
	if intent, err := s.agent.intent(); err != nil || intent != statedisk.IntentDone {
		t.Errorf("intent = %q, %v", intent, err)
	}
	if s.cluster.Access.Kubeconfig != "/etc/kubernetes/kubelet.conf" {
		t.Errorf("waited for Ready with %s", s.cluster.Access.Kubeconfig)
	}
	if r := s.registers(t); r[attest.FuseRegister] != attest.Extended(hullmark.ClusterEvent(s.agent.config.ClusterRoot)) {
		t.Error("the fuse is whole")
	}
	if d := s.await(t, "Ready without asking services", func(d Document) bool { return d.Ready && d.Joining == nil }); d.Condition != nil {
		t.Errorf("status = %+v", d)
	}
}

func TestRejoin(t *testing.T) {
	for role, kubeconfig := range map[hullmark.Role]string{hullmark.Worker: "kubelet.conf", hullmark.ControlPlane: "admin.conf"} {
		s := newStage(t)
		service := s.service(t)
		s.dials(t, service.address)
		s.comeBack(t, kubeconfig)
		s.serve(t)
		c := service.accept()
		c.ticket(c.admit(s))
		c.receive()
		c.proceedWith(&wire.Proceed{NodeName: "node-1", Role: string(role)})
		if _, last := c.finish(); !last.GetReady() {
			t.Fatalf("last = %v", last)
		}
		if len(s.cluster.Joins)+len(s.cluster.Works) > 0 || !s.machine.Has("start "+kubeletUnit) || s.machine.Has("start "+joinServiceUnit) != (role == hullmark.ControlPlane) {
			t.Errorf("%s: machine did %q", role, s.machine.Did())
		}
		if s.disk.Grants[0].FormatAllowed {
			t.Error("a ready disk could have been formatted")
		}
		if _, err := os.Stat(filepath.Join(s.agent.RunDir, recoveredFile)); err == nil {
			t.Error("the join service is told that its disk was opened by recover")
		}
	}
}

// comeBack gives the stage a disk that holds a node.
func (s *stage) comeBack(t *testing.T, kubeconfig string) {
	t.Helper()
	s.disk.Claim = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: hullmark.UUID{1}, Generation: 1, Owner: hullmark.EKID{2}}
	s.disk.Opened = statedisk.Opened{EpochRead: 5, Joined: true}
	s.keep(statedisk.IntentFile, statedisk.IntentDone)
	if err := os.WriteFile(filepath.Join(s.agent.StateDir, "etc-kubernetes", kubeconfig), []byte("kubeconfig"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A join that fails from the fuse on is told to the service; the machine restarts.
func TestFailedJoinRestartsTheMachine(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.cluster.Fail = &hullmark.Condition{Code: "kubeadm-failed", Step: StepKubeadm, Title: "no", Next: "n"}
	_, ended := s.serve(t)
	c := service.accept()
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(worker())
	if _, last := c.finish(); last.GetFailed().GetCode() != "kubeadm-failed" {
		t.Errorf("last = %v", last)
	}
	if err := <-ended; !errors.Is(err, errReboot) {
		t.Errorf("serve ended with %v, want a restart", err)
	}
	if _, err := os.Stat(filepath.Join(s.agent.StateDir, "etc-kubernetes/discovery.conf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("discovery.conf: %v", err)
	}
}

// Both sides ask for the node at once: one gets it, the other one hears that the node is busy or finds it waiting no more.
func TestBothSidesRace(t *testing.T) {
	for range 8 {
		s := newStage(t)
		service := s.service(t)
		s.dials(t, service.address)
		s.agent.Timing.Turn = time.Millisecond
		address, _ := s.serve(t)
		won := make(chan string, 2)
		go func() {
			won <- race(call{t: t, stream: mustExchange(t.Context(), operator(t, address, s.root, s.rootKey)), kind: hullmark.Init}, s, controlPlane())
		}()
		go func() {
			for {
				select {
				case c := <-service.calls:
					if got := race(c, s, worker()); got != "" {
						won <- "service: " + got
						return
					}
				case <-t.Context().Done():
					return
				}
			}
		}()
		first := <-won
		if first == "" { // the operator lost, so the service wins
			first = <-won
		}
		if first == "" || len(s.disk.Grants) != 1 {
			t.Fatalf("winner %q, %d tickets used", first, len(s.disk.Grants))
		}
		s.await(t, "Ready", func(d Document) bool { return d.Ready })
		if len(s.cluster.Joins)+len(s.cluster.Works) != 1 {
			t.Fatalf("kubeadm ran %d times", len(s.cluster.Joins)+len(s.cluster.Works))
		}
	}
}

func mustExchange(ctx context.Context, client wire.NodeClient) wire.Node_ExchangeClient {
	stream, err := client.Exchange(ctx)
	if err != nil {
		panic(err)
	}
	return stream
}

// race plays one verifier, and returns "" if it lost.
func race(c call, s *stage, p *wire.Proceed) string {
	if c.end != nil {
		defer c.end()
	}
	claims, err := c.tryAdmit(s)
	if err != nil {
		return ""
	}
	kind := c.kind
	if kind == "" {
		kind = hullmark.Join
	}
	if err := c.stream.Send(ticketOf(kind, claims)); err != nil {
		return ""
	}
	if m, err := c.stream.Recv(); err != nil || m.GetOpened() == nil {
		return ""
	}
	if err := c.stream.Send(&wire.FromVerifier{Message: &wire.FromVerifier_Proceed{Proceed: p}}); err != nil {
		return ""
	}
	for {
		m, err := c.stream.Recv()
		if err != nil {
			return ""
		}
		if m.GetProgress().GetReady() {
			return string(kind)
		}
	}
}

// An operator who calls while a service has the turn waits for it, and gets it when the service denies.
func TestOperatorWaitsForTheTurn(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.agent.Timing.DeniedPause = time.Hour
	address, _ := s.serve(t)
	denied := service.accept()
	denied.admit(s)
	c := dial(t, operator(t, address, s.root, s.rootKey))
	denied.deny(&hullmark.Condition{Code: "not-a-member", Step: StepAttest, Title: "t", Next: "n"})
	denied.end()
	c.ticket(c.admit(s))
	c.receive()
	c.proceed()
	if _, last := c.rest(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
	select {
	case <-service.calls:
		t.Error("a node with a ticket dialled again")
	default:
	}
}

func TestRetryableDenialThenSuccess(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.agent.Timing.DeniedPause = time.Hour
	s.serve(t)
	for range 3 {
		c := service.accept()
		c.deny(&hullmark.Condition{Code: "busy", Step: StepAttest, Title: "t", Next: "n", Retry: true})
		c.end()
	}
	c := service.accept()
	if d := s.document(t); d.Joining == nil || d.Joining.Endpoints[0].Condition.Code != "busy" {
		t.Errorf("status = %s", s.agent.Status.Document())
	}
	c.ticket(c.admit(s))
	c.receive()
	c.proceedWith(worker())
	if _, last := c.finish(); !last.GetReady() {
		t.Fatalf("last = %v", last)
	}
}

// A final denial is shown, and asked about again only after the long pause: another service is asked in the same round all the same.
func TestFinalDenialSlowsDown(t *testing.T) {
	s := newStage(t)
	services := []*fakeService{s.service(t), s.service(t)}
	s.dials(t, services[0].address, services[1].address)
	s.agent.Timing.DeniedPause = time.Hour
	s.serve(t)
	for range services {
		var c call
		select {
		case c = <-services[0].calls:
		case c = <-services[1].calls:
		}
		c.admit(s)
		c.deny(&hullmark.Condition{Code: "not-a-member", Step: StepAttest, Title: "no rule names this machine", Next: "n"})
		c.end()
	}
	d := s.await(t, "a countdown", func(d Document) bool {
		return d.Joining != nil && strings.HasPrefix(d.Joining.Doing, "trying again in ")
	})
	if d.Condition == nil || d.Condition.Code != "not-a-member" || len(d.Joining.Endpoints) != 2 {
		t.Fatalf("status = %s", s.agent.Status.Document())
	}
	for _, e := range d.Joining.Endpoints {
		if e.Condition == nil || e.Condition.Code != "not-a-member" {
			t.Errorf("endpoint %+v", e)
		}
	}
	if seconds := strings.Fields(d.Joining.Doing)[3]; len(seconds) != 4 { // 1800 to 3600
		t.Errorf("%s: want the long pause", d.Joining.Doing)
	}
	if got := strings.Count(s.agent.Status.Console.(interface{ String() string }).String(), "no rule names this machine"); got != 1 {
		t.Errorf("the console shows the denial %d times", got)
	}
}

// A service gives join and rejoin, and the disk decides which; an operator gives init and recover.
func TestKindsOnTheWrongChannel(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.serve(t)
	for _, kind := range []hullmark.TicketKind{hullmark.Init, hullmark.Recover, hullmark.Rejoin} {
		c := service.accept()
		c.send(ticketOf(kind, c.admit(s)))
		if _, last := c.finish(); last.GetFailed().GetCode() != "ticket-mismatch" {
			t.Errorf("service's %s: last = %v", kind, last)
		}
	}
	if len(s.disk.Grants) != 0 {
		t.Errorf("%d tickets were used", len(s.disk.Grants))
	}
}

func TestOperatorsWrongKinds(t *testing.T) {
	s := newStage(t)
	address, _ := s.serve(t)
	client := operator(t, address, s.root, s.rootKey)
	for _, kind := range []hullmark.TicketKind{hullmark.Join, hullmark.Rejoin, "upgrade"} {
		c := dial(t, client)
		c.kind = kind
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
		if _, last := c.rest(); last.GetFailed().GetCode() != "call-refused" {
			t.Errorf("operator's %s: last = %v", kind, last)
		}
	}
	for _, kind := range []hullmark.TicketKind{hullmark.Join, hullmark.Rejoin, hullmark.Recover} {
		c := dial(t, client)
		c.send(ticketOf(kind, c.admit(s)))
		if _, last := c.rest(); last.GetFailed().GetCode() != "ticket-mismatch" {
			t.Errorf("operator's ticket of kind %s: last = %v", kind, last)
		}
	}
	if len(s.disk.Grants) != 0 {
		t.Errorf("%d tickets were used", len(s.disk.Grants))
	}
}

// Proceed that the node cannot or may not carry out is refused before the fuse.
func TestProceedIsChecked(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.serve(t)
	for want, spoil := range map[string]func(*wire.Proceed){
		"discovery.conf is missing":             func(p *wire.Proceed) { p.Files = nil },
		"pki/kubelet-serving-ca.crt is missing": func(p *wire.Proceed) { p.Role = string(hullmark.ControlPlane) },
		"pki/sa.key is missing": func(p *wire.Proceed) {
			full := s.secondControlPlane(t)
			p.Role, p.Files = full.GetRole(), without(full.GetFiles(), "/etc/kubernetes/pki/sa.key")
		},
		"manifests/etcd.yaml\", which kubeadm join writes itself": func(p *wire.Proceed) {
			full := s.secondControlPlane(t)
			p.Role, p.Files = full.GetRole(), append(full.GetFiles(), &wire.File{Path: "/etc/kubernetes/manifests/etcd.yaml", Mode: 0o600})
		},
		"outside of the folders": func(p *wire.Proceed) { p.Files[0].Path = "/etc/passwd" },
		"is no DNS label":        func(p *wire.Proceed) { p.NodeName = "Worker" },
		"kubelet.conf\", which kubeadm join writes itself": func(p *wire.Proceed) {
			p.Files = append(p.Files, &wire.File{Path: kubeletConf, Mode: 0o644})
		},
		"has mode":                             func(p *wire.Proceed) { p.Files[0].Mode = 0 },
		"reach a node at":                      func(p *wire.Proceed) { p.Address = "192.0.2.7,::1" },
		"role \"king\" is unknown":             func(p *wire.Proceed) { p.Role = "king" },
		"only a control plane that comes back": func(p *wire.Proceed) { p.JoinAnew = true },
	} {
		c := service.accept()
		c.ticket(c.admit(s))
		c.receive()
		p := worker()
		spoil(p)
		c.proceedWith(p)
		if _, last := c.finish(); last.GetFailed().GetCode() != "proceed-refused" || !strings.Contains(last.GetFailed().GetTitle(), want) {
			t.Errorf("%s: last = %v", want, last)
		}
	}
	if r := s.registers(t); r[attest.FuseRegister] != [32]byte{} {
		t.Error("the fuse was blown")
	}
}

// A node whose clock is an hour off, either way, says so and waits; it joins once the clock is right.
func TestClockOff(t *testing.T) {
	s := newStage(t)
	service := s.service(t)
	s.dials(t, service.address)
	s.serve(t)
	for _, off := range []time.Duration{time.Hour, -time.Hour, 0} {
		c := service.accept()
		c.ticket(c.admit(s))
		c.receive()
		p := worker()
		p.Time += int64(off / time.Second)
		c.proceedWith(p)
		_, last := c.finish()
		if off == 0 {
			if !last.GetReady() {
				t.Errorf("with the right time: last = %v", last)
			}
			continue
		}
		failed := last.GetFailed()
		if failed.GetCode() != "clock-off" || !failed.GetRetry() || failed.GetExpected() == "" || failed.GetGot() == "" || failed.GetNext() == "" {
			t.Errorf("with a clock off by %v: last = %v", off, last)
		}
		if len(s.cluster.Joins) != 0 {
			t.Error("kubeadm ran")
		}
	}
}
