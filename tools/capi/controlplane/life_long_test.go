//go:build long

package controlplane

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hullmark/hullmark/tools/capi/api/controlplane/v1alpha1"
)

// TestLife goes a control plane's way with core's own reconcilers and real members of etcd: begun, three Machines, one of them deleted by
// force, all replaced, one, deleted with its Cluster. Core sees what the contract promises.
func TestLife(t *testing.T) {
	t.Parallel()
	h := newHost(t, "life")
	h.start(&fuse{})
	h.lend()
	h.settled(1)
	core := &clusterv1.Cluster{}
	h.eventually("core sees that it is initialized and available", func() error {
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: "life", Name: "c"}, core); err != nil {
			return err
		}
		if !ptr.Deref(core.Status.Initialization.ControlPlaneInitialized, false) || !conditions.IsTrue(core, clusterv1.ClusterControlPlaneAvailableCondition) ||
			!conditions.IsTrue(core, clusterv1.ClusterRemoteConnectionProbeCondition) {
			return fmt.Errorf("%+v", core.Status)
		}
		return nil
	})
	first := h.machines()
	h.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](3) })
	h.settled(3)
	h.force(h.machines()[0])
	h.settled(3)
	three := h.machines()
	h.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Config.JoinEndpoints = []string{"join.example:7444"} })
	h.eventually("all are replaced", func() error {
		for _, name := range h.machines() {
			if slices.Contains(three, name) {
				return fmt.Errorf("%s is there", name)
			}
		}
		return nil
	})
	h.settled(3)
	h.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](1) })
	h.settled(1)
	if now := h.machines(); slices.Equal(now, first) {
		t.Errorf("Machines %q", now)
	}
	if err := admin.Delete(t.Context(), core); err != nil {
		t.Fatal(err)
	}
	h.eventually("the Cluster is gone", func() error {
		err := admin.Get(t.Context(), client.ObjectKey{Namespace: "life", Name: "c"}, core)
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
}

// force deletes a Machine past all hooks, and waits until its machine is gone, too. Its member of etcd is left.
func (h *host) force(name string) {
	h.Helper()
	m := &clusterv1.Machine{}
	key := client.ObjectKey{Namespace: h.namespace, Name: name}
	if err := admin.Get(h.Context(), key, m); err != nil {
		h.Fatal(err)
	}
	if err := admin.Delete(h.Context(), m); err != nil {
		h.Fatal(err)
	}
	h.eventually(name+" is gone", func() error {
		err := admin.Patch(h.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		if err := admin.Get(h.Context(), key, stub("StubMachine", name)); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("its machine is there"), err)
		}
		return nil
	})
	if names := h.machines(); slices.Contains(names, name) {
		h.Fatalf("Machines %q", names)
	}
}

// TestKilledAtEtcd kills the controller around each change of etcd's members, with real ones: the next one ends in the same state.
func TestKilledAtEtcd(t *testing.T) {
	t.Parallel()
	h := newHost(t, "killed")
	stop := h.start(&fuse{})
	h.lend()
	h.settled(1)
	h.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](3) })
	h.settled(3)
	stop()
	f := &fuse{at: 1, only: "remove a member"}
	stop = h.start(f)
	h.change(func(p *v1alpha1.HullmarkControlPlane) { p.Spec.Replicas = ptr.To[int32](1) })
	h.eventually("a member is removed, and nobody hears of it", func() error {
		if !f.blown() {
			return errors.New("not yet")
		}
		return nil
	})
	stop()
	if !strings.HasPrefix(f.what[0], "remove a member") {
		t.Errorf("killed at %s", f.what[0])
	}
	h.start(&fuse{})
	h.settled(1)
}

// TestRefusedByTheAPI is the table of what the API server itself refuses.
func TestRefusedByTheAPI(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit    func(*v1alpha1.HullmarkControlPlaneSpec)
		message string
	}{
		"as it is":       {func(*v1alpha1.HullmarkControlPlaneSpec) {}, ""},
		"two replicas":   {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Replicas = ptr.To[int32](2) }, "replicas is odd"},
		"no replicas":    {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Replicas = ptr.To[int32](0) }, "replicas"},
		"no version":     {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Version = "latest" }, "version"},
		"no network":     {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Kubernetes.Network = v1alpha1.NoNetwork }, "manifests"},
		"address of one": {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Config.Network.Addresses = []string{"192.0.2.1/24"} }, ""},
		"address of 3": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.Replicas, s.Config.Network.Addresses = ptr.To[int32](3), []string{"192.0.2.1/24"}
		}, "one address"},
		"surge 0 of one": {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Rollout.Strategy = surge(0) }, "three replicas"},
		"surge 0 of 3": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.Replicas, s.Rollout.Strategy = ptr.To[int32](3), surge(0)
		}, ""},
		"surge in place": {func(s *v1alpha1.HullmarkControlPlaneSpec) {
			s.Rollout.Strategy = surge(1)
			s.Rollout.Strategy.Type = v1alpha1.InPlace
		}, "RollingUpdate"},
		"another rollout": {func(s *v1alpha1.HullmarkControlPlaneSpec) { s.Rollout.Strategy.Type = "OnDelete" }, "Unsupported value"},
	} {
		p := newPlane(strings.Repeat("1", 64), "v1.36.3")
		p.UID, p.OwnerReferences, p.Namespace = "", nil, "default"
		test.edit(&p.Spec)
		err := admin.Create(t.Context(), p, client.DryRunAll)
		if (err == nil) != (test.message == "") || err != nil && !strings.Contains(err.Error(), test.message) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func surge(n int32) v1alpha1.RolloutStrategy {
	return v1alpha1.RolloutStrategy{Type: v1alpha1.RollingUpdate, RollingUpdate: v1alpha1.RollingUpdateSpec{MaxSurge: &n}}
}
