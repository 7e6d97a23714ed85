package controlplane

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// again deletes the control plane, but none of what it has, and makes it anew, with another UID.
func (w *world) again() {
	w.Helper()
	p := w.plane()
	before := p.DeepCopy()
	p.Finalizers = nil
	w.must(w.Patch(w.Context(), p, client.MergeFrom(before)))
	w.must(w.Delete(w.Context(), p))
	next := newPlane(p.Spec.Config.ClusterRoot, p.Spec.Version)
	next.UID, next.Spec = "uid-again", p.Spec
	w.must(w.Create(w.Context(), next))
}

// own gives a Machine these owners.
func (w *world) own(name string, owners ...metav1.OwnerReference) {
	w.Helper()
	m := w.machine(name)
	before := m.DeepCopy()
	m.OwnerReferences = owners
	w.must(w.Patch(w.Context(), m, client.MergeFrom(before)))
}

// A control plane that is made anew, after kubectl delete --cascade=orphan or from a backup, takes its Machines back, and makes no others.
func TestAdopt(t *testing.T) {
	for name, orphaned := range map[string]bool{"orphaned": true, "restored": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newThree(t)
			names := w.list()
			w.again()
			if orphaned {
				for _, name := range names {
					w.own(name)
				}
			}
			w.settle(3, 3, 3)
			if now := w.list(); !slices.Equal(now, names) || len(w.workload.removed) != 0 {
				t.Errorf("Machines %q, were %q; removed %q", now, names, w.workload.removed)
			}
			for _, name := range names {
				if m := w.machine(name); !metav1.IsControlledBy(m, w.plane()) || len(m.OwnerReferences) != 1 {
					t.Errorf("Machine %s is owned by %+v", name, m.OwnerReferences)
				}
			}
			if !strings.Contains(w.heard(), "MachineAdopted") {
				t.Error("no event tells of it")
			}
			secret := &corev1.Secret{}
			w.must(w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "c-kubeconfig"}, secret))
			if !ownedBy(secret, w.plane()) {
				t.Errorf("the kubeconfig is owned by %+v", secret.OwnerReferences)
			}
		})
	}
}

// One that is being deleted without an owner is adopted, too, and let go.
func TestAdoptToLetGo(t *testing.T) {
	w := newThree(t)
	gone := w.list()[0]
	w.own(gone)
	w.must(w.Delete(t.Context(), w.machine(gone)))
	w.without(gone)
	w.settle(3, 2, 3)
	if !slices.Equal(w.workload.removed, []string{gone}) {
		t.Errorf("removed %q", w.workload.removed)
	}
}

// TestNotAdopted is the table of what no control plane takes.
func TestNotAdopted(t *testing.T) {
	other := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.ControlPlaneKind, Name: "other", UID: "u", Controller: ptr.To(true)}
	for name, edit := range map[string]func(*clusterv1.Machine){
		"another's":                  func(m *clusterv1.Machine) { m.OwnerReferences = []metav1.OwnerReference{other} },
		"another control plane's":    func(m *clusterv1.Machine) { m.Labels[clusterv1.MachineControlPlaneNameLabel] = "other" },
		"of no control plane's name": func(m *clusterv1.Machine) { delete(m.Labels, clusterv1.MachineControlPlaneNameLabel) },
		"another Cluster's":          func(m *clusterv1.Machine) { m.Spec.ClusterName = "other" },
		"of another bootstrap":       func(m *clusterv1.Machine) { m.Spec.Bootstrap.ConfigRef.Kind = "KubeadmConfig" },
		"of another's HullmarkConfig": func(m *clusterv1.Machine) {
			m.Spec.Bootstrap.ConfigRef.APIGroup = "bootstrap.example"
		},
		"with another's config":         func(m *clusterv1.Machine) { m.Spec.Bootstrap.ConfigRef.Name = "c-cp-other" },
		"with another's infrastructure": func(m *clusterv1.Machine) { m.Spec.InfrastructureRef.Name = "c-cp-other" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newThree(t)
			lost := w.list()[0]
			m := w.machine(lost)
			before := m.DeepCopy()
			m.OwnerReferences = nil
			edit(m)
			owners := m.OwnerReferences
			w.must(w.Patch(t.Context(), m, client.MergeFrom(before)))
			for range 5 {
				w.reconcile()
			}
			if now := w.machine(lost).OwnerReferences; !equality.Semantic.DeepEqual(now, owners) {
				t.Errorf("it is owned by %+v", now)
			}
			if n := len(w.list()); n != 3 {
				t.Errorf("%d Machines: one was made although a member of etcd is nobody's", n)
			}
			if message := conditions.GetMessage(w.plane(), v1alpha1.EtcdClusterHealthyCondition); !strings.Contains(message, lost) {
				t.Errorf("the condition says %q", message)
			}
		})
	}
}

// A controller that does not know yet that its control plane is gone takes nothing.
func TestStaleControllerAdoptsNothing(t *testing.T) {
	w := newThree(t)
	name := w.list()[0]
	w.own(name)
	adopt := func(edit func(*v1alpha1.HullmarkControlPlane)) (bool, error) {
		plane := w.plane()
		edit(plane)
		s := &scope{plane: plane, cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}, verdicts: map[string]verdict{}}
		return w.r.adopt(t.Context(), s, w.machine(name))
	}
	if adopted, err := adopt(func(p *v1alpha1.HullmarkControlPlane) { p.UID = "uid-before" }); adopted || err != nil {
		t.Errorf("another has its name by now: %v, %v", adopted, err)
	}
	known := w.plane()
	w.must(w.Delete(t.Context(), w.plane())) // It has a finalizer.
	if adopted, err := adopt(func(p *v1alpha1.HullmarkControlPlane) { *p = *known }); adopted || err != nil {
		t.Errorf("it is being deleted: %v, %v", adopted, err)
	}
}

// A Machine that somebody names like a machine which joined outside does not have that one's member of etcd removed when it goes.
func TestNamesakeOfAMachineOutside(t *testing.T) {
	w := newThree(t)
	w.workload.join(hullmark.EKID{99}, "outside")
	namesake := w.machine(w.list()[0])
	namesake.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "outside", Labels: namesake.Labels, Annotations: map[string]string{ekidAnnotation: hullmark.EKID{99}.String()}}
	namesake.Spec.Bootstrap.ConfigRef.Name, namesake.Spec.InfrastructureRef.Name = namesake.Name, namesake.Name
	w.must(w.Create(t.Context(), namesake))
	w.reconcile()
	w.must(w.Delete(t.Context(), w.machine(namesake.Name)))
	for range 10 {
		w.reconcile()
	}
	if !slices.Contains(w.workload.memberNames(), "outside") || len(w.workload.forgotten) > 0 {
		t.Errorf("members %q, forgotten %v", w.workload.memberNames(), w.workload.forgotten)
	}
}
