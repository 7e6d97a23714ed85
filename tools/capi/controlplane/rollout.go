package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hullmark/hullmark"
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// compare says why a Machine is not what the spec says, so that it has to be replaced, and what of it an operator changes in place. One
// that has addresses of its own is not replaced.
func (r *Reconciler) compare(s *scope, m *machine) (outdated, kept string) {
	spec := s.plane.Spec
	release := r.compareRelease(s, m)
	inPlace := spec.Rollout.Strategy.Type == v1alpha1.InPlace
	if inPlace {
		kept, release = strings.Join(release, "; "), nil
		if kept != "" && m.Spec.Version == versionOf(s.plane) {
			kept += fmt.Sprintf("; once it runs that image: kubectl annotate machine %s -n %s %s=%s", m.Name, m.Namespace, keptAnnotation, spec.MachineTemplate.Spec.InfrastructureRef.Name)
		}
	}
	if m.config != nil && !sameNode(m.config.Spec, spec.Config) {
		release = append(release, "the HullmarkConfig is another one than spec.config")
	}
	if after := spec.Rollout.After; !after.IsZero() && after.Time.Before(r.now()) && m.CreationTimestamp.Time.Before(after.Time) {
		release = append(release, "it was made before spec.rollout.after")
	}
	if len(spec.Config.Network.Addresses) > 0 && len(release) > 0 {
		own := strings.Join(release, "; ") + "; it has the control plane's own addresses, which no other can have beside it"
		return "", strings.TrimPrefix(kept+"; "+own, "; ")
	}
	return strings.Join(release, "; "), kept
}

// compareRelease says what of a Machine's version and infrastructure is another one.
func (r *Reconciler) compareRelease(s *scope, m *machine) (differs []string) {
	if want := versionOf(s.plane); m.Spec.Version != want {
		differs = append(differs, fmt.Sprintf("version %s, want %s", m.Spec.Version, want))
	}
	ref := s.plane.Spec.MachineTemplate.Spec.InfrastructureRef
	if m.infra == nil {
		return differs
	}
	annotations := m.infra.GetAnnotations()
	name, kind := annotations[clusterv1.TemplateClonedFromNameAnnotation], annotations[clusterv1.TemplateClonedFromGroupKindAnnotation]
	if kept := m.Annotations[keptAnnotation]; kept != "" {
		name = kept
	}
	if want := (schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind}); name != ref.Name || kind != want.String() {
		differs = append(differs, fmt.Sprintf("made of %s %s, want %s", kind, name, ref.Name))
	}
	return differs
}

// sameNode reports whether two configs make the same node configuration. The pool and all of kubeadm but its NTP servers are not in it:
// they are words for the signed policy.
func sameNode(a, b bootstrapv1.HullmarkConfigSpec) bool {
	bare := func(c bootstrapv1.HullmarkConfigSpec) bootstrapv1.HullmarkConfigSpec {
		c = *c.DeepCopy()
		c.Pool = ""
		if c.Kubeadm != nil {
			c.TimeServers = append(c.TimeServers, c.Kubeadm.NTP.Servers...)
		}
		c.Kubeadm = nil
		return c
	}
	return equality.Semantic.DeepEqual(bare(a), bare(b))
}

// keptAnnotation names the infrastructure template whose release an operator brought to a Machine in place.
const keptAnnotation = "controlplane.cluster.x-k8s.io/hullmark-upgraded-to"

// propagatedAnnotation says which labels and annotations were set by the spec, so that those that it drops are dropped.
const propagatedAnnotation = "controlplane.cluster.x-k8s.io/hullmark-propagated"

// propagate brings to Machines, and their objects, what follows the spec without replacing them.
func (r *Reconciler) propagate(ctx context.Context, s *scope) error {
	for _, m := range s.present() {
		if err := r.propagateTo(ctx, s, m); err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
	}
	return nil
}

func (r *Reconciler) propagateTo(ctx context.Context, s *scope, m *machine) error {
	before := m.Machine.DeepCopy()
	if err := r.change(ctx, m.Machine, before, func() {
		setMetadata(m.Machine, s)
		m.Annotations[v1alpha1.EtcdHookAnnotation] = ""
		if node := nodeIDOf(m); node != (hullmark.EKID{}) {
			m.Annotations[ekidAnnotation] = node.String()
		}
		inPlace(s, &m.Spec)
	}); err != nil {
		return err
	}
	if err := r.keepFinalizer(ctx, m); err != nil {
		return err
	}
	if m.infra != nil {
		if err := r.change(ctx, m.infra, m.infra.DeepCopy(), func() { setMetadata(m.infra, s) }); err != nil {
			return err
		}
	}
	if m.config != nil {
		if err := r.change(ctx, m.config, m.config.DeepCopy(), func() {
			setMetadata(m.config, s)
			m.config.Spec.Pool = s.plane.Spec.Config.Pool
			if sameNode(m.config.Spec, s.plane.Spec.Config) {
				m.config.Spec.Kubeadm = s.plane.Spec.Config.Kubeadm.DeepCopy()
			}
		}); err != nil {
			return err
		}
	}
	return r.markUpToDate(ctx, m)
}

// keepFinalizer gives a Machine the finalizer back that somebody took. The list is written as a whole, so it has to be as it was read.
func (r *Reconciler) keepFinalizer(ctx context.Context, m *machine) error {
	before := m.Machine.DeepCopy()
	if !controllerutil.AddFinalizer(m.Machine, recordFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Patch(ctx, m.Machine, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// change edits an object, and writes it if that changed anything.
func (r *Reconciler) change(ctx context.Context, o, before client.Object, edit func()) error {
	if edit(); equality.Semantic.DeepEqual(o, before) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Patch(ctx, o, client.MergeFrom(before)))
}

// propagated are the keys that a spec set.
type propagated struct {
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// setMetadata gives an object the labels and annotations of the spec, and takes those away that an earlier spec gave.
func setMetadata(o metav1.Object, s *scope) {
	template := s.plane.Spec.MachineTemplate.ObjectMeta
	labels, annotations := maps.Clone(o.GetLabels()), maps.Clone(o.GetAnnotations())
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	var last propagated
	_ = json.Unmarshal([]byte(annotations[propagatedAnnotation]), &last) // Somebody's scribble is no list.
	for _, key := range last.Labels {
		delete(labels, key)
	}
	for _, key := range last.Annotations {
		delete(annotations, key)
	}
	maps.Copy(labels, labelsOf(s))
	maps.Copy(annotations, template.Annotations)
	now := propagated{slices.Sorted(maps.Keys(template.Labels)), slices.Sorted(maps.Keys(template.Annotations))}
	delete(annotations, propagatedAnnotation)
	if len(now.Labels)+len(now.Annotations) > 0 {
		text, _ := json.Marshal(now) // lists of strings always have a JSON form
		annotations[propagatedAnnotation] = string(text)
	}
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
}

// markUpToDate sets the condition that core counts Machines by.
func (r *Reconciler) markUpToDate(ctx context.Context, m *machine) error {
	want := metav1.Condition{Type: clusterv1.MachineUpToDateCondition, Status: metav1.ConditionTrue, Reason: clusterv1.MachineUpToDateReason}
	if why := strings.TrimPrefix(m.outdated+"; "+m.kept, "; "); m.outdated+m.kept != "" {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, clusterv1.MachineNotUpToDateReason, core.Message(strings.TrimSuffix(why, "; "))
	}
	return r.mark(ctx, m, want)
}

// mark sets a condition of a Machine.
func (r *Reconciler) mark(ctx context.Context, m *machine, want metav1.Condition) error {
	if have := conditions.Get(m.Machine, want.Type); have != nil && conditions.HasSameState(have, &want) {
		return nil
	}
	before := m.Machine.DeepCopy()
	conditions.Set(m.Machine, want)
	err := client.IgnoreNotFound(r.Client.Status().Patch(ctx, m.Machine, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
	if apierrors.IsConflict(err) { // Core was faster; its change wakes this again.
		*m.Machine, err = *before, nil
	}
	return err
}

// noteUpgraded enters in Machines that an operator upgraded in place the version that their Nodes have. That another image of the same
// version runs shows nowhere: a person says so, by the annotation.
func (r *Reconciler) noteUpgraded(ctx context.Context, s *scope) (acted bool, err error) {
	if s.seen == nil || s.plane.Spec.Rollout.Strategy.Type != v1alpha1.InPlace {
		return false, nil
	}
	want := versionOf(s.plane)
	for _, m := range s.present() {
		if n, ok := s.seen.Nodes[m.Name]; !ok || m.Spec.Version == want || n.Kubelet != want {
			continue
		}
		ref := s.plane.Spec.MachineTemplate.Spec.InfrastructureRef
		if err := r.change(ctx, m.Machine, m.Machine.DeepCopy(), func() {
			m.Spec.Version = want
			m.Annotations[keptAnnotation] = ref.Name
		}); err != nil {
			return false, fmt.Errorf("machine %s: %w", m.Name, err)
		}
		m.outdated, m.kept = r.compare(s, m)
		if err := r.markUpToDate(ctx, m); err != nil {
			return false, fmt.Errorf("machine %s: %w", m.Name, err)
		}
	}
	return false, nil
}
