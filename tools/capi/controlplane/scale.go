package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/failuredomains"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/custody"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// scale makes or deletes one Machine, if there are too few or too many, or one is not what the spec says.
func (r *Reconciler) scale(ctx context.Context, s *scope) (acted bool, err error) {
	present, want := s.present(), s.replicas()
	outdated := slices.ContainsFunc(present, func(m *machine) bool { return m.outdated != "" })
	most := want
	if outdated {
		most += s.surge()
	}
	switch {
	case len(present) < most:
		return r.scaleUp(ctx, s)
	case len(present) > want || outdated:
		return r.scaleDown(ctx, s)
	}
	return r.awaitNewest(s), nil
}

// surge is how many Machines there may be beyond replicas. To remove one first needs three.
func (s *scope) surge() int {
	if given := s.plane.Spec.Rollout.Strategy.RollingUpdate.MaxSurge; given != nil && s.replicas() >= 3 {
		return int(*given)
	}
	return 1
}

// scaleUp makes one more Machine, once all others are healthy: a member joins etcd, which needs its quorum for that.
func (r *Reconciler) scaleUp(ctx context.Context, s *scope) (acted bool, err error) {
	if r.awaitNewest(s) {
		return true, nil
	}
	if err := r.healthy(ctx, s, ""); err != nil {
		s.say(clusterv1.ScalingUpCondition, true, v1alpha1.WaitingForHealthReason, "another Machine is made once all are healthy: %v", err)
		s.soon(s.retry)
		return true, nil
	}
	p := planned{FailureDomain: r.placeNew(ctx, s), RemediationFor: s.plane.Annotations[v1alpha1.RemediationForAnnotation]}
	if err := r.makeMachine(ctx, s, p); err != nil {
		return true, err
	}
	s.soon(s.retry)
	return true, r.endRemediation(ctx, s)
}

// placeNew is the failure domain of the next Machine: of those for control planes, the one with the fewest.
func (r *Reconciler) placeNew(ctx context.Context, s *scope) string {
	var upToDate []*clusterv1.Machine
	for _, m := range s.present() {
		if m.outdated == "" {
			upToDate = append(upToDate, m.Machine)
		}
	}
	return failuredomains.PickFewest(ctx, s.domains(), s.collection(), collections.FromMachines(upToDate...))
}

// domains are the failure domains for control planes.
func (s *scope) domains() (all []clusterv1.FailureDomain) {
	for _, d := range s.cluster.Status.FailureDomains {
		if ptr.Deref(d.ControlPlane, false) {
			all = append(all, d)
		}
	}
	return all
}

func (s *scope) collection() collections.Machines {
	var all []*clusterv1.Machine
	for _, m := range s.present() {
		all = append(all, m.Machine)
	}
	return collections.FromMachines(all...)
}

// awaitNewest says what a Machine waits for that has not joined yet, and reports whether there is one.
func (r *Reconciler) awaitNewest(s *scope) bool {
	if s.seen == nil {
		return false
	}
	for _, m := range s.present() {
		if _, ok := s.seen.Nodes[m.Name]; ok {
			continue
		}
		s.soon(s.retry)
		id := identify(m.infra)
		if !id.known() {
			s.say(clusterv1.ScalingUpCondition, true, clusterv1.ScalingUpReason, "Machine %s: %s", m.Name, id.missing)
			return true
		}
		record, ok := s.seen.Records[id.node]
		if !ok || record.Name != m.Name {
			s.say(clusterv1.ScalingUpCondition, true, v1alpha1.WaitingForRuleReason, "Machine %s joins once the signed policy admits it: %s", m.Name, ruleCommands(s, m, id))
			return true
		}
		message := fmt.Sprintf("Machine %s is %s", m.Name, record.State)
		if record.Condition != nil {
			message += ": " + record.Condition.Error()
		}
		s.say(clusterv1.ScalingUpCondition, true, clusterv1.ScalingUpReason, "%s", message)
		return true
	}
	return false
}

// ruleCommands is what a person with the cluster file runs.
func ruleCommands(s *scope, m *machine, id identity) string {
	lent := custody.LentName(s.cluster.Name)
	return fmt.Sprintf("if the lent file was never taken back, first kubectl get secret %[1]s -n %[2]s -o jsonpath={.data.%[3]s} | base64 -d > %[1]s.begun && hullmark cluster take-back %[1]s.begun --cluster FILE. "+
		"Then hullmark policy add member --cluster FILE --ekid %[4]s --role control-plane --name %[5]s --provider-id %[6]s && hullmark policy push --cluster FILE --server %[7]s",
		lent, s.plane.Namespace, custody.ClusterKey, id.node, m.Name, id.providerID, s.server)
}

// scaleDown deletes one Machine. What is left of it is done when core has come to its hook: see dismiss.
func (r *Reconciler) scaleDown(ctx context.Context, s *scope) (acted bool, err error) {
	if r.awaitNewest(s) {
		return true, nil
	}
	if len(s.present()) < 2 {
		return false, nil // Of the only one nothing would be left.
	}
	leaving := r.choose(ctx, s)
	if err := r.healthy(ctx, s, leaving.Name); err != nil {
		s.say(clusterv1.ScalingDownCondition, true, v1alpha1.WaitingForHealthReason, "Machine %s is deleted once all others are healthy: %v", leaving.Name, err)
		s.soon(s.retry)
		return true, nil
	}
	return true, r.deleteMachine(ctx, s, leaving, orElse(leaving.outdated, "the control plane has more than spec.replicas"))
}

func (r *Reconciler) deleteMachine(ctx context.Context, s *scope, m *machine, why string) error {
	s.soon(s.retry)
	if err := r.Client.Delete(ctx, m.Machine, client.Preconditions{UID: &m.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Machine %s: %w", m.Name, err)
	}
	r.Events.Eventf(s.plane, nil, corev1.EventTypeNormal, "MachineDeleted", "DeleteMachine", "Machine %s is deleted: %s", m.Name, core.AtMost(why, 800))
	return nil
}

// choose picks the Machine to delete: the marked ones first, then unhealthy, then outdated ones; of these, of the failure domain with the
// most, the oldest.
func (r *Reconciler) choose(ctx context.Context, s *scope) *machine {
	eligible := s.present()
	for _, prefer := range []func(*machine) bool{
		func(m *machine) bool { _, marked := m.Annotations[clusterv1.DeleteMachineAnnotation]; return marked },
		func(m *machine) bool { return unhealthy(m) || s.seen != nil && !s.seen.Nodes[m.Name].Ready },
		func(m *machine) bool { return m.outdated != "" },
	} {
		if some := filter(eligible, prefer); len(some) > 0 {
			eligible = some
			break
		}
	}
	var machines []*clusterv1.Machine
	for _, m := range eligible {
		machines = append(machines, m.Machine)
	}
	domain := failuredomains.PickMost(ctx, s.domains(), s.collection(), collections.FromMachines(machines...))
	if some := filter(eligible, func(m *machine) bool { return m.Spec.FailureDomain == domain }); domain != "" && len(some) > 0 {
		eligible = some
	}
	return eligible[0]
}

func filter(machines []*machine, want func(*machine) bool) (some []*machine) {
	for _, m := range machines {
		if want(m) {
			some = append(some, m)
		}
	}
	return some
}

// unhealthy reports whether a MachineHealthCheck wants a Machine to be replaced.
func unhealthy(m *machine) bool {
	return conditions.IsFalse(m.Machine, clusterv1.MachineHealthCheckSucceededCondition) && conditions.IsFalse(m.Machine, clusterv1.MachineOwnerRemediatedCondition)
}

// endRemediation forgets that a Machine has to be made in the place of one that was deleted, once there is one.
func (r *Reconciler) endRemediation(ctx context.Context, s *scope) error {
	text, ok := s.plane.Annotations[v1alpha1.RemediationForAnnotation]
	made := slices.ContainsFunc(s.machines, func(m *machine) bool { return m.Annotations[v1alpha1.RemediationForAnnotation] == text })
	if !ok || !made {
		return nil
	}
	var last v1alpha1.LastRemediation
	if json.Unmarshal([]byte(text), &last) == nil && last.Machine != "" {
		s.plane.Status.LastRemediation = last
	}
	return r.patchPlane(ctx, s, func(p *v1alpha1.HullmarkControlPlane) { delete(p.Annotations, v1alpha1.RemediationForAnnotation) })
}

// patchPlane edits the control plane's metadata, and leaves what its status is to be.
func (r *Reconciler) patchPlane(ctx context.Context, s *scope, edit func(*v1alpha1.HullmarkControlPlane)) error {
	next := s.plane.DeepCopy()
	edit(next)
	if err := r.Client.Patch(ctx, next, client.MergeFrom(s.plane)); err != nil {
		return err
	}
	s.plane.ObjectMeta = next.ObjectMeta
	return nil
}
