package controlplane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// conclude writes into the status what was seen and what came of it.
func (r *Reconciler) conclude(s *scope) {
	status := &s.plane.Status
	status.ObservedGeneration = s.plane.Generation
	if s.cluster != nil {
		status.Selector = labels.SelectorFromSet(selectorOf(s.plane, s.cluster.Name)).String()
		r.count(s)
		r.judge(s)
	}
	for _, kind := range []string{
		v1alpha1.BegunCondition, v1alpha1.InitializedCondition, v1alpha1.KubeconfigAvailableCondition, v1alpha1.EtcdClusterHealthyCondition, v1alpha1.AvailableCondition,
		clusterv1.MachinesReadyCondition, clusterv1.MachinesUpToDateCondition, clusterv1.RollingOutCondition, clusterv1.ScalingUpCondition, clusterv1.ScalingDownCondition,
		clusterv1.RemediatingCondition, clusterv1.DeletingCondition,
	} {
		if v, ok := s.verdicts[kind]; ok {
			r.set(s, kind, v)
		}
	}
}

// set writes one condition, and tells of it if a person has to do something that had not to be done before.
func (r *Reconciler) set(s *scope, kind string, v verdict) {
	v.message = core.Message(v.message)
	before := conditions.GetReason(s.plane, kind)
	state := metav1.ConditionFalse
	switch {
	case v.unknown:
		state = metav1.ConditionUnknown
	case v.status:
		state = metav1.ConditionTrue
	}
	conditions.Set(s.plane, metav1.Condition{Type: kind, Status: state, Reason: v.reason, Message: v.message, ObservedGeneration: s.plane.Generation})
	if before != v.reason && slices.Contains(forPeople, v.reason) {
		r.Events.Eventf(s.plane, nil, corev1.EventTypeWarning, v.reason, "WaitForOperator", "%s", core.Note(v.message))
	}
}

// healthUnknown is the reason of what cannot be asked, as the kubeadm provider has it.
const healthUnknown = "HealthUnknown"

// forPeople are the reasons that end only if somebody does something.
var forPeople = []string{
	v1alpha1.WaitingForClusterFileReason, v1alpha1.ClusterFileInvalidReason, v1alpha1.VersionMismatchReason, v1alpha1.SpecRefusedReason, v1alpha1.BeginFailedReason,
	v1alpha1.BeginInterruptedReason, v1alpha1.WaitingForRuleReason, v1alpha1.NotRemediatedReason, v1alpha1.WaitingForUpgradeReason,
}

// count counts Machines.
func (r *Reconciler) count(s *scope) {
	var ready, available, upToDate int32
	versions := map[string]int32{}
	for _, m := range s.machines {
		if conditions.IsTrue(m.Machine, clusterv1.MachineReadyCondition) {
			ready++
		}
		if conditions.IsTrue(m.Machine, clusterv1.MachineAvailableCondition) {
			available++
		}
		if conditions.IsTrue(m.Machine, clusterv1.MachineUpToDateCondition) {
			upToDate++
		}
		if m.Status.NodeInfo != nil && ruled(m.Status.NodeInfo.KubeletVersion) {
			versions[m.Status.NodeInfo.KubeletVersion]++
		} else if s.initialized() {
			versions[m.Spec.Version]++
		}
	}
	status := &s.plane.Status
	status.Replicas, status.ReadyReplicas = ptr.To(int32(len(s.machines))), &ready
	status.AvailableReplicas, status.UpToDateReplicas = &available, &upToDate
	status.Versions, status.Version = nil, ""
	for each, n := range versions {
		status.Versions = append(status.Versions, clusterv1.StatusVersion{Version: each, Replicas: n})
	}
	slices.SortFunc(status.Versions, func(a, b clusterv1.StatusVersion) int { return compareVersions(a.Version, b.Version) })
	if len(status.Versions) > 0 {
		status.Version = status.Versions[0].Version
	}
}

// ruled reports whether a version is one that the CRD's rules can compare with spec.version: a kubelet says what it likes, and
// spec.version could not be changed any more.
func ruled(text string) bool {
	v, err := version.ParseSemantic(text)
	return err == nil && max(v.Major(), v.Minor(), v.Patch()) < 100_000
}

func compareVersions(a, b string) int {
	va, err := version.ParseSemantic(a)
	if err != nil {
		return cmp.Compare(a, b)
	}
	order, err := va.Compare(b)
	if err != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Or(order, cmp.Compare(a, b))
}

// otherwise says what a condition is if no step said something else.
func (s *scope) otherwise(kind string, status bool, reason, format string, args ...any) {
	if _, said := s.verdicts[kind]; !said {
		s.say(kind, status, reason, format, args...)
	}
}

// judge says what conditions are that no step has set.
func (r *Reconciler) judge(s *scope) {
	deleting := !s.plane.DeletionTimestamp.IsZero()
	if s.initialized() {
		s.say(v1alpha1.InitializedCondition, true, "Initialized", "")
	} else {
		s.say(v1alpha1.InitializedCondition, false, "NotInitialized", "%s", s.verdicts[v1alpha1.BegunCondition].message)
		s.otherwise(v1alpha1.KubeconfigAvailableCondition, false, "NotInitialized", "")
	}
	switch {
	case deleting:
		s.say(v1alpha1.AvailableCondition, false, clusterv1.NotAvailableReason, "it is being deleted")
	case !s.initialized():
		s.say(v1alpha1.AvailableCondition, false, clusterv1.NotAvailableReason, "the cluster has not begun")
	case s.seen != nil:
		s.say(v1alpha1.AvailableCondition, true, clusterv1.AvailableReason, "")
	case s.seenErr != nil && !s.asked:
		s.sayUnknown(v1alpha1.AvailableCondition, healthUnknown, "%v", s.seenErr)
	case s.seenErr != nil:
		s.say(v1alpha1.AvailableCondition, false, clusterv1.NotAvailableReason, "%v", s.seenErr)
	}
	s.judgeMachines()
	present, want := len(s.present()), s.replicas()
	up := present < want && !deleting
	if up {
		s.otherwise(clusterv1.ScalingUpCondition, true, clusterv1.ScalingUpReason, "from %d to %d", present, want)
	}
	s.otherwise(clusterv1.ScalingUpCondition, false, clusterv1.NotScalingUpReason, "")
	if present > want || present < len(s.machines) || deleting && present > 0 {
		s.otherwise(clusterv1.ScalingDownCondition, true, clusterv1.ScalingDownReason, "from %d to %d", len(s.machines), want)
	}
	s.otherwise(clusterv1.ScalingDownCondition, false, clusterv1.NotScalingDownReason, "")
	s.otherwise(clusterv1.RemediatingCondition, false, clusterv1.NotRemediatingReason, "")
	s.otherwise(clusterv1.DeletingCondition, false, clusterv1.NotDeletingReason, "")
}

// judgeMachines says what conditions are that sum Machines up.
func (s *scope) judgeMachines() {
	var unready, outdated, kept []string
	for _, m := range s.machines {
		if !conditions.IsTrue(m.Machine, clusterv1.MachineReadyCondition) {
			unready = append(unready, fmt.Sprintf("Machine %s: %s", m.Name, orElse(conditions.GetMessage(m.Machine, clusterv1.MachineReadyCondition), "not Ready yet")))
		}
		if m.outdated != "" {
			outdated = append(outdated, fmt.Sprintf("Machine %s: %s", m.Name, m.outdated))
		}
		if m.kept != "" {
			kept = append(kept, fmt.Sprintf("Machine %s: %s", m.Name, m.kept))
		}
	}
	sum := func(list []string) string { return strings.Join(list, "\n") }
	switch {
	case len(s.machines) == 0:
		s.say(clusterv1.MachinesReadyCondition, true, clusterv1.NoReplicasReason, "")
		s.say(clusterv1.MachinesUpToDateCondition, true, clusterv1.NoReplicasReason, "")
	default:
		s.say(clusterv1.MachinesReadyCondition, len(unready) == 0, either(len(unready) == 0, clusterv1.ReadyReason, clusterv1.NotReadyReason), "%s", sum(unready))
		s.say(clusterv1.MachinesUpToDateCondition, len(outdated)+len(kept) == 0, either(len(outdated)+len(kept) == 0, clusterv1.UpToDateReason, clusterv1.NotUpToDateReason), "%s", sum(append(outdated, kept...)))
	}
	switch {
	case len(outdated) > 0:
		s.say(clusterv1.RollingOutCondition, true, clusterv1.RollingOutReason, "%s", sum(outdated))
	case len(kept) > 0:
		s.say(clusterv1.RollingOutCondition, true, v1alpha1.WaitingForUpgradeReason, "machines are kept: bring the release to them by hullmark upgrade apply --cluster FILE\n%s", sum(kept))
	default:
		s.say(clusterv1.RollingOutCondition, false, clusterv1.NotRollingOutReason, "")
	}
}

func either(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}
