//go:build vm && powercut

package e2e

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

var slotCuts = flag.Int("cuts", 200, "at how many random places TestPowerCutsOfSlots cuts the power, beside those of each kind")

// againEvery is how many cuts there are for one after which the machine has to take another release.
const againEvery = 10

// TestPowerCutsOfSlots records what years of a machine's updates write to its disk and its variables. Then the power goes at writes of
// each kind, and at random ones; and each time the machine boots a release that it may, by itself, as was predicted of it.
func TestPowerCutsOfSlots(t *testing.T) {
	out, err := filepath.Abs(*powerOut)
	if err != nil {
		t.Fatal(err)
	}
	s := newSlotSite(t, bench{out: out, dir: t.TempDir()}, 3)
	story := s.lives(t, s.years())
	random := rand.New(rand.NewPCG(*powerSeed, 0))
	cuts, kinds := story.ofEachKind()
	t.Logf("%d records of %d kinds; %d cuts at those, %d at random ones, seed %d", len(story.log), kinds, len(cuts), *slotCuts, *powerSeed)
	cuts = append(cuts, story.anywhere(*slotCuts, random)...)
	random.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
	var mutex sync.Mutex
	sum := slotSum{booted: map[string]int{}}
	t.Run("cuts", func(t *testing.T) {
		for i, c := range cuts {
			c.again = i%againEvery == 0
			t.Run(fmt.Sprintf("%03d", i+1), func(t *testing.T) {
				t.Parallel()
				t.Logf("cut %3d  %s", i+1, c.kind)
				o := story.boots(t, c, rand.New(rand.NewPCG(*powerSeed, uint64(i)+1)))
				mutex.Lock()
				defer mutex.Unlock()
				sum.add(o, c)
				t.Logf("cut %3d  %-60s  %s%s", i+1, c.kind, o, map[bool]string{true: ", then another release"}[c.again])
			})
		}
	})
	t.Log(sum)
	if sum.cuts != len(cuts) || sum.lost == 0 || sum.torn == 0 || sum.fallbacks == 0 || sum.again == 0 || len(sum.booted) != len(s.releases) {
		t.Errorf("want %d cuts, with writes lost and torn, each release booted, fallbacks in the same boot, and releases taken after it", len(cuts))
	}
}

// slotSum sums up.
type slotSum struct {
	cuts, again, writes, lost, torn, fallbacks int
	booted                                     map[string]int
}

func (s *slotSum) add(o slotOutcome, c slotCut) {
	s.cuts++
	s.booted[fmt.Sprintf("release %d", o.release)]++
	s.writes, s.lost, s.torn = s.writes+o.loss.Writes, s.lost+o.loss.Lost, s.torn+o.loss.Torn
	if o.fallback {
		s.fallbacks++
	}
	if c.again {
		s.again++
	}
}

// String is the last line of the report.
func (s slotSum) String() string {
	return fmt.Sprintf("%d cuts: booted %v, %d of them after a fallback in the same boot, none by hand; of %d unflushed writes %d were lost, %d torn; %d took another release afterwards",
		s.cuts, s.booted, s.fallbacks, s.writes, s.lost, s.torn, s.again)
}

// ofEachKind cuts after the middle record of each kind, and for the disk also after the first and the last.
func (s *slotStory) ofEachKind() (cuts []slotCut, kinds int) {
	names, members := s.kinds()
	for _, name := range names {
		m := members[name]
		places := map[int]bool{m[len(m)/2]: true}
		if !s.log[m[0]].flash {
			places[m[0]], places[m[len(m)-1]] = true, true
		}
		for _, at := range slices.Sorted(maps.Keys(places)) {
			cuts = append(cuts, slotCut{kind: name, records: at + 1})
		}
	}
	return cuts, len(names)
}

// anywhere cuts after random records: a third of them of the disk, a third of the variables that the helper writes, and a third of those
// that the firmware writes while it starts, which are more than nine in ten of all.
func (s *slotStory) anywhere(n int, random *rand.Rand) (cuts []slotCut) {
	var groups [3][]slotCut
	names, members := s.kinds()
	for _, name := range names {
		for _, i := range members[name] {
			e, group := s.log[i], 0
			if e.flash {
				group = 1
				if s.steps[e.step].request.Op == "" {
					group = 2
				}
			}
			groups[group] = append(groups[group], slotCut{kind: name, records: i + 1})
		}
	}
	for i := range n {
		g := groups[i%len(groups)]
		c := g[random.IntN(len(g))]
		c.kind += " (random)"
		cuts = append(cuts, c)
	}
	return cuts
}
