//go:build long

package main

import (
	"testing"

	"github.com/hullmark/hullmark"
)

// What operators change reaches the cluster, one after the other; the cluster file takes it up; a withdrawn one changes nothing more.
func TestOperatorsChangesReachTheCluster(t *testing.T) {
	s := newAPISite(t)
	member := func(name string) []string {
		return []string{"policy", "add", "member", "--ekid", hullmark.EKID{byte(len(name)), name[len(name)-1]}.String(), "--role", "worker", "--name", name}
	}
	push := []string{"policy", "push", "--server", s.env.Address, "--wait", "30s"}
	s.run(t, 0, "policy add member --role worker --name worker-1 --ekid "+hullmark.EKID{7}.String())
	for _, name := range []string{"dora", "erin"} {
		code, output := s.grant(t, name, "change")
		wantExit(t, code, 0, output)
	}
	s.run(t, 0, "policy push")
	began := s.pushed(t)
	offline := func(verb ...string) {
		t.Helper()
		code, output := hullmarkCLI(t, append(verb, "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))...)
		wantExit(t, code, 0, output)
	}
	as := func(name string, want int, verb []string, says ...string) {
		t.Helper()
		code, output := s.by(t, name, verb...)
		wantExit(t, code, want, output, says...)
	}
	// Dora's file is of before erin was named: she takes that up before she changes anything.
	as("dora", 0, []string{"node", "list", "--server", s.env.Address, "--wait", "30s"})
	as("dora", 0, member("worker-2"))
	as("dora", 0, push, "is in the cluster")
	as("dora", 0, push, "is in the cluster") // as after a lost answer
	as("erin", 0, member("worker-3"))
	as("erin", exitDenied, push, "somebody else changed the policy meanwhile")
	as("erin", 0, member("worker-3"))
	as("erin", 0, push)
	if p := s.pushed(t); len(p.Members) != 3 || p.Version != began.Version+2 {
		t.Errorf("the cluster has version %d with %d members, after %d", p.Version, len(p.Members), began.Version)
	}
	s.run(t, 0, "policy push", "the cluster file takes up what operator erin changed")
	offline("operator", "withdraw", "erin")
	s.run(t, 0, "policy push")
	if p := s.pushed(t); len(p.Members) != 3 || p.Version != began.Version+hullmark.ChangesPerPolicy {
		t.Errorf("the cluster has version %d with %d members, after %d", p.Version, len(p.Members), began.Version)
	}
	as("erin", 0, member("worker-4")) // Her file does not know it yet.
	as("erin", exitDenied, push)
	as("dora", 0, []string{"node", "list", "--server", s.env.Address, "--wait", "30s"})
	as("dora", 0, member("worker-5"))
	offline("policy", "minimum-svn", "2") // The cluster file changes it, too, and knows nothing of hers.
	as("dora", 0, push)
	s.run(t, exitDenied, "policy push", "operator dora changed")
	s.run(t, 0, "policy push --newest-lost")
	if p := s.pushed(t); len(p.Members) != 3 || p.MinimumSVN != 2 {
		t.Errorf("the cluster has %d members and security version %d", len(p.Members), p.MinimumSVN)
	}
}
