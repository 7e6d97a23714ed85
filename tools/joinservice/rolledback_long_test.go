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
