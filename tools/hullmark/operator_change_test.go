package main

import (
	"testing"

	"github.com/hullmark/hullmark"
)

// An operator who may change the policy does so in his file, as far as that is not the root's alone.
func TestOperatorsChangeThePolicy(t *testing.T) {
	s := newDownSite(t)
	code, output := s.grant(t, "dora", "change")
	wantExit(t, code, 0, output, "operator dora may change,look")
	code, output = s.by(t, "dora", "policy", "add", "member", "--ekid", hullmark.EKID{9}.String(), "--role", "worker", "--name", "worker-9")
	wantExit(t, code, 0, output, "member worker-9 added", "next: hullmark policy push --cluster "+s.path("dora"))
	code, output = s.by(t, "dora", "policy", "show")
	wantExit(t, code, 0, output, "signed by operator dora", "worker-9")
	code, output = s.by(t, "dora", "policy", "add", "member", "--ekid", hullmark.EKID{10}.String(), "--role", "control-plane", "--name", "mine")
	wantExit(t, code, exitDenied, output, "control planes are others", "whoever holds the root key")
	for _, verb := range [][]string{{"policy", "remove", "member", "worker-9"}, {"policy", "minimum-svn", "7"}} {
		code, output = s.by(t, "dora", verb...)
		wantExit(t, code, 0, output, "policy version")
	}
	for _, verb := range [][]string{
		{"policy", "revoke-operators"},
		{"operator", "withdraw", "dora"},
		{"policy", "builders", "--none"},
		{"operator", "new", "eve", "--may", "look", "--out", s.path("eve"), "--operator-passphrase-file", s.path("dora.passphrase")},
	} {
		code, output = s.by(t, "dora", verb...)
		wantExit(t, code, exitDenied, output, "needs the cluster file itself")
	}
	code, output = s.by(t, "dora", "policy", "push", "--server", "127.0.0.1:1", "--wait", "1s")
	wantExit(t, code, exitUnreachable, output)
	code, output = s.grant(t, "alice", "look")
	wantExit(t, code, 0, output)
	code, output = s.by(t, "alice", "policy", "remove", "member", "worker-9")
	wantExit(t, code, exitDenied, output, "operator-not-permitted")
}
