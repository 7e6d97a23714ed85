package upgrade_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/upgradetest"
	"github.com/hullmark/hullmark/upgrade"
)

// What a worker's kubelet says of itself is as long as it likes, and any bytes. None of it keeps the state from being stored: then
// nothing could go on, and nothing be ended.
func TestWorkerSaysMoreThanAStateKeeps(t *testing.T) {
	for name, boot := range map[string]string{"long": strings.Repeat("x", 1<<10), "no text": strings.Repeat("\xff", 200)} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 3, 2)
			s.Machines["w-1"].BootID = boot
			s.Want(request(s.spec()))
			s.over(t, upgrade.Done)
			s.updated(t, s.wanted, "cp-1", "cp-2", "cp-3", "w-1", "w-2")
		})
	}
}

// All nodes that stage at once refuse, each with as much to say as a state keeps of one, of which JSON makes six times as much: the upgrade
// comes to its end.
func TestManyNodesSayMuch(t *testing.T) {
	s := newSite(t, 1, 0)
	for i := range 100 {
		s.add(fmt.Sprintf("w-%d", i+1), hullmark.Worker, "a").Manner = upgradetest.Deaf
	}
	spec, long := s.spec(), strings.Repeat("<", 1<<12)
	spec.Staging = 200
	s.Want(request(spec))
	last := s.until(t, "the end", func(state upgrade.State) bool {
		for _, n := range state.Nodes {
			if m := s.Machines[n.Name]; m.Manner == upgradetest.Deaf && n.Phase == upgrade.NodeStaging {
				m.Recorded.Serial, m.Recorded.Phase = n.Serial, hullmark.UpdateFailed
				m.Recorded.Failed = &hullmark.Condition{Code: long, Step: long, Title: long, Expected: long, Got: long, Next: long}
			}
		}
		return state.Phase.Over()
	})
	if last.Phase != upgrade.Failed || last.Failed == nil {
		t.Errorf("%s, %+v", last.Phase, last.Failed)
	}
}

// A worker that somebody has taken over says that it runs the release, for good, and never restarts: its registers at its last boot were
// another's.
func TestWorkerSaysThatItRunsTheRelease(t *testing.T) {
	s := newSite(t, 3, 2)
	m := s.Machines["w-1"]
	m.Manner = upgradetest.Deaf
	m.Recorded.A = upgradetest.RootHash(s.wanted)
	s.Want(request(s.spec()))
	last := s.over(t, upgrade.Failed)
	if n := nodeOf(t, last, "w-1"); n.Phase != upgrade.NodeFailed {
		t.Errorf("%+v", n)
	}
}

// A worker says that it has followed the last direction that a number can have: the others are upgraded all the same, and it is not passed
// for one that is.
func TestWorkerSaysTheLastSerial(t *testing.T) {
	s := newSite(t, 3, 2)
	m := s.Machines["w-2"]
	m.Manner = upgradetest.Deaf
	m.Recorded.Serial = math.MaxUint64
	spec := s.spec()
	s.Want(request(spec))
	last := s.over(t, upgrade.Failed)
	if n := nodeOf(t, last, "w-2"); n.Phase != upgrade.NodeFailed || n.Serial == 0 {
		t.Errorf("%+v", n)
	}
}
