// Package bootstrap is Hullmark's bootstrap provider for Cluster API: for each HullmarkConfig of a Machine or a MachinePool it writes a
// Secret that holds the node configuration, and nothing that would have to be kept from anybody.
//
// It fulfils the contract v1beta2 for a BootstrapConfig (Cluster API book, "Contract rules for BootstrapConfig").
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

//go:generate go tool controller-gen rbac:roleName=hullmark-bootstrap-manager,fileName=bootstrap.yaml paths=. output:rbac:dir=../config/rbac

// What it may do. Secrets and ConfigMaps are read one by one, never listed or watched.
//
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=hullmarkconfigs,verbs=get;list;watch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=hullmarkconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines;machinepools,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=hullmark-bootstrap-system,verbs=get;create;update
// +kubebuilder:rbac:groups="",resources=events,namespace=hullmark-bootstrap-system,verbs=create;patch

// retry is when what is not watched is looked at again: the init lock that another holds, a Secret that a person has to delete.
const retry = 30 * time.Second

// Reconciler makes and keeps the data Secrets of HullmarkConfigs.
type Reconciler struct {
	// Client reads what is watched from the cache. Secrets and ConfigMaps are read by Live.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Events tells of what was made or refused.
	Events events.EventRecorder
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter of the configs to care for; empty: all.
	WatchFilter string
}

// scope is one config with what it depends on, as seen at the beginning of a reconciliation.
type scope struct {
	config *v1alpha1.HullmarkConfig
	// owner and cluster are nil if they are not there.
	owner   *owner
	cluster *clusterv1.Cluster
}

func (s scope) initialized() bool { return core.Initialized(s.cluster) }

// verdict is what the conditions Ready and DataSecretAvailable say.
type verdict struct {
	reason, message string
	// again is when to look again without being woken; zero: not.
	again time.Duration
}

func (v verdict) status() metav1.ConditionStatus {
	if v.reason == v1alpha1.AvailableReason {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// Reconcile brings one config's data Secret and status to what its spec, owner and Cluster ask for. Each step can be cut off and
// done again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	config := &v1alpha1.HullmarkConfig{}
	if err := r.Client.Get(ctx, req.NamespacedName, config); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if r.WatchFilter != "" && !labels.HasWatchLabel(config, r.WatchFilter) {
		return ctrl.Result{}, nil
	}
	// Nothing is left to do for a config that goes: its Secret goes with it, and the lock is its Machine's.
	if !config.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	s, err := r.look(ctx, config)
	if err != nil {
		return ctrl.Result{}, err
	}
	// What was written wakes the config again, as it is then.
	if isPaused, written, err := paused.EnsurePausedCondition(ctx, r.Client, s.cluster, config); err != nil || isPaused || written {
		return ctrl.Result{}, err
	}
	before := config.DeepCopy()
	v, err := r.decide(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	news := conclude(s, v)
	result.RequeueAfter = v.again
	if equality.Semantic.DeepEqual(before.Status, config.Status) {
		return result, nil
	}
	// One write, so that nobody sees Ready without the fields that core goes by; util/patch would make two of it. The list of conditions is
	// the enroller's, too: who was slower reads it again.
	err = r.Client.Status().Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	if err == nil && news {
		r.tell(config, v)
	}
	return result, client.IgnoreNotFound(err)
}

// look finds owner and Cluster.
func (r *Reconciler) look(ctx context.Context, config *v1alpha1.HullmarkConfig) (s scope, err error) {
	s.config = config
	if s.owner, err = findOwner(ctx, r.Client, config); err != nil {
		return s, fmt.Errorf("owner: %w", err)
	}
	name := config.Labels[clusterv1.ClusterNameLabel]
	if s.owner != nil {
		name = s.owner.cluster
	}
	if s.cluster, err = findCluster(ctx, r.Client, config.Namespace, name); err != nil {
		return s, fmt.Errorf("cluster: %w", err)
	}
	return s, nil
}

// conclude writes the verdict into the config, and reports whether it is another one than before.
func conclude(s scope, v verdict) (news bool) {
	v.message = core.Message(v.message)
	s.config.Status.ObservedGeneration = s.config.Generation
	before := conditions.GetReason(s.config, v1alpha1.DataSecretAvailableCondition) + conditions.GetMessage(s.config, v1alpha1.DataSecretAvailableCondition)
	for _, kind := range []string{v1alpha1.ReadyCondition, v1alpha1.DataSecretAvailableCondition} {
		conditions.Set(s.config, metav1.Condition{
			Type: kind, Status: v.status(), Reason: v.reason, Message: v.message, ObservedGeneration: s.config.Generation,
		})
	}
	return before != v.reason+v.message
}

// tell tells of a verdict that a person would want to know of.
func (r *Reconciler) tell(config *v1alpha1.HullmarkConfig, v verdict) {
	switch v.reason {
	case v1alpha1.AvailableReason:
		r.Events.Eventf(config, nil, corev1.EventTypeNormal, v.reason, "WriteDataSecret", "Secret %s holds the node configuration", config.Name)
	case v1alpha1.FieldRefusedReason, v1alpha1.SecretNameTakenReason, v1alpha1.DraftNameTakenReason, v1alpha1.SecretInvalidReason, v1alpha1.InitLockInvalidReason:
		r.Events.Eventf(config, nil, corev1.EventTypeWarning, v.reason, "WriteDataSecret", "%s", core.Note(v.message))
	}
}

// decide does what can be done now, and says how it stands. An error means that the API did not do its part; it is tried again.
func (r *Reconciler) decide(ctx context.Context, s scope) (verdict, error) {
	if s.owner == nil {
		return waiting(v1alpha1.WaitingForOwnerReason, "no Machine or MachinePool refers to it by its bootstrap.configRef yet"), nil
	}
	if s.cluster == nil {
		return waiting(v1alpha1.WaitingForClusterReason, "Cluster %s is not there yet", s.owner.cluster), nil
	}
	lock := initLock{r.Client, r.Live}
	if s.initialized() && s.owner.controlPlane {
		if err := lock.release(ctx, s.cluster, ""); err != nil {
			return verdict{}, fmt.Errorf("free the init lock: %w", err)
		}
	}
	secret := &corev1.Secret{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(s.config), secret)
	switch {
	case err == nil:
		return r.keep(ctx, s, lock, secret)
	case !apierrors.IsNotFound(err):
		return verdict{}, fmt.Errorf("data Secret: %w", err)
	}
	s.config.Status.DataSecretName = ""
	if s.config.Status.Initialization.DataSecretCreated != nil {
		s.config.Status.Initialization.DataSecretCreated = ptr.To(false)
	}
	return r.begin(ctx, s, lock)
}

// begin makes the Secret, as soon as everything that has to come before is there.
func (r *Reconciler) begin(ctx context.Context, s scope, lock initLock) (verdict, error) {
	if s.owner.deleting() || !s.cluster.DeletionTimestamp.IsZero() {
		return r.abandon(ctx, s, lock)
	}
	out, refused := r.render(s)
	if refused == nil {
		var err error
		if refused, err = r.publish(ctx, s, out.draft); err != nil {
			return verdict{}, err
		}
	}
	if refused != nil {
		return *refused, nil
	}
	if !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false) {
		return waiting(v1alpha1.WaitingForInfrastructureReason, "the infrastructure of Cluster %s is not provisioned yet", s.cluster.Name), nil
	}
	if !s.initialized() {
		if v, err := r.takeLock(ctx, s, lock); v != nil || err != nil {
			return ptr.Deref(v, verdict{}), err
		}
	} else if len(out.config.Endpoints) == 0 {
		return waiting(v1alpha1.WaitingForEndpointReason,
			"nothing says where join services are: set spec.joinEndpoints, or wait for Cluster %s to have a control plane endpoint", s.cluster.Name), nil
	}
	if err := r.Client.Create(ctx, newSecret(s.config, s.cluster.Name, out.text)); err != nil {
		return verdict{}, fmt.Errorf("write data Secret %s: %w", s.config.Name, err)
	}
	return available(s.config, "").withNote(out.draft.note(s.config)), nil
}

// takeLock returns nothing if the owner may initialize the Cluster, or what it waits for.
func (r *Reconciler) takeLock(ctx context.Context, s scope, lock initLock) (*verdict, error) {
	if !s.owner.controlPlane {
		v := waiting(v1alpha1.WaitingForControlPlaneReason, "the control plane of Cluster %s is not initialized yet", s.cluster.Name)
		return &v, nil
	}
	holder, err := lock.acquire(ctx, s.cluster, s.owner.GetName())
	var invalid errLockInvalid
	switch {
	case errors.As(err, &invalid):
		return &verdict{v1alpha1.InitLockInvalidReason, invalid.Error(), retry}, nil
	case err != nil:
		return nil, fmt.Errorf("take the init lock: %w", err)
	case holder == s.owner.GetName():
		return nil, nil
	}
	return &verdict{
		v1alpha1.WaitingForInitLockReason,
		fmt.Sprintf("Machine %s is to initialize Cluster %s. If it cannot, delete it: another then takes its place", holder, s.cluster.Name), retry,
	}, nil
}

// abandon frees the lock of a Machine that never got a Secret: it cannot have initialized anything.
func (r *Reconciler) abandon(ctx context.Context, s scope, lock initLock) (verdict, error) {
	if s.owner.controlPlane {
		if err := lock.release(ctx, s.cluster, s.owner.GetName()); err != nil {
			return verdict{}, fmt.Errorf("free the init lock: %w", err)
		}
	}
	return waiting(v1alpha1.DeletingReason, "its owner or its Cluster is being deleted: no data Secret is made any more"), nil
}

// keep looks at a Secret of the config's name that is there. That of a Machine stays as it is, a machine is started once; that of a
// MachinePool follows the spec, for machines to come.
func (r *Reconciler) keep(ctx context.Context, s scope, lock initLock, secret *corev1.Secret) (verdict, error) {
	if !isOurs(secret, s.config) {
		v := waiting(v1alpha1.SecretNameTakenReason,
			"Secret %s is not this HullmarkConfig's, and is left as it is: delete it if nobody needs it, or give the HullmarkConfig another name", secret.Name)
		v.again = retry
		return v, nil
	}
	out, refused := r.render(s)
	if refused == nil {
		var err error
		if refused, err = r.publish(ctx, s, out.draft); err != nil {
			return verdict{}, err
		}
	}
	text, want := out.text, newSecret(s.config, s.cluster.Name, out.text)
	if !s.owner.pool || refused != nil {
		text = nil
	}
	if repair(secret, want, text) {
		if err := r.Client.Update(ctx, secret); err != nil {
			return verdict{}, fmt.Errorf("update data Secret %s: %w", secret.Name, err)
		}
	}
	if s.owner.controlPlane && !s.initialized() && !s.owner.deleting() {
		// A lock that was lost is taken again; one that another has by now is theirs.
		if _, err := lock.acquire(ctx, s.cluster, s.owner.GetName()); err != nil && !errors.As(err, new(errLockInvalid)) {
			return verdict{}, fmt.Errorf("keep the init lock: %w", err)
		}
	}
	return r.judgeKept(s, secret, want, refused).withNote(out.draft.note(s.config)), nil
}

// judgeKept says how a Secret that is there stands to what the spec wants.
func (r *Reconciler) judgeKept(s scope, secret, want *corev1.Secret, refused *verdict) verdict {
	held, err := hullmark.ParseNodeConfig(secret.Data[valueKey])
	if err != nil {
		v := waiting(v1alpha1.SecretInvalidReason,
			"Secret %s: %v: delete it, it is then made again; replace the machine if it has started", secret.Name, err)
		v.again = retry
		return v
	}
	v := available(s.config, "")
	switch {
	case refused != nil && refused.reason == v1alpha1.DraftNameTakenReason:
		v = *refused
	case refused != nil && s.owner.pool:
		v = *refused
		v.message += "; Secret " + secret.Name + " keeps the last spec that was accepted"
	case refused != nil || !sameRequest(held, want.Data[valueKey], s.config.Spec):
		v.message = "the machine keeps the node configuration that it was made with; replace the Machine for that of the spec"
	}
	return v
}

// sameRequest reports whether a node configuration is what a spec asks for now. Endpoints that the spec leaves to the Cluster do not
// count: the first control plane is made before there are any.
func sameRequest(held hullmark.NodeConfig, want []byte, spec v1alpha1.HullmarkConfigSpec) bool {
	wanted, err := hullmark.ParseNodeConfig(want)
	if len(spec.JoinEndpoints) == 0 {
		held.Endpoints, wanted.Endpoints = nil, nil
	}
	return err == nil && reflect.DeepEqual(held, wanted)
}

// rendered is what a spec asks for.
type rendered struct {
	// text is the node configuration, and config the same as the image reads it.
	text   []byte
	config hullmark.NodeConfig
	// draft is what is to be signed; nil if nothing.
	draft *draft
}

// render returns what the spec asks for, or why it gets nothing.
func (r *Reconciler) render(s scope) (out rendered, refused *verdict) {
	d, fields, err := newDraft(s.config, s.owner.controlPlane)
	switch {
	case s.owner.pool && len(s.config.Spec.Network.Addresses) > 0:
		err = errors.New("network: a MachinePool's machines would all have one address: leave it out and use DHCP, or use Machines")
	case len(fields) > 0:
		err = errors.New(strings.Join(fields, "; "))
	case err == nil:
		spec := s.config.Spec
		if d != nil {
			spec.TimeServers = union(spec.TimeServers, d.timeServers)
		}
		out.draft = d
		out.text, out.config, err = nodeConfig(spec, s.cluster.Spec.ControlPlaneEndpoint)
	}
	if err != nil {
		v := waiting(v1alpha1.FieldRefusedReason, "spec: %s", err)
		return rendered{}, &v
	}
	return out, nil
}

// union returns all of two lists, each once.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, each := range b {
		if !slices.Contains(all, each) {
			all = append(all, each)
		}
	}
	return all
}

// waiting returns the verdict that there is no Secret as the spec wants it.
func waiting(reason, format string, args ...any) verdict {
	return verdict{reason: reason, message: fmt.Sprintf(format, args...)}
}

// available enters in the status that the Secret is there.
func available(config *v1alpha1.HullmarkConfig, message string) verdict {
	config.Status.DataSecretName = config.Name
	config.Status.Initialization.DataSecretCreated = ptr.To(true)
	return verdict{reason: v1alpha1.AvailableReason, message: message}
}
