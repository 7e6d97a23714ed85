package joinservice_test

import (
	"slices"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// stored is what the tests' member of etcd has stored.
var stored = hullmark.EtcdState{Cluster: 5, Member: 7, Term: 3, Vote: 7, Commit: 90, Last: 100, LastTerm: 3}

// etcdSite is a control plane that has joined, and whose member of etcd was heard of once it was Ready. says is what its disk
// holds from now on.
func etcdSite(t *testing.T) (s *site, r *room, says *hullmark.EtcdState) {
	t.Helper()
	s, says = newSite(t), new(hullmark.EtcdState)
	*says = stored
	s.node.Etcd = func() hullmark.EtcdState { return *says }
	r = s.controlPlanes(t)
	s.join(t)
	if got := s.machine(t).Etcd; got != (joinservice.EtcdNote{EtcdState: stored}) {
		t.Fatalf("once it was Ready, %+v was noted", got)
	}
	s.free(t)
	r.take()
	s.reboot()
	return s, r, says
}

// A member of etcd that comes back with all that it had acknowledged, or with more, is started as it is, and what it has is noted.
func TestMemberThatForgotNothing(t *testing.T) {
	for name, change := range map[string]func(*hullmark.EtcdState){
		"the same": func(*hullmark.EtcdState) {},
		"more":     func(s *hullmark.EtcdState) { s.Commit, s.Last = 120, 130 },
		"a later term, whose leader overwrote a tail": func(s *hullmark.EtcdState) { s.Term, s.Vote, s.Last, s.LastTerm = 4, 9, 95, 4 },
		"less is committed in what it wrote last":     func(s *hullmark.EtcdState) { s.Commit = 10 },
	} {
		t.Run(name, func(t *testing.T) {
			s, r, says := etcdSite(t)
			change(says)
			s.join(t)
			if p := s.node.Proceed(); p.GetJoinAnew() || len(p.GetKubeadmDocuments()) > 0 || len(r.take()) > 0 {
				t.Errorf("Proceed is %+v", p)
			}
			if got := s.machine(t).Etcd; got.EtcdState.Lacks(stored) != "" || got.Removed {
				t.Errorf("noted is %+v", got)
			}
		})
	}
}

// One that lacks something of it is removed, and its machine joins anew, before it has a vote again.
func TestForgetfulMemberJoinsAnew(t *testing.T) {
	for name, change := range map[string]func(*hullmark.EtcdState){
		"an earlier term":            func(s *hullmark.EtcdState) { s.Term, s.LastTerm = 2, 2 },
		"fewer entries":              func(s *hullmark.EtcdState) { s.Last = 99 },
		"a tail of an earlier term":  func(s *hullmark.EtcdState) { s.LastTerm = 2 },
		"fewer than were committed":  func(s *hullmark.EtcdState) { s.Term, s.LastTerm, s.Last = 4, 4, 89 },
		"its vote is forgotten":      func(s *hullmark.EtcdState) { s.Vote = 0 },
		"another vote":               func(s *hullmark.EtcdState) { s.Vote = 9 },
		"another member":             func(s *hullmark.EtcdState) { s.Member = 8 },
		"a member of another etcd":   func(s *hullmark.EtcdState) { s.Cluster = 6 },
		"no log, or none to be read": func(s *hullmark.EtcdState) { *s = hullmark.EtcdState{} },
	} {
		t.Run(name, func(t *testing.T) {
			s, r, says := etcdSite(t)
			change(says)
			fresh := hullmark.EtcdState{Cluster: 5, Member: 70, Term: 4, Vote: 1, Commit: 200, Last: 200, LastTerm: 4}
			s.node.Observe = func(message string) {
				if message != "Progress" {
					return
				}
				if note := s.machine(t).Etcd; !note.Removed || note.Member != stored.Member {
					t.Errorf("while it joins anew, noted is %+v", note)
				}
				*says = fresh
			}
			s.join(t)
			p := s.node.Proceed()
			if !p.GetJoinAnew() || len(p.GetKubeadmDocuments()) == 0 || p.GetEndpoint() != "" || s.file(secret) == "" {
				t.Errorf("Proceed is %+v", p)
			}
			if did := r.take(); !slices.Equal(did, []string{"member control-plane-2 192.0.2.7", "node control-plane-2"}) {
				t.Errorf("before Proceed the service did %q", did)
			}
			if got := s.machine(t).Etcd; got != (joinservice.EtcdNote{EtcdState: fresh}) {
				t.Errorf("noted is %+v", got)
			}
			s.node.Observe = nil
			s.free(t)
			s.reboot()
			s.join(t)
			if s.node.Proceed().GetJoinAnew() {
				t.Error("the fresh member is not believed")
			}
		})
	}
}

// Where the others have no majority without it, it is neither removed nor believed.
func TestForgetfulMemberOfTwo(t *testing.T) {
	s, r, says := etcdSite(t)
	says.Last--
	r.member = &hullmark.Condition{Code: "etcd-no-quorum", Title: "to remove it would risk the quorum", Next: "n", Retry: true}
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	if told := s.node.Denied(); told == nil || told.Code != joinservice.CodeEtcdRolledBack || told.Next == "" || s.node.Proceed() != nil {
		t.Errorf("it was told %+v", told)
	}
	if got := s.machine(t).Etcd; got != (joinservice.EtcdNote{EtcdState: stored}) {
		t.Errorf("noted is %+v", got)
	}
	r.member = &hullmark.Condition{Code: "etcd-member-down", Title: "another is down", Next: "n", Retry: true}
	s.reboot()
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	if told := s.node.Denied(); told == nil || told.Code != "etcd-member-down" {
		t.Errorf("it was told %+v", told)
	}
}

// While no record can be read, what the service saw last decides; nobody is removed then.
func TestForgetfulMemberInAnOutage(t *testing.T) {
	s, r, says := etcdSite(t)
	s.service.Outage = known{lasts: true, seen: joinservice.Seen{Disk: s.machine(t).Record, Etcd: s.machine(t).Etcd}}
	s.records.SetDown(true)
	says.Last--
	if err := s.dial(t); err != nil {
		t.Fatal(err)
	}
	if told := s.node.Denied(); told == nil || told.Code != joinservice.CodeEtcdRolledBack || !told.Retry || s.node.Proceed() != nil || len(r.take()) > 0 {
		t.Errorf("it was told %+v", told)
	}
	says.Last++
	s.reboot()
	if err := s.dial(t); err != nil || s.node.Proceed() == nil || s.node.Proceed().GetJoinAnew() {
		t.Error("a member that has all is not believed")
	}
}

// A removed member's data is nobody's, whatever it says; another's is that of the fresh one, of which nothing is known yet.
func TestNotes(t *testing.T) {
	removed := joinservice.EtcdNote{EtcdState: stored, Removed: true}
	other := hullmark.EtcdState{Cluster: 5, Member: 8, Term: 1}
	for _, c := range []struct {
		note  joinservice.EtcdNote
		found hullmark.EtcdState
		lacks bool
	}{
		{joinservice.EtcdNote{}, stored, false},
		{joinservice.EtcdNote{}, hullmark.EtcdState{}, true},
		{removed, stored, true},
		{removed, other, false},
		{removed, hullmark.EtcdState{}, true},
	} {
		if why := c.note.Missing(c.found); (why != "") != c.lacks {
			t.Errorf("%+v comes back for %+v: %q", c.found, c.note, why)
		}
	}
	less := stored
	less.Last--
	for _, c := range []struct {
		note joinservice.EtcdNote
		now  hullmark.EtcdState
		want joinservice.EtcdNote
	}{
		{removed, stored, removed},
		{removed, other, joinservice.EtcdNote{EtcdState: other}},
		{removed, hullmark.EtcdState{}, removed},
		{joinservice.EtcdNote{EtcdState: stored}, less, joinservice.EtcdNote{EtcdState: stored}},
		{joinservice.EtcdNote{EtcdState: less}, stored, joinservice.EtcdNote{EtcdState: stored}},
	} {
		got := c.note
		if got.Note(c.now); got != c.want {
			t.Errorf("%+v after %+v: %+v", c.now, c.note, got)
		}
	}
}

// While the node is Ready, what its member has stored is noted with each number of its disk: a copy of the member's files of
// that time does not come back later.
func TestMemberIsNotedWithTheEpoch(t *testing.T) {
	s, _, says := etcdSite(t)
	s.join(t)
	copied := *says
	says.Commit, says.Last = 150, 160
	if c := s.call(t, s.node.EpochCall()); !c.Committed {
		t.Fatalf("%+v", c)
	}
	if got := s.machine(t).Etcd.EtcdState; got != *says {
		t.Fatalf("noted is %+v", got)
	}
	s.later(t)
	*says = copied
	if c := s.call(t, s.node.EpochCall()); c.Committed || c.Denied == nil || c.Denied.Code != joinservice.CodeEtcdRolledBack || s.machine(t).Etcd.Last != 160 {
		t.Errorf("a member that runs with less: %+v, noted is %+v", c, s.machine(t).Etcd)
	}
	*says = hullmark.EtcdState{} // It could not be read.
	if c := s.call(t, s.node.EpochCall()); c.Committed || c.Denied == nil || c.Denied.Code != joinservice.CodeEpochNotReady || s.machine(t).Etcd.Last != 160 {
		t.Errorf("a member that says nothing: %+v, noted is %+v", c, s.machine(t).Etcd)
	}
	says.Cluster, says.Member, says.Term, says.Vote, says.Commit, says.Last, says.LastTerm = copied.Cluster, copied.Member, copied.Term, copied.Vote, 150, 170, copied.LastTerm
	if c := s.call(t, s.node.EpochCall()); !c.Committed || s.machine(t).Etcd.Last != 170 {
		t.Errorf("a member that has more: %+v, noted is %+v", c, s.machine(t).Etcd)
	}
	*says = copied
	s.free(t)
	s.reboot()
	s.join(t)
	if !s.node.Proceed().GetJoinAnew() {
		t.Error("a copy of the member's files of before the last number is believed")
	}
}

// A worker has no member of etcd, whatever it says.
func TestWorkersMemberIsNotNoted(t *testing.T) {
	s := newSite(t)
	s.node.Etcd = func() hullmark.EtcdState { return stored }
	s.join(t)
	s.call(t, s.node.EpochCall())
	s.reboot()
	s.node.Etcd = func() hullmark.EtcdState { return hullmark.EtcdState{} }
	s.join(t)
	if got := s.machine(t).Etcd; got != (joinservice.EtcdNote{}) || s.node.Proceed().GetJoinAnew() {
		t.Errorf("noted is %+v", got)
	}
}
