//go:build long

package registry

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
)

// Operators whom the policy lets look read what lies in the namespace, and nothing else; who is withdrawn reads nothing, and neither does
// the earlier key of a name.
func TestOperatorsAreBound(t *testing.T) {
	ctx := t.Context()
	alice, bob := hullmark.Operator{Name: "alice", Key: hullmark.OperatorKey{1}}, hullmark.Operator{Name: "bob", Key: hullmark.OperatorKey{2}}
	again := hullmark.Operator{Name: "alice", Key: hullmark.OperatorKey{3}}
	reads := func(o hullmark.Operator, want bool) {
		t.Helper()
		eventually(t, o.User(), func() error { // The API server takes a binding up some time after it was made.
			for _, a := range []access{"get /configmaps hullmark policy", "list /configmaps hullmark"} {
				if may(t, a, o.User()) != want {
					return fmt.Errorf("%s: may %s: want %v", o.User(), a, want)
				}
			}
			return nil
		})
	}
	bind := func(operators ...hullmark.Operator) {
		t.Helper()
		var users []string
		for _, o := range operators {
			users = append(users, o.User())
		}
		if err := admin.BindOperators(ctx, users); err != nil {
			t.Fatal(err)
		}
	}
	reads(alice, false)
	bind(bob, alice)
	reads(alice, true)
	reads(bob, true)
	reads(again, false)
	for _, a := range []access{
		"create /configmaps hullmark", "update /configmaps hullmark policy", "patch /configmaps hullmark policy", "delete /configmaps hullmark x", "watch /configmaps hullmark", "get /configmaps kube-system x", "list /configmaps",
		"get /configmaps hullmark-vouchers x", "create /configmaps hullmark-vouchers", "get /secrets hullmark x", "list /secrets", "get /secrets kube-system x",
		"list /nodes", "delete /nodes - x", "get /pods default", "get /pods/log default x", "create /pods/exec default x", "create /events hullmark", "update coordination.k8s.io/leases hullmark x",
		"update rbac.authorization.k8s.io/rolebindings hullmark hullmark:look", "create rbac.authorization.k8s.io/rolebindings hullmark", "bind rbac.authorization.k8s.io/roles hullmark x", "escalate rbac.authorization.k8s.io/roles hullmark x",
		"impersonate /users", "impersonate /groups - system:masters", "create certificates.k8s.io/certificatesigningrequests", "update certificates.k8s.io/certificatesigningrequests/approval",
	} {
		if may(t, a, alice.User()) {
			t.Errorf("an operator may %s", a)
		}
	}
	bind(bob, again)
	reads(alice, false)
	reads(again, true)
	bind()
	reads(bob, false)
	reads(again, false)
	bind() // nothing is left to take out
}

// That an operator recovered a control plane is said once for a boot.
func TestRecoveryIsTold(t *testing.T) {
	ctx, node := t.Context(), hullmark.EKID{88}
	for range 2 {
		if err := service.Recovered(ctx, node, "control-plane-1", "alice", "one boot alice"); err != nil {
			t.Fatal(err)
		}
	}
	if err := service.Recovered(ctx, node, "control-plane-1", "alice", "another boot alice"); err != nil {
		t.Fatal(err)
	}
	list, err := admin.events.list(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, e := range list.Items {
		if e.Reason == "ControlPlaneRecovered" && strings.Contains(e.Message, "operator alice opened the state disk of control-plane-1") {
			told++
		}
	}
	if told != 2 {
		t.Errorf("it was told %d times, want once for each of two boots", told)
	}
}
