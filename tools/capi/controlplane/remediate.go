package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// The defaults of spec.remediation.
const (
	defaultReboot     = 20 * time.Minute
	defaultMinHealthy = time.Hour
)

// remediate deletes a Machine that a MachineHealthCheck found unhealthy, if it does not only restart, and if the others can do without it.
func (r *Reconciler) remediate(ctx context.Context, s *scope) (acted bool, err error) {
	if err := r.endRemediation(ctx, s); err != nil {
		return false, err
	}
	if begun, err := r.resumeRemediation(ctx, s); err != nil || begun {
		return false, err // scale makes the other Machine.
	}
	sick := filter(s.present(), unhealthy)
	if len(sick) == 0 {
		return false, nil
	}
	m := sick[0]
	refuse := func(reason, format string, args ...any) (bool, error) {
		s.say(clusterv1.RemediatingCondition, true, reason, "Machine %s is unhealthy: %s", m.Name, fmt.Sprintf(format, args...))
		s.soon(s.retry)
		return false, nil
	}
	if len(s.machines) < 2 {
		return refuse(v1alpha1.NotRemediatedReason, "it is the only one, and holds all of etcd: mend it. If its disk is lost, begin the cluster anew with a backup (hullmark init --etcd-backup)")
	}
	if until, why := r.mayOnlyRestart(s, m); why != "" {
		s.soon(until.Sub(r.now()))
		return refuse(v1alpha1.RebootingReason, "%s; it is replaced if that stays so until %s", why, until.UTC().Format(time.RFC3339))
	}
	next, why := r.mayRetry(s, m)
	if why != "" {
		return refuse(v1alpha1.NotRemediatedReason, "%s", why)
	}
	if err := r.healthy(ctx, s, m.Name); err != nil {
		return refuse(v1alpha1.NotRemediatedReason, "it is replaced once all others are healthy: %v", err)
	}
	text, err := json.Marshal(remediation{next, m.Name})
	if err != nil {
		return true, err
	}
	// First what is to come after it: whoever goes on makes the next one as a replacement.
	if err := r.patchPlane(ctx, s, func(p *v1alpha1.HullmarkControlPlane) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.RemediationForAnnotation, string(text))
	}); err != nil {
		return true, err
	}
	s.say(clusterv1.RemediatingCondition, true, clusterv1.RemediatingReason, "Machine %s is replaced", m.Name)
	return true, r.deleteMachine(ctx, s, m, "it is unhealthy")
}

// remediation is what is noted from before a Machine is deleted until another is in its place.
type remediation struct {
	v1alpha1.LastRemediation `json:",inline"`
	// Deletes is the Machine that is deleted: LastRemediation names the first of those that took each other's place.
	Deletes string `json:"deletes"`
}

// resumeRemediation reports whether a Machine was deleted for being unhealthy that none has replaced yet. One that was only about to be,
// when a controller was killed, is judged anew.
func (r *Reconciler) resumeRemediation(ctx context.Context, s *scope) (begun bool, err error) {
	text, ok := s.plane.Annotations[v1alpha1.RemediationForAnnotation]
	if !ok {
		return false, nil
	}
	var noted remediation
	_ = json.Unmarshal([]byte(text), &noted) // Somebody's scribble names no Machine.
	if len(filter(s.present(), func(m *machine) bool { return m.Name == noted.Deletes })) > 0 || noted.Deletes == "" {
		return false, r.patchPlane(ctx, s, func(p *v1alpha1.HullmarkControlPlane) { delete(p.Annotations, v1alpha1.RemediationForAnnotation) })
	}
	s.say(clusterv1.RemediatingCondition, true, clusterv1.RemediatingReason, "another Machine takes the place of %s, which was unhealthy", noted.Deletes)
	return true, nil
}

// mayOnlyRestart says why, and until when, an unhealthy Machine may only be restarting: its Node was Ready, or its machine got a ticket,
// not long ago. A person's order to replace it is not questioned.
func (r *Reconciler) mayOnlyRestart(s *scope, m *machine) (until time.Time, why string) {
	if _, ordered := m.Annotations[clusterv1.RemediateMachineAnnotation]; ordered || s.seen == nil {
		return time.Time{}, ""
	}
	limit := defaultReboot
	if given := s.plane.Spec.Remediation.RebootTimeoutSeconds; given != nil {
		limit = time.Duration(*given) * time.Second
	}
	n, ok := s.seen.Nodes[m.Name]
	switch {
	case ok && n.Ready:
		return r.now().Add(s.retry), "its Node is Ready"
	case ok && n.Changed.Add(limit).After(r.now()):
		return n.Changed.Add(limit), fmt.Sprintf("its Node was Ready until %s, so it may only be restarting", n.Changed.UTC().Format(time.RFC3339))
	}
	record, ok := s.seen.Records[nodeIDOf(m)]
	comes := record.State == joinservice.MachineAdmitted || record.State == joinservice.MachineJoining || record.State == joinservice.MachineReady
	if until := record.Seen.Add(limit); ok && comes && until.After(r.now()) {
		return until, fmt.Sprintf("it got a ticket and was heard at %s", record.Seen.UTC().Format(time.RFC3339))
	}
	return time.Time{}, ""
}

// mayRetry says what the remediation of a Machine is noted as, or why it is not made now: one that took another's place and fails, too, is
// a retry, which is limited.
func (r *Reconciler) mayRetry(s *scope, m *machine) (next v1alpha1.LastRemediation, why string) {
	spec := s.plane.Spec.Remediation
	next = v1alpha1.LastRemediation{Machine: m.Name, Time: metav1.NewTime(r.now().UTC().Truncate(time.Second)), RetryCount: ptr.To[int32](0)}
	var last v1alpha1.LastRemediation
	if json.Unmarshal([]byte(m.Annotations[v1alpha1.RemediationForAnnotation]), &last) != nil || last.Machine == "" {
		return next, ""
	}
	minHealthy := defaultMinHealthy
	if given := spec.MinHealthyPeriodSeconds; given != nil {
		minHealthy = time.Duration(*given) * time.Second
	}
	if last.Time.Add(minHealthy).Before(r.now()) {
		return next, ""
	}
	count := ptr.Deref(last.RetryCount, 0)
	if period := time.Duration(ptr.Deref(spec.RetryPeriodSeconds, 0)) * time.Second; last.Time.Add(period).After(r.now()) {
		return next, fmt.Sprintf("it took the place of %s, and spec.remediation.retryPeriodSeconds is not over before %s", last.Machine, last.Time.Add(period).UTC().Format(time.RFC3339))
	}
	if most := spec.MaxRetry; most != nil && count >= *most {
		return next, fmt.Sprintf("it took the place of %s, and spec.remediation.maxRetry allows no more than %d: find the cause, then delete the Machine", last.Machine, *most)
	}
	next.RetryCount = ptr.To(count + 1)
	next.Machine = last.Machine // The first of them, as the kubeadm provider has it.
	return next, ""
}
