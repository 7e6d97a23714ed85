//go:build long

package etcd

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// at is the membership as it is asked at a member.
func (s *trio) at(name string) *Members {
	return &Members{Endpoint: s.etcd.ClientURL(home[name]), TLS: s.members.TLS}
}

func (s *trio) id(t *testing.T, name string) (id uint64) {
	t.Helper()
	eventually(t, "list", func(ctx context.Context) error {
		members, err := s.members.List(ctx)
		i := slices.IndexFunc(members, func(m Member) bool { return m.Name == name })
		if err == nil && i < 0 {
			err = errors.New("no member " + name)
		}
		if err == nil {
			id = members[i].ID
		}
		return err
	})
	return id
}

func (s *trio) leader(t *testing.T, by string) (id uint64) {
	t.Helper()
	client, err := s.members.connect(t.Context(), s.etcd.ClientURL(home[by]))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	eventually(t, "leader", func(ctx context.Context) error {
		status, err := client.Status(ctx, s.etcd.ClientURL(home[by]))
		if err == nil {
			id = status.Leader
		}
		return err
	})
	return id
}

// lead has a member lead.
func (s *trio) lead(t *testing.T, name string) {
	t.Helper()
	id := s.id(t, name)
	eventually(t, name+" leads", func(ctx context.Context) error {
		for by := range home {
			client, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{s.etcd.ClientURL(home[by])}, TLS: s.members.TLS})
			if err != nil {
				return err
			}
			_, _ = client.MoveLeader(ctx, id)
			_ = client.Close()
		}
		if s.leader(t, name) != id {
			return errors.New("another one leads")
		}
		return nil
	})
}

// leave has a member leave, as soon as etcd takes it: not before its members know each other for some seconds.
func (s *trio) leave(t *testing.T, asked string, id uint64) (err error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		if err = s.at(asked).Leave(t.Context(), id); codeOf(err) != "etcd-no-quorum" {
			return err
		}
	}
	return err
}

// A member that leads hands that over, whoever is asked, and leaves; there is a quorum all the time.
func TestLeave(t *testing.T) {
	for _, asked := range []string{"a", "b"} {
		t.Run("asked at "+asked, func(t *testing.T) {
			s := newTrio(t)
			s.join(t, "c", promoted)
			s.lead(t, "c")
			gone := s.id(t, "c")
			for range 2 { // as after a controller that died in between
				if err := s.leave(t, asked, gone); err != nil {
					t.Fatal(err)
				}
			}
			_ = s.etcd.Kill("c") // It ends by itself.
			s.voters(t, "a", "b")
			s.write(t)
			if s.leader(t, "a") == gone {
				t.Error("it leads still")
			}
		})
	}
}

// None leaves while another one is down, nor the last one; one that is down itself does.
func TestLeaveKeepsTheQuorum(t *testing.T) {
	s := newTrio(t)
	s.join(t, "c", promoted)
	a, b, c := s.id(t, "a"), s.id(t, "b"), s.id(t, "c")
	if err := s.etcd.Kill("c"); err != nil {
		t.Fatal(err)
	}
	if err := s.at("a").Leave(t.Context(), b); codeOf(err) != "etcd-member-down" {
		t.Errorf("while another is down: %v", err)
	}
	if err := s.leave(t, "b", c); err != nil {
		t.Errorf("the one that is down: %v", err)
	}
	s.voters(t, "a", "b")
	if err := s.etcd.Kill("b"); err != nil {
		t.Fatal(err)
	}
	if err := s.at("a").Leave(t.Context(), b); codeOf(err) != "etcd-no-quorum" {
		t.Errorf("one of two that is down: %v", err)
	}
	s.restart(t, "b")
	if err := s.leave(t, "a", b); err != nil {
		t.Errorf("one of two: %v", err)
	}
	_ = s.etcd.Kill("b") // It ends by itself.
	s.voters(t, "a")
	if err := s.at("a").Leave(t.Context(), a); codeOf(err) != "etcd-last-member" {
		t.Errorf("the last one: %v", err)
	}
	s.write(t)
}

// A member that is nobody's is removed when it is silent, started or not, and never while it answers.
func TestRemoveSilent(t *testing.T) {
	s := newTrio(t)
	for last := added; last <= promoted; last++ {
		s.join(t, "c", last)
		name := "c"
		if last == added {
			name = "" // It gets its name when it starts.
		}
		c := s.id(t, name)
		if last > added {
			if err := s.at("a").RemoveSilent(t.Context(), c); err == nil {
				t.Errorf("step %d: a member that answers was removed", last)
			}
		}
		if err := s.etcd.Forget("c"); err != nil {
			t.Fatal(err)
		}
		for range 2 { // as after a controller that died in between
			if err := s.at("a").RemoveSilent(t.Context(), c); err != nil {
				t.Fatalf("step %d: %v", last, err)
			}
		}
		s.voters(t, "a", "b")
		s.write(t)
	}
	b := s.id(t, "b")
	if err := s.etcd.Kill("b"); err != nil {
		t.Fatal(err)
	}
	if err := s.at("a").RemoveSilent(t.Context(), b); codeOf(err) != "etcd-no-quorum" {
		t.Errorf("one of two that is down: %v", err)
	}
}
