//go:build long

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/internal/testenv"
)

// trio is an etcd with room for three members, a, b and c, seen from the join service beside a.
type trio struct {
	etcd    *testenv.Etcd
	members *Members
	client  *clientv3.Client
}

// home is where each member lives.
var home = map[string]netip.Addr{
	"a": netip.MustParseAddr("127.0.0.1"), "b": netip.MustParseAddr("127.0.0.2"), "c": netip.MustParseAddr("127.0.0.3"),
}

// newTrio starts a and lets b join.
func newTrio(t *testing.T) *trio {
	t.Helper()
	c, err := cluster.New()
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := testenv.NewEtcd(t.Context(), t.TempDir(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	tls, err := c.EtcdClient(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := &trio{etcd: etcd, members: &Members{Endpoint: etcd.ClientURL(home["a"]), TLS: tls}}
	if s.client, err = s.members.connect(t.Context(), s.members.Endpoint); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	if err := etcd.Start("a", home["a"]); err != nil {
		t.Fatal(err)
	}
	s.write(t)
	s.join(t, "b", promoted)
	return s
}

// eventually calls do, each time with a short deadline, until it succeeds.
func eventually(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err = do(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// write shows that there is a quorum.
func (s *trio) write(t *testing.T) {
	t.Helper()
	eventually(t, "write", func(ctx context.Context) error {
		_, err := s.client.Put(ctx, "key", time.Now().String())
		return err
	})
}

// step is how far a control plane's join comes, in kubeadm's order.
type step int

const (
	nothing step = iota
	added
	started
	promoted
)

// join lets a member join as kubeadm does, as far as the step.
func (s *trio) join(t *testing.T, name string, last step) {
	t.Helper()
	var id uint64
	var others []string
	if last >= added {
		eventually(t, "add "+name, func(ctx context.Context) error {
			answer, err := s.client.MemberAddAsLearner(ctx, []string{s.etcd.PeerURL(home[name])})
			if err != nil {
				return err
			}
			id = answer.Member.ID
			for _, m := range answer.Members {
				if m.ID != id {
					others = append(others, m.Name+"="+m.PeerURLs[0])
				}
			}
			return nil
		})
	}
	if last >= started {
		if err := s.etcd.Start(name, home[name], others...); err != nil {
			t.Fatal(err)
		}
		eventually(t, "start "+name, func(ctx context.Context) error { return s.wantMember(ctx, name) })
	}
	if last >= promoted {
		eventually(t, "promote "+name, func(ctx context.Context) error {
			_, err := s.client.MemberPromote(ctx, id)
			return err
		})
	}
}

// wantMember fails unless a member of this name answers.
func (s *trio) wantMember(ctx context.Context, name string) error {
	members, err := s.members.look(ctx, s.client)
	if err == nil && !slices.ContainsFunc(members, func(m member) bool { return m.name == name && m.answers }) {
		err = errors.New("it does not answer yet")
	}
	return err
}

// voters fails the test unless exactly these members exist, vote and answer.
func (s *trio) voters(t *testing.T, want ...string) {
	t.Helper()
	members, err := s.members.look(t.Context(), s.client)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range members {
		if m.learner || !m.answers {
			t.Errorf("member %s: learner %t, answers %t", m, m.learner, m.answers)
		}
		got = append(got, m.name)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("members %q, want %q", got, want)
	}
}

// A control plane dies at each step of its join, with its disk, and joins anew: there is a quorum all the time, and no stale
// member in the end.
func TestReplacedAtEachStep(t *testing.T) {
	s := newTrio(t)
	for last := nothing; last <= promoted; last++ {
		s.join(t, "c", last)
		if err := s.etcd.Forget("c"); err != nil {
			t.Fatal(err)
		}
		s.write(t)
		for range 2 { // as after a service that died in between
			if err := s.members.RemoveStale(t.Context(), "c", home["c"]); err != nil {
				t.Fatalf("step %d: %v", last, err)
			}
		}
		s.voters(t, "a", "b")
		s.write(t)
		s.join(t, "c", promoted)
		s.write(t)
		s.voters(t, "a", "b", "c")
		if err := s.members.RemoveStale(t.Context(), "c", home["c"]); codeOf(err) != "etcd-member-alive" {
			t.Errorf("step %d: a running member: got %v", last, err)
		}
		s.voters(t, "a", "b", "c")
		if err := s.etcd.Forget("c"); err != nil {
			t.Fatal(err)
		}
		if err := s.members.RemoveStale(t.Context(), "c", home["c"]); err != nil {
			t.Fatal(err)
		}
	}
}

// No member is removed while the others have no quorum; once they have, it is.
func TestQuorumIsNotRisked(t *testing.T) {
	s := newTrio(t)
	// Of two members that vote, neither can be removed without the other one.
	if err := s.etcd.Kill("b"); err != nil {
		t.Fatal(err)
	}
	if err := s.members.RemoveStale(t.Context(), "b", home["b"]); codeOf(err) != "etcd-no-quorum" {
		t.Errorf("one of two: got %v", err)
	}
	s.restart(t, "b")
	s.voters(t, "a", "b")

	s.join(t, "c", promoted)
	for _, name := range []string{"b", "c"} {
		if err := s.etcd.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.members.RemoveStale(t.Context(), "c", home["c"]); codeOf(err) != "etcd-no-quorum" {
		t.Errorf("two of three: got %v", err)
	}
	s.restart(t, "b")
	// Another node than c, which is down, has to wait for it.
	if err := s.members.RemoveStale(t.Context(), "d", netip.MustParseAddr("127.0.0.4")); codeOf(err) != "etcd-member-down" {
		t.Errorf("another member is down: got %v", err)
	}
	if err := s.members.RemoveStale(t.Context(), "c", home["c"]); err != nil {
		t.Fatal(err)
	}
	s.voters(t, "a", "b")
	// Another machine at the address of one that is gone: the name does not tell, the address does.
	if err := s.etcd.Forget("c"); err != nil {
		t.Fatal(err)
	}
	s.join(t, "c", promoted)
	if err := s.etcd.Forget("c"); err != nil {
		t.Fatal(err)
	}
	if err := s.members.RemoveStale(t.Context(), "d", home["c"]); err != nil {
		t.Fatal(err)
	}
	s.voters(t, "a", "b")
}

// Of two members that vote, the one that runs knows that it lacks the other one alone.
func TestAwaitsOnlyTheOtherOfTwo(t *testing.T) {
	s := newTrio(t)
	awaits := func(name string, want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("awaits only %q: %t", name, want), func(ctx context.Context) error {
			got, err := s.members.AwaitsOnly(ctx, name)
			if err == nil && got != want {
				err = fmt.Errorf("it says %t", got)
			}
			return err
		})
	}
	awaits("b", false) // It runs.
	for _, last := range []step{added, started} {
		s.join(t, "c", last)
		if err := s.etcd.Kill("b"); err != nil {
			t.Fatal(err)
		}
		s.leaderless(t)
		awaits("b", false) // There is a learner, which may vote by now.
		s.restart(t, "b")
		if err := s.etcd.Forget("c"); err != nil {
			t.Fatal(err)
		}
		if err := s.members.RemoveStale(t.Context(), "c", home["c"]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.etcd.Kill("b"); err != nil {
		t.Fatal(err)
	}
	s.leaderless(t)
	awaits("b", true)
	awaits("a", false)
	awaits("c", false)
	awaits("", false)
	s.restart(t, "b")
	awaits("b", false)

	s.join(t, "c", promoted)
	for _, name := range []string{"b", "c"} {
		if err := s.etcd.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	s.leaderless(t)
	awaits("b", false)
	if err := s.etcd.Kill("a"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.members.AwaitsOnly(t.Context(), "b"); got || err == nil {
		t.Errorf("a member that does not answer awaits: %t, %v", got, err)
	}
}

// leaderless waits until a has no leader.
func (s *trio) leaderless(t *testing.T) {
	t.Helper()
	eventually(t, "a has no leader", func(ctx context.Context) error {
		status, err := s.client.Status(ctx, s.members.Endpoint)
		if err == nil && status.Leader != 0 {
			err = errors.New("it has one")
		}
		return err
	})
}

// restart starts a member with the data that it has.
func (s *trio) restart(t *testing.T, name string) {
	t.Helper()
	if err := s.etcd.Start(name, home[name], "a="+s.etcd.PeerURL(home["a"])); err != nil {
		t.Fatal(err)
	}
	s.write(t)
	eventually(t, "start "+name, func(ctx context.Context) error { return s.wantMember(ctx, name) })
}
