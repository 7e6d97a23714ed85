package joinservice_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/memrecords"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// site is a cluster with a join service, and a machine that booted its image and is to be a worker.
type site struct {
	cluster *cluster.Cluster
	records *memrecords.Store
	policy  *joinservice.PolicyStore
	service *joinservice.Service
	server  *grpc.Server
	address string
	node    *nodetest.Node
	journal journal

	mutex    sync.Mutex
	outcomes []string
}

// worker is the rule of a machine.
func worker(node hullmark.EKID) measurements.Member {
	return measurements.Member{EKID: node, Role: hullmark.Worker, Name: "worker-1"}
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{cluster: newCluster(t), records: &memrecords.Store{}}
	s.node = nodetest.New(t, s.cluster.ID())
	s.node.Boot(t, "image")
	s.policy = openStore(t, s.cluster, signed(t, s.cluster, version(1, worker(s.node.ID)), "image"), servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
	s.start(t)
	return s
}

// start serves a new process's service, with the same records, in the place of the one before.
func (s *site) start(t *testing.T) {
	t.Helper()
	s.service, s.server, s.address = s.replica(t)
}

// replica serves one more service, with the same records.
func (s *site) replica(t *testing.T) (*joinservice.Service, *grpc.Server, string) {
	t.Helper()
	service := &joinservice.Service{
		Root: s.cluster.ID(), Policy: s.policy, Keys: s.cluster.Keys, Records: s.records, Tokens: s.records,
		RemoveNode:   func(context.Context, string) error { return nil },
		Settings:     joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}},
		KubernetesCA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cluster.Kubernetes.Certificate.Raw}),
		Timeouts:     joinservice.Timeouts{Proof: time.Minute, Opened: time.Minute, Progress: time.Minute},
		Ended: func(outcome string) {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.outcomes = append(s.outcomes, outcome)
		},
		Log: slog.New(slog.NewJSONHandler(&s.journal, nil)),
	}
	leaf, err := channel.NewService(s.cluster.Root.Certificate, s.cluster.Online.Certificate, s.cluster.Online.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := service.Server(channel.ServiceTLS(leaf))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return service, server, listener.Addr().String()
}

// outcome returns how the last exchange ended.
func (s *site) outcome() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.outcomes) == 0 {
		return ""
	}
	return s.outcomes[len(s.outcomes)-1]
}

// accept puts the next policy in force.
func (s *site) accept(t *testing.T, change func(*measurements.Policy), images ...string) {
	t.Helper()
	if taken, err := s.policy.Offer(s.next(t, change, images...)); !taken || err != nil {
		t.Fatal(taken, err)
	}
}

// next signs a change of the policy in force.
func (s *site) next(t *testing.T, change func(*measurements.Policy), images ...string) joinservice.SignedPolicy {
	t.Helper()
	p := s.policy.Policy()
	p.Version++
	p.Documents = nil
	change(&p)
	return signed(t, s.cluster, p, images...)
}

func (s *site) dial(t *testing.T) error {
	t.Helper()
	s.journal.rest()
	return s.node.Dial(t.Context(), s.address, s.cluster.ID())
}

// join dials, and fails the test unless the node becomes Ready.
func (s *site) join(t *testing.T) joinservice.Machine {
	t.Helper()
	if err := s.dial(t); err != nil || s.outcome() != joinservice.OutcomeReady {
		t.Fatalf("outcome %q: %v; denied: %v", s.outcome(), err, s.node.Denied())
	}
	if len(s.machine(t).Credentials) == 0 {
		s.store(t, func(m *joinservice.Machine) { m.NoteCredential(lasting(), time.Now()) })
	}
	return s.machine(t)
}

// lasting is a certificate that an approver has seen issued to the machine's kubelet.
func lasting() joinservice.Credential {
	return joinservice.Credential{Fingerprint: strings.Repeat("0a", 32), Ends: time.Now().Add(72 * time.Hour)}
}

func (s *site) machine(t *testing.T) joinservice.Machine {
	t.Helper()
	m, _, err := s.records.Load(t.Context(), s.node.ID)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// store changes the machine's record as another replica would.
func (s *site) store(t *testing.T, change func(*joinservice.Machine)) {
	t.Helper()
	m, v, err := s.records.Load(t.Context(), s.node.ID)
	if err != nil {
		t.Fatal(err)
	}
	change(&m)
	if _, err := s.records.Store(t.Context(), m, v); err != nil {
		t.Fatal(err)
	}
}

// reboot makes the disk that the ticket opened the one that Hello shows.
func (s *site) reboot() {
	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
}

// onTime fails the test unless Proceed brought the service's time, to which a node holds its clock.
func (s *site) onTime(t *testing.T) {
	t.Helper()
	if off := time.Since(time.Unix(s.node.Proceed().GetTime(), 0)); off.Abs() > 4*time.Minute {
		t.Errorf("the time in Proceed is off by %v", off)
	}
}

// denied dials, and fails the test unless the node is told the code before it has a ticket, and everybody why.
func (s *site) denied(t *testing.T, code string, retry bool, says ...string) {
	t.Helper()
	before := s.node.Ticket()
	if err := s.dial(t); err != nil {
		t.Fatalf("the exchange broke: %v", err)
	}
	s.told(t, code, retry, says...)
	if s.node.Ticket() != before {
		t.Error("a denied node got a ticket")
	}
}

// told fails the test unless the node that dialled was told the code and why instead of Proceed, and the operator the same, by the
// service's log.
func (s *site) told(t *testing.T, code string, retry bool, says ...string) {
	t.Helper()
	told := s.node.Denied()
	if told == nil || told.Code != code || told.Retry != retry || told.Next == "" || s.node.Proceed() != nil {
		t.Fatalf("the node was told %+v, want %s", told, code)
	}
	if s.outcome() != code {
		t.Errorf("outcome %s, want %s", s.outcome(), code)
	}
	wantAll(t, "the node was told", strings.Join([]string{told.Title, told.Expected, told.Got}, "\n"), says)
	wantAll(t, "the log says", s.journal.reason(t), says)
}

// refused dials, and fails the test unless the node learns no more than that, and the operator the code and why, by the service's log.
func (s *site) refused(t *testing.T, code string, says ...string) {
	t.Helper()
	before := s.node.Ticket()
	if err := s.dial(t); err != nil {
		t.Fatalf("the exchange broke: %v", err)
	}
	told := s.node.Denied()
	if told == nil || told.Code != "denied" || told.Retry || told.Next == "" {
		t.Fatalf("the node was told %+v, want denied", told)
	}
	if told.Title != "the evidence was not accepted" || told.Expected != "" || told.Got != "" || told.Because != nil {
		t.Errorf("a machine whose evidence proves nothing was told %+v", told)
	}
	if s.node.Ticket() != before {
		t.Error("a refused node got a ticket")
	}
	if s.outcome() != code {
		t.Errorf("outcome %s, want %s", s.outcome(), code)
	}
	wantAll(t, "the log says", s.journal.reason(t), says)
}

func wantAll(t *testing.T, who, text string, says []string) {
	t.Helper()
	if len(says) == 0 {
		t.Error("the test does not say what people are to read")
	}
	for _, want := range says {
		if !strings.Contains(text, want) {
			t.Errorf("%s %q, want %q in it", who, text, want)
		}
	}
}

// journal keeps a service's log.
type journal struct {
	mutex sync.Mutex
	lines [][]byte
	// again is when a stranger's refusal is logged again: of all of them, one a second is.
	again time.Time
}

// Write takes one line.
func (j *journal) Write(line []byte) (int, error) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.lines = append(j.lines, bytes.Clone(line))
	if bytes.Contains(line, []byte(`"msg":"refused"`)) {
		j.again = time.Now().Truncate(time.Second).Add(time.Second)
	}
	return len(line), nil
}

// rest waits until a refusal is logged, whoever's it is.
func (j *journal) rest() {
	j.mutex.Lock()
	again := j.again
	j.mutex.Unlock()
	time.Sleep(time.Until(again))
}

// reason is why the last exchange ended as it did, without what is to be done next.
func (j *journal) reason(t *testing.T) string {
	t.Helper()
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if len(j.lines) == 0 {
		t.Fatal("nothing was logged")
	}
	var line struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(j.lines[len(j.lines)-1], &line); err != nil {
		t.Fatal(err)
	}
	reason, _, _ := strings.Cut(line.Error, "; next:")
	return reason
}

// says reports whether any line holds a text.
func (j *journal) says(text string) bool {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return slices.ContainsFunc(j.lines, func(line []byte) bool { return bytes.Contains(line, []byte(text)) })
}
