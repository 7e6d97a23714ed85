//go:build long

package main

import (
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/cluster"
)

func TestRotateOfARealAPI(t *testing.T) {
	s := newAPISite(t)
	s.run(t, exitUsage, "cluster rotate root", `"root": want keyset or online-ca`)
	s.run(t, exitFailed, "cluster rotate keyset", "no policy yet")
	s.run(t, 0, "policy add member --role worker --name worker-1 --ek "+hullmark.NodeID{7}.String())
	s.run(t, 0, "policy push")
	before := s.pushed(t)
	s.run(t, 0, "cluster rotate keyset", "newest generation is 2", "the first of them with hullmark recover")
	s.run(t, 0, "cluster rotate online-ca", "newest generation is 2")
	if after := s.pushed(t); after.Rotation != 2 || after.Version != before.Version+2 {
		t.Errorf("the cluster has policy version %d of rotation %d, after version %d", after.Version, after.Rotation, before.Version)
	}

	// The API is away: nothing is exchanged, however often that is tried.
	for range 2 {
		code, output := hullmarkCLI(t, "cluster", "rotate", "keyset", "--server", "127.0.0.1:1", "--wait", "1s", "--cluster", s.path("cluster"), "--passphrase-file", s.path("passphrase"))
		wantExit(t, code, exitUnreachable, output, joinservice.CodeUnreachable)
	}
	s.run(t, 0, "cluster rotate keyset", "newest generation is 3")
	if after := s.pushed(t); after.Rotation != 3 {
		t.Errorf("rotation %d was pushed", after.Rotation)
	}
	file, err := cluster.Open(s.path("cluster"), hullmark.NewSecret([]byte("correct horse")))
	if err != nil {
		t.Fatal(err)
	}
	if file.Cluster.Keys.Current() != 3 {
		t.Errorf("the keyset has generation %d", file.Cluster.Keys.Current())
	}
}
