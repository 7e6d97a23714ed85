//go:build long && quorum

package main

import (
	"context"
	"errors"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice"
)

// All three control planes lose power. The first is brought back by its operator; etcd has no quorum, so that no record can be
// read. Its service lets the second come back all the same, with which there is a quorum again; the third comes back by its
// record, as the second does from then on.
func TestTotalOutageOfThreeControlPlanes(t *testing.T) {
	s := newThreePlanes(t)
	o, stop := s.serve(t, neverRecovered)
	s.push(t, s.admin, o)
	joined, records := map[string]hullmark.Ticket{}, map[string]joinservice.Record{}
	for name := range s.machines {
		joined[name] = s.persists(t, name, o)
		s.member(t, name)
		records[name] = s.record(t, name)
	}
	s.awaitSeen(t)
	s.machines["worker-1"] = s.node
	s.losesQuorum(t, o)
	joined["worker-1"] = s.persists(t, "worker-1", o)
	records["worker-1"] = s.record(t, "worker-1")

	stop()
	if err := s.api.StopAPI(); err != nil {
		t.Fatal(err)
	}
	for name := range homes {
		if err := s.etcd.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.etcd.Start("control-plane-1", homes["control-plane-1"]); err != nil {
		t.Fatal(err)
	}
	if s.writes(t) {
		t.Fatal("one member of three has a quorum")
	}

	// Without the operator's hand nobody comes back; nor does another than a control plane's machine with it.
	o, stop = s.serve(t, neverRecovered)
	if _, told := s.boots(t, "control-plane-2", o); told == nil || told.Code != joinservice.CodeUnreachable || !told.Retry {
		t.Fatalf("without recover it was told %+v", told)
	}
	stop()
	o, _ = s.serve(t, "boot-2")
	if _, told := s.boots(t, "worker-1", o); told == nil || told.Code != joinservice.CodeUnreachable {
		t.Errorf("a worker that had joined was told %+v", told)
	}
	ticket, told := s.boots(t, "control-plane-2", o)
	if told != nil || ticket.Disk.Epoch != (hullmark.EpochWindow{Unchecked: true}) || !ticket.Disk.Key.Equal(joined["control-plane-2"].Disk.Key) {
		t.Fatalf("it came back with %+v, and was told %+v", ticket.Disk.Epoch, told)
	}
	if s.writes(t) {
		t.Fatal("there was a quorum before the second control plane was back")
	}

	if err := s.etcd.Start("control-plane-2", homes["control-plane-2"]); err != nil {
		t.Fatal(err)
	}
	if err := s.api.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"control-plane-3", "control-plane-2", "worker-1"} {
		if ticket := s.persists(t, name, o); ticket.Disk.Epoch.Unchecked {
			t.Errorf("%s came back with %+v", name, ticket.Disk.Epoch)
		}
		// What happened unchecked is in no record.
		if r := s.record(t, name); r.Committed != records[name].Committed+1 || r.Disk != joined[name].Disk.UUID {
			t.Errorf("%s is recorded as %+v", name, r)
		}
	}
	if err := s.etcd.Start("control-plane-3", homes["control-plane-3"]); err != nil {
		t.Fatal(err)
	}
	// With all three, the first may go.
	client := s.client(t)
	eventually(t, "control-plane-3 is back", func(ctx context.Context) error {
		_, err := client.Status(ctx, s.etcd.ClientURL(homes["control-plane-3"]))
		return err
	})
	if err := s.etcd.Kill("control-plane-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two members of three have a quorum", func(ctx context.Context) error { // once they have a leader
		_, err := client.Put(ctx, "/test", "written")
		return err
	})
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
