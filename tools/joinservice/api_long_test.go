//go:build long

package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
)

// TestServiceWithAPI is a worker's life with a real API: policy, join, outage, and its way back.
func TestServiceWithAPI(t *testing.T) {
	api, err := testenv.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, admin := administer(t, api)
	s := siteOf(t, api.Cluster)
	o, _ := s.start(t, "https://"+api.Address)
	s.push(t, admin, o)

	m := s.dial(t, admin, o)
	token := regexp.MustCompile(`tlsBootstrapToken: ([a-z0-9]{6})\.`).FindSubmatch(s.node.Proceed().GetKubeadmDocuments())
	if m.Record.Committed != 1 || m.Token != "" || token == nil {
		t.Fatalf("recorded %+v, brought %s", m, token)
	}
	if status := secretStatus(t, config, "bootstrap-token-"+string(token[1])); status != http.StatusNotFound {
		t.Errorf("the token's Secret: %d", status)
	}

	grant := s.node.Ticket().Disk
	s.node.Disk = hullmark.DiskClaim{State: hullmark.DiskReady, UUID: grant.UUID, Generation: grant.Generation, Owner: grant.Owner}
	if err := api.StopAPI(); err != nil {
		t.Fatal(err)
	}
	if err := s.node.Dial(t.Context(), o.listen, s.cluster.ID()); err != nil {
		t.Fatal(err)
	}
	if told := s.node.Denied(); told == nil || told.Code != "api-unreachable" || !told.Retry {
		t.Errorf("the node was told %+v", told)
	}
	if err := api.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m := s.dial(t, admin, o); m.Record.Committed != 2 {
		t.Errorf("it came back as %+v", m)
	}
}

// administer gives an API what a join service needs, and returns an operator's access to it. The API is stopped when the test ends.
func administer(t *testing.T, api *testenv.Environment) (*rest.Config, *registry.Registry) {
	t.Helper()
	t.Cleanup(func() {
		if err := api.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := api.Apply(t.Context(), registry.Manifest()); err != nil {
		t.Fatal(err)
	}
	config, err := api.Config("hullmark-operator", "kubeadm:cluster-admins")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := registry.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return config, admin
}

// push gives the cluster the next version of the policy, and waits until it is in force.
func (s *site) push(t *testing.T, admin *registry.Registry, o options) {
	t.Helper()
	s.policy.Version++
	if err := admin.PushPolicy(t.Context(), "", registry.AnyVersion, s.sign(t), s.documents); err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("\nhullmark_policy_version %d\n", s.policy.Version)
	for end := time.Now().Add(time.Minute); !strings.Contains(get(t, o.http, "/metrics"), line); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the pushed policy is not in force")
		}
	}
}

// dial runs one exchange to Ready and returns what is recorded.
func (s *site) dial(t *testing.T, admin *registry.Registry, o options) joinservice.Machine {
	t.Helper()
	start := time.Now()
	if err := s.node.Dial(t.Context(), o.listen, s.cluster.ID()); err != nil {
		t.Fatal(err)
	}
	t.Logf("one exchange: %v", time.Since(start))
	m, _, err := admin.Load(t.Context(), s.node.ID)
	if err != nil || m.State != joinservice.MachineReady {
		t.Fatalf("recorded %+v: %v; the node was told %+v", m, err, s.node.Denied())
	}
	return m
}

func secretStatus(t *testing.T, config *rest.Config, name string) int {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := client.Get(config.Host + "/api/v1/namespaces/kube-system/secrets/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	return reply.StatusCode
}
