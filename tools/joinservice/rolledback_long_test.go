//go:build long

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/wire"
	"github.com/hullmark/hullmark/firstboot/etcdwal"
	"github.com/hullmark/hullmark/joinservice"
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

// remembers has all machines say what their members of etcd have stored, as it is in their real logs, and join anew as they are told.
func (s *threePlanes) remembers(t *testing.T) {
	for name, node := range s.machines {
		node.Etcd = func() hullmark.EtcdState {
			state, err := etcdwal.Read(os.DirFS(filepath.Join(s.etcd.Data(name), "member", "wal")))
			if err != nil && !errors.Is(err, etcdwal.ErrNone) {
				t.Error(err)
			}
			return state
		}
		node.Join = func(p *wire.Proceed) error {
			if len(p.GetKubeadmDocuments()) == 0 {
				return nil
			}
			must(t, s.etcd.Forget(name))
			s.member(t, name)
			return nil
		}
	}
}

// writesTo has members acknowledge a write.
func (s *threePlanes) writesTo(t *testing.T, key string) {
	t.Helper()
	eventually(t, "write", func(ctx context.Context) error {
		_, err := s.client(t).Put(ctx, key, "yes")
		return err
	})
}

// isBack waits until a machine's member serves, with all that a quorum has.
func (s *threePlanes) isBack(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" is back", func(ctx context.Context) error {
		_, err := s.client(t, s.etcd.ClientURL(homes[name])).Get(ctx, acknowledged)
		return err
	})
}

// note returns what a machine's record says of its member.
func (s *threePlanes) note(t *testing.T, name string) joinservice.EtcdNote {
	t.Helper()
	m, _, err := s.admin.Load(t.Context(), s.machines[name].ID)
	must(t, err)
	return m.Etcd
}

// Three members of a real etcd: one that was killed, and one that was off while the others went on, come back as they are. One
// that comes back with an old copy of its files is taken out before it has a vote, and is a fresh one afterwards; etcd has a
// quorum all the time, and the API answers.
func TestForgetfulMemberIsReplaced(t *testing.T) {
	const third = "control-plane-3"
	s := newThreePlanes(t)
	s.remembers(t)
	o, _ := s.serve(t, neverRecovered)
	s.push(t, s.admin, o)
	for name := range s.machines {
		s.persists(t, name, o)
	}
	member := s.memberOf(t, third)
	if note := s.note(t, third); note.Member != member || note.Term == 0 || note.Last == 0 {
		t.Fatalf("of member %x is noted %+v", member, note)
	}
	comesBack := func(what string) {
		t.Helper()
		s.persists(t, third, o)
		if p := s.machines[third].Proceed(); p.GetJoinAnew() || s.memberOf(t, third) != member {
			t.Fatalf("a member that %s is not believed: %+v", what, s.note(t, third))
		}
		s.restarts(t, third)
		s.isBack(t, third)
	}
	old := s.copies(t, third)
	comesBack("was killed")
	must(t, s.etcd.Kill(third))
	for range 100 {
		s.writesTo(t, "/test/others")
	}
	comesBack("was off while others went on")
	s.writesTo(t, acknowledged)
	s.isBack(t, third)
	s.persists(t, third, o) // as a number while it is Ready does

	writer := s.startWriting(t)
	must(t, s.etcd.Kill(third))
	s.putsBack(t, third, old)
	s.persists(t, third, o)
	if !s.machines[third].Proceed().GetJoinAnew() {
		t.Fatal("an old copy of a member's files is believed")
	}
	if now := s.memberOf(t, third); now == member || s.note(t, third).Member != now {
		t.Errorf("the member is %x, was %x, and noted is %+v", now, member, s.note(t, third))
	}
	s.isBack(t, third)
	writer.report(t)
	if !s.keeps(t, s.etcd.ClientURL(homes[third])) {
		t.Error("the fresh member lacks what etcd had acknowledged")
	}
}

// A power cut ends all; the second control plane, whose member was off for a while, is recovered by its operator, and the third
// comes back with an old copy of its member's files under the newest epoch. Together they would have a quorum that forgot a
// write which the first and the third had acknowledged.
func TestForgetfulMemberAfterAnOutage(t *testing.T) {
	const second, third = "control-plane-2", "control-plane-3"
	s := newThreePlanes(t)
	s.remembers(t)
	o, stop := s.serve(t, neverRecovered)
	s.push(t, s.admin, o)
	for name := range s.machines {
		s.persists(t, name, o)
	}
	old := s.copies(t, third)
	s.restarts(t, third)
	s.isBack(t, third)
	must(t, s.etcd.Kill(second))
	s.writesTo(t, acknowledged)
	s.persists(t, third, o)
	note := s.note(t, third)
	eventually(t, "the service keeps the note for an outage", func(context.Context) error {
		seen, err := s.seen()
		if err == nil && seen[s.machines[third].ID].Etcd != note {
			err = errors.New("not yet")
		}
		return err
	})

	stop()
	must(t, s.api.StopAPI())
	for name := range homes {
		must(t, s.etcd.Kill(name))
	}
	newest := s.copies(t, third)
	s.putsBack(t, third, old)
	s.restarts(t, second)
	o, _ = s.serve(t, "boot-2")
	if _, told := s.boots(t, third, o); told == nil || told.Code != joinservice.CodeEtcdRolledBack || !told.Retry {
		t.Fatalf("with an old copy of its member's files it was told %+v", told)
	}
	s.putsBack(t, third, newest)
	if _, told := s.boots(t, third, o); told != nil {
		t.Fatalf("with its member's newest files it was told %+v", told)
	}
	s.restarts(t, third)
	if !s.keeps(t, s.etcd.ClientURL(homes[second]), s.etcd.ClientURL(homes[third])) {
		t.Error("two members have a quorum, and forgot what etcd had acknowledged")
	}
}
