//go:build long

package backup

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/measurements"
)

// bump is by how much a restore raises the revision.
const bump = 1_000_000_000

// Paths of objects by what becomes of them in the first restore.
var (
	keptPaths = []string{
		"/api/v1/namespaces/default", "/api/v1/namespaces/hullmark", "/api/v1/nodes/w1", "/api/v1/namespaces/default/pods/on-w1",
		"/api/v1/namespaces/default/pods/waits", "/apis/storage.k8s.io/v1/csinodes/w1", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/w1",
		"/api/v1/namespaces/kube-system/configmaps/kubeadm-config", "/api/v1/namespaces/default/serviceaccounts/default",
		"/api/v1/namespaces/hullmark/configmaps/name.w1", "/api/v1/namespaces/hullmark/configmaps/node." + hullmark.EKID{2}.String(),
	}
	droppedPaths = []string{
		"/api/v1/nodes/w2", "/api/v1/nodes/cp1", "/api/v1/namespaces/default/pods/on-w2", "/api/v1/namespaces/default/pods/on-cp1",
		"/apis/storage.k8s.io/v1/csinodes/w2", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/cp1",
		"/api/v1/namespaces/hullmark/configmaps/policy", "/api/v1/namespaces/hullmark/configmaps/name.w2",
		"/api/v1/namespaces/hullmark/configmaps/name.cp1", "/api/v1/namespaces/hullmark/configmaps/node." + hullmark.EKID{3}.String(),
		"/apis/certificates.k8s.io/v1/certificatesigningrequests/csr-1", "/api/v1/namespaces/default/events/event-1",
	}
)

// uids returns the identities of the objects at these paths, all of which are there.
func (a *api) uids(t *testing.T, paths []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range paths {
		if all[path] = a.uid(t, path); all[path] == "" {
			t.Errorf("%s is not there", path)
		}
	}
	return all
}

func TestBackupComesBack(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	first := startAPI(t, t.TempDir(), c)
	first.populate(t)
	uids := first.uids(t, append(slices.Clone(keptPaths), droppedPaths...))
	backup, taken := first.backup(t)
	if err := first.env.Stop(); err != nil {
		t.Fatal(err)
	}
	want := Restore{
		Policy: measurements.Policy{Members: []measurements.Member{
			{EKID: hullmark.EKID{1}, Role: hullmark.ControlPlane, Name: "cp1"}, rule(2, "w1"),
		}}, Authorities: c.KubernetesCAs(), Now: time.Now(),
	}
	refuseBadBackups(t, backup, want)

	second, content := restoreAPI(t, backup, want, c)
	if content.Revision < taken.Revision || string(content.Configuration) != "configuration 2" || !slices.Equal(content.GivenUp, []string{"cp1", "w2"}) {
		t.Errorf("took revision %d, prepared %+v", taken.Revision, content)
	}
	second.check(t, content, uids)

	// What was restored can be backed up and restored as well.
	m := content.Workers[0]
	_, version, err := second.registry.Load(t.Context(), m.EKID)
	if err != nil {
		t.Fatal(err)
	}
	m.Record.Issued++
	m.Record.Committed = m.Record.Issued
	if _, err := second.registry.Store(t.Context(), m, version); err != nil {
		t.Fatal(err)
	}
	again, _ := second.backup(t)
	if err := second.env.Stop(); err != nil {
		t.Fatal(err)
	}
	want.Now = want.Now.Add(-time.Hour)
	third, content := restoreAPI(t, again, want, c)
	if len(content.GivenUp) != 0 || len(content.Workers) != 1 || content.Workers[0].Record != m.Record {
		t.Errorf("the second time: %+v, want %+v", content, m.Record)
	}
	third.check(t, content, uids)
}

// restoreAPI starts the API over what a backup is prepared to.
func restoreAPI(t *testing.T, backup *os.File, want Restore, c *cluster.Cluster) (*api, Content) {
	t.Helper()
	dst := memory(t)
	content, err := Prepare(dst, backup, want)
	if err != nil {
		t.Fatal(err)
	}
	return startAPI(t, etcdutl(t, dst), c), content
}

// check holds a restored API to what was prepared, and objects to the identities that they had.
func (a *api) check(t *testing.T, content Content, uids map[string]string) {
	t.Helper()
	for path, uid := range a.uids(t, keptPaths) {
		if uid != uids[path] {
			t.Errorf("%s is another object", path)
		}
	}
	for _, path := range droppedPaths {
		if a.uid(t, path) != "" {
			t.Errorf("%s came back", path)
		}
	}
	for _, prefix := range []string{"/registry/masterleases/", "/registry/secrets/kube-system/bootstrap-token-", "/registry/certificatesigningrequests/"} {
		if answer, err := a.etcd.Get(t.Context(), prefix, clientv3.WithPrefix()); err != nil || len(answer.Kvs) != 0 {
			t.Errorf("%s: %v %v", prefix, answer, err)
		}
	}
	machines, err := a.registry.List(t.Context())
	if err != nil || !reflect.DeepEqual(machines, content.Workers) {
		t.Errorf("got %+v, want %+v: %v", machines, content.Workers, err)
	}
	a.checkRevisions(t, content.Revision)
}

// checkRevisions makes sure that whoever watched the old etcd is told to read anew.
func (a *api) checkRevisions(t *testing.T, old int64) {
	t.Helper()
	answer, err := a.etcd.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || answer.Header.Revision < old+bump {
		t.Errorf("revision %d, want more than %d: %v", answer.Header.Revision, old+bump, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	event, open := <-a.etcd.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(old+1))
	if !open || !errors.Is(event.Err(), rpctypes.ErrCompacted) {
		t.Errorf("a watch from revision %d goes on: %v", old+1, event.Err())
	}
}

// refuseBadBackups holds Prepare to its refusals, with a backup that is good.
func refuseBadBackups(t *testing.T, good *os.File, want Restore) {
	t.Helper()
	content, err := io.ReadAll(io.NewSectionReader(good, 0, MaxSize))
	if err != nil {
		t.Fatal(err)
	}
	short := memory(t)
	if _, err := short.Write(content[:len(content)-4096]); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(memory(t), short, want); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("a backup without its last page: %v", err)
	}
	want.Authorities = []*x509.Certificate{makeAuthority()}
	if _, err := Prepare(memory(t), good, want); err == nil || !strings.Contains(err.Error(), "of another cluster") {
		t.Errorf("a backup of another cluster: %v", err)
	}
}

func TestTakeNeedsAQuorum(t *testing.T) {
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := testenv.NewEtcd(t.Context(), t.TempDir(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Stop() })
	home, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	source := Source{Endpoint: etcd.ClientURL(home)}
	if source.TLS, err = c.EtcdClient(time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := etcd.Start("a", home); err != nil {
		t.Fatal(err)
	}
	client := connect(t, source)
	if _, err := client.Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	taken, err := source.Take(t.Context(), memory(t))
	if err != nil || !taken.Quorum || taken.Revision != 2 || taken.Size%sector != 32 {
		t.Errorf("took %+v: %v", taken, err)
	}
	full := errors.New("full")
	if _, err := source.Take(t.Context(), failing{full}); !errors.Is(err, full) {
		t.Errorf("took a backup that was not written: %v", err)
	}
	// A second member that never starts takes the quorum away.
	if _, err := client.MemberAdd(t.Context(), []string{etcd.PeerURL(other)}); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Take(t.Context(), memory(t)); err == nil || !strings.Contains(err.Error(), "finds no quorum") {
		t.Errorf("took a backup without a quorum: %v", err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		status, err := client.Status(t.Context(), source.Endpoint)
		if err == nil && status.Leader == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the member has a leader still: %v", err)
		}
	}
	alone := source
	alone.WithoutQuorum = true
	if taken, err := alone.Take(t.Context(), memory(t)); err != nil || taken.Quorum || taken.Voters != 2 || taken.Revision != 2 || taken.Size%sector != 32 {
		t.Errorf("of a member that is alone it took %+v: %v", taken, err)
	}
	if err := etcd.Kill("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Take(t.Context(), memory(t)); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("took a backup of a member that is down: %v", err)
	}
}

// failing is a writer that does not write.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
