//go:build vm

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/internal/powercut"
)

// slotCut is a place in a story where the power goes.
type slotCut struct {
	kind    string
	records int // that had happened
	// again is set if the machine has to take another release after it.
	again bool
}

// slotOutcome is what a machine did after a cut.
type slotOutcome struct {
	loss    powercut.Loss
	release int
	// fallback says that the firmware had tried another release before.
	fallback bool
	took     time.Duration
}

// boots cuts the power, and boots what is left: one of the releases that may be started, whole, which measures what was predicted.
func (s *slotStory) boots(t *testing.T, c slotCut, random *rand.Rand) (o slotOutcome) {
	t.Helper()
	disk, flash, loss := s.after(t, c.records, random)
	s.site.keepOnFailure(t, disk.Copy(), flash.Copy())
	m := slotMachine{disk: powercut.NewDisk(disk, s.site.size), variables: filepath.Join(t.TempDir(), "variables.fd")}
	if err := save(m.variables, flash, int64(len(s.site.variables))); err != nil {
		t.Fatal(err)
	}
	o.loss = loss
	began, step := time.Now(), s.steps[s.log[c.records-1].step]
	b := s.site.boot(t, m, nil)
	o.took, o.release = time.Since(began), b.release
	if !slices.Contains(step.may, b.release) {
		t.Errorf("release %d runs, want one of %v", b.release, step.may)
	}
	r := s.site.releases[b.release]
	if step.fallback && len(departures(r.document, b.Result)) > 0 {
		o.fallback = true
		s.site.compare(t, r.fallback, b.Result)
	} else {
		s.site.compare(t, r.document, b.Result)
	}
	if c.again && !t.Failed() {
		s.site.takesAnother(t, m, b.slots)
	}
	return o
}

// takesAnother has a machine go on by itself after a cut: it stages a release, tries it and commits it.
func (s *slotSite) takesAnother(t *testing.T, m slotMachine, slots update.Slots) {
	t.Helper()
	starts := slices.IndexFunc(s.releases, func(r slotRelease) bool {
		return slots.Default == "a" && r.root == slots.A || slots.Default == "b" && r.root == slots.B
	})
	if starts < 0 {
		t.Fatalf("no release of ours starts by itself: %+v", slots)
	}
	next := (starts + 1) % len(s.releases)
	for i, requests := range [][]update.Request{{s.stage(next), {Op: update.OpTry}}, {{Op: update.OpCommit}}} {
		want := []int{starts, next}[i]
		b := s.boot(t, m, nil, requests...)
		if b.release != want {
			t.Fatalf("boot %d after that: release %d runs, want %d", i+1, b.release, want)
		}
		s.compare(t, s.releases[want].document, b.Result)
	}
}

// keepOnFailure leaves disk and variables for people as the boot found them, if the test fails.
func (s *slotSite) keepOnFailure(t *testing.T, disk, flash *powercut.Memory) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		dir := t.ArtifactDir()
		if err := errors.Join(save(filepath.Join(dir, "disk.raw"), disk, s.size), save(filepath.Join(dir, "variables.fd"), flash, int64(len(s.variables)))); err != nil {
			t.Error(err)
		}
		t.Logf("the disk and the variables as this boot found them are in %s", dir)
	})
}

// save writes a medium to a file.
func save(path string, m *powercut.Memory, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), m.Save(f), f.Close())
}

// String is the end of a row of the report.
func (o slotOutcome) String() string {
	what := fmt.Sprintf("release %d", o.release)
	if o.fallback {
		what += ", by a fallback"
	}
	return fmt.Sprintf("%-40s  %-24s  %4.1f s", o.loss, what, o.took.Seconds())
}

// within is the middle one of the records whose kind begins so: the power goes after it.
func (s *slotStory) within(t *testing.T, prefix string) slotCut {
	t.Helper()
	names, members := s.kinds()
	var all []int
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			all = append(all, members[name]...)
		}
	}
	if len(all) == 0 {
		t.Fatalf("nothing was written of %q: %q", prefix, names)
	}
	return slotCut{kind: prefix, records: all[len(all)/2] + 1}
}

// TestVMPowerCutsOfSlots cuts the power of a machine, its disk and its variables, while the slots' helper stages, tries and commits.
// The long form is make powercut-update.
func TestVMPowerCutsOfSlots(t *testing.T) {
	t.Parallel()
	s := newSlotSite(t, newBench(t), 2)
	story := s.lives(t, s.update())
	t.Run("cuts", func(t *testing.T) {
		for i, place := range []string{"stage: esp-b", "try: variables", "commit: esp-b"} {
			t.Run(place, func(t *testing.T) {
				t.Parallel()
				o := story.boots(t, story.within(t, place), rand.New(rand.NewPCG(1, uint64(i))))
				t.Log(o)
			})
		}
	})
}
