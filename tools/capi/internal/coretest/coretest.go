// Package coretest gives tests what Cluster API has of its own: its kinds and its reconcilers, on a real API, and the kinds of an
// infrastructure provider that each test plays as it likes.
package coretest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	corecluster "sigs.k8s.io/cluster-api/core/reconcilers/cluster"
	coremachine "sigs.k8s.io/cluster-api/core/reconcilers/machine"
	"sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/cluster-api/util/index"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// InfraGroup is the API group of infrastructure, the stub's among it.
const InfraGroup = "infrastructure.cluster.x-k8s.io"

// stubKinds are the kinds of an infrastructure provider.
func stubKinds() []string {
	return []string{"StubCluster", "StubMachine", "StubMachineTemplate", "StubMachinePool"}
}

// Stub is an object of the stub's.
func Stub(kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(InfraGroup + "/v1")
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// Ref is a reference to one.
func Ref(kind, name string) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{APIGroup: InfraGroup, Kind: kind, Name: name}
}

// StubCRDs define the stub's kinds, of contract v1beta2, whose spec and status may be anything.
func StubCRDs() (crds []*apiextensionsv1.CustomResourceDefinition) {
	for _, kind := range stubKinds() {
		crds = append(crds, stubCRD(kind))
	}
	return crds
}

func stubCRD(kind string) *apiextensionsv1.CustomResourceDefinition {
	plural := strings.ToLower(kind) + "s"
	free := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + InfraGroup, Labels: map[string]string{"cluster.x-k8s.io/v1beta2": "v1"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: InfraGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural, Singular: strings.ToLower(kind)},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": free, "status": free},
				}},
			}},
		},
	}
}

// Module is the folder and the version of Cluster API's module, as the module of the current folder requires it.
func Module(ctx context.Context) (dir, version string, err error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}\t{{.Version}}", "sigs.k8s.io/cluster-api").Output()
	dir, version, ok := strings.Cut(strings.TrimSpace(string(out)), "\t")
	if err == nil && !ok {
		err = errors.New("it names no folder: go mod download")
	}
	if err != nil {
		return "", "", fmt.Errorf("go list sigs.k8s.io/cluster-api: %w", err)
	}
	return dir, version, nil
}

// InstallCRDs gives an API core's kinds and the stub's, and those of other folders.
func InstallCRDs(ctx context.Context, config *rest.Config, folders ...string) error {
	module, _, err := Module(ctx)
	if err != nil {
		return err
	}
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		Paths: append(folders, filepath.Join(module, "core", "config", "crd", "bases")), CRDs: StubCRDs(), ErrorIfPathMissing: true, MaxTime: time.Minute,
	})
	return err
}

// Core is a manager with core's reconcilers of Clusters and Machines, as core's own program has it. More is added before it is started.
type Core struct {
	ctrl.Manager
	Clusters clustercache.ClusterCache
	Options  controller.Options
}

// NewCore makes one, whose reconcilers each do so many things at a time.
func NewCore(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, workers int) (*Core, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, Client: setup.ManagerClientOptions(),
		Cache:      setup.ManagerCacheOptions(scheme, "core", "", 10*time.Minute),
		Controller: ctrlconfig.Controller{UsePriorityQueue: ptr.To(true)},
	})
	if err != nil {
		return nil, err
	}
	c := &Core{Manager: mgr, Options: controller.Options{MaxConcurrentReconciles: workers}}
	if err := index.AddDefaultIndexes(ctx, mgr); err != nil {
		return nil, err
	}
	if err := c.cacheClusters(ctx); err != nil {
		return nil, err
	}
	client, live := mgr.GetClient(), mgr.GetAPIReader()
	return c, errors.Join(
		(&corecluster.Reconciler{Client: client, APIReader: live, ClusterCache: c.Clusters, RemoteConnectionGracePeriod: 50 * time.Second}).SetupWithManager(ctx, mgr, c.Options),
		(&coremachine.Reconciler{Client: client, APIReader: live, ClusterCache: c.Clusters, RemoteConditionsGracePeriod: 5 * time.Minute}).SetupWithManager(ctx, mgr, c.Options),
	)
}

func (c *Core) cacheClusters(ctx context.Context) error {
	secrets, err := setup.CreateSecretCachingClient(c.Manager)
	if err != nil {
		return err
	}
	c.Clusters, err = clustercache.SetupWithManager(ctx, c.Manager, clustercache.Options{
		SecretClient: secrets, Cache: setup.ClusterCacheCacheOptions(), Client: setup.ClusterCacheClientOptions("core", 100, 100),
	}, c.Options)
	if quick, ok := c.Clusters.(interface{ SetConnectionCreationRetryInterval(time.Duration) }); ok && err == nil {
		quick.SetConnectionCreationRetryInterval(2 * time.Second)
	}
	return err
}

// Go starts it. What is returned has its error when ctx has ended.
func (c *Core) Go(ctx context.Context) (ended <-chan error) {
	end := make(chan error, 1)
	go func() { end <- c.Start(ctx) }()
	return end
}
