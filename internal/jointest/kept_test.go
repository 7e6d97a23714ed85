package jointest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/servicefiles"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/nodetest"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/measurements"
)

// removed is a machine that only an older policy admits.
var removed = measurements.Member{EKID: hullmark.EKID{9}, Role: hullmark.Worker, Name: "node-9"}

// policies are one that admits the machine, and the next one, which does not.
func (s *Site) policies(t *testing.T) (older, newer joinservice.SignedPolicy) {
	t.Helper()
	document := nodetest.Document(t, "image")
	policy, err := joinservice.FirstPolicy(measurements.Policy{}, document, removed)
	if err != nil {
		t.Fatal(err)
	}
	signer := *s.Cluster
	sign := func() joinservice.SignedPolicy {
		if err := signer.SetPolicy(policy, document); err != nil {
			t.Fatal(err)
		}
		return joinservice.SignedPolicy{Envelope: signer.Policy, Documents: signer.Documents}
	}
	older = sign()
	policy.Version, policy.Members = policy.Version+1, nil
	return older, sign()
}

// starts is what the join service of a control plane begins with, whose keys came with the policy installed: it fails, or does
// or does not admit the machine.
func (s *Site) starts(installed joinservice.SignedPolicy) (store *joinservice.PolicyStore, admits bool, err error) {
	files := servicefiles.Files{Socket: servicefiles.SocketOf(s.Agent.RunDir)}
	store, _, err = joinservice.OpenPolicyStore(s.Cluster.ID(), installed, files.File(servicefiles.Policy))
	if err != nil {
		return nil, false, err
	}
	_, admits = store.Policy().Member(removed.EKID)
	return store, admits, nil
}

// The host holds back the policy that removed a machine, or puts an older one in its place: the service of a node without an
// API goes by the newest that it was given, or does not start.
func TestOlderPolicyIsSplicedIn(t *testing.T) {
	s := New(t, hullmark.ControlPlane)
	s.Serve(t)
	end := s.Boot(t)
	s.Await(t, "Ready", func(d firstboot.Document) bool { return d.Ready })
	older, newer := s.policies(t)
	store, admits, err := s.starts(older)
	if err != nil || !admits {
		t.Fatalf("the policy that came with the keys: admits %v, %v", admits, err)
	}
	manifest := filepath.Join(s.Agent.StateDir, statedisk.ManifestFile)
	held, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if taken, err := store.Offer(newer); !taken || err != nil {
		t.Fatal(taken, err)
	}
	newest, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"var/lib/private/hullmark-joinservice", "var/lib/hullmark-joinservice"} {
		s.splice(t, filepath.Join(file, servicefiles.Policy), older)
	}
	if _, admits, err := s.starts(older); err != nil || admits {
		t.Errorf("an older policy beside the manifest: admits %v, %v", admits, err)
	}
	s.exchange(t, manifest, held)
	var c *hullmark.Condition
	if _, admits, err := s.starts(older); !errors.As(err, &c) || c.Code != "manifest-refused" {
		t.Errorf("the manifest from before the newest policy: admits %v, %v, want manifest-refused", admits, err)
	}
	s.exchange(t, manifest, newest)
	if _, admits, err := s.starts(older); err != nil || admits {
		t.Errorf("the newest manifest: admits %v, %v", admits, err)
	}
	end()
	if _, admits, err := s.starts(older); !errors.As(err, &c) || c.Code != "kept-unreachable" {
		t.Errorf("without an agent: admits %v, %v, want kept-unreachable", admits, err)
	}
}

// splice puts a policy as a plain file onto the disk.
func (s *Site) splice(t *testing.T, name string, p joinservice.SignedPolicy) {
	t.Helper()
	file := filepath.Join(s.Agent.StateDir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	store, _, err := joinservice.OpenPolicyStore(s.Cluster.ID(), p, servicefiles.Plain(file))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Offer(p); err != nil {
		t.Fatal(err)
	}
}

func (s *Site) exchange(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
