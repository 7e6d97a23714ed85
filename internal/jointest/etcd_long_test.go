//go:build long

package jointest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice/etcd"
)

// A control plane waits while etcd, a real one, has no quorum, and joins once it has.
func TestWaitsForTheQuorumOfEtcd(t *testing.T) {
	trouble{role: hullmark.ControlPlane, begin: withoutQuorum, code: "etcd-no-quorum", title: "etcd does not answer", tickets: 2}.waitsAndJoins(t)
}

// withoutQuorum gives the service an etcd of two members, of which one has not started.
func withoutQuorum(t *testing.T, s *Site) (mend func()) {
	first, second := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	members, err := testenv.NewEtcd(t.Context(), t.TempDir(), s.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := members.Stop(); err != nil {
			t.Error(err)
		}
	})
	tls, err := s.Cluster.EtcdClient(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s.Service.ControlPlanes.RemoveMember = (&etcd.Members{Endpoint: members.ClientURL(first), TLS: tls}).RemoveStale
	if err := members.Start("first", first); err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{members.ClientURL(first)}, TLS: tls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		if _, err = client.MemberAdd(ctx, []string{members.PeerURL(second)}); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return func() {
		if err := members.Start("second", second, "first="+members.PeerURL(first)); err != nil {
			t.Error(err)
		}
	}
}
