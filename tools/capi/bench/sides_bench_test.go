//go:build bench

package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/hullmark/hullmark/tools/capi/config"
)

// side is a provider and what it is given.
type side struct {
	name string
	// account is who it is to the API server, program what is run of it, and agent how its user agents begin, which
	// tells its calls of the workload cluster from core's.
	account, program, agent string
	// controller is the name of its controller of configs in metrics, resource that of its configs in the API.
	controller, resource string
	// histogram is the metric of how long its reconciliations take.
	histogram string
	// api and kind are those of its templates, and spec is what the template says.
	api, kind string
	spec      map[string]any
	// install gives the API what the provider's release gives it.
	install func(context.Context, *rig) error
	// args are its flags: where its metrics and its health are, and a free port.
	args func(r *rig, metrics, health string) []string
}

// Where theirs is installed, and its account.
const (
	theirNamespace = "capi-kubeadm-bootstrap-system"
	theirAccount   = "capi-kubeadm-bootstrap-manager"
)

// spec of ours is the one of docs/cluster-api.md, and theirs the least that a worker needs.
var (
	ours = side{
		name: "hullmark", program: "manager", agent: "manager/",
		account:    "system:serviceaccount:hullmark-bootstrap-system:hullmark-bootstrap-manager",
		histogram:  "controller_runtime_reconcile_time_seconds",
		controller: "hullmarkconfig", resource: "hullmarkconfigs", api: "bootstrap.cluster.x-k8s.io/v1alpha1", kind: "HullmarkConfigTemplate",
		spec: map[string]any{
			"clusterRoot": strings.Repeat("5f2b9c1d", 8), "pool": "workers", "stateDisk": map[string]any{"serial": "hullmark-state"},
		},
		install: installOurs,
		args: func(_ *rig, metrics, health string) []string {
			return []string{"bootstrap", "--metrics-bind-address=" + metrics, "--health-probe-bind-address=" + health, fmt.Sprintf("--concurrency=%d", *concurrency)}
		},
	}
	theirs = side{
		name: "kubeadm", program: "kubeadm", agent: "kubeadm/",
		account: "system:serviceaccount:" + theirNamespace + ":" + theirAccount,
		// controller-runtime's would count the requests, too, that it puts off without a look.
		histogram:  "capi_reconcile_time_seconds",
		controller: "kubeadmconfig", resource: "kubeadmconfigs", api: "bootstrap.cluster.x-k8s.io/v1beta2", kind: "KubeadmConfigTemplate",
		spec:    map[string]any{"joinConfiguration": nodeRegistration},
		install: installTheirs,
		args: func(r *rig, metrics, health string) []string {
			// Ours has no limit of its own, so this has none.
			return []string{
				"--diagnostics-address=" + metrics, "--health-addr=" + health,
				fmt.Sprintf("--kubeadmconfig-concurrency=%d", *concurrency), fmt.Sprintf("--clustercache-concurrency=%d", *concurrency),
				"--kube-api-qps=-1", "--clustercache-client-qps=-1",
				"--webhook-cert-dir=" + r.webhooks.LocalServingCertDir, fmt.Sprintf("--webhook-port=%d", r.webhooks.LocalServingPort),
				// There is nothing to migrate.
				"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
			}
		},
	}
	nodeRegistration = map[string]any{"nodeRegistration": map[string]any{
		"kubeletExtraArgs": []any{map[string]any{"name": "node-labels", "value": "example.com/pool=workers"}},
	}}
	sides = []side{ours, theirs, oursOfKubeadm()}
)

// oursOfKubeadm is our provider with the spec that theirs has: it keeps a ConfigMap of it for each Machine.
func oursOfKubeadm() side {
	s := ours
	s.name = "hullmark-kubeadm"
	s.spec = map[string]any{"kubeadm": map[string]any{"joinConfiguration": nodeRegistration}}
	for k, v := range ours.spec {
		s.spec[k] = v
	}
	return s
}

func installOurs(ctx context.Context, r *rig) error {
	components, err := config.Bootstrap.Components("registry.example/hullmark-capi:bench")
	if err != nil {
		return err
	}
	return r.api.Apply(ctx, components)
}

// installTheirs gives the API its kinds, its account's role, and its webhooks, which it serves itself.
func installTheirs(ctx context.Context, r *rig) error {
	folder := filepath.Join(r.module, "bootstrap", "kubeadm", "config")
	crds, err := envtest.InstallCRDs(r.config, envtest.CRDInstallOptions{Paths: []string{filepath.Join(folder, "crd", "bases")}, ErrorIfPathMissing: true})
	if err != nil {
		return err
	}
	for _, c := range crds {
		// Its release labels them by the contract.
		u := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", c.Name)
		u.SetNamespace("")
		if err := r.admin.Patch(ctx, u, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"cluster.x-k8s.io/v1beta2":"v1beta2"}}}`))); err != nil {
			return err
		}
	}
	r.webhooks = &envtest.WebhookInstallOptions{Paths: []string{filepath.Join(folder, "webhook", "manifests.yaml")}}
	if err := r.webhooks.Install(r.config); err != nil {
		return err
	}
	kubectl, err := r.api.Kubectl(ctx, "apply", "--server-side", "-f", filepath.Join(folder, "rbac", "role.yaml"))
	if err != nil {
		return err
	}
	if out, err := kubectl.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl: %w: %s", err, out)
	}
	return r.create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: theirNamespace}}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: theirAccount},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "manager-role"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: theirNamespace, Name: theirAccount}},
	})
}
