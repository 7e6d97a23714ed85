package controlplane

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util/labels/format"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// plannedAnnotation is on a HullmarkConfig from before its Machine is there: what the Machine is to have beside the spec.
const plannedAnnotation = "controlplane.cluster.x-k8s.io/hullmark-planned"

// planned is what is decided of a Machine when it is begun, and not read from the spec.
type planned struct {
	FailureDomain  string `json:"failureDomain,omitempty"`
	RemediationFor string `json:"remediationFor,omitempty"`
}

// machine is one Machine with its objects; config and infra are nil if they are not there.
type machine struct {
	*clusterv1.Machine
	config *bootstrapv1.HullmarkConfig
	infra  *unstructured.Unstructured
	// outdated says why it is not what the spec says; empty if it is. kept says so of what an operator changes in place.
	outdated, kept string
}

func (m *machine) deleting() bool { return !m.DeletionTimestamp.IsZero() }

// labelsOf are those of all objects of a control plane's machines.
func labelsOf(s *scope) map[string]string {
	all := maps.Clone(s.plane.Spec.MachineTemplate.ObjectMeta.Labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, selectorOf(s.plane, s.cluster.Name))
	return all
}

// selectorOf are the labels that select a control plane's Machines.
func selectorOf(plane *v1alpha1.HullmarkControlPlane, cluster string) map[string]string {
	return map[string]string{
		clusterv1.ClusterNameLabel: cluster, clusterv1.MachineControlPlaneLabel: "",
		clusterv1.MachineControlPlaneNameLabel: format.MustFormatValue(plane.Name),
	}
}

func ownerOf(plane *v1alpha1.HullmarkControlPlane, controller bool) metav1.OwnerReference {
	ref := metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.ControlPlaneKind, Name: plane.Name, UID: plane.UID,
	}
	if controller {
		ref.Controller, ref.BlockOwnerDeletion = ptr.To(true), ptr.To(true)
	}
	return ref
}

func ownedBy(o metav1.Object, plane *v1alpha1.HullmarkControlPlane) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == plane.UID })
}

// lookAtMachines reads the control plane's own Machines with their objects, past the cache: what is made or removed rests on them.
func (r *Reconciler) lookAtMachines(ctx context.Context, s *scope) error {
	list := &clusterv1.MachineList{}
	if err := r.Live.List(ctx, list, client.InNamespace(s.plane.Namespace), client.MatchingLabels{
		clusterv1.ClusterNameLabel: s.cluster.Name, clusterv1.MachineControlPlaneLabel: "",
	}); err != nil {
		return fmt.Errorf("list Machines: %w", err)
	}
	for i := range list.Items {
		m := &machine{Machine: &list.Items[i]}
		own := metav1.IsControlledBy(m, s.plane)
		if !own {
			var err error
			if own, err = r.adopt(ctx, s, m.Machine); err != nil {
				return err
			}
		}
		if !own {
			s.foreign = append(s.foreign, m.Name)
			continue
		}
		if err := r.lookAtMachine(ctx, m); err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
		m.outdated, m.kept = r.compare(s, m)
		s.machines = append(s.machines, m)
	}
	slices.SortFunc(s.machines, func(a, b *machine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

func (r *Reconciler) lookAtMachine(ctx context.Context, m *machine) error {
	infra, err := external.GetObjectFromContractVersionedRef(ctx, r.Live, m.Spec.InfrastructureRef, m.Namespace)
	switch {
	case err == nil:
		m.infra = infra
	case !apierrors.IsNotFound(rootOf(err)):
		return err
	}
	config := &bootstrapv1.HullmarkConfig{}
	switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.Bootstrap.ConfigRef.Name}, config); {
	case err == nil:
		m.config = config
	case !apierrors.IsNotFound(err):
		return err
	}
	return nil
}

// rootOf is the API's error in one that core wrapped.
func rootOf(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if e, ok := status.(error); ok {
			return e
		}
	}
	return err
}

// present are the Machines that are not being deleted.
func (s *scope) present() (all []*machine) {
	for _, m := range s.machines {
		if !m.deleting() {
			all = append(all, m)
		}
	}
	return all
}

// newName makes a name for a Machine, which is its Node's, too: a DNS label.
func newName(plane string) string {
	return namePrefix(plane) + utilrand.String(randomInName)
}

const (
	randomInName = 5
	// lettersInName are those of utilrand.String: people's words have others.
	lettersInName = "bcdfghjklmnpqrstvwxz2456789"
)

func namePrefix(plane string) string {
	const most = 63
	prefix := strings.ReplaceAll(plane, ".", "-")
	return strings.TrimRight(prefix[:min(len(prefix), most-randomInName-1)], "-") + "-"
}

// namedBy reports whether a name is one that newName may have made.
func namedBy(plane, name string) bool {
	rest, ok := strings.CutPrefix(name, namePrefix(plane))
	return ok && len(rest) == randomInName && strings.Trim(rest, lettersInName) == ""
}

// makeMachine begins one more Machine. The HullmarkConfig comes first: it holds the name, so that whoever finds one without its Machine
// goes on with it, and makes no second one.
func (r *Reconciler) makeMachine(ctx context.Context, s *scope, p planned) error {
	plan, err := json.Marshal(p)
	if err != nil {
		return err
	}
	annotations := maps.Clone(s.plane.Spec.MachineTemplate.ObjectMeta.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[plannedAnnotation] = string(plan)
	config := &bootstrapv1.HullmarkConfig{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.plane.Namespace, Name: newName(s.plane.Name), Labels: labelsOf(s), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{ownerOf(s.plane, false)},
		},
		Spec: *s.plane.Spec.Config.DeepCopy(),
	}
	if err := r.Client.Create(ctx, config); err != nil {
		return fmt.Errorf("make HullmarkConfig %s: %w", config.Name, err)
	}
	return r.finishMachine(ctx, s, config)
}

// finishMachines makes what is missing of Machines that were begun.
func (r *Reconciler) finishMachines(ctx context.Context, s *scope) error {
	list := &bootstrapv1.HullmarkConfigList{}
	if err := r.Live.List(ctx, list, client.InNamespace(s.plane.Namespace), client.MatchingLabels(selectorOf(s.plane, s.cluster.Name))); err != nil {
		return fmt.Errorf("list HullmarkConfigs: %w", err)
	}
	for i := range list.Items {
		config := &list.Items[i]
		made := slices.ContainsFunc(s.machines, func(m *machine) bool { return m.Name == config.Name })
		// One that has had a Machine is that Machine's, and goes with it.
		if made || !config.DeletionTimestamp.IsZero() || !ownedBy(config, s.plane) || config.Annotations[plannedAnnotation] == "" {
			continue
		}
		if err := r.finishMachine(ctx, s, config); err != nil {
			return err
		}
	}
	return nil
}

// finishMachine makes the infrastructure and the Machine of a HullmarkConfig, unless they are there.
func (r *Reconciler) finishMachine(ctx context.Context, s *scope, config *bootstrapv1.HullmarkConfig) error {
	var p planned
	if err := json.Unmarshal([]byte(config.Annotations[plannedAnnotation]), &p); err != nil {
		return fmt.Errorf("HullmarkConfig %s: annotation %s: %w: delete the object, another takes its place", config.Name, plannedAnnotation, err)
	}
	infra, err := r.makeInfrastructure(ctx, s, config.Name)
	if err != nil {
		s.cannotMake(config.Name, err)
		return err
	}
	m := r.desired(s, config.Name, p, infra)
	if err := r.Client.Create(ctx, m); err != nil {
		return fmt.Errorf("make Machine %s: %w", m.Name, err)
	}
	r.Events.Eventf(s.plane, nil, corev1.EventTypeNormal, "MachineMade", "MakeMachine", "Machine %s is one of the control plane", m.Name)
	s.machines = append(s.machines, &machine{Machine: m, config: config, infra: infra})
	return nil
}

// cannotMake says in a condition, too, why a Machine is not made: the spec may name a template that is not there.
func (s *scope) cannotMake(name string, err error) {
	if s.initialized() {
		s.say(clusterv1.ScalingUpCondition, true, clusterv1.ScalingUpReason, "Machine %s cannot be made: %v", name, err)
		return
	}
	s.say(v1alpha1.BegunCondition, false, v1alpha1.WaitingForMachineReason, "Machine %s cannot be made: %v", name, err)
}

// makeInfrastructure copies the infrastructure's template, unless that was done.
func (r *Reconciler) makeInfrastructure(ctx context.Context, s *scope, name string) (*unstructured.Unstructured, error) {
	ref := s.plane.Spec.MachineTemplate.Spec.InfrastructureRef
	template, err := external.GetObjectFromContractVersionedRef(ctx, r.Live, ref, s.plane.Namespace)
	if err != nil {
		return nil, fmt.Errorf("spec.machineTemplate.spec.infrastructureRef: %w", err)
	}
	infra, err := external.GenerateTemplate(&external.GenerateTemplateInput{
		Template: template, TemplateRef: &corev1.ObjectReference{APIVersion: template.GetAPIVersion(), Kind: template.GetKind(), Name: template.GetName(), Namespace: template.GetNamespace()},
		Namespace: s.plane.Namespace, Name: name, ClusterName: s.cluster.Name, OwnerRef: ptr.To(ownerOf(s.plane, false)),
		Labels: labelsOf(s), Annotations: s.plane.Spec.MachineTemplate.ObjectMeta.Annotations,
	})
	if err != nil {
		return nil, err
	}
	err = r.Client.Create(ctx, infra)
	if !apierrors.IsAlreadyExists(err) {
		return infra, wrap(err, "make "+infra.GetKind()+" "+name)
	}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(infra), infra); err != nil {
		return nil, err
	}
	if !ownedBy(infra, s.plane) {
		return nil, fmt.Errorf("%s %s is there, and not this control plane's: delete HullmarkConfig %s, another name is taken then", infra.GetKind(), name, name)
	}
	return infra, nil
}

func wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// desired is the Machine that the spec asks for.
func (r *Reconciler) desired(s *scope, name string, p planned, infra *unstructured.Unstructured) *clusterv1.Machine {
	annotations := maps.Clone(s.plane.Spec.MachineTemplate.ObjectMeta.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.EtcdHookAnnotation] = ""
	if p.RemediationFor != "" {
		annotations[v1alpha1.RemediationForAnnotation] = p.RemediationFor
	}
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.plane.Namespace, Name: name, Labels: labelsOf(s), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{ownerOf(s.plane, true)}, Finalizers: []string{recordFinalizer},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName: s.cluster.Name, Version: versionOf(s.plane), FailureDomain: p.FailureDomain, MinReadySeconds: ptr.To[int32](0),
			Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: bootstrapv1.GroupVersion.Group, Kind: bootstrapv1.ConfigKind, Name: name,
			}},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infra.GroupVersionKind().Group, Kind: infra.GetKind(), Name: infra.GetName(),
			},
		},
	}
	inPlace(s, &m.Spec)
	return m
}

// inPlace sets what of a Machine follows the spec without replacing it.
func inPlace(s *scope, spec *clusterv1.MachineSpec) {
	template := s.plane.Spec.MachineTemplate.Spec
	spec.ReadinessGates, spec.Taints = template.ReadinessGates, template.Taints
	spec.Deletion.NodeDrainTimeoutSeconds = template.Deletion.NodeDrainTimeoutSeconds
	spec.Deletion.NodeVolumeDetachTimeoutSeconds = template.Deletion.NodeVolumeDetachTimeoutSeconds
	if given := template.Deletion.NodeDeletionTimeoutSeconds; given != nil { // core has a default for it
		spec.Deletion.NodeDeletionTimeoutSeconds = given
	}
}

// versionOf is the Kubernetes version as Machines state it.
func versionOf(plane *v1alpha1.HullmarkControlPlane) string {
	return "v" + strings.TrimPrefix(plane.Spec.Version, "v")
}
