//go:build long

package registry

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/jointest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// claims is a service that decides over addresses with a replica's records. The endpoint is 192.0.2.1.
func claims(t *testing.T, r *Registry) *joinservice.Service {
	t.Helper()
	member := measurements.Member{EKID: hullmark.EKID{1}, Role: hullmark.ControlPlane, Name: "cp-1"}
	return &joinservice.Service{
		Root: api.Cluster.ID(), Policy: jointest.PolicyStore(t, api.Cluster, member), Records: r,
		Settings: joinservice.Settings{
			ControlPlaneEndpoint: "192.0.2.1:6443", Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")},
		},
	}
}

// serve asks for a serving certificate as a node's kubelet does, and returns the request's name.
func serve(t *testing.T, name string, addresses ...string) string {
	t.Helper()
	node, err := api.Config("system:node:"+name, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	listed(t, node, name)
	return request(t, node, servingSigner, requestPEM(t, template(name, addresses...)), certificatesv1.UsageServerAuth)
}

// serves fails the test unless a request was signed for exactly these addresses.
func serves(t *testing.T, request string, addresses ...string) {
	t.Helper()
	block, _ := pem.Decode(wantSigned(t, request))
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ip := range certificate.IPAddresses {
		got = append(got, ip.String())
	}
	if !slices.Equal(got, addresses) {
		t.Errorf("the certificate is for %v, want %v", got, addresses)
	}
}

// A worker's kubelet asks for certificates of addresses that are the API server's, the services', the pods' or another
// machine's: with two replicas, a real API and its signer.
func TestServingCertificatesNameOnlyOwnAddresses(t *testing.T) {
	ctx := t.Context()
	approving(t, 2)
	worker, other, plane := testMachine(61, "w61"), testMachine(62, "w62"), testMachine(63, "cp63")
	plane.Role = hullmark.ControlPlane
	for _, m := range []*joinservice.Machine{&worker, &other, &plane} {
		m.Addresses = nil
		admitted(t, *m)
	}
	serves(t, serve(t, "w62", "192.0.2.62", "2001:db8::62"), "192.0.2.62", "2001:db8::62")
	serves(t, serve(t, "cp63", "192.0.2.1"), "192.0.2.1")
	for address, code := range map[string]string{
		"10.96.0.1": "address-reserved", "10.96.0.10": "address-reserved", "10.244.1.2": "address-reserved", "192.0.2.1": "address-reserved", "::ffff:192.0.2.1": "address-reserved",
		"192.0.2.62": "address-taken", "2001:db8:0::62": "address-taken", "169.254.1.1": "address-reserved",
	} {
		wantDenied(t, serve(t, "w61", address), code)
		wantDenied(t, serve(t, "w61", "192.0.2.61", address), code)
	}
	serves(t, serve(t, "w61", "192.0.2.61"), "192.0.2.61")
	// It moves, and its first address is another's.
	serves(t, serve(t, "w61", "192.0.2.161"), "192.0.2.161")
	serves(t, serve(t, "w62", "192.0.2.61"), "192.0.2.61")
	m, _, err := service.Load(ctx, worker.EKID)
	if err != nil || !slices.Equal(m.Addresses, []netip.Addr{netip.MustParseAddr("192.0.2.161")}) {
		t.Errorf("its record has %v, %v", m.Addresses, err)
	}
	// Whoever is removed has no claims any more.
	if m, _, err = service.Load(ctx, other.EKID); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Delete(ctx, m, true); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"192.0.2.61", "192.0.2.62", "2001:db8::62"} {
		if _, err := admin.configMaps.get(ctx, AddressObject(netip.MustParseAddr(a))); !apierrors.IsNotFound(err) {
			t.Errorf("the claim of %s: %v", a, err)
		}
	}
}

// A claim yields once its holder's Node was not Ready for a while, by the clock of the replica that looks; this test moves that of each.
func TestAddressOfADeadMachineYields(t *testing.T) {
	ctx, all, address := t.Context(), replicas(t, 2), netip.MustParseAddr("192.0.2.64")
	now := time.Now()
	for _, r := range all {
		r.absent.now = func() time.Time { return now }
	}
	holder, next := testMachine(64, "w64"), testMachine(65, "w65")
	for _, m := range []joinservice.Machine{holder, next} {
		m.Addresses = nil
		admitted(t, m)
	}
	if _, err := admin.nodes.create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w64"}}); err != nil {
		t.Fatal(err)
	}
	since := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	ready := func(status corev1.ConditionStatus) {
		t.Helper()
		since = metav1.NewTime(since.Add(time.Second)) // of long ago: the holder's word
		eventually(t, "the Node's status", func() error {
			node, err := admin.nodes.get(ctx, "w64")
			if err != nil {
				return err
			}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Now(), LastTransitionTime: since}}
			_, err = admin.nodes.update(ctx, "w64", node, "status")
			return err
		})
	}
	taken := func(r *Registry, after time.Duration, want bool) {
		t.Helper()
		for ; after > lookGap; after -= lookGap {
			now = now.Add(lookGap)
			for _, r := range all {
				r.lookAgain(ctx)
			}
		}
		now = now.Add(after)
		if err := r.ClaimAddress(ctx, address, next.EKID); want != (conditionCode(err) == "address-taken") || !want && err != nil {
			t.Fatalf("after %v: %v", after, err)
		}
	}
	if err := all[0].ClaimAddress(ctx, address, holder.EKID); err != nil {
		t.Fatal(err)
	}
	ready(corev1.ConditionTrue)
	taken(all[0], 0, true)
	taken(all[0], 2*claimPatience, true)
	ready(corev1.ConditionFalse)
	taken(all[0], 0, true)
	taken(all[0], claimPatience-time.Second, true)
	ready(corev1.ConditionTrue) // unseen by anybody here
	ready(corev1.ConditionFalse)
	taken(all[0], claimPatience, true)
	taken(all[1], claimPatience-time.Second, true)
	taken(all[0], time.Second, false)
	if err := all[1].ClaimAddress(ctx, address, holder.EKID); conditionCode(err) != "address-taken" {
		t.Errorf("the holder that came back: %v", err)
	}
	if err := all[1].ReleaseAddress(ctx, address, holder.EKID); err != nil {
		t.Error(err)
	}
	if err := all[1].ClaimAddress(ctx, address, next.EKID); err != nil {
		t.Errorf("its claim: %v", err)
	}
}

// Of machines that want an address at once, at several replicas, one gets it.
func TestAnAddressHasOneHolder(t *testing.T) {
	all := replicas(t, 3)
	for round := range 20 {
		address := netip.AddrFrom4([4]byte{198, 51, 100, byte(round)})
		var group sync.WaitGroup
		var mutex sync.Mutex
		var won []hullmark.EKID
		for i, r := range all {
			group.Go(func() {
				node := hullmark.EKID{66, byte(i)}
				err := r.ClaimAddress(context.Background(), address, node)
				mutex.Lock()
				defer mutex.Unlock()
				if err == nil {
					won = append(won, node)
				} else if conditionCode(err) != "address-taken" {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if len(won) != 1 {
			t.Fatalf("%s is of %v", address, won)
		}
		if err := all[0].ReleaseAddress(t.Context(), address, won[0]); err != nil {
			t.Fatal(err)
		}
	}
}
