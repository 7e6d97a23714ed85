//go:build long

package enroll

import (
	"context"
	"crypto/ed25519"
	"net"
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
