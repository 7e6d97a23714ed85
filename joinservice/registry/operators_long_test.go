//go:build long

package registry

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
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
		if err := admin.BindOperators(ctx, users, nil); err != nil {
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

// An operator whom the policy lets change it pushes it, with its documents, and writes nothing else.
func TestOperatorPushesThePolicy(t *testing.T) {
	ctx := t.Context()
	dora := hullmark.Operator{Name: "dora", Key: hullmark.OperatorKey{4}}
	if err := admin.BindOperators(ctx, []string{dora.User()}, []string{dora.User()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.BindOperators(context.Background(), nil, nil); err != nil {
			t.Error(err)
		}
	})
	hers, err := connectAs(dora.User())
	if err != nil {
		t.Fatal(err)
	}
	document := []byte("a document")
	documents := map[measurements.DocumentID][]byte{sha256.Sum256(document): document}
	eventually(t, "a push", func() error { return hers.PushPolicy(ctx, "operator dora", AnyVersion, []byte("a policy"), documents) })
	if envelope, by, _, err := admin.PushedBy(ctx); err != nil || string(envelope) != "a policy" || by != "operator dora" {
		t.Errorf("the cluster has %q, by %q, %v", envelope, by, err)
	}
	if err := hers.PushPolicy(ctx, "", AnyVersion, []byte("another"), nil); err != nil { // The document goes.
		t.Error(err)
	}
	other := func(name, kind, key string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: meta(kind, name), BinaryData: map[string][]byte{key: document}}
	}
	finalizer := other(documentObject(measurements.DocumentID{1}), documentKind, documentKind)
	finalizer.Finalizers = []string{"example.com/mine"}
	for what, object := range map[string]*corev1.ConfigMap{
		"a machine's record": other(MachineObject(hullmark.EKID{1}), "machine", "machine"), "another name": other("document.x", documentKind, documentKind),
		"another key": other(documentObject(measurements.DocumentID{1}), documentKind, "x"), "another label": other(documentObject(measurements.DocumentID{1}), "machine", documentKind),
		"a finalizer": finalizer,
	} {
		if _, err := hers.configMaps.create(ctx, object); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := hers.remove(ctx, "delete the policy", hers.configMaps.delete, policyObject); err == nil {
		t.Error("she deletes the policy")
	}
	for _, a := range []access{"create /secrets hullmark", "update coordination.k8s.io/leases hullmark x", "create rbac.authorization.k8s.io/rolebindings hullmark", "create /configmaps default", "create /events hullmark"} {
		if may(t, a, dora.User()) {
			t.Errorf("she may %s", a)
		}
	}
}

// Who signed a policy is said once, by however many replicas.
func TestPolicysSignerIsTold(t *testing.T) {
	ctx := t.Context()
	for range 2 {
		if err := service.Changed(ctx, 7, sha256.Sum256([]byte("a policy")), "operator dora"); err != nil {
			t.Fatal(err)
		}
	}
	list, err := admin.events.list(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, e := range list.Items {
		if e.Reason == "PolicyChanged" && e.Message == "policy version 7 is in force, signed by operator dora" {
			told++
		}
	}
	if told != 1 {
		t.Errorf("it was told %d times", told)
	}
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
