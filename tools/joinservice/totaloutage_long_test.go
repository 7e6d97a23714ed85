//go:build long

package main

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/rig"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// homes are where the members of etcd live: that of the first control plane, beside whose service the others join, and theirs.
var homes = map[string]netip.Addr{
	"control-plane-1": netip.MustParseAddr("127.0.0.1"), "control-plane-2": netip.MustParseAddr("127.0.0.2"), "control-plane-3": netip.MustParseAddr("127.0.0.3"),
}

// threePlanes is a cluster of three control planes: a real etcd of three members, a real API server, and the real service of the first. The other two machines are
// doubles with TPM emulators.
type threePlanes struct {
	*site
	etcd  *rig.Etcd
	api   *rig.Rig
	admin *registry.Registry
	// urls are those of all members.
	urls string
	// machines are the second and the third, by name.
	machines map[string]*nodetest.Node
}

func newThreePlanes(t *testing.T) *threePlanes {
	t.Helper()
	s := &threePlanes{site: newSite(t), machines: map[string]*nodetest.Node{}}
	var err error
	if s.etcd, err = rig.NewEtcd(t.Context(), t.TempDir(), s.cluster); err != nil {
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
	if s.api, err = rig.StartOn(t.Context(), t.TempDir(), s.cluster, s.urls); err != nil {
		t.Fatal(err)
	}
	_, s.admin = administer(t, s.api)
	for _, name := range []string{"control-plane-2", "control-plane-3"} {
		node := nodetest.New(t, s.cluster.ID())
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

// client asks any member of etcd.
func (s *threePlanes) client(t *testing.T) *clientv3.Client {
	t.Helper()
	config, err := s.cluster.EtcdClient(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(s.urls, ","), TLS: config, Logger: zap.NewNop()})
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

// member adds a machine's member to etcd, as its kubeadm does once the service has let it in.
func (s *threePlanes) member(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := s.client(t)
	answer, err := client.MemberAddAsLearner(ctx, []string{s.etcd.PeerURL(homes[name])})
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, m := range answer.Members {
		if m.ID != answer.Member.ID {
			others = append(others, m.Name+"="+m.PeerURLs[0])
		}
	}
	if err := s.etcd.Start(name, homes[name], others...); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = client.MemberPromote(ctx, answer.Member.ID); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", name, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// boots lets a machine come back, or join, and returns the ticket that it got, or what it was told.
func (s *threePlanes) boots(t *testing.T, name string, o options) (hullmark.Ticket, *hullmark.Condition) {
	t.Helper()
	node := s.machines[name]
	if before := node.Ticket(); before != nil {
		node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: before.Disk.UUID, Generation: before.Disk.Generation, Owner: before.Disk.Owner}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := node.Dial(ctx, o.listen, s.cluster.ID()); err != nil {
		t.Fatal(err)
	}
	if told := node.Denied(); told != nil {
		return hullmark.Ticket{}, told
	}
	return *node.Ticket(), nil
}

// persists boots as an agent does: it tries again what passes by itself.
func (s *threePlanes) persists(t *testing.T, name string, o options) hullmark.Ticket {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		ticket, told := s.boots(t, name, o)
		if told == nil {
			return ticket
		}
		if !told.Retry || time.Now().After(end) {
			t.Fatalf("%s was told %+v", name, told)
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
		seen, err := readSeen(filepath.Join(s.state, "control-planes.json"))
		if err == nil && len(seen) == len(s.machines) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the service has seen %v: %v", seen, err)
		}
	}
}

// All three control planes lose power. The first is brought back by its operator; etcd has no quorum, so that no record can be read. Its service lets the second come back
// all the same, with which there is a quorum again; the third comes back by its record, as the second does from then on.
func TestTotalOutageOfThreeControlPlanes(t *testing.T) {
	s := newThreePlanes(t)
	o, stop := s.serve(t, neverRecovered)
	s.push(t, s.admin, o)
	joined, records := map[string]hullmark.Ticket{}, map[string]joinservice.Record{}
	for name := range s.machines {
		joined[name] = s.persists(t, name, o)
		s.member(t, name)
		records[name] = s.record(t, name)
	}
	s.awaitSeen(t)
	s.machines["worker-1"] = s.node
	joined["worker-1"] = s.persists(t, "worker-1", o)
	records["worker-1"] = s.record(t, "worker-1")

	stop()
	if err := s.api.StopAPI(); err != nil {
		t.Fatal(err)
	}
	for name := range homes {
		if err := s.etcd.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.etcd.Start("control-plane-1", homes["control-plane-1"]); err != nil {
		t.Fatal(err)
	}
	if s.writes(t) {
		t.Fatal("one member of three has a quorum")
	}

	// Without the operator's hand nobody comes back; nor does another than a control plane's machine with it.
	o, stop = s.serve(t, neverRecovered)
	if _, told := s.boots(t, "control-plane-2", o); told == nil || told.Code != joinservice.CodeUnreachable || !told.Retry {
		t.Fatalf("without recover it was told %+v", told)
	}
	stop()
	o, _ = s.serve(t, "boot-2")
	if _, told := s.boots(t, "worker-1", o); told == nil || told.Code != joinservice.CodeUnreachable {
		t.Errorf("a worker that had joined was told %+v", told)
	}
	ticket, told := s.boots(t, "control-plane-2", o)
	if told != nil || ticket.Disk.Epoch != (hullmark.Epoch{Unchecked: true}) || !ticket.Disk.Key.Equal(joined["control-plane-2"].Disk.Key) {
		t.Fatalf("it came back with %+v, and was told %+v", ticket.Disk.Epoch, told)
	}
	if s.writes(t) {
		t.Fatal("there was a quorum before the second control plane was back")
	}

	if err := s.etcd.Start("control-plane-2", homes["control-plane-2"]); err != nil {
		t.Fatal(err)
	}
	if err := s.api.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"control-plane-3", "control-plane-2", "worker-1"} {
		if ticket := s.persists(t, name, o); ticket.Disk.Epoch.Unchecked {
			t.Errorf("%s came back with %+v", name, ticket.Disk.Epoch)
		}
		// What happened unchecked is in no record.
		if r := s.record(t, name); r.Committed != records[name].Committed+1 || r.Disk != joined[name].Disk.UUID {
			t.Errorf("%s is recorded as %+v", name, r)
		}
	}
	if err := s.etcd.Start("control-plane-3", homes["control-plane-3"]); err != nil {
		t.Fatal(err)
	}
	// With all three, the first may go.
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := s.client(t).Status(ctx, s.etcd.ClientURL(homes["control-plane-3"]))
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if err := s.etcd.Kill("control-plane-1"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); !s.writes(t); { // once they have a leader
		if time.Now().After(end) {
			t.Fatal("two members of three have no quorum")
		}
	}
}
