//go:build long

package main

import (
	"context"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// acknowledged is a key of which etcd said that it is stored.
const acknowledged = "/test/acknowledged"

// copies kills a machine's member and returns a copy of all that it keeps.
func (s *threePlanes) copies(t *testing.T, name string) (copied string) {
	t.Helper()
	must(t, s.etcd.Kill(name))
	copied = t.TempDir()
	must(t, os.CopyFS(copied, os.DirFS(s.etcd.Data(name))))
	return copied
}

// putsBack gives a machine's member, which does not run, an old copy of what it keeps; the state disk is the newest in all else.
func (s *threePlanes) putsBack(t *testing.T, name, copied string) {
	t.Helper()
	must(t, os.RemoveAll(s.etcd.Data(name)))
	must(t, os.CopyFS(s.etcd.Data(name), os.DirFS(copied)))
	must(t, os.Chmod(s.etcd.Data(name), 0o700))
}

// restarts starts a machine's member with what it keeps.
func (s *threePlanes) restarts(t *testing.T, name string) {
	t.Helper()
	must(t, s.etcd.Start(name, homes[name], "control-plane-1="+s.etcd.PeerURL(homes["control-plane-1"])))
}

// keeps reports whether a quorum of etcd still has what was acknowledged.
func (s *threePlanes) keeps(t *testing.T, urls ...string) bool {
	t.Helper()
	var answer *clientv3.GetResponse
	eventually(t, "read", func(ctx context.Context) (err error) {
		answer, err = s.client(t, urls...).Get(ctx, acknowledged)
		return err
	})
	return len(answer.Kvs) == 1
}

// A power cut ends all; the second control plane, whose member was off for a while, is recovered by its operator, and the third comes back with an old copy of its
// member's files under the newest epoch. Together they would have a quorum that forgot a write which the first and the third had acknowledged.
func TestForgetfulMemberAfterAnOutage(t *testing.T) {
	const second, third = "control-plane-2", "control-plane-3"
	s := newThreePlanes(t)
	o, stop := s.serve(t, neverRecovered)
	s.push(t, s.admin, o)
	for name := range s.machines {
		s.persists(t, name, o)
		s.member(t, name)
	}
	old := s.copies(t, third)
	s.restarts(t, third)
	eventually(t, "the third is back", func(ctx context.Context) error {
		_, err := s.client(t, s.etcd.ClientURL(homes[third])).Get(ctx, acknowledged)
		return err
	})
	must(t, s.etcd.Kill(second))
	eventually(t, "write", func(ctx context.Context) error {
		_, err := s.client(t).Put(ctx, acknowledged, "yes")
		return err
	})
	s.persists(t, third, o)
	s.awaitSeen(t)
	time.Sleep(10 * time.Second)

	stop()
	must(t, s.api.StopAPI())
	for name := range homes {
		must(t, s.etcd.Kill(name))
	}
	s.putsBack(t, third, old)
	s.restarts(t, second)
	o, _ = s.serve(t, "boot-2")
	ticket, told := s.boots(t, third, o)
	t.Logf("the third was given %+v, and told %+v", ticket.Disk.Epoch, told)
	if told != nil {
		return
	}
	s.restarts(t, third)
	if !s.keeps(t, s.etcd.ClientURL(homes[second]), s.etcd.ClientURL(homes[third])) {
		t.Error("two members have a quorum, and forgot what etcd had acknowledged")
	}
}
