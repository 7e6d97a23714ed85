//go:build long

package enroll

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
)

// With a real API, join service and TPM emulator: a declared machine is vouched for, joins, and is forgotten when it is gone, so that its
// place is another's; one that the controller did not make its Node go for is not.
func TestDeclaredMachineJoins(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Minute) // the bundle may have to be compiled
	defer cancel()
	api, err := testenv.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := api.Apply(ctx, registry.Manifest()); err != nil {
		t.Fatal(err)
	}
	config, err := api.Config("test", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := registry.New(config)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := api.Kubeconfig("hullmark-operator", "kubeadm:cluster-admins")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-kubeconfig"}, Data: map[string][]byte{"value": kubeconfig}})
	reach := &Clusters{Live: w.client}
	reconcile := func() {
		t.Helper()
		r := w.reconciler()
		r.Connect, r.Now = reach.Connect, nil
		if _, err := r.Reconcile(ctx, requestForCluster); err != nil {
			t.Fatal(err)
		}
	}
	root := api.Cluster.ID()
	group := measurements.Group{Name: pool, Enrollers: [][]byte{w.key.Public().(ed25519.PublicKey)}, Max: 1}
	address := serve(t, api, admin, measurements.Policy{Version: 1, Groups: []measurements.Group{group}})
	dial := func(node *nodetest.Node, code string) {
		t.Helper()
		if err := node.Dial(ctx, address, root); err != nil {
			t.Fatal(err)
		}
		if denied := node.Denied(); code == "" && denied != nil || code != "" && (denied == nil || denied.Code != code) {
			t.Fatalf("denied: %v, want %q", denied, code)
		}
	}
	first := newNode(t, root)
	dial(first, joinservice.CodeVoucherMissing)
	w.rooted(root).machine("workers-x", first.ID.String())
	// The namespace's quota is counted by a controller, which may take a moment.
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		reconcile()
		if reason, _ := w.reason("workers-x"); reason == bootstrapv1.VouchedReason {
			break
		}
	}
	dial(first, "")
	record, _, err := admin.Load(ctx, first.ID)
	if err != nil || record.Name != "workers-x" || record.ProviderID != "stub://ns/workers-x" {
		t.Errorf("its record is %+v, %v", record, err)
	}
	second := newNode(t, root)
	w.machine("workers-y", second.ID.String())
	reconcile()
	dial(second, "group-full")
	nodes := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes()
	if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "workers-x"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.delete("workers-x")
	reconcile()
	if _, version, err := admin.Load(ctx, first.ID); err != nil || version == "" {
		t.Errorf("it was forgotten while its Node was there: %v", err)
	}
	if err := nodes.Delete(ctx, "workers-x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	reconcile()
	if _, version, err := admin.Load(ctx, first.ID); err != nil || version != "" {
		t.Errorf("it is remembered: %v", err)
	}
	vouchers, err := admin.ListVouchers(ctx)
	if err != nil || len(vouchers) != 1 {
		t.Errorf("%d vouchers, %v", len(vouchers), err)
	}
	dial(second, "")
	if machines, err := admin.Counted(ctx); err != nil || !slices.ContainsFunc(machines, func(m joinservice.Machine) bool { return m.EKID == second.ID }) {
		t.Errorf("counted: %+v, %v", machines, err)
	}
	// Whoever has the key, and may put vouchers, has no other machine forgotten: neither a control plane, nor a worker of another name.
	others := []joinservice.Machine{{EKID: hullmark.EKID{0xc1}, Name: "cp-1", Role: hullmark.ControlPlane}, {EKID: hullmark.EKID{0xc2}, Name: "own-1", Role: hullmark.Worker}}
	for i, m := range others {
		if _, err := admin.Store(ctx, m, ""); err != nil {
			t.Fatal(err)
		}
		signed, err := measurements.SignVoucher(w.key, measurements.Voucher{
			ClusterRoot: root, Group: pool, EKID: m.EKID, Name: fmt.Sprintf("%s-stolen-%d", pool, i), ProviderID: fmt.Sprintf("stub://stolen/%d", i), NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.PutVoucher(ctx, signed); err != nil {
			t.Fatal(err)
		}
	}
	aged := func(by time.Duration) {
		t.Helper()
		r := w.reconciler()
		r.Connect, r.Now = reach.Connect, func() time.Time { return time.Now().Add(by) }
		if _, err := r.Reconcile(ctx, requestForCluster); err != nil {
			t.Fatal(err)
		}
	}
	aged(0)
	aged(2 * settle)
	for _, m := range others {
		if signed, err := admin.Voucher(ctx, m.EKID); err != nil || signed != nil {
			t.Errorf("the voucher that names %s is there: %v", m.Name, err)
		}
		if _, version, err := admin.Load(ctx, m.EKID); err != nil || version == "" {
			t.Errorf("%s was forgotten: %v", m.Name, err)
		}
	}
	t.Run("cut off at each write", func(t *testing.T) { cutOffAtEachWrite(t, root, admin, kubeconfig) })
}

// cutter ends all calls from the n-th write on: before the API gets it, or when it has done it and the answer is lost.
type cutter struct {
	http.RoundTripper
	*cut
}

type cut struct {
	writes, at int
	after      bool
}

func (c cutter) RoundTrip(r *http.Request) (*http.Response, error) {
	write := r.Method != http.MethodGet
	if write {
		c.writes++
	}
	if c.at == 0 || c.writes < c.at {
		return c.RoundTripper.RoundTrip(r)
	}
	if write && c.writes == c.at && c.after {
		if response, err := c.RoundTripper.RoundTrip(r); err == nil {
			_ = response.Body.Close()
		}
	}
	return nil, errors.New("cut off")
}

// cutOffAtEachWrite ends the controller at each write to the cluster's API, before and after it, and starts another: what is left is always
// the same. A machine that is gone has no record, voucher or place, and its name rests while its certificate lives; a new one has its voucher.
func cutOffAtEachWrite(t *testing.T, root hullmark.ClusterRoot, admin *registry.Registry, kubeconfig []byte) {
	ctx, cuts := t.Context(), 0
	for at := 1; cuts == at-1 && at < 100; at++ {
		for _, after := range []bool{false, true} {
			w := newWorld(t)
			w.rooted(root).make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-kubeconfig"}, Data: map[string][]byte{"value": kubeconfig}})
			c := &cut{after: after}
			reach := &Clusters{Live: w.client, wrap: func(next http.RoundTripper) http.RoundTripper { return cutter{next, c} }}
			reconcile := func() {
				t.Helper()
				r := w.reconciler()
				r.Connect = reach.Connect
				_, err := r.Reconcile(ctx, requestForCluster)
				if err != nil && c.at == 0 {
					t.Fatal(err)
				}
			}
			w.now = time.Now()
			id := 2 * at
			if after {
				id++
			}
			gone, there := hullmark.EKID{0xaa, byte(id)}, hullmark.EKID{0xbb, byte(id)}
			name := fmt.Sprintf("workers-%d", id)
			w.machine(name, gone.String())
			reconcile()
			signed, err := admin.Voucher(ctx, gone)
			if err != nil || signed == nil {
				t.Fatalf("positive control: no voucher, %v", err)
			}
			record := joinservice.Machine{EKID: gone, Name: name, Role: hullmark.Worker, Voucher: signed, CertificateEnds: time.Now().Add(time.Hour)}
			if _, err := admin.Store(ctx, record, ""); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(admin.Enrol(ctx, pool, gone, 1000), admin.Claim(ctx, name, gone)); err != nil {
				t.Fatal(err)
			}
			w.delete(name)
			w.machine(name+"-next", there.String())
			c.writes, c.at = 0, at
			reconcile()
			if c.writes >= at {
				cuts = at
			}
			c.at, w.same = 0, nil
			reconcile()
			w.now = w.now.Add(settle)
			reconcile()
			_, version, err := admin.Load(ctx, gone)
			left, wrong := admin.Voucher(ctx, gone)
			counted, wrong2 := admin.Counted(ctx)
			removed, rests, wrong3 := admin.Resting(ctx, name)
			if err := errors.Join(err, wrong, wrong2, wrong3); err != nil {
				t.Fatal(err)
			}
			if version != "" || left != nil || slices.ContainsFunc(counted, func(m joinservice.Machine) bool { return m.EKID == gone }) || !rests || removed.EKID != gone {
				t.Errorf("write %d, after=%v: record %q, voucher %d bytes, rests %v", at, after, version, len(left), rests)
			}
			if signed, err := admin.Voucher(ctx, there); err != nil || signed == nil {
				t.Errorf("write %d, after=%v: the new one has no voucher: %v", at, after, err)
			}
			w.delete(name + "-next")
			w.machine("cp", "", controlPlane)
			reconcile()
		}
	}
	if t.Logf("cut off at %d writes", cuts); cuts < 5 {
		t.Error("it was not cut off at each")
	}
}

func newNode(t *testing.T, root hullmark.ClusterRoot) *nodetest.Node {
	t.Helper()
	node := nodetest.New(t, root)
	node.Boot(t, "image")
	node.Addresses = []string{"192.0.2.73"}
	return node
}

// serve runs a join service with this policy.
func serve(t *testing.T, api *testenv.Environment, records *registry.Registry, policy measurements.Policy) (address string) {
	t.Helper()
	document := nodetest.Document(t, "image")
	id, err := document.Digest()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := document.Encode()
	if err != nil {
		t.Fatal(err)
	}
	policy.Documents = []measurements.Accepted{{Document: id}}
	signed := joinservice.SignedPolicy{Documents: map[measurements.DocumentID][]byte{id: encoded}}
	c := api.Cluster
	if signed.Envelope, err = measurements.SignPolicy(c.Root.Key, c.ID(), policy); err != nil {
		t.Fatal(err)
	}
	store, warning, err := joinservice.OpenPolicyStore(c.ID(), signed, servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
	if err != nil || warning != nil {
		t.Fatal(err, warning)
	}
	leaf, err := channel.NewService(c.Root.Certificate, c.Online.Certificate, c.Online.Key)
	if err != nil {
		t.Fatal(err)
	}
	s := &joinservice.Service{
		Root: c.ID(), Policy: store, Keys: c.Keys, Records: records, Tokens: records, Vouchers: records, RemoveNode: records.RemoveStaleNode,
		Settings: joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443"}, KubernetesCA: c.KubernetesCA(),
		Timeouts: joinservice.Timeouts{Proof: time.Minute, Opened: time.Minute, Progress: time.Minute},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := s.Server(channel.ServiceTLS(leaf))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}
