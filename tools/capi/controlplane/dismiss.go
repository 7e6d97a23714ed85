package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

const (
	// recordFinalizer keeps a Machine until the cluster has forgotten it, when its infrastructure is gone.
	recordFinalizer = "hullmarkcontrolplane.controlplane.cluster.x-k8s.io/record"
	// ekidAnnotation is the machine's identity, for when its infrastructure is gone.
	ekidAnnotation = "controlplane.cluster.x-k8s.io/hullmark-ekid"
)

// nodeIDOf is a machine's identity, as its infrastructure reports it, or did.
func nodeIDOf(m *machine) hullmark.EKID {
	if id := identify(m.infra); id.node != (hullmark.EKID{}) {
		return id.node
	}
	node, err := hullmark.ParseEKID(m.Annotations[ekidAnnotation])
	if err != nil {
		return hullmark.EKID{}
	}
	return node
}

// dismiss lets one Machine go that is being deleted, by whomever, in this order: core drains its Node and comes to our hook; its member of
// etcd is removed; core ends its infrastructure; the cluster forgets it.
func (r *Reconciler) dismiss(ctx context.Context, s *scope) (acted bool, err error) {
	leaving := filter(s.machines, (*machine).deleting)
	if len(leaving) == 0 {
		return false, nil
	}
	slices.SortStableFunc(leaving, func(a, b *machine) int { return a.DeletionTimestamp.Compare(b.DeletionTimestamp.Time) })
	s.soon(s.retry)
	for _, m := range leaving { // Those that are gone already, first.
		if controllerutil.ContainsFinalizer(m, clusterv1.MachineFinalizer) {
			continue
		}
		if _, hooked := m.Annotations[v1alpha1.EtcdHookAnnotation]; hooked { // Somebody took core's finalizer away.
			return r.leaveEtcd(ctx, s, m)
		}
		return true, r.forget(ctx, s, m)
	}
	m := leaving[0]
	for _, each := range leaving { // One whose member is removed does not keep others from going.
		if _, hooked := each.Annotations[v1alpha1.EtcdHookAnnotation]; hooked {
			m = each
			break
		}
	}
	if _, hooked := m.Annotations[v1alpha1.EtcdHookAnnotation]; !hooked {
		s.say(clusterv1.ScalingDownCondition, true, clusterv1.ScalingDownReason, "Machine %s: its infrastructure is being deleted", m.Name)
		return true, nil
	}
	if waits := waitsForCore(m); waits != "" {
		s.say(clusterv1.ScalingDownCondition, true, clusterv1.ScalingDownReason, "Machine %s: %s", m.Name, waits)
		return true, nil
	}
	return r.leaveEtcd(ctx, s, m)
}

// waitsForCore says what a Machine's deletion has not come to yet: ours is the last hook.
func waitsForCore(m *machine) string {
	for key := range m.Annotations {
		if key != v1alpha1.EtcdHookAnnotation && strings.HasPrefix(key, clusterv1.PreTerminateDeleteHookAnnotationPrefix) {
			return "the hook " + key + " comes before"
		}
	}
	if m.Status.Deletion == nil || m.Status.Deletion.WaitForPreTerminateHookStartTime.IsZero() {
		return "core drains its Node"
	}
	return ""
}

// leaveEtcd removes the member of a Machine, and then the hook.
func (r *Reconciler) leaveEtcd(ctx context.Context, s *scope, m *machine) (acted bool, err error) {
	if s.seen == nil {
		s.say(clusterv1.ScalingDownCondition, true, v1alpha1.WaitingForQuorumReason, "Machine %s keeps its member of etcd as long as the API does not answer: %v", m.Name, s.seenErr)
		return true, nil
	}
	others := s.nodes(m.Name)
	members, err := r.members(ctx, s)
	if err != nil {
		s.say(clusterv1.ScalingDownCondition, true, v1alpha1.WaitingForQuorumReason, "Machine %s: %v", m.Name, err)
		return true, nil
	}
	member, ok := memberOf(m, members)
	if ok && len(others) == 0 {
		// The only one that has what the cluster is goes when another has it, too.
		s.say(clusterv1.ScalingDownCondition, true, v1alpha1.WaitingForQuorumReason, "Machine %s has the only member of etcd: it goes when another Machine has joined. To end the cluster, delete it", m.Name)
		if len(s.present()) > 0 {
			r.awaitNewest(s)
			return true, nil
		}
		return r.scaleUp(ctx, s)
	}
	if ok {
		if err := s.workload.RemoveMember(ctx, others, member.ID); err != nil {
			s.say(clusterv1.ScalingDownCondition, true, v1alpha1.WaitingForQuorumReason, "Machine %s: %v", m.Name, err)
			return true, nil
		}
		r.Events.Eventf(s.plane, nil, corev1.EventTypeNormal, "MemberRemoved", "RemoveMember", "Machine %s is no member of etcd any more", m.Name)
	}
	s.say(clusterv1.ScalingDownCondition, true, clusterv1.ScalingDownReason, "Machine %s has left etcd", m.Name)
	return true, r.dropHook(ctx, m)
}

// forget has the cluster forget a Machine whose infrastructure is gone: its record, its name and its Node. That a rule of the signed
// policy admits it still is told: only the root takes it away.
func (r *Reconciler) forget(ctx context.Context, s *scope, m *machine) error {
	if s.seen == nil {
		s.say(clusterv1.ScalingDownCondition, true, clusterv1.ScalingDownReason, "Machine %s is gone; the cluster forgets it when its API answers: %v", m.Name, s.seenErr)
		return nil
	}
	node := nodeIDOf(m)
	// One of another name is of another machine, whatever the infrastructure says, or an annotation that anybody may write.
	if record, known := s.seen.Records[node]; known && record.Name == m.Name {
		if err := s.workload.Forget(ctx, node); err != nil {
			s.say(clusterv1.ScalingDownCondition, true, clusterv1.ScalingDownReason, "Machine %s is gone, and the cluster cannot forget it: %v", m.Name, err)
			return nil
		}
	}
	if node != (hullmark.EKID{}) {
		r.Events.Eventf(s.plane, nil, corev1.EventTypeWarning, "RuleRemains", "ForgetMachine",
			"Machine %s is gone. If a rule of the policy admits it, take that away: hullmark policy remove member %s --cluster FILE && hullmark policy push --cluster FILE --server %s", m.Name, m.Name, s.server)
	}
	return r.dropFinalizer(ctx, m)
}

func (r *Reconciler) dropFinalizer(ctx context.Context, m *machine) error {
	before := m.Machine.DeepCopy()
	if !controllerutil.RemoveFinalizer(m.Machine, recordFinalizer) {
		return nil
	}
	return wrap(client.IgnoreNotFound(r.Client.Patch(ctx, m.Machine, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))), "let Machine "+m.Name+" go")
}

func (r *Reconciler) dropHook(ctx context.Context, m *machine) error {
	patch := client.RawPatch(types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.EtcdHookAnnotation)))
	return wrap(client.IgnoreNotFound(r.Client.Patch(ctx, m.Machine, patch)), "let Machine "+m.Name+" go")
}

// dropHooks lets all Machines go that are being deleted: there is no etcd to care for yet, or any more.
func (r *Reconciler) dropHooks(ctx context.Context, s *scope) error {
	for _, m := range s.machines {
		if !m.deleting() {
			continue
		}
		if _, hooked := m.Annotations[v1alpha1.EtcdHookAnnotation]; hooked {
			if err := r.dropHook(ctx, m); err != nil {
				return err
			}
		}
		if !controllerutil.ContainsFinalizer(m, clusterv1.MachineFinalizer) {
			if err := r.dropFinalizer(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove lets a control plane go, with its Machines: once those of workers are gone, whose Nodes core drains by its API. What is in etcd
// goes with the cluster.
func (r *Reconciler) remove(ctx context.Context, s *scope) error {
	r.jobs.cancel(s.plane.UID)
	s.say(v1alpha1.BegunCondition, s.initialized(), v1alpha1.DeletingReason, "")
	if s.plane.DeletionTimestamp.IsZero() {
		s.say(clusterv1.DeletingCondition, false, clusterv1.NotDeletingReason, "Cluster %s is being deleted", s.cluster.Name)
		return nil // core deletes this one when workers are gone.
	}
	s.soon(s.retry)
	workers, err := r.workers(ctx, s)
	if err != nil {
		return err
	}
	if len(workers) > 0 {
		s.say(clusterv1.DeletingCondition, true, clusterv1.DeletingReason, "waiting for Machines of workers to be gone: %s", core.AtMost(strings.Join(workers, ", "), 500))
		return nil
	}
	if err := r.dropHooks(ctx, s); err != nil {
		return err
	}
	var names []string
	for _, m := range s.machines {
		names = append(names, m.Name)
		if m.deleting() {
			continue
		}
		if err := r.deleteMachine(ctx, s, m, "the control plane is being deleted"); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		s.say(clusterv1.DeletingCondition, true, clusterv1.DeletingReason, "waiting for Machines to be gone: %s", strings.Join(names, ", "))
		return nil
	}
	return r.letGo(ctx, s)
}

// workers are the Cluster's other Machines, and its MachinePools.
func (r *Reconciler) workers(ctx context.Context, s *scope) (names []string, err error) {
	list := &clusterv1.MachineList{}
	if err := r.Live.List(ctx, list, client.InNamespace(s.plane.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}); err != nil {
		return nil, fmt.Errorf("list Machines: %w", err)
	}
	for i := range list.Items {
		if !slices.ContainsFunc(s.machines, func(m *machine) bool { return m.UID == list.Items[i].UID }) {
			names = append(names, list.Items[i].Name)
		}
	}
	pools := &clusterv1.MachinePoolList{}
	if err := r.Live.List(ctx, pools, client.InNamespace(s.plane.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}); err != nil {
		return nil, fmt.Errorf("list MachinePools: %w", err)
	}
	for i := range pools.Items {
		names = append(names, pools.Items[i].Name)
	}
	return names, nil
}

// letGo removes the finalizer.
func (r *Reconciler) letGo(ctx context.Context, s *scope) error {
	before := s.plane.DeepCopy()
	if !controllerutil.RemoveFinalizer(s.plane, v1alpha1.ControlPlaneFinalizer) {
		return nil
	}
	err := r.Client.Patch(ctx, s.plane, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) || err == nil {
		return nil
	}
	controllerutil.AddFinalizer(s.plane, v1alpha1.ControlPlaneFinalizer)
	return errors.Join(errors.New("let the control plane go"), err)
}
