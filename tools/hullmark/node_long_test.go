//go:build long

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
	"github.com/hullmark/hullmark/measurements"
)

// apiSite is a cluster file with the real API of its cluster.
type apiSite struct {
	site
	env    *testenv.Environment
	client *registry.Registry
}

func newAPISite(t *testing.T) *apiSite {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r, err := testenv.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := r.Apply(ctx, registry.Manifest()); err != nil {
		t.Fatal(err)
	}
	s := &apiSite{site: site{dir: t.TempDir(), cluster: r.Cluster}, env: r}
	const cheap = 4 // This passphrase guards nothing.
	if _, err := cluster.Create(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")), r.Cluster, cheap); err != nil {
		t.Fatal(err)
	}
	s.write(t, "passphrase", []byte("correct horse\n"))
	config, err := r.Config(registry.User)
	if err != nil {
		t.Fatal(err)
	}
	if s.client, err = registry.New(config); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a verb against the environment's API.
func (s *apiSite) run(t *testing.T, want int, verb string, contains ...string) string {
	t.Helper()
	args := append(strings.Fields(verb), "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
	if !strings.HasPrefix(verb, "policy add") {
		args = append(args, "--server", s.env.Address)
	}
	code, output := hullmarkCLI(t, args...)
	wantExit(t, code, want, output, contains...)
	return output
}

// keep stores a machine's record and name as a join service does.
func (s *apiSite) keep(t *testing.T, m joinservice.Machine) {
	t.Helper()
	if err := s.client.Claim(t.Context(), m.Name, m.EKID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Store(t.Context(), m, ""); err != nil {
		t.Fatal(err)
	}
}

func TestNodesOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	document := nodetest.Document(t, "image")
	document.Name = "spring"
	encoded, err := document.Encode()
	if err != nil {
		t.Fatal(err)
	}
	id, err := document.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "document.json", encoded)
	one, two := hullmark.EKID{1}, hullmark.EKID{2}
	s.run(t, 0, "node list", "name  role")
	s.run(t, 0, "policy add document "+s.path("document.json"))
	s.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+one.String())
	s.run(t, 0, "policy add member --role control-plane --name control-plane-2 --ekid "+two.String())
	s.run(t, 0, "policy push", "policy version 3 is in the cluster, with 1 documents")

	machine := joinservice.Machine{
		EKID: one, Name: "worker-1", Role: hullmark.Worker, Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}, Document: id,
		Record: joinservice.Record{Disk: hullmark.UUID{7}, Committed: 3, Issued: 4}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")},
		State: joinservice.MachineFailed, Seen: time.Now().Add(-time.Hour).UTC().Truncate(time.Second),
		Condition: &hullmark.Condition{Code: "kubeadm-failed", Step: "KUBEADM", Title: "it \x1b[2Jfailed", Next: "wait"},
	}
	s.keep(t, machine)
	plane := joinservice.Machine{EKID: two, Name: "control-plane-2", Role: hullmark.ControlPlane, Platform: hullmark.PlatformClaims{Trust: hullmark.TrustTPM, Platform: hullmark.PlatformTPM}, State: joinservice.MachineReady, Phase: "READY"}
	plane.Refused = []joinservice.Refusal{{Address: netip.MustParseAddr("192.0.2.9"), Condition: joinservice.AddressTaken(netip.MustParseAddr("192.0.2.9"), one, two)}}
	s.keep(t, plane)
	output := s.run(t, 0, "node list", "worker-1", "failed", "node 1", "spring", hullmark.UUID{7}.String(), "3..4", "1h0m", "kubeadm-failed", "control-plane-2", "never", "READY; address-taken: 192.0.2.9")
	if strings.Contains(output, hullmark.UUID{}.String()) || strings.Contains(output, "0..0") {
		t.Error("a machine that was never given a ticket has a disk and an epoch")
	}
	if strings.Contains(output, "\x1b") {
		t.Error("an escape character reached the terminal")
	}
	var listed []operate.Machine
	if err := json.Unmarshal([]byte(s.run(t, 0, "node list -o json")), &listed); err != nil || len(listed) != 2 || listed[1].Image != "node 1" || listed[1].Release != "spring" || listed[1].Record != machine.Record || len(listed[0].Refused) != 1 || listed[0].Refused[0].Condition.Code != "address-taken" {
		t.Errorf("the list is %+v, %v", listed, err)
	}

	s.resets(t, machine)
	three := hullmark.EKID{3}
	s.rebinds(t, machine, three)
	s.removes(t, three)
	s.removesCounted(t)
	if err := s.env.StopAPI(); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"node list", "node remove worker-1", "node reset worker-1", "policy push", "node rebind --from " + one.String() + " --to " + two.String()} {
		s.run(t, exitUnreachable, verb+" --wait 1s", "api-unreachable", s.env.Address, "next:")
	}
	if err := s.env.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.run(t, 0, "node list", "control-plane-2")
}

// resets gives a worker's disk up, twice, which is one reset.
func (s *apiSite) resets(t *testing.T, m joinservice.Machine) {
	t.Helper()
	s.run(t, exitFailed, "node reset nobody", "no record of nobody")
	s.run(t, 0, "node reset worker-1", "worker-1 may format another disk than "+m.Record.Disk.String(), "policy version 4 is in the cluster")
	s.run(t, 0, "node reset "+m.EKID.String(), "policy version 4 is in the cluster")
	policy := s.pushed(t)
	want := measurements.Reset{EKID: m.EKID, OldUUID: m.Record.Disk}
	if len(policy.Resets) != 1 || policy.Resets[0] != want {
		t.Errorf("the resets are %+v", policy.Resets)
	}
}

// pushed returns the policy that join services see, its signature checked.
func (s *apiSite) pushed(t *testing.T) measurements.Policy {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var policy measurements.Policy
	err := s.client.WatchPolicy(ctx, func(envelope []byte, documents map[measurements.DocumentID][]byte) {
		var err error
		if policy, err = measurements.OpenPolicy(envelope, s.cluster.ID()); err != nil || len(documents) != len(policy.Documents) {
			t.Errorf("the cluster has %d documents, %v", len(documents), err)
		}
		cancel()
	})
	if policy.Version == 0 {
		t.Fatal(err)
	}
	return policy
}

// rebinds hands a worker over to another machine.
func (s *apiSite) rebinds(t *testing.T, m joinservice.Machine, to hullmark.EKID) {
	t.Helper()
	verb := "node rebind --from " + m.EKID.String() + " --to "
	s.run(t, exitUsage, verb+m.EKID.String(), "the same machine")
	s.run(t, exitFailed, verb+hullmark.EKID{2}.String(), "control-plane-2 already")
	s.run(t, 0, verb+to.String(), "worker-1 (worker) goes over", "policy version 5 is in the cluster", "node worker-1 from its next boot on")
	moved, version, err := s.client.Load(t.Context(), to)
	if err != nil || version == "" || moved.Record != m.Record || moved.Name != m.Name {
		t.Errorf("the record is %+v, %v", moved, err)
	}
	if _, version, err := s.client.Load(t.Context(), m.EKID); err != nil || version != "" {
		t.Errorf("the old machine has a record of version %q, %v", version, err)
	}
	if err := s.client.Claim(t.Context(), m.Name, to); err != nil {
		t.Errorf("the name did not go over: %v", err)
	}
	policy := s.pushed(t)
	member, ok := policy.Member(to)
	if !ok || member.Name != "worker-1" || len(policy.Rebinds) != 1 {
		t.Errorf("the policy is %+v", policy)
	}
	// The power may have gone after the last change, and before the answer.
	s.run(t, 0, verb+to.String(), "node worker-1 from its next boot on")
	never := hullmark.EKID{5}
	s.run(t, exitFailed, "node rebind --from "+never.String()+" --to "+to.String(), "no record of "+never.String())
	s.run(t, exitFailed, verb+never.String(), "no record of "+m.EKID.String())
}

// removes forgets a worker, but no control plane and no Ready node unless it is forced.
func (s *apiSite) removes(t *testing.T, worker hullmark.EKID) {
	t.Helper()
	s.ready(t, "worker-1")
	s.run(t, exitDenied, "node remove worker-1", "is Ready", "--force")
	s.run(t, exitDenied, "node remove control-plane-2", "member of etcd")
	s.run(t, exitFailed, "node remove nobody", "no record of nobody")
	s.run(t, 0, "node remove worker-1 --force", "is forgotten", "policy remove member worker-1")
	if _, version, err := s.client.Load(t.Context(), worker); err != nil || version != "" {
		t.Errorf("the record is still there: %q, %v", version, err)
	}
	if err := s.client.Claim(t.Context(), "worker-1", hullmark.EKID{8}); err != nil {
		t.Errorf("the name is still taken: %v", err)
	}
	if there, err := s.client.NodeReady(t.Context(), "worker-1"); err != nil || there {
		t.Errorf("the Node is still there: %v, %v", there, err)
	}
}

// removesCounted forgets a machine of a group whose first ticket was never recorded: it has a place in the group, a name, and no record.
func (s *apiSite) removesCounted(t *testing.T) {
	t.Helper()
	const most = 1
	for i, named := range []func(m measurements.Member) string{
		func(m measurements.Member) string { return m.EKID.String() }, func(m measurements.Member) string { return m.Name },
	} {
		lost := measurements.Group{Name: "cloud"}.Member(hullmark.EKID{9, byte(i)})
		if err := errors.Join(s.client.Enrol(t.Context(), "cloud", lost.EKID, most), s.client.Claim(t.Context(), lost.Name, lost.EKID)); err != nil {
			t.Fatal(err)
		}
		s.run(t, 0, "node list", lost.Name, "without a record")
		s.run(t, exitFailed, "node reset "+named(lost), "no record of "+named(lost))
		s.run(t, 0, "node remove "+named(lost), lost.Name, "no disk of it was recorded")
		s.run(t, exitFailed, "node remove "+named(lost), "no record of "+named(lost))
		next := hullmark.EKID{10}
		if err := errors.Join(s.client.Claim(t.Context(), lost.Name, next), s.client.Enrol(t.Context(), "cloud", next, most)); err != nil {
			t.Errorf("its name or its place is taken still: %v", err)
		}
		s.run(t, 0, "node remove "+next.String())
	}
}

// ready makes a Node object that says that it is Ready, as its kubelet does.
func (s *apiSite) ready(t *testing.T, name string) {
	t.Helper()
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\nstatus:\n  conditions:\n  - {type: Ready, status: \"True\", reason: test, message: test," +
		" lastHeartbeatTime: \"2026-11-21T00:00:00Z\", lastTransitionTime: \"2026-11-21T00:00:00Z\"}\n"
	if err := s.env.Apply(t.Context(), []byte(node)); err != nil {
		t.Fatal(err)
	}
	if ready, err := s.client.NodeReady(t.Context(), name); err != nil || !ready {
		t.Fatalf("the Node is not Ready: %v, %v", ready, err)
	}
}
