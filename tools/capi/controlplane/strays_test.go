package controlplane

import (
	"errors"
	"fmt"
	"net/netip"
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
	bootstrapv1 "github.com/hullmark/hullmark/tools/capi/api/bootstrap/v1alpha1"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// force deletes a Machine as who takes its finalizers away does, past all hooks. Its machine goes, and what the cluster has of it stays.
func (w *world) force(name string) {
	w.Helper()
	m := w.machine(name)
	before := m.DeepCopy()
	m.Finalizers = nil
	w.must(w.Patch(w.Context(), m, client.MergeFrom(before)))
	w.must(w.Delete(w.Context(), m))
	w.must(w.Delete(w.Context(), stub("StubMachine", name)))
	w.must(w.Delete(w.Context(), &bootstrapv1.HullmarkConfig{ObjectMeta: metaOf(name)}))
	w.workload.setNode(name, func(n *Node) { n.Ready = false })
	w.workload.setMember(name, func(m *etcd.Member) { m.Answers = false })
}

// add adds a member of etcd, which does not answer.
func (w *world) add(m etcd.Member) {
	w.workload.mutex.Lock()
	defer w.workload.mutex.Unlock()
	w.workload.members = append(w.workload.members, m)
}

// watch reconciles for so long, as often as the controller looks while something is waited for.
func (w *world) watch(d time.Duration) {
	w.Helper()
	for end := w.clock.Add(d); w.clock.Before(end); w.clock = w.clock.Add(time.Minute) {
		if result := w.reconcile(); result.RequeueAfter > retry {
			w.Errorf("it is looked at again only after %v", result.RequeueAfter)
		}
	}
	w.reconcile()
}

// memberIDs are those of etcd's members.
func (w *world) memberIDs() (ids []uint64) {
	w.workload.mutex.Lock()
	defer w.workload.mutex.Unlock()
	for _, m := range w.workload.members {
		ids = append(ids, m.ID)
	}
	return ids
}

// heard are the events so far.
func (w *world) heard() (all string) {
	for {
		select {
		case e := <-w.events.Events:
			all += e + "\n"
		default:
			return all
		}
	}
}

// What a Machine leaves in etcd that somebody deletes by force is removed, after a while, and another Machine takes its place.
func TestForcedDeletionLeavesNoMember(t *testing.T) {
	w := newThree(t)
	gone := w.list()[0]
	w.force(gone)
	w.watch(strayWait - time.Minute)
	if !slices.Contains(w.workload.memberNames(), gone) || len(w.list()) != 2 {
		t.Fatalf("Machines %q, members %q: it was removed too early, or not waited for", w.list(), w.workload.memberNames())
	}
	message := conditions.GetMessage(w.plane(), v1alpha1.EtcdClusterHealthyCondition)
	if !strings.Contains(message, gone) || !strings.Contains(message, "it is removed at ") {
		t.Errorf("the condition says %q", message)
	}
	w.watch(time.Minute)
	w.settle(3, 2, 3)
	if !slices.Equal(w.workload.removed, []string{gone}) {
		t.Errorf("removed %q", w.workload.removed)
	}
	if events := w.heard(); !strings.Contains(events, "StrayMemberRemoved") || !strings.Contains(events, "hullmark node remove "+gone+" --force") {
		t.Errorf("events: %s", events)
	}
	if !conditions.IsTrue(w.plane(), v1alpha1.EtcdClusterHealthyCondition) {
		t.Error("etcd is not healthy")
	}
}

// A learner that never started, at an address of no Machine, is removed, also where there is but one Machine.
func TestUnstartedStrayIsRemoved(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.add(etcd.Member{ID: 99, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.99")}, Learner: true})
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](3) })
	w.watch(strayWait - time.Minute)
	if len(w.list()) != 1 || len(w.workload.removed) != 0 {
		t.Fatalf("Machines %q, removed %q", w.list(), w.workload.removed)
	}
	w.watch(time.Minute)
	w.settle(3, 1, 3)
}

// TestStraysThatStay is the table of members of no Machine that are not removed, whatever time passes, and of what a person is told.
func TestStraysThatStay(t *testing.T) {
	silent := etcd.Member{ID: 99, Name: "c-cp-abcde"}
	record := func(w *world, name string) {
		w.workload.view.Records[hullmark.EKID{99}] = joinservice.Machine{EKID: hullmark.EKID{99}, Name: name}
	}
	for name, test := range map[string]struct {
		harm func(*world)
		says string
	}{
		"it answers": {func(w *world) {
			w.add(etcd.Member{ID: 99, Name: "outside", Answers: true})
		}, "hullmark policy remove member outside"},
		"it learns": {func(w *world) {
			w.add(etcd.Member{ID: 99, Name: "c-cp-abcde", Learner: true, Answers: true})
		}, "it answers"},
		"its Node is Ready": {func(w *world) {
			w.add(silent)
			w.workload.setNode(silent.Name, func(n *Node) { n.Ready = true })
		}, "its Node is Ready"},
		"a machine that joined outside": {func(w *world) {
			w.add(etcd.Member{ID: 99, Name: "outside"})
			record(w, "outside")
		}, "hullmark node remove outside --force"},
		"a machine outside whose name is almost like ours": {func(w *world) {
			w.add(etcd.Member{ID: 99, Name: "c-cp-node1"})
			record(w, "c-cp-node1")
		}, "start its machine"},
		"a Machine that lost its labels": {func(w *world) {
			name := w.list()[0]
			m := w.machine(name)
			m.Labels = nil
			w.must(w.Update(w.Context(), m))
			w.workload.setMember(name, func(m *etcd.Member) { m.ID, m.Answers = 99, false })
			w.workload.setNode(name, func(n *Node) { n.Ready = false })
		}, "look at its labels"},
		"a Machine that left its config": {func(w *world) {
			w.add(silent)
			w.must(w.Create(w.Context(), &bootstrapv1.HullmarkConfig{ObjectMeta: metaOf(silent.Name)}))
		}, "HullmarkConfig"},
		"it may be of one that joins": {func(w *world) {
			w.add(etcd.Member{ID: 99, Learner: true})
			w.workload.mutex.Lock()
			delete(w.workload.view.Nodes, w.list()[0])
			w.workload.mutex.Unlock()
		}, "which has not joined"},
		"it may be of another's": {func(w *world) {
			w.add(etcd.Member{ID: 99, Learner: true})
			w.must(w.Create(w.Context(), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", Labels: map[string]string{
				clusterv1.ClusterNameLabel: "c", clusterv1.MachineControlPlaneLabel: "",
			}}}))
		}, "it may be of Machine other"},
		"a Machine's own is down": {func(w *world) {
			w.add(silent)
			w.workload.setMember(w.list()[0], func(m *etcd.Member) { m.Answers = false })
		}, "if that stays so, and the Machines' own members answer"},
		"others are the majority": {func(w *world) {
			w.add(silent)
			for i := range 3 {
				w.add(etcd.Member{ID: 90 + uint64(i), Name: fmt.Sprint("outside-", i), Answers: true})
			}
		}, "and are a majority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newThree(t)
			test.harm(w)
			w.watch(3 * strayWait)
			if !slices.Contains(w.memberIDs(), 99) || len(w.workload.removed) != 0 {
				t.Errorf("members %x, removed %q", w.memberIDs(), w.workload.removed)
			}
			c := conditions.Get(w.plane(), v1alpha1.EtcdClusterHealthyCondition)
			if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, test.says) {
				t.Errorf("the condition does not say %q: %s", test.says, c)
			}
		})
	}
}

// Once a machine that joined outside is switched off and forgotten, as the condition says, its member goes.
func TestOutsiderIsEnded(t *testing.T) {
	w := newThree(t)
	w.workload.join(hullmark.EKID{99}, "outside")
	w.watch(2 * strayWait)
	w.must(w.workload.Forget(t.Context(), hullmark.EKID{99}))
	w.workload.setMember("outside", func(m *etcd.Member) { m.Answers = false })
	w.watch(strayWait)
	if slices.Contains(w.workload.memberNames(), "outside") {
		t.Errorf("members %q", w.workload.memberNames())
	}
}

// Time counts only while a stray is seen silent: not while it answers, while nobody looks, or before another controller.
func TestStrayWaits(t *testing.T) {
	for name, between := range map[string]func(*world){
		"it answered": func(w *world) {
			w.workload.setMember("c-cp-abcde", func(m *etcd.Member) { m.Answers = true })
			w.reconcile()
			w.workload.setMember("c-cp-abcde", func(m *etcd.Member) { m.Answers = false })
		},
		"nobody looked":      func(w *world) { w.clock = w.clock.Add(2 * strayWait) },
		"another controller": func(w *world) { w.r = w.controller(w.Client) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newThree(t)
			w.add(etcd.Member{ID: 99, Name: "c-cp-abcde"})
			w.watch(strayWait - 2*time.Minute)
			between(w)
			w.watch(strayWait - 2*time.Minute)
			if !slices.Contains(w.memberIDs(), 99) {
				t.Error("it was removed too early")
			}
			w.watch(2 * time.Minute)
			if slices.Contains(w.memberIDs(), 99) {
				t.Error("it was not removed")
			}
		})
	}
}

// A Machine that died between being added to etcd and its start is replaced: the member that never started is its own, by the address.
func TestDiedWhileJoining(t *testing.T) {
	w := newThree(t)
	w.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](5) })
	w.until("a fourth Machine", func() error {
		if n := len(w.list()); n != 4 {
			return fmt.Errorf("%d Machines", n)
		}
		return nil
	})
	w.reconcile()
	i := slices.IndexFunc(w.list(), func(name string) bool { _, joined := w.workload.node(name); return !joined })
	dead := w.list()[i]
	infra := stub("StubMachine", dead)
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(infra), infra))
	w.add(etcd.Member{ID: 99, Addresses: []netip.Addr{netip.MustParseAddr(addressesOf(infra)[0])}, Learner: true})
	w.sicken(dead)
	w.without(dead)
	w.settle(5, 3, 5)
	if slices.Contains(w.memberIDs(), 99) {
		t.Error("its member is there")
	}
}

// What cannot be asked is Unknown, and not False, of the control plane and of its Machines; that the API does not answer is known.
func TestUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		harm                  func(w *world, name string)
		etcd, available, mine metav1.ConditionStatus
	}{
		"all is well": {func(*world, string) {}, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionTrue},
		"no API": {func(w *world, _ string) {
			w.workload.err = errors.New("it does not answer")
		}, metav1.ConditionUnknown, metav1.ConditionFalse, metav1.ConditionUnknown},
		"no etcd": {func(w *world, _ string) {
			w.workload.deaf = errors.New("port 2379 is closed")
		}, metav1.ConditionUnknown, metav1.ConditionTrue, metav1.ConditionUnknown},
		"no cluster file": {func(w *world, _ string) { w.custody.set(nil) }, metav1.ConditionUnknown, metav1.ConditionUnknown, metav1.ConditionUnknown},
		"its member is down": {func(w *world, name string) {
			w.workload.setMember(name, func(m *etcd.Member) { m.Answers = false })
		}, metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newThree(t)
			machine := w.list()[0]
			test.harm(w, machine)
			w.reconcile()
			for kind, want := range map[string]metav1.ConditionStatus{v1alpha1.EtcdClusterHealthyCondition: test.etcd, v1alpha1.AvailableCondition: test.available} {
				if c := conditions.Get(w.plane(), kind); c.Status != want {
					t.Errorf("want %s: %s", want, c)
				}
			}
			if c := conditions.Get(w.machine(machine), v1alpha1.EtcdMemberHealthyCondition); c == nil || c.Status != test.mine {
				t.Errorf("want %s: %s", test.mine, c)
			}
		})
	}
}
