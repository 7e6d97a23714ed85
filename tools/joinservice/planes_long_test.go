//go:build long

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// homes are where the members of etcd live: that of the first control plane, beside whose service the others join, and theirs.
var homes = map[string]netip.Addr{
	"control-plane-1": netip.MustParseAddr("127.0.0.1"), "control-plane-2": netip.MustParseAddr("127.0.0.2"), "control-plane-3": netip.MustParseAddr("127.0.0.3"),
}

// threePlanes is a cluster of three control planes: a real etcd of three members, a real API server, and the real service of
// the first. The other two machines are doubles with TPM emulators.
type threePlanes struct {
	*site
	etcd   *testenv.Etcd
	api    *testenv.Environment
	config *rest.Config
	admin  *registry.Registry
	// urls are those of all members.
	urls string
	// machines are the second and the third, by name.
	machines map[string]*nodetest.Node
}

func newThreePlanes(t *testing.T) *threePlanes {
	t.Helper()
	s := &threePlanes{site: newSite(t), machines: map[string]*nodetest.Node{}}
	var err error
	if s.etcd, err = testenv.NewEtcd(t.Context(), t.TempDir(), s.cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.etcd.Start("control-plane-1", homes["control-plane-1"]); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, at := range homes {
		urls = append(urls, s.etcd.ClientURL(at))
	}
	s.urls = strings.Join(urls, ",")
	if s.api, err = testenv.StartOn(t.Context(), t.TempDir(), s.cluster, s.urls); err != nil {
		t.Fatal(err)
	}
	s.config, s.admin = administer(t, s.api)
	for i, name := range []string{"control-plane-2", "control-plane-3"} {
		node := nodetest.New(t, s.cluster.ID())
		node.Addresses = []string{fmt.Sprintf("192.0.2.%d", 12+i)}
		node.Boot(t, "image")
		s.machines[name] = node
		s.policy.Members = append(s.policy.Members, measurements.Member{EKID: node.ID, Role: hullmark.ControlPlane, Name: name})
	}
	return s
}

// serve starts the first control plane's service, after `hullmark recover` if a boot is named.
func (s *threePlanes) serve(t *testing.T, boot string) (o options, stop func()) {
	t.Helper()
	s.write(t, recoveredCredential, []byte(boot))
	return s.startWith(t, options{api: "https://" + s.api.Address, etcd: s.etcd.ClientURL(homes["control-plane-1"])})
}

// client asks any member of etcd, or those at these URLs.
func (s *threePlanes) client(t *testing.T, urls ...string) *clientv3.Client {
	t.Helper()
	config, err := s.cluster.EtcdClient(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if len(urls) == 0 {
		urls = strings.Split(s.urls, ",")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// writes reports whether etcd has a quorum.
func (s *threePlanes) writes(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := s.client(t).Put(ctx, "/test", "written")
	return err == nil
}

// announce adds a machine's member to etcd, which has yet to start, beside the others, NAME=PEER-URL.
func (s *threePlanes) announce(t *testing.T, name string) (id uint64, others []string) {
	t.Helper()
	client := s.client(t)
	var answer *clientv3.MemberAddResponse
	// Of two members at one address in one second etcd makes one, which is not added again once it was removed.
	eventually(t, "announce "+name, func(ctx context.Context) (err error) {
		answer, err = client.MemberAddAsLearner(ctx, []string{s.etcd.PeerURL(homes[name])})
		return err
	})
	for _, m := range answer.Members {
		if m.ID != answer.Member.ID {
			others = append(others, m.Name+"="+m.PeerURLs[0])
		}
	}
	return answer.Member.ID, others
}

// member adds a machine's member to etcd and starts it, as its kubeadm does once the service has let it in.
func (s *threePlanes) member(t *testing.T, name string) {
	t.Helper()
	id, others := s.announce(t, name)
	if err := s.etcd.Start(name, homes[name], others...); err != nil {
		t.Fatal(err)
	}
	client := s.client(t)
	eventually(t, "promote "+name, func(ctx context.Context) error {
		_, err := client.MemberPromote(ctx, id)
		return err
	})
}

// eventually calls do, each time with a short deadline, until it succeeds.
func eventually(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = do(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// boots lets a machine come back, or join, and returns the ticket that it got, or what it was told.
func (s *threePlanes) boots(t *testing.T, name string, o options) (hullmark.Ticket, *hullmark.Condition) {
	t.Helper()
	if err := s.asks(t, name, o); err != nil {
		t.Fatal(err)
	}
	if told := s.machines[name].Denied(); told != nil {
		return hullmark.Ticket{}, told
	}
	return *s.machines[name].Ticket(), nil
}

// asks runs one exchange of a machine, whose disk is what a ticket made of it.
func (s *threePlanes) asks(t *testing.T, name string, o options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	node := s.machines[name]
	err := node.Dial(ctx, o.listen, s.cluster.ID())
	if got := node.Ticket(); got != nil && got.Disk.UUID == node.Disk.UUID {
		ended := err == nil && node.Denied() == nil
		node.Unjoined = !ended && (node.Unjoined || node.Disk.State != hullmark.DiskReady)
		node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: got.Disk.UUID, Generation: got.Disk.Generation, Owner: got.Disk.Owner}
	}
	return err
}

// persists boots as an agent does: it tries again what passes by itself.
func (s *threePlanes) persists(t *testing.T, name string, o options) hullmark.Ticket {
	t.Helper()
	ticket, told := s.answered(t, name, o)
	if told != nil {
		t.Fatalf("%s was told %+v", name, told)
	}
	return ticket
}

// answered tries again what passes by itself, for a while, and returns what came in the end.
func (s *threePlanes) answered(t *testing.T, name string, o options) (hullmark.Ticket, *hullmark.Condition) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		ticket, told := s.boots(t, name, o)
		if told == nil || !told.Retry || time.Now().After(end) {
			return ticket, told
		}
	}
}

func (s *threePlanes) record(t *testing.T, name string) joinservice.Record {
	t.Helper()
	m, _, err := s.admin.Load(t.Context(), s.machines[name].ID)
	if err != nil || m.State != joinservice.MachineReady {
		t.Fatalf("%s is recorded as %+v: %v", name, m, err)
	}
	return m.Record
}

// awaitSeen waits until the service keeps on its own disk what the records of both machines say.
func (s *threePlanes) awaitSeen(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		seen, err := s.seen()
		if err == nil && len(seen) == len(s.machines) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the service has seen %v: %v", seen, err)
		}
	}
}

// losesQuorum kills two members while everything else runs, and has a machine that joins and one that comes back told so. One
// member is started again.
func (s *threePlanes) losesQuorum(t *testing.T, o options) {
	t.Helper()
	for _, name := range []string{"control-plane-2", "control-plane-3"} {
		if err := s.etcd.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	if s.writes(t) {
		t.Fatal("one member of three has a quorum")
	}
	for _, name := range []string{"worker-1", "control-plane-2"} {
		begin := time.Now()
		_, told := s.boots(t, name, o)
		took := time.Since(begin)
		if told == nil || told.Code != joinservice.CodeUnreachable || !told.Retry || !strings.Contains(told.Title, "does not answer") || told.Next == "" {
			t.Errorf("without a quorum %s was told %+v", name, told)
		}
		if t.Logf("without a quorum %s was answered within %v: %v", name, took, told); took > time.Minute {
			t.Errorf("%s was kept waiting for %v", name, took)
		}
	}
	if err := s.etcd.Start("control-plane-2", homes["control-plane-2"]); err != nil {
		t.Fatal(err)
	}
}

// seen is what the service keeps of control planes.
func (s *threePlanes) seen() (map[hullmark.EKID]joinservice.Seen, error) {
	content, err := servicefiles.Files{Folder: s.state}.File(servicefiles.ControlPlanes).Read()
	if err != nil {
		return nil, err
	}
	return readSeen(content)
}
