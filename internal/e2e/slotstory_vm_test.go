//go:build vm

package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/hullmark/hullmark/firstboot/update"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/internal/powercut"
)

// slotStep is a part of a machine's story: a restart, or a request to the slots' helper.
type slotStep struct {
	name string
	// request is the helper's; a restart has none, and boots the release that starts.
	request update.Request
	starts  int
	// may are the releases of which one has to boot if the power goes in this step, and fallback says that the firmware may have tried
	// another one before, which did not start.
	may      []int
	fallback bool
}

// slotEvent is something that a machine's disk or its flash was given.
type slotEvent struct {
	powercut.Record
	step  int
	flash bool
	// from and to are the bytes of the flash that changed: QEMU writes whole sectors for each of them.
	from, to int64
}

// slotStory is all that was written to a machine from an installed disk on, in one order for both.
type slotStory struct {
	site        *slotSite
	steps       []slotStep
	disk, flash *powercut.Memory // as they were before
	log         []slotEvent
}

// lives has a machine live through the steps, the first of which is a restart, and records what is written.
func (s *slotSite) lives(t *testing.T, steps []slotStep) *slotStory {
	t.Helper()
	disk, flash := s.installed(t)
	m := s.switchedOn(disk, flash)
	story := &slotStory{site: s, steps: steps, disk: disk.Copy(), flash: flash.Copy()}
	r := &slotRecorder{shadow: make([]byte, m.flash.Size())}
	_, _ = flash.ReadAt(r.shadow, 0) // It never fails.
	m.disk.Watch, m.flash.Watch = r.watch(false), r.watch(true)
	for i := 0; i < len(steps); {
		var requests []update.Request
		next := i + 1
		for ; next < len(steps) && steps[next].request.Op != ""; next++ {
			requests = append(requests, steps[next].request)
		}
		r.step = i
		b := s.boot(t, m, r.next, requests...)
		s.accel = b.Accel
		if r.step != next-1 || b.release != steps[i].starts {
			t.Fatalf("%s: release %d runs, want %d; %d of %d requests were begun", steps[i].name, b.release, steps[i].starts, r.step-i, len(requests))
		}
		s.compare(t, s.releases[b.release].document, b.Result)
		i = next
	}
	if t.Failed() {
		t.Fatal("not as predicted")
	}
	story.log = r.log
	return story
}

// slotRecorder records what disk and flash are given.
type slotRecorder struct {
	mutex  sync.Mutex
	step   int
	log    []slotEvent
	shadow []byte // what the flash holds
}

// next is called when the next step begins.
func (r *slotRecorder) next() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.step++
}

func (r *slotRecorder) watch(flash bool) func(powercut.Record) bool {
	return func(record powercut.Record) bool {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		e := slotEvent{Record: record, step: r.step, flash: flash}
		if flash {
			if len(record.Data) == 0 {
				return false // It has no cache to flush.
			}
			before := r.shadow[record.Offset:][:len(record.Data)]
			e.from, e.to = changed(before, record.Data)
			e.from, e.to = e.from+record.Offset, e.to+record.Offset
			copy(before, record.Data)
		}
		r.log = append(r.log, e)
		return false
	}
}

// changed returns the first byte that differs, and the one behind the last.
func changed(before, after []byte) (from, to int64) {
	for i := range after {
		if before[i] != after[i] {
			if to == 0 {
				from = int64(i)
			}
			to = int64(i) + 1
		}
	}
	return from, to
}

// after is what a machine has whose power went when the log's first records had happened. Of the disk, what was not flushed is stored, lost or
// torn; of the flash, which has no cache, the write that was the last to come.
func (s *slotStory) after(t *testing.T, records int, random *rand.Rand) (disk, flash *powercut.Memory, loss powercut.Loss) {
	t.Helper()
	disk, flash = s.disk.Copy(), s.flash.Copy()
	m := s.site.switchedOn(disk, flash)
	for i, e := range s.log[:records] {
		do := m.disk.Do
		if e.flash {
			do = m.flash.Do
		}
		if err := do(e.Record); err != nil {
			t.Fatal(err)
		}
		if e.flash && i != records-1 {
			if err := m.flash.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, d := range []*powercut.Disk{m.disk, m.flash} {
		l, err := d.Tear(random)
		if err != nil {
			t.Fatal(err)
		}
		if l.Writes > 0 {
			loss = powercut.Loss{Writes: loss.Writes + l.Writes, Lost: loss.Lost + l.Lost, Torn: loss.Torn + l.Torn, Unit: l.Unit}
		}
	}
	return disk, flash, loss
}

// place says in words what a record is about.
func (s *slotStory) place(e slotEvent) string {
	if e.flash {
		return "variables"
	}
	if e.Flush {
		return "flush"
	}
	end := e.Offset + int64(len(e.Data))
	within := func(from, size int64) bool { return e.Offset < from+size && end > from }
	for _, n := range slot.Both() {
		p := s.site.slots[n]
		switch {
		case within(p.ESP.Offset(), gpt.SectorSize):
			return p.ESP.Name + "'s first sector"
		case within(p.ESP.Offset(), p.ESP.Size()):
			return p.ESP.Name
		case within(p.Root.Offset(), p.Root.Size()):
			return p.Root.Name
		case within(p.Tree.Offset(), p.Tree.Size()):
			return p.Tree.Name
		}
	}
	return "table"
}

// kinds are the records' numbers by what they are: by step and place; of the variables also by the write of the firmware's that they are a
// byte of. In a restart, where there are dozens of these, all of a length are alike.
func (s *slotStory) kinds() (names []string, members map[string][]int) {
	members = map[string][]int{}
	number, step := 0, -1
	for i := 0; i < len(s.log); {
		e, end := s.log[i], i+1
		for e.flash && end < len(s.log) && s.log[end].flash && s.log[end].step == e.step && s.log[end].from == s.log[end-1].to {
			end++
		}
		if e.step != step {
			number, step = 0, e.step
		}
		name := fmt.Sprintf("%s: %s", s.steps[e.step].name, s.place(e))
		if e.flash {
			number++
			name += ", " + s.write(e.step, number, end-i)
		}
		if members[name] == nil {
			names = append(names, name)
		}
		for ; i < end; i++ {
			members[name] = append(members[name], i)
		}
	}
	return names, members
}

// write says which write of the firmware's one of so many bytes is.
func (s *slotStory) write(step, number, bytes int) string {
	switch {
	case s.steps[step].request.Op != "":
		return fmt.Sprintf("write %d", number)
	case bytes > 2:
		return "a write of many bytes"
	default:
		return fmt.Sprintf("a write of %d", bytes)
	}
}

// update is a story of a release that is staged, tried and committed.
func (s *slotSite) update() []slotStep {
	return []slotStep{
		{name: "first boot", starts: 0, may: []int{0}},
		{name: "stage", request: s.stage(1), may: []int{0}},
		{name: "try", request: update.Request{Op: update.OpTry}, may: []int{0, 1}},
		{name: "restart", starts: 1, may: []int{0, 1}},
		{name: "commit", request: update.Request{Op: update.OpCommit}, may: []int{0, 1}},
	}
}

// years is one of three releases in both slots: staged over another that was to be tried, tried, committed, gone back from and forth to,
// and followed by one in the slot that the firmware looks at first.
func (s *slotSite) years() []slotStep {
	op := func(op update.Op, text string) update.Request { return update.Request{Op: op, Text: text} }
	return []slotStep{
		{name: "first boot", starts: 0, may: []int{0}},
		{name: "stage", request: s.stage(1), may: []int{0}},
		{name: "try", request: op(update.OpTry, ""), may: []int{0, 1}},
		{name: "stage another", request: s.stage(2), may: []int{0, 1, 2}, fallback: true},
		{name: "try that", request: op(update.OpTry, ""), may: []int{0, 2}},
		{name: "restart", starts: 2, may: []int{0, 2}},
		{name: "explain", request: op(update.OpExplain, "a trial's last words"), may: []int{0}},
		{name: "commit", request: op(update.OpCommit, ""), may: []int{0, 2}},
		{name: "forget", request: op(update.OpExplain, ""), may: []int{2}},
		{name: "roll back", request: op(update.OpTry, ""), may: []int{2, 0}},
		{name: "restart", starts: 0, may: []int{2, 0}},
		{name: "commit the rollback", request: op(update.OpCommit, ""), may: []int{2, 0}},
		{name: "try again", request: op(update.OpTry, ""), may: []int{0, 2}},
		{name: "restart", starts: 2, may: []int{0, 2}},
		{name: "commit again", request: op(update.OpCommit, ""), may: []int{0, 2}},
		{name: "stage into the first slot", request: s.stage(1), may: []int{2}},
		{name: "try the first slot", request: op(update.OpTry, ""), may: []int{2, 1}},
		{name: "restart", starts: 1, may: []int{2, 1}},
		{name: "commit the first slot", request: op(update.OpCommit, ""), may: []int{2, 1}},
		{name: "last boot", starts: 1, may: []int{1}},
	}
}
