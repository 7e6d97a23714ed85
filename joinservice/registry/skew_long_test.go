//go:build long

package registry

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// skewService serves a cluster whose policy accepts these releases, with the records of a real API.
func skewService(t *testing.T, members []measurements.Member, releases ...string) (address string) {
	t.Helper()
	return servesPolicy(t, measurements.Policy{Version: 1, Members: members}, releases...)
}

// servesPolicy serves a cluster with a policy that accepts these releases beside what it says.
func servesPolicy(t *testing.T, policy measurements.Policy, releases ...string) (address string) {
	t.Helper()
	signed := joinservice.SignedPolicy{Documents: map[measurements.DocumentID][]byte{}}
	for _, r := range releases {
		document := nodetest.Document(t, r)
		id, err := document.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if signed.Documents[id], err = document.Encode(); err != nil {
			t.Fatal(err)
		}
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: id})
	}
	var err error
	if signed.Envelope, err = measurements.SignPolicy(api.Cluster.Root.Key, api.Cluster.ID(), policy); err != nil {
		t.Fatal(err)
	}
	store, warning, err := joinservice.OpenPolicyStore(api.Cluster.ID(), signed, servicefiles.Plain(filepath.Join(t.TempDir(), "policy.json")))
	if err != nil || warning != nil {
		t.Fatal(err, warning)
	}
	leaf, err := channel.NewService(api.Cluster.Root.Certificate, api.Cluster.Online.Certificate, api.Cluster.Online.Key)
	if err != nil {
		t.Fatal(err)
	}
	s := &joinservice.Service{
		Root: api.Cluster.ID(), Policy: store, Keys: api.Cluster.Keys, Records: service, Tokens: service, Vouchers: service, RemoveNode: service.RemoveStaleNode,
		Settings: joinservice.Settings{ControlPlaneEndpoint: "192.0.2.1:6443"}, KubernetesCA: api.Cluster.KubernetesCA(),
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

// With records in a real API: a worker waits for the control plane, and its record says what it runs once it is let in.
func TestVersionGate(t *testing.T) {
	ctx := t.Context()
	node := nodetest.New(t, api.Cluster.ID())
	node.Boot(t, "v1.36.3")
	node.Addresses = []string{"192.0.2.71"}
	plane := testMachine(70, "cp70")
	plane.Role, plane.Kubernetes = hullmark.ControlPlane, hullmark.Version{Major: 1, Minor: 35, Patch: 4}
	version, err := service.Store(ctx, plane, "")
	if err != nil {
		t.Fatal(err)
	}
	members := []measurements.Member{{EKID: plane.EKID, Role: hullmark.ControlPlane, Name: "cp70"}, {EKID: node.ID, Role: hullmark.Worker, Name: "w71"}}
	if err := node.Dial(ctx, skewService(t, members, "v1.35.4", "v1.36.3"), api.Cluster.ID()); err != nil {
		t.Fatal(err)
	}
	if denied := node.Denied(); denied == nil || denied.Code != "version-skew" || !denied.Retry || !strings.Contains(denied.Title, "cp70") {
		t.Fatalf("denied: %v", denied)
	}
	plane.Kubernetes = hullmark.Version{Major: 1, Minor: 36, Patch: 1}
	if _, err := service.Store(ctx, plane, version); err != nil {
		t.Fatal(err)
	}
	node.Reboot(t, "v1.36.3")
	if err := node.Dial(ctx, skewService(t, members, "v1.35.4", "v1.36.3"), api.Cluster.ID()); err != nil || node.Denied() != nil {
		t.Fatalf("%v, denied: %v", err, node.Denied())
	}
	m, _, err := service.Load(ctx, node.ID)
	if err != nil || m.Kubernetes.String() != "v1.36.3" {
		t.Errorf("its record says %v, %v", m.Kubernetes, err)
	}
}
