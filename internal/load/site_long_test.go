//go:build long

package load

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// site is a cluster with two replicas of its join service.
type site struct {
	*testenv.Environment
	dir      string
	admin    *registry.Registry
	objects  *client // the administrator's
	replicas []*replica
	machines []*machine
	// group admits all machines, if there is one; otherwise each has a rule of its own.
	group *measurements.Group
	// beaten is when all Nodes were said to be Ready last.
	beaten time.Time
}

// replica is one process of the join service, which has the same addresses after a restart.
type replica struct{ *testenv.JoinService }

// newSite starts an API and makes n machines; the replicas start once the policy knows the machines.
func newSite(t *testing.T, n int) *site {
	t.Helper()
	ctx, s := t.Context(), &site{dir: t.TempDir()}
	var err error
	if s.Environment, err = testenv.Start(ctx, s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, s.Apply(ctx, registry.Manifest()))
	config, err := s.Config("hullmark-operator", "kubeadm:cluster-admins")
	must(t, err)
	s.admin, err = registry.New(config)
	must(t, err)
	s.objects, err = newClient(config)
	must(t, err)
	t.Cleanup(s.objects.close)
	s.makeMachines(t, n)
	s.Cluster.Settings = &joinservice.Settings{ControlPlaneEndpoint: s.Address, Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}}
	must(t, s.accept(1, images...))
	s.startReplicas(t, s.Address, s.Address)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// startReplicas starts the replicas as clients of the API at these addresses, one each.
func (s *site) startReplicas(t testing.TB, api ...string) {
	t.Helper()
	program := filepath.Join(s.dir, "bin", "joinservice")
	must(t, testenv.BuildJoinService(t.Context(), program))
	for i, address := range api {
		service, err := testenv.NewJoinService(program, filepath.Join(s.dir, fmt.Sprint("replica-", i)), s.Cluster, "-api", "https://"+address, "-profile")
		must(t, err)
		must(t, service.Start(t.Context()))
		s.replicas = append(s.replicas, &replica{service})
		t.Cleanup(func() {
			if err := service.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// accept makes the cluster's next policy: all machines, and the documents of these images.
func (s *site) accept(version uint64, images ...string) error {
	policy := measurements.Policy{Version: version}
	var documents []measurements.Document
	for _, image := range images {
		document := documentOf[image]
		id, err := document.Digest()
		if err != nil {
			return err
		}
		policy.Documents = append(policy.Documents, measurements.Accepted{Document: id, Enforce: joinservice.DefaultEnforced(document)})
		documents = append(documents, document)
	}
	if s.group != nil {
		policy.Groups = []measurements.Group{*s.group}
		return s.Cluster.SetPolicy(policy, documents...)
	}
	for _, m := range s.machines {
		policy.Members = append(policy.Members, m.member())
	}
	return s.Cluster.SetPolicy(policy, documents...)
}

// push gives the cluster its policy as the operator does, and waits until both replicas have taken it.
func (s *site) push(ctx context.Context, version uint64, images ...string) error {
	if err := s.accept(version, images...); err != nil {
		return err
	}
	if err := s.admin.PushPolicy(ctx, "", registry.AnyVersion, s.Cluster.Policy, s.Cluster.Documents); err != nil {
		return err
	}
	return s.inForce(ctx, version)
}

// inForce waits until both replicas say that this version is in force.
func (s *site) inForce(ctx context.Context, version uint64) error {
	for _, r := range s.replicas {
		err := eventually(ctx, func() error {
			got, err := r.metric("hullmark_policy_version")
			if err == nil && got != fmt.Sprint(version) {
				err = fmt.Errorf("policy version %s is in force, want %d", got, version)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eventually waits for what another process is to do.
func eventually(ctx context.Context, done func() error) error {
	return testenv.Poll(ctx, 100*time.Millisecond, done)
}
