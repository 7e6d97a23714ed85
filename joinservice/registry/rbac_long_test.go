//go:build long

package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
)

// access is one thing that a user may or may not do: verb, group/resource[/subresource], namespace and name, "-" for none.
type access string

func (a access) attributes() map[string]string {
	words := strings.Fields(strings.ReplaceAll(string(a), "-/", "/"))
	group, resource, _ := strings.Cut(words[1], "/")
	resource, subresource, _ := strings.Cut(resource, "/")
	attributes := map[string]string{"verb": words[0], "group": group, "resource": resource, "subresource": subresource}
	for i, key := range []string{"namespace", "name"} {
		if len(words) > i+2 && words[i+2] != "-" {
			attributes[key] = words[i+2]
		}
	}
	return attributes
}

// may asks the API whether a user in some groups may do something.
func may(t *testing.T, a access, user string, groups ...string) bool {
	t.Helper()
	config, err := api.Config("testenv", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Status struct{ Allowed bool } }
	spec := map[string]any{"user": user, "groups": append(groups, "system:authenticated"), "resourceAttributes": a.attributes()}
	if err := ask(t.Context(), config, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "SubjectAccessReview", spec, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// That the service can do what it needs is what the other tests show, which run as its user; these hold what no test there needs.
func TestPermissions(t *testing.T) {
	for who, c := range map[string]struct {
		user            string
		groups          []string
		allowed, denied []access
	}{
		"service": {
			user: User,
			allowed: []access{
				"get /configmaps hullmark x", "list /configmaps hullmark", "watch /configmaps hullmark", "create /configmaps hullmark", "update /configmaps hullmark x", "delete /configmaps hullmark x",
				"create coordination.k8s.io/leases hullmark", "get coordination.k8s.io/leases hullmark x", "update coordination.k8s.io/leases hullmark x",
				"create /events hullmark", "create /secrets kube-system", "delete /secrets kube-system x",
				"list certificates.k8s.io/certificatesigningrequests", "update certificates.k8s.io/certificatesigningrequests/approval",
				"approve certificates.k8s.io/signers - kubernetes.io/kubelet-serving", "approve certificates.k8s.io/signers - kubernetes.io/kube-apiserver-client-kubelet",
				"get /nodes - x", "list /nodes", "delete /nodes - x", "get /configmaps hullmark-vouchers x",
			},
			denied: []access{
				"list /configmaps hullmark-vouchers", "create /configmaps hullmark-vouchers", "update /configmaps hullmark-vouchers x", "delete /configmaps hullmark-vouchers x",
				"deletecollection /configmaps hullmark", "delete /configmaps kube-system x", "patch /configmaps hullmark x", "get /configmaps kube-system x", "create /configmaps kube-system", "update /configmaps kube-system kubeadm-config", "list /configmaps",
				"get /secrets kube-system x", "list /secrets kube-system", "watch /secrets kube-system", "update /secrets kube-system x", "patch /secrets kube-system x", "deletecollection /secrets kube-system",
				"get /secrets hullmark x", "get /secrets default x", "create /secrets default", "list /secrets",
				"create rbac.authorization.k8s.io/clusterrolebindings", "create rbac.authorization.k8s.io/clusterroles", "escalate rbac.authorization.k8s.io/clusterroles", "bind rbac.authorization.k8s.io/clusterroles",
				"create rbac.authorization.k8s.io/rolebindings hullmark", "create rbac.authorization.k8s.io/roles kube-system",
				"impersonate /users", "impersonate /groups - system:masters", "impersonate /serviceaccounts",
				"create /pods hullmark", "create /pods kube-system", "create /pods/exec kube-system x", "get /pods kube-system", "get /pods/log kube-system x", "create /serviceaccounts/token kube-system x",
				"create apps/daemonsets kube-system", "create apps/deployments hullmark",
				"update /nodes - x", "patch /nodes - x", "create /nodes", "update /nodes/status - x", "get /nodes/proxy - x", "create /nodes/proxy - x", "deletecollection /nodes",
				"approve certificates.k8s.io/signers - kubernetes.io/kube-apiserver-client", "approve certificates.k8s.io/signers - kubernetes.io/legacy-unknown",
				"sign certificates.k8s.io/signers - kubernetes.io/kubelet-serving", "create certificates.k8s.io/certificatesigningrequests", "delete certificates.k8s.io/certificatesigningrequests - x",
				"update certificates.k8s.io/certificatesigningrequests/status - x",
				"update admissionregistration.k8s.io/validatingadmissionpolicies - hullmark-join-service-tokens", "delete admissionregistration.k8s.io/validatingadmissionpolicybindings - hullmark-join-service-tokens",
				"create /namespaces", "delete /namespaces - hullmark", "get coordination.k8s.io/leases kube-system x", "delete coordination.k8s.io/leases hullmark x",
			},
		},
		"upgrade engine": {
			user: UpgradeUser,
			allowed: []access{
				"list /nodes", "patch /nodes - x", "list /pods", "list /pods default", "create /pods/eviction default x", "list policy/poddisruptionbudgets",
				"get /configmaps hullmark x", "list /configmaps hullmark", "create /configmaps hullmark", "update /configmaps hullmark x",
				"create coordination.k8s.io/leases hullmark", "get coordination.k8s.io/leases hullmark upgrade", "update coordination.k8s.io/leases hullmark upgrade",
			},
			denied: []access{
				"create /nodes", "update /nodes - x", "delete /nodes - x", "deletecollection /nodes", "patch /nodes/status - x", "update /nodes/status - x", "get /nodes/proxy - x", "create /nodes/proxy - x",
				"create /pods default", "update /pods default x", "patch /pods default x", "delete /pods default x", "deletecollection /pods default", "create /pods/exec default x", "get /pods/exec default x",
				"get /pods/log default x", "create /pods/portforward default x", "update /pods/ephemeralcontainers default x", "create /pods/binding default x",
				"update policy/poddisruptionbudgets default x", "patch policy/poddisruptionbudgets default x", "delete policy/poddisruptionbudgets default x",
				"delete /configmaps hullmark x", "patch /configmaps hullmark x", "deletecollection /configmaps hullmark", "get /configmaps kube-system x", "list /configmaps", "update /configmaps kube-system kubeadm-config",
				"get coordination.k8s.io/leases hullmark control-plane-join", "update coordination.k8s.io/leases hullmark control-plane-join", "delete coordination.k8s.io/leases hullmark upgrade", "get coordination.k8s.io/leases kube-system x",
				"get /secrets kube-system x", "list /secrets", "get /secrets hullmark x", "create /secrets kube-system", "create /serviceaccounts/token kube-system x",
				"create certificates.k8s.io/certificatesigningrequests", "list certificates.k8s.io/certificatesigningrequests", "update certificates.k8s.io/certificatesigningrequests/approval",
				"approve certificates.k8s.io/signers - kubernetes.io/kube-apiserver-client-kubelet", "sign certificates.k8s.io/signers - kubernetes.io/kube-apiserver-client",
				"impersonate /users", "impersonate /users - hullmark:join-service", "impersonate /groups - system:masters", "impersonate /serviceaccounts", "impersonate authentication.k8s.io/uids",
				"create rbac.authorization.k8s.io/clusterrolebindings", "escalate rbac.authorization.k8s.io/clusterroles", "bind rbac.authorization.k8s.io/clusterroles", "create rbac.authorization.k8s.io/rolebindings hullmark",
				"update admissionregistration.k8s.io/validatingadmissionpolicies - hullmark-upgrade-nodes", "delete admissionregistration.k8s.io/validatingadmissionpolicybindings - hullmark-upgrade-objects",
				"create apps/daemonsets kube-system", "update apps/deployments/scale default x", "create /events hullmark", "delete /namespaces - hullmark",
			},
		},
		"bearer of a token": {
			user: "system:bootstrap:abc123", groups: []string{"system:bootstrappers", tokenGroup},
			allowed: []access{"create certificates.k8s.io/certificatesigningrequests", "get certificates.k8s.io/certificatesigningrequests - x", "watch certificates.k8s.io/certificatesigningrequests", "get /nodes - x"},
			denied: []access{
				"update certificates.k8s.io/certificatesigningrequests/approval", "create certificates.k8s.io/certificatesigningrequests/nodeclient", "create certificates.k8s.io/certificatesigningrequests/selfnodeclient",
				"approve certificates.k8s.io/signers - kubernetes.io/kube-apiserver-client-kubelet", "get /secrets kube-system x", "list /nodes", "create /nodes", "get /configmaps hullmark policy",
			},
		},
		"node": {
			user: "system:node:w1", groups: []string{"system:nodes"},
			allowed: []access{"create certificates.k8s.io/certificatesigningrequests"},
			denied: []access{
				"create certificates.k8s.io/certificatesigningrequests/selfnodeclient", "create certificates.k8s.io/certificatesigningrequests/nodeclient",
				"update certificates.k8s.io/certificatesigningrequests/approval", "get /configmaps hullmark policy", "update /configmaps hullmark policy", "get /secrets kube-system bootstrap-token-abc123",
			},
		},
	} {
		t.Run(who, func(t *testing.T) {
			for _, a := range c.allowed {
				if !may(t, a, c.user, c.groups...) {
					t.Errorf("may not %s", a)
				}
			}
			for _, a := range c.denied {
				if may(t, a, c.user, c.groups...) {
					t.Errorf("may %s", a)
				}
			}
		})
	}
}

// TestServiceWritesOnlyTokens tries what RBAC cannot tell apart, and the admission policy does.
func TestServiceWritesOnlyTokens(t *testing.T) {
	ctx := t.Context()
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: tokenNamespace}, StringData: map[string]string{"a": "b"}}
	// The API server takes a policy up some time after it was applied.
	eventually(t, "the admission policy", func() error {
		if _, err := admin.secrets.create(ctx, other); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		err := service.secrets.delete(ctx, other.Name)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "bootstrap tokens only") {
			return fmt.Errorf("delete another Secret: got %w", err)
		}
		return nil
	})
	for name, change := range map[string]func(*corev1.Secret){
		"positive control": func(*corev1.Secret) {},
		"another name":     func(s *corev1.Secret) { s.Name = "stolen" },
		"another type":     func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque },
		"another machine": func(s *corev1.Secret) {
			s.Data["auth-extra-groups"] = []byte(tokenGroup + "," + machineGroup + strings.Repeat("0123456789abcdef", 4))
		},
		"another group": func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:bootstrappers:other") },
		"no machine":    func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte(tokenGroup) },
		"no whole machine": func(s *corev1.Secret) {
			s.Data["auth-extra-groups"] = s.Data["auth-extra-groups"][:len(s.Data["auth-extra-groups"])-1]
		},
		"one group more": func(s *corev1.Secret) {
			s.Data["auth-extra-groups"] = append(s.Data["auth-extra-groups"], ",system:bootstrappers:other"...)
		},
		"a group in the machine's place": func(s *corev1.Secret) {
			s.Data["auth-extra-groups"] = []byte(tokenGroup + "," + machineGroup + strings.Repeat("a", 32) + ",system:bootstrappers:" + strings.Repeat("a", 10))
		},
		"no group":           func(s *corev1.Secret) { delete(s.Data, "auth-extra-groups") },
		"no end":             func(s *corev1.Secret) { delete(s.Data, "expiration") },
		"signs for the rest": func(s *corev1.Secret) { s.Data["usage-bootstrap-signing"] = []byte("true") },
	} {
		s := tokenSecret(hullmark.EKID{1}, "abcdef", []byte("0123456789abcdef"))
		change(s)
		_, err := service.secrets.create(ctx, s)
		if err == nil {
			err = admin.secrets.delete(ctx, s.Name)
		}
		if legal := name == "positive control" || name == "another machine"; legal && err != nil || !legal && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestServiceDeletesOnlyClaimsOfAddresses tries what else lies beside them.
func TestServiceDeletesOnlyClaimsOfAddresses(t *testing.T) {
	ctx, node := t.Context(), hullmark.EKID{77}
	address := netip.MustParseAddr("2001:db8::77")
	kept := []string{MachineObject(node), NameObject("kept"), GroupObjects + "kept", "policy-kept", "xaddress.192.0.2.77", "address"}
	for _, name := range kept {
		if _, err := admin.configMaps.create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace}}); err != nil {
			t.Fatal(err)
		}
		// The API server takes a policy up some time after it was applied: then nothing of this name would be left.
		eventually(t, "the admission policy", func() error {
			err := service.configMaps.delete(ctx, name)
			if apierrors.IsNotFound(err) {
				_, err = admin.configMaps.create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace}})
				return errors.Join(errors.New("deleted"), err)
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "claims of addresses only") {
				return fmt.Errorf("delete %s: got %w", name, err)
			}
			return nil
		})
		if err := admin.configMaps.delete(ctx, name); err != nil {
			t.Error(err)
		}
	}
	if err := service.ClaimAddress(ctx, address, node); err != nil {
		t.Fatal(err)
	}
	if err := service.ReleaseAddress(ctx, address, hullmark.EKID{78}); err != nil {
		t.Error(err)
	}
	if _, err := admin.configMaps.get(ctx, AddressObject(address)); err != nil {
		t.Errorf("given up by another machine: %v", err)
	}
	for range 2 {
		if err := service.ReleaseAddress(ctx, address, node); err != nil {
			t.Error(err)
		}
	}
	if _, err := admin.configMaps.get(ctx, AddressObject(address)); !apierrors.IsNotFound(err) {
		t.Errorf("after it was given up: %v", err)
	}
}
