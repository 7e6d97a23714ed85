package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark/joinservice/etcd"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/internal/core"
)

// run looks after a cluster that runs: its kubeconfig, and that its Machines are those of the spec. It makes, or deletes, at most one
// Machine at a time, and none while another comes or goes.
func (r *Reconciler) run(ctx context.Context, s *scope) error {
	r.jobs.cancel(s.plane.UID)
	s.say(v1alpha1.BegunCondition, true, v1alpha1.BegunReason, "")
	s.soon(steady)
	switch ok, err := r.reopen(ctx, s); {
	case err != nil:
		return err
	case !ok:
		r.judgeEtcd(ctx, s)
		return r.markMembers(ctx, s)
	}
	if err := r.keepKubeconfig(ctx, s); err != nil {
		return err
	}
	r.lookAtWorkload(ctx, s)
	r.judgeEtcd(ctx, s)
	if err := r.markMembers(ctx, s); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *scope) (acted bool, err error){r.noteUpgraded, r.removeStray, r.dismiss, r.remediate, r.scale} {
		if acted, err := step(ctx, s); err != nil || acted {
			return err
		}
	}
	return nil
}

// reopen opens the lent file of a cluster that runs: certificates are made of it as long as the cluster lives.
func (r *Reconciler) reopen(ctx context.Context, s *scope) (bool, error) {
	if s.file != nil {
		return true, nil
	}
	key := r.lentKey(s)
	file, err := r.Custody.OpenCluster(ctx, key)
	var status apierrors.APIStatus
	switch {
	case err == nil:
		s.file = file
		return true, nil
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("secret %s is gone: restore it. The cluster has begun, so its file is not lent again, and without it nothing of it can be reached from here", key)
	case errors.As(err, &status):
		return false, err
	}
	s.say(v1alpha1.KubeconfigAvailableCondition, false, v1alpha1.ClusterFileInvalidReason, "%v", err)
	s.seenErr = err
	s.soon(s.retry)
	return false, nil
}

// lookAtWorkload looks how the cluster is that runs. That it does not answer is no error of the management cluster.
func (r *Reconciler) lookAtWorkload(ctx context.Context, s *scope) {
	s.asked = true
	w, err := r.connect(s.file, s.server)
	if err == nil {
		var seen View
		if seen, err = w.Look(ctx); err == nil {
			s.workload, s.seen = w, &seen
			return
		}
	}
	s.seenErr = fmt.Errorf("the API at %s: %w", s.server, err)
	s.soon(s.retry)
}

// nodes are the Nodes of Machines, but for one, those that are Ready first.
func (s *scope) nodes(but string) (all []Node) {
	for _, m := range s.machines {
		if n, ok := s.seen.Nodes[m.Name]; ok && m.Name != but {
			all = append(all, n)
		}
	}
	slices.SortStableFunc(all, func(a, b Node) int { return cmp.Compare(boolean(b.Ready), boolean(a.Ready)) })
	return all
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// members are those of etcd, as they were when this reconciliation looked first, with what becomes of those that are no Machine's.
func (r *Reconciler) members(ctx context.Context, s *scope) ([]etcd.Member, error) {
	if !s.askedEtcd {
		s.askedEtcd = true
		if s.etcd, s.etcdErr = s.workload.Members(ctx, s.nodes("")); s.etcdErr == nil {
			s.etcdErr = r.lookAtStrays(ctx, s)
		}
	}
	return s.etcd, s.etcdErr
}

// settledOnOne reports whether there is one Machine, and no other one is to come: etcd is not asked, since there is nothing that its API
// server, which asks it, does not say already.
func (s *scope) settledOnOne() bool {
	return len(s.machines) == 1 && s.replicas() == 1 && s.machines[0].outdated == "" && !s.machines[0].deleting()
}

// judgeEtcd says how etcd is.
func (r *Reconciler) judgeEtcd(ctx context.Context, s *scope) {
	const kind = v1alpha1.EtcdClusterHealthyCondition
	if s.seen == nil {
		s.sayUnknown(kind, healthUnknown, "%v", s.seenErr)
		return
	}
	if s.settledOnOne() {
		s.say(kind, true, "Healthy", "")
		return
	}
	if _, err := r.members(ctx, s); err != nil {
		s.sayUnknown(kind, healthUnknown, "%v", err)
		return
	}
	if err := s.sick(); err != nil {
		s.say(kind, false, "NotHealthy", "%v", err)
		return
	}
	s.say(kind, true, "Healthy", "")
}

// markMembers says of each Machine how its member of etcd is.
func (r *Reconciler) markMembers(ctx context.Context, s *scope) error {
	for _, m := range s.machines {
		state, message := s.memberState(m)
		reason := map[metav1.ConditionStatus]string{metav1.ConditionTrue: "Healthy", metav1.ConditionFalse: "NotHealthy", metav1.ConditionUnknown: healthUnknown}[state]
		want := metav1.Condition{Type: v1alpha1.EtcdMemberHealthyCondition, Status: state, Reason: reason, Message: core.Message(message)}
		if err := r.mark(ctx, m, want); err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
	}
	return nil
}

func (s *scope) memberState(m *machine) (metav1.ConditionStatus, string) {
	switch {
	case s.seen == nil:
		return metav1.ConditionUnknown, s.seenErr.Error()
	case s.settledOnOne():
		return metav1.ConditionTrue, ""
	case s.etcdErr != nil:
		return metav1.ConditionUnknown, s.etcdErr.Error()
	}
	if _, joined := s.seen.Nodes[m.Name]; !joined {
		return metav1.ConditionUnknown, "it has no Node yet"
	}
	if err := healthyMember(m, s.etcd); err != nil {
		return metav1.ConditionFalse, err.Error()
	}
	return metav1.ConditionTrue, ""
}

// sick says what is wrong with the members of etcd.
func (s *scope) sick() error {
	if err := s.strangers(); err != nil {
		return err
	}
	for _, each := range s.etcd {
		if !each.Answers {
			return fmt.Errorf("the member %s of etcd does not answer", memberName(each))
		}
	}
	return nil
}

// healthy returns nothing if each Machine but one has a Node that is Ready, whose API server and member of etcd answer, and if no other
// member of etcd than theirs is there. but may be empty.
func (r *Reconciler) healthy(ctx context.Context, s *scope, but string) error {
	if s.seen == nil {
		return s.seenErr
	}
	members, err := r.members(ctx, s)
	if err != nil {
		return err
	}
	if err := s.strangers(); err != nil {
		return err
	}
	for _, m := range s.machines {
		if m.Name == but {
			continue
		}
		if err := s.healthyMachine(ctx, m, members); err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
	}
	return nil
}

func (s *scope) healthyMachine(ctx context.Context, m *machine, members []etcd.Member) error {
	n, ok := s.seen.Nodes[m.Name]
	switch {
	case !ok:
		return errors.New("it has no Node yet")
	case !n.Ready:
		return errors.New("its Node is not Ready")
	}
	if err := healthyMember(m, members); err != nil {
		return err
	}
	return s.workload.Serves(ctx, n)
}

// healthyMember returns nothing if a Machine has a member of etcd that votes and answers.
func healthyMember(m *machine, members []etcd.Member) error {
	member, ok := memberOf(m, members)
	switch {
	case !ok:
		return errors.New("it has no member of etcd")
	case member.Learner:
		return errors.New("its member of etcd has no vote yet")
	case !member.Answers:
		return errors.New("its member of etcd does not answer")
	}
	return nil
}

// strangers names the members of etcd that are no Machine's.
func (s *scope) strangers() error {
	var all []error
	for _, y := range s.strays {
		all = append(all, y.problem())
	}
	return errors.Join(all...)
}
