package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/etcd"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// admit lets each Machine join that has no Node, one reconciliation after it was asked for.
func (w *world) admit() {
	w.Helper()
	for _, name := range w.list() {
		m := w.machine(name)
		if _, ok := w.workload.node(name); ok || !m.DeletionTimestamp.IsZero() {
			continue
		}
		infra := stub("StubMachine", name)
		w.must(w.Get(w.Context(), client.ObjectKeyFromObject(infra), infra))
		if node, err := hullmark.ParseEKID(field(infra, "status", "ekID")); err == nil {
			w.workload.join(node, name)
		}
	}
}

func (w *world) machine(name string) *clusterv1.Machine {
	w.Helper()
	m := &clusterv1.Machine{}
	w.must(w.Get(w.Context(), client.ObjectKey{Namespace: "ns", Name: name}, m))
	return m
}

func (f *fakeWorkload) node(name string) (Node, bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	n, ok := f.view.Nodes[name]
	return n, ok
}

func (f *fakeWorkload) setNode(name string, edit func(*Node)) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	n := f.view.Nodes[name]
	edit(&n)
	f.view.Nodes[name] = n
}

func (f *fakeWorkload) setMember(name string, edit func(*etcd.Member)) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for i := range f.members {
		if f.members[i].Name == name {
			edit(&f.members[i])
		}
	}
}

func (f *fakeWorkload) memberNames() (names []string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, m := range f.members {
		names = append(names, m.Name)
	}
	return names
}

// settle reconciles, with everybody who joins admitted at once, until there are so many Machines, all with their members and up to date.
// At each moment there are at most most and at least least members.
func (w *world) settle(machines, least, most int) {
	w.Helper()
	w.until(fmt.Sprintf("%d machines", machines), func() error {
		w.admit()
		if n := len(w.workload.memberNames()); n < least || n > most {
			w.Fatalf("%d members of etcd, want %d to %d", n, least, most)
		}
		names, members := w.list(), w.workload.memberNames()
		slices.Sort(names)
		slices.Sort(members)
		if len(names) != machines || !slices.Equal(names, members) {
			return fmt.Errorf("Machines %q, members %q", names, members)
		}
		p := w.plane()
		if !conditions.IsTrue(p, clusterv1.MachinesUpToDateCondition) || int(*p.Status.UpToDateReplicas) != machines {
			return fmt.Errorf("%+v", p.Status)
		}
		return nil
	})
}

// Who may make and delete Machines has no other machine forgotten by that, whose identity his own claims.
func TestClaimedIdentityForgetsNobody(t *testing.T) {
	w := newThree(t)
	victim := w.machine(w.list()[0])
	id, err := hullmark.ParseEKID(victim.Annotations[ekidAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	claims := victim.DeepCopy()
	claims.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "c-cp-clmng", Labels: victim.Labels, Annotations: map[string]string{ekidAnnotation: id.String()}}
	claims.Spec.Bootstrap.ConfigRef.Name, claims.Spec.InfrastructureRef.Name = claims.Name, claims.Name
	w.must(w.Create(t.Context(), claims))
	w.reconcile()
	w.must(w.Delete(t.Context(), w.machine(claims.Name)))
	w.without(claims.Name)
	if len(w.workload.forgotten) > 0 {
		t.Errorf("forgotten: %v", w.workload.forgotten)
	}
}

// newThree returns a world with three machines that run.
func newThree(t *testing.T, edit ...func(*v1alpha1.HullmarkControlPlane, *clusterv1.Cluster)) *world {
	t.Helper()
	w := newWorld(t, edit...)
	w.start()
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](3) })
	w.settle(3, 1, 3)
	return w
}

// Machines join one at a time, each by a rule, and leave one at a time; those that go are forgotten.
func TestScale(t *testing.T) {
	w := newWorld(t)
	w.start()
	first := w.list()[0]
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](3) })
	message := w.reason(clusterv1.ScalingUpCondition, v1alpha1.WaitingForRuleReason)
	for range 5 {
		w.reconcile()
	}
	names := w.list()
	if len(names) != 2 {
		t.Fatalf("Machines: %q, want one more at a time", names)
	}
	second := names[0]
	if second == first {
		second = names[1]
	}
	for _, part := range []string{"hullmark policy add member --cluster FILE --ekid", "--role control-plane --name " + second, "--provider-id stub://" + second, "hullmark policy push --cluster FILE", "take-back"} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition does not say %q: %s", part, message)
		}
	}
	w.settle(3, 1, 3)
	w.reason(clusterv1.ScalingUpCondition, clusterv1.NotScalingUpReason)
	if p := w.plane(); *p.Status.Replicas != 3 {
		t.Errorf("status: %+v", p.Status)
	}
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](1) })
	w.settle(1, 1, 3)
	if len(w.workload.removed) != 2 || len(w.workload.forgotten) != 2 || slices.Contains(w.workload.removed, w.list()[0]) {
		t.Errorf("removed %q, forgotten %v", w.workload.removed, w.workload.forgotten)
	}
}

// No Machine is made, and none deleted, while another is not healthy.
func TestStepsWaitForHealth(t *testing.T) {
	for name, harm := range map[string]func(*world, string){
		"a Node":        func(w *world, m string) { w.workload.setNode(m, func(n *Node) { n.Ready = false }) },
		"a member":      func(w *world, m string) { w.workload.setMember(m, func(e *etcd.Member) { e.Answers = false }) },
		"a learner":     func(w *world, m string) { w.workload.setMember(m, func(e *etcd.Member) { e.Learner = true }) },
		"an API server": func(w *world, m string) { w.workload.sick = []string{m} },
		"a stranger": func(w *world, _ string) {
			w.workload.members = append(w.workload.members, etcd.Member{ID: 99, Name: "stranger", Answers: true})
		},
		"no API": func(w *world, _ string) { w.workload.err = errors.New("it does not answer") },
	} {
		for _, replicas := range []int32{5, 1} {
			t.Run(fmt.Sprintf("%s, to %d", name, replicas), func(t *testing.T) {
				t.Parallel()
				w := newThree(t)
				// The youngest: the oldest is the one to go.
				names := w.list()
				slices.SortFunc(names, func(a, b string) int {
					return w.machine(b).CreationTimestamp.Compare(w.machine(a).CreationTimestamp.Time)
				})
				w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = &replicas })
				leaving := ""
				if replicas == 1 {
					s := &scope{plane: w.plane(), cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}, verdicts: map[string]verdict{}}
					w.must(w.r.lookAtMachines(t.Context(), s))
					leaving = w.r.choose(t.Context(), s).Name
				}
				sick := names[slices.IndexFunc(names, func(n string) bool { return n != leaving })]
				if replicas == 1 && name == "a Node" {
					// One whose Node is down is preferred; two of them block.
					w.workload.setNode(leaving, func(n *Node) { n.Ready = false })
				}
				harm(w, sick)
				for range 6 {
					w.reconcile()
				}
				if names := w.list(); len(names) != 3 || len(w.workload.removed) != 0 {
					t.Errorf("Machines %q, removed %q", names, w.workload.removed)
				}
				for _, n := range w.list() {
					if !w.machine(n).DeletionTimestamp.IsZero() {
						t.Errorf("Machine %s is deleted", n)
					}
				}
				kind := clusterv1.ScalingUpCondition
				if replicas == 1 {
					kind = clusterv1.ScalingDownCondition
				}
				if got := conditions.GetReason(w.plane(), kind); got != v1alpha1.WaitingForHealthReason {
					t.Errorf("%s is %s", kind, conditions.Get(w.plane(), kind))
				}
				if name == "no API" && conditions.IsTrue(w.plane(), v1alpha1.AvailableCondition) {
					t.Error("it is Available")
				}
			})
		}
	}
}

// Somebody deletes a Machine: it leaves etcd before it ends, waits for a quorum, and is replaced.
func TestSomebodyDeletesAMachine(t *testing.T) {
	w := newThree(t)
	gone, other := w.list()[0], w.list()[1]
	w.workload.setMember(other, func(m *etcd.Member) { m.Answers = false })
	w.must(w.Delete(t.Context(), w.machine(gone)))
	w.reason(clusterv1.ScalingDownCondition, v1alpha1.WaitingForQuorumReason)
	for range 5 {
		w.reconcile()
	}
	if !slices.Contains(w.workload.memberNames(), gone) || w.machine(gone).Annotations[v1alpha1.EtcdHookAnnotation] != "" {
		t.Error("it left while another member was down")
	}
	w.workload.setMember(other, func(m *etcd.Member) { m.Answers = true })
	w.settle(3, 2, 3)
	if slices.Contains(w.list(), gone) || !slices.Equal(w.workload.removed, []string{gone}) {
		t.Errorf("Machines %q, removed %q", w.list(), w.workload.removed)
	}
}

// Somebody deletes the only Machine: it goes when another one has all that it has.
func TestSomebodyDeletesTheOnlyMachine(t *testing.T) {
	w := newWorld(t)
	w.start()
	gone := w.list()[0]
	w.must(w.Delete(t.Context(), w.machine(gone)))
	w.reason(clusterv1.ScalingUpCondition, v1alpha1.WaitingForRuleReason)
	for range 5 {
		w.reconcile()
	}
	if !slices.Equal(w.workload.memberNames(), []string{gone}) {
		t.Errorf("members %q", w.workload.memberNames())
	}
	w.settle(1, 1, 2)
	if slices.Contains(w.list(), gone) {
		t.Errorf("Machines %q", w.list())
	}
}

// A rollout replaces Machines one at a time, with one more, or one less.
func TestRollout(t *testing.T) {
	for surge, bounds := range map[int32][2]int{1: {3, 4}, 0: {2, 3}} {
		t.Run(fmt.Sprint("surge ", surge), func(t *testing.T) {
			t.Parallel()
			w := newThree(t)
			was := w.list()
			w.change(func(p *v1alpha1.HullmarkControlPlane) {
				p.Spec.Config.JoinEndpoints = []string{"join.example:7444"}
				p.Spec.Rollout.Strategy = v1alpha1.RolloutStrategy{Type: v1alpha1.RollingUpdate, RollingUpdate: v1alpha1.RollingUpdateSpec{MaxSurge: &surge}}
			})
			w.reason(clusterv1.RollingOutCondition, clusterv1.RollingOutReason)
			w.settle(3, bounds[0], bounds[1])
			for _, name := range w.list() {
				if slices.Contains(was, name) {
					t.Errorf("Machine %s was not replaced", name)
				}
			}
		})
	}
}

// TestOutdated is the table of what replaces a Machine and what does not.
func TestOutdated(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*v1alpha1.HullmarkControlPlaneSpec)
		// outdated and kept are parts of what is said; empty: nothing is.
		outdated, kept string
	}{
		"nothing":    {func(*v1alpha1.HullmarkControlPlaneSpec) {}, "", ""},
		"the v":      {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Version = strings.TrimPrefix(s.Version, "v") }, "", ""},
		"version":    {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Version = "v1.37.0" }, "want v1.37.0", ""},
		"template":   {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.MachineTemplate.Spec.InfrastructureRef.Name = "big" }, "want big", ""},
		"state disk": {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Config.StateDisk.Serial = "other" }, "spec.config", ""},
		"pool":       {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Config.Pool = "other" }, "", ""},
		"metadata": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.MachineTemplate.ObjectMeta.Labels = map[string]string{"a": "b"}
		}, "", ""},
		"timeouts": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.MachineTemplate.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](5)
		}, "", ""},
		"a time": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.Rollout.After = metav1.NewTime(time.Now().Add(-time.Minute))
		}, "rollout.after", ""},
		"a later": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.Rollout.After = metav1.NewTime(time.Now().Add(time.Hour))
		}, "", ""},
		"in place": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.Version, s.Rollout.Strategy.Type = "v1.37.0", v1alpha1.InPlace
		}, "", "want v1.37.0"},
		"disk, too": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.Config.StateDisk.Serial, s.Rollout.Strategy.Type = "other", v1alpha1.InPlace
		}, "spec.config", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			s := &scope{plane: w.plane(), cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}, verdicts: map[string]verdict{}}
			test.edit(&s.plane.Spec)
			w.must(w.r.lookAtMachines(t.Context(), s))
			m := s.machines[0]
			m.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			m.outdated, m.kept = w.r.compare(s, m)
			if (m.outdated == "") != (test.outdated == "") || !strings.Contains(m.outdated, test.outdated) || (m.kept == "") != (test.kept == "") || !strings.Contains(m.kept, test.kept) {
				t.Errorf("outdated %q, kept %q", m.outdated, m.kept)
			}
		})
	}
}

// What replaces no Machine is brought to those that are there, and taken away again.
func TestPropagate(t *testing.T) {
	w := newWorld(t)
	w.start()
	name := w.list()[0]
	w.change(func(p *v1alpha1.HullmarkControlPlane) {
		template := &p.Spec.MachineTemplate
		template.ObjectMeta.Labels, template.ObjectMeta.Annotations = map[string]string{"label": "1"}, map[string]string{"note": "1"}
		template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](7)
		template.Spec.ReadinessGates = []clusterv1.MachineReadinessGate{{ConditionType: "Extra"}}
		p.Spec.Config.Pool = "other"
	})
	w.reconcile()
	m, infra := w.machine(name), stub("StubMachine", name)
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(infra), infra))
	if m.Labels["label"] != "1" || m.Annotations["note"] != "1" || *m.Spec.Deletion.NodeDrainTimeoutSeconds != 7 || len(m.Spec.ReadinessGates) != 1 || infra.GetLabels()["label"] != "1" {
		t.Errorf("Machine %+v", m)
	}
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.MachineTemplate.ObjectMeta = clusterv1.ObjectMeta{} })
	w.reconcile()
	if m := w.machine(name); m.Labels["label"] != "" || m.Annotations["note"] != "" || m.Labels[clusterv1.ClusterNameLabel] != "c" {
		t.Errorf("what the spec dropped stays: %+v", m.ObjectMeta)
	}
	if names := w.list(); !slices.Equal(names, []string{name}) {
		t.Errorf("Machines %q", names)
	}
}

// In place, machines are kept, and a person is told what to do; once their Nodes have the version, all is up to date.
func TestInPlace(t *testing.T) {
	w := newThree(t)
	was := w.list()
	w.change(func(p *v1alpha1.HullmarkControlPlane) {
		p.Spec.Rollout.Strategy.Type, p.Spec.Version = v1alpha1.InPlace, "v1.36.4"
		p.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "big"
	})
	if message := w.reason(clusterv1.RollingOutCondition, v1alpha1.WaitingForUpgradeReason); !strings.Contains(message, "hullmark upgrade apply") {
		t.Error(message)
	}
	for _, name := range was {
		w.workload.setNode(name, func(n *Node) { n.Kubelet = "v1.36.4" })
	}
	w.reason(clusterv1.RollingOutCondition, clusterv1.NotRollingOutReason)
	now := w.list()
	slices.Sort(was)
	slices.Sort(now)
	if !slices.Equal(was, now) || w.plane().Status.Version != "v1.36.4" {
		t.Errorf("Machines %q, before %q; version %s", now, was, w.plane().Status.Version)
	}
}

// sicken has a MachineHealthCheck find a Machine unhealthy.
func (w *world) sicken(name string) {
	w.Helper()
	m := w.machine(name)
	before := m.DeepCopy()
	for _, kind := range []string{clusterv1.MachineHealthCheckSucceededCondition, clusterv1.MachineOwnerRemediatedCondition} {
		conditions.Set(m, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Test"})
	}
	w.must(w.Status().Patch(w.Context(), m, client.MergeFrom(before)))
}

// TestRemediation is the table of what becomes of an unhealthy Machine.
func TestRemediation(t *testing.T) {
	dead := func(w *world, name string) {
		w.workload.setNode(name, func(n *Node) { n.Ready, n.Changed = false, w.clock.Add(-time.Hour) })
		w.workload.setMember(name, func(m *etcd.Member) { m.Answers = false })
	}
	for name, test := range map[string]struct {
		harm   func(w *world, sick, other string)
		reason string
		// replaced says that it is.
		replaced bool
	}{
		"dead":                    {func(w *world, sick, _ string) { dead(w, sick) }, clusterv1.NotRemediatingReason, true},
		"its Node is Ready again": {func(*world, string, string) {}, v1alpha1.RebootingReason, false},
		"it restarts": {func(w *world, sick, _ string) {
			dead(w, sick)
			w.workload.setNode(sick, func(n *Node) { n.Changed = w.clock.Add(-19 * time.Minute) })
		}, v1alpha1.RebootingReason, false},
		"by a shorter limit it is dead": {func(w *world, sick, _ string) {
			dead(w, sick)
			w.workload.setNode(sick, func(n *Node) { n.Changed = w.clock.Add(-19 * time.Minute) })
			w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Remediation.RebootTimeoutSeconds = ptr.To[int32](60) })
		}, clusterv1.NotRemediatingReason, true},
		"it got a ticket": {func(w *world, sick, _ string) {
			dead(w, sick)
			for node, record := range w.workload.view.Records {
				if record.Name == sick {
					record.State, record.Seen = joinservice.MachineJoining, w.clock.Add(-time.Minute)
					w.workload.view.Records[node] = record
				}
			}
		}, v1alpha1.RebootingReason, false},
		"a person's order": {func(w *world, sick, _ string) {
			m := w.machine(sick)
			before := m.DeepCopy()
			m.Annotations[clusterv1.RemediateMachineAnnotation] = ""
			w.must(w.Patch(w.Context(), m, client.MergeFrom(before)))
		}, clusterv1.NotRemediatingReason, true},
		"another is down":  {func(w *world, sick, other string) { dead(w, sick); dead(w, other) }, v1alpha1.NotRemediatedReason, false},
		"no retry is left": {func(w *world, sick, _ string) { dead(w, sick); w.replacement(sick, 2, 10*time.Minute) }, v1alpha1.NotRemediatedReason, false},
		"a retry is left":  {func(w *world, sick, _ string) { dead(w, sick); w.replacement(sick, 1, 10*time.Minute) }, clusterv1.NotRemediatingReason, true},
		"too early":        {func(w *world, sick, _ string) { dead(w, sick); w.replacement(sick, 0, time.Minute) }, v1alpha1.NotRemediatedReason, false},
		"long ago":         {func(w *world, sick, _ string) { dead(w, sick); w.replacement(sick, 2, 2*time.Hour) }, clusterv1.NotRemediatingReason, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newThree(t)
			w.change(func(p *v1alpha1.HullmarkControlPlane) {
				p.Spec.Remediation = v1alpha1.RemediationSpec{MaxRetry: ptr.To[int32](2), RetryPeriodSeconds: ptr.To[int32](300)}
			})
			sick, other := w.list()[0], w.list()[1]
			test.harm(w, sick, other)
			w.sicken(sick)
			if !test.replaced {
				w.reason(clusterv1.RemediatingCondition, test.reason)
				for range 5 {
					w.reconcile()
				}
				if !w.machine(sick).DeletionTimestamp.IsZero() || len(w.list()) != 3 {
					t.Errorf("it is replaced: %q", w.list())
				}
				return
			}
			w.until("it is gone", func() error {
				if slices.Contains(w.list(), sick) {
					return errors.New("it is there")
				}
				return nil
			})
			w.settle(3, 2, 3)
			w.reason(clusterv1.RemediatingCondition, test.reason)
			if p := w.plane(); p.Status.LastRemediation.Machine == "" || p.Annotations[v1alpha1.RemediationForAnnotation] != "" {
				t.Errorf("it is not noted: %+v", p.Status.LastRemediation)
			}
		})
	}
}

// replacement makes a Machine one that took another's place some time ago.
func (w *world) replacement(name string, retries int32, ago time.Duration) {
	w.Helper()
	text, err := json.Marshal(v1alpha1.LastRemediation{Machine: "earlier", Time: metav1.NewTime(w.clock.Add(-ago)), RetryCount: &retries})
	w.must(err)
	m := w.machine(name)
	before := m.DeepCopy()
	m.Annotations[v1alpha1.RemediationForAnnotation] = string(text)
	w.must(w.Patch(w.Context(), m, client.MergeFrom(before)))
}

// The only Machine of a cluster that runs is never replaced for being unhealthy.
func TestOnlyMachineIsNotRemediated(t *testing.T) {
	w := newWorld(t)
	w.start()
	name := w.list()[0]
	w.workload.setNode(name, func(n *Node) { n.Ready, n.Changed = false, w.clock.Add(-time.Hour) })
	w.sicken(name)
	w.reason(clusterv1.RemediatingCondition, v1alpha1.NotRemediatedReason)
	if !w.machine(name).DeletionTimestamp.IsZero() {
		t.Error("it is deleted")
	}
}

// A control plane that is deleted waits for the workers, and goes with its Machines, whose etcd nobody tends.
func TestDelete(t *testing.T) {
	w := newThree(t)
	worker := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "worker", UID: "w", Labels: map[string]string{clusterv1.ClusterNameLabel: "c"}}, Spec: clusterv1.MachineSpec{ClusterName: "c"}}
	w.must(w.Create(t.Context(), worker))
	w.must(w.Delete(t.Context(), w.plane()))
	w.reason(clusterv1.DeletingCondition, clusterv1.DeletingReason)
	for _, name := range w.list() {
		if !w.machine(name).DeletionTimestamp.IsZero() {
			t.Errorf("Machine %s is deleted before the worker", name)
		}
	}
	worker = w.machine("worker")
	worker.Finalizers = nil
	w.must(w.Update(t.Context(), worker))
	w.must(w.Delete(t.Context(), worker))
	w.until("it is gone", func() error {
		p := &v1alpha1.HullmarkControlPlane{}
		if err := w.Get(t.Context(), planeKey, p); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	if names := w.list(); len(names) != 0 || len(w.workload.removed) != 0 {
		t.Errorf("Machines %q, removed %q", names, w.workload.removed)
	}
}

// Machines are spread over the failure domains for control planes.
func TestFailureDomains(t *testing.T) {
	w := newThree(t, func(_ *v1alpha1.HullmarkControlPlane, c *clusterv1.Cluster) {
		for _, name := range []string{"a", "b", "c"} {
			c.Status.FailureDomains = append(c.Status.FailureDomains, clusterv1.FailureDomain{Name: name, ControlPlane: ptr.To(true)})
		}
		c.Status.FailureDomains = append(c.Status.FailureDomains, clusterv1.FailureDomain{Name: "workers", ControlPlane: ptr.To(false)})
	})
	var domains []string
	for _, name := range w.list() {
		domains = append(domains, w.machine(name).Spec.FailureDomain)
	}
	if slices.Sort(domains); !slices.Equal(domains, []string{"a", "b", "c"}) {
		t.Errorf("failure domains %q", domains)
	}
}

// While it is paused nothing is done, and a beginning is broken off.
func TestPaused(t *testing.T) {
	w := newWorld(t)
	w.change(func(p *v1alpha1.HullmarkControlPlane) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, clusterv1.PausedAnnotation, "")
	})
	for range 3 {
		w.reconcile()
	}
	if p := w.plane(); !conditions.IsTrue(p, clusterv1.PausedCondition) || len(w.list()) != 0 {
		t.Errorf("Machines %q, %+v", w.list(), p.Status.Conditions)
	}
	w.change(func(p *v1alpha1.HullmarkControlPlane) { delete(p.Annotations, clusterv1.PausedAnnotation) })
	w.reason(v1alpha1.BegunCondition, v1alpha1.WaitingForClusterFileReason)
}
