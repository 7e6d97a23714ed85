//go:build bench

package bench

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/tools/capi/internal/coretest"
)

// rig is one API with core's manager, the stub of an infrastructure provider, and one Cluster "c" in the namespace "bench", whose workload
// cluster is the same API.
type rig struct {
	api    *testenv.Environment
	config *rest.Config
	admin  client.Client
	stub   *stub
	// dir is the folder of all files, programs that of the managers, and module Cluster API's.
	dir, programs, module string
	// webhooks are those of the provider, if it has any.
	webhooks *envtest.WebhookInstallOptions
	running  []*testenv.Process
}

const namespace = "bench"

// The users of the API, beside the provider's. None of them is exempt from the API server's fairness.
const (
	coreUser     = "system:serviceaccount:capi-system:capi-manager"
	workloadUser = "workload-admin"
)

// The groups of every account, and of those that may do everything.
var account, powerful = []string{"system:serviceaccounts", "system:authenticated"}, []string{"system:serviceaccounts", "system:authenticated", "kubeadm:cluster-admins"}

// auditPolicy has each call noted when it was answered, and each watch when it began.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: ["system:masters"]
- level: None
  users: ["system:apiserver"]
- level: Metadata
`

func newRig(b *testing.B, ctx context.Context, programs string) *rig {
	b.Helper()
	r := &rig{dir: b.TempDir(), programs: programs}
	bin, err := testenv.Programs(ctx)
	must(b, err)
	state := filepath.Join(r.dir, "api")
	must(b, errors.Join(os.Mkdir(state, 0o700), os.WriteFile(r.file("policy.yaml"), []byte(auditPolicy), 0o600)))
	r.api, err = testenv.StartServer(ctx, state, bin, "--audit-policy-file="+r.file("policy.yaml"), "--audit-log-path="+r.file("audit.log"), "--audit-log-maxsize=4096")
	must(b, err)
	r.config, err = r.api.Config("bench", "system:masters")
	// Core's webhooks are not called: what they would enter is there.
	must(b, errors.Join(err, r.connect(), coretest.InstallCRDs(ctx, r.config)))
	r.module, _, err = coretest.Module(ctx)
	must(b, err)
	return r
}

func (r *rig) file(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) connect() (err error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		return err
	}
	r.admin, err = client.New(r.config, client.Options{Scheme: scheme})
	return err
}

// startCore starts core's manager, with no limit of its own, so that it is not what is measured.
func (r *rig) startCore(ctx context.Context) error {
	var err error
	if r.stub, err = startStub(ctx, r.config, r.admin.Scheme()); err != nil {
		return err
	}
	// It serves webhooks that nobody calls.
	certificates := &envtest.WebhookInstallOptions{}
	if err := certificates.PrepWithoutInstalling(); err != nil {
		return err
	}
	_, err = r.start(ctx, "core", coreUser, powerful, func(metrics, health string) []string {
		return []string{
			"--diagnostics-address=" + metrics, "--health-addr=" + health, "--kube-api-qps=-1", "--clustercache-client-qps=-1",
			"--webhook-cert-dir=" + certificates.LocalServingCertDir, fmt.Sprintf("--webhook-port=%d", certificates.LocalServingPort),
			"--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
			// Machines are busy; nothing is amiss.
			"--remote-connection-grace-period=10m", "--remote-conditions-grace-period=15m",
		}
	})
	return err
}

// startProvider starts the provider by its account, and returns when it is healthy.
func (r *rig) startProvider(ctx context.Context, s side) (process, error) {
	return r.start(ctx, s.program, s.account, account, func(metrics, health string) []string { return s.args(r, metrics, health) })
}

// start starts a manager as a user, and returns when it is ready.
func (r *rig) start(ctx context.Context, program, user string, groups []string, args func(metrics, health string) []string) (process, error) {
	kubeconfig, err := r.api.Kubeconfig(user, groups...)
	metrics, err2 := testenv.FreeAddress()
	health, err3 := testenv.FreeAddress()
	dir := r.file(program)
	path := filepath.Join(dir, "kubeconfig")
	if err := errors.Join(err, err2, err3, os.MkdirAll(dir, 0o700), os.WriteFile(path, kubeconfig, 0o600)); err != nil {
		return process{}, err
	}
	cmd := exec.Command(filepath.Join(r.programs, program), args(metrics, health)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+path)
	p, err := testenv.Launch(dir, cmd)
	if err != nil {
		return process{}, err
	}
	r.running = append(r.running, p)
	return process{Process: p, metrics: "https://" + metrics + "/metrics"}, p.Await(ctx, func() error { return healthy(ctx, "http://"+health+"/healthz") })
}

// end stops everything, and deletes its files.
func (r *rig) end(b *testing.B) {
	b.Helper()
	for _, p := range r.running {
		if err := p.Stop(); err != nil {
			b.Error(err)
		}
	}
	if err := errors.Join(r.stub.stop(), r.api.Stop(), os.RemoveAll(r.dir)); err != nil {
		b.Error(err)
	}
}

func (r *rig) create(ctx context.Context, objects ...client.Object) error {
	for _, o := range objects {
		if err := r.admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T: %w", o, err)
		}
	}
	return nil
}

// newCluster makes the Cluster, with a control plane Machine that needs no provider.
func (r *rig) newCluster(ctx context.Context) error {
	host, port, err := net.SplitHostPort(r.api.Address)
	number, err2 := strconv.ParseInt(port, 10, 32)
	kubeconfig, err3 := r.api.Kubeconfig(workloadUser, powerful...)
	key, err4 := x509.MarshalECPrivateKey(r.api.Cluster.Kubernetes.Key)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return err
	}
	here := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}}
	}
	cp := &clusterv1.Machine{ObjectMeta: here("cp"), Spec: clusterv1.MachineSpec{
		ClusterName: "c", Version: version, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("cp")}, InfrastructureRef: coretest.Ref("StubMachine", "cp"),
	}}
	cp.Labels[clusterv1.MachineControlPlaneLabel] = ""
	c := &clusterv1.Cluster{ObjectMeta: here("c"), Spec: clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: host, Port: int32(number)}, InfrastructureRef: coretest.Ref("StubCluster", "c"),
	}}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return r.create(
		ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{ObjectMeta: here("c-kubeconfig"), Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": kubeconfig}},
		&corev1.Secret{ObjectMeta: here("c-ca"), Type: clusterv1.ClusterSecretType, Data: map[string][]byte{
			"tls.crt": block("CERTIFICATE", r.api.Cluster.Kubernetes.Certificate.Raw), "tls.key": block("EC PRIVATE KEY", key),
		}},
		object(coretest.InfraGroup+"/v1", "StubCluster", "c"), object(coretest.InfraGroup+"/v1", "StubMachine", "cp"), c, cp,
	)
}

// initialize lets the control plane's Machine become a Node.
func (r *rig) initialize() { r.stub.release.Store(true) }

// awaitControlPlane returns when workers may join.
func (r *rig) awaitControlPlane(ctx context.Context) error {
	return testenv.Poll(ctx, 200*time.Millisecond, func() error {
		c := &clusterv1.Cluster{}
		if err := r.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "c"}, c); err != nil {
			return err
		}
		if !conditions.IsTrue(c, clusterv1.ClusterControlPlaneInitializedCondition) {
			return fmt.Errorf("the control plane is not initialized: %+v", c.Status.Conditions)
		}
		return nil
	})
}

// version is that of all Machines.
const version = "v1.36.3"

func object(api, kind, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(api)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// deploy makes the MachineDeployment, with all that core's webhook would enter.
func (r *rig) deploy(ctx context.Context, s side) error {
	group, _, _ := strings.Cut(s.api, "/")
	template, infra := object(s.api, s.kind, "workers"), object(coretest.InfraGroup+"/v1", "StubMachineTemplate", "workers")
	template.Object["spec"] = map[string]any{"template": map[string]any{"spec": s.spec}}
	infra.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{}}}
	labels := map[string]string{clusterv1.ClusterNameLabel: "c", "set": "workers"}
	return r.create(ctx, template, infra, &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "workers", Labels: labels}, Spec: clusterv1.MachineDeploymentSpec{
		ClusterName: "c", Replicas: ptr.To(int32(*machines)), Selector: metav1.LabelSelector{MatchLabels: labels},
		Template: clusterv1.MachineTemplateSpec{ObjectMeta: clusterv1.ObjectMeta{Labels: labels}, Spec: clusterv1.MachineSpec{
			ClusterName: "c", Version: version, InfrastructureRef: coretest.Ref("StubMachineTemplate", "workers"),
			Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: s.kind, Name: "workers"}},
		}},
		Rollout: clusterv1.MachineDeploymentRolloutSpec{Strategy: clusterv1.MachineDeploymentRolloutStrategy{
			Type: clusterv1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: clusterv1.MachineDeploymentRolloutStrategyRollingUpdate{
				MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			},
		}},
	}})
}

// owned is whether a Machine is one that core has given to its config, joined whether it is a Node.
func owned(m *clusterv1.Machine) bool  { return len(m.Status.Conditions) > 0 }
func joined(m *clusterv1.Machine) bool { return m.Status.NodeRef.IsDefined() }

// workers are the Machines of the MachineDeployment.
var workers = []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{"set": "workers"}}

// awaitMachines waits until all Machines are so far.
func (r *rig) awaitMachines(ctx context.Context, what string, done func(*clusterv1.Machine) bool) error {
	for {
		var all clusterv1.MachineList
		if err := r.stub.List(ctx, &all, workers...); err != nil {
			return err
		}
		n := 0
		for i := range all.Items {
			if done(&all.Items[i]) {
				n++
			}
		}
		if n == *machines {
			return nil
		}
		select {
		case err := <-r.stub.ended:
			return fmt.Errorf("the stub ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("%d of %d Machines are %s: %w", n, *machines, what, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// checkSecrets is an error if a Machine has no bootstrap data.
func (r *rig) checkSecrets(ctx context.Context) error {
	var all clusterv1.MachineList
	var secrets corev1.SecretList
	if err := errors.Join(r.admin.List(ctx, &all, workers...), r.admin.List(ctx, &secrets, client.InNamespace(namespace))); err != nil {
		return err
	}
	data := map[string]bool{}
	for _, s := range secrets.Items {
		data[s.Name] = len(s.Data["value"]) > 0
	}
	var errs []error
	for _, m := range all.Items {
		if name := ptr.Deref(m.Spec.Bootstrap.DataSecretName, ""); !data[name] {
			errs = append(errs, fmt.Errorf("Machine %s has no bootstrap data: Secret %q", m.Name, name))
		}
	}
	if len(all.Items) != *machines {
		errs = append(errs, fmt.Errorf("%d Machines, want %d", len(all.Items), *machines))
	}
	return errors.Join(errs...)
}

// compile compiles a package to a program, as its image has it.
func compile(ctx context.Context, program, of string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, of)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", of, err, out)
	}
	return nil
}
