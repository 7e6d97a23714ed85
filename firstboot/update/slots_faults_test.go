package update

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
	"github.com/hullmark/hullmark/internal/explore/search"
	"github.com/hullmark/hullmark/internal/powercut"
)

// slotFaults are how often each may still happen.
type slotFaults struct {
	// Ask is a request to the helper, whoever makes it, and Lie a source that gives something else; Restart is of the machine, Cut of its
	// power in the middle of a request, Firmware variables that do not stay, and Host what the host writes.
	Ask, Lie, Restart, Cut, Firmware, Host int
}

// between is a machine between two requests to its helper.
type between struct {
	disk *powercut.Memory
	// Content is a digest of what the disk holds.
	Content   string
	Running   slot.Slot
	Variables map[string][]byte
	Left      slotFaults
}

// outcome is what comes of a request.
type outcome struct {
	disk      *powercut.Memory
	content   string
	variables map[string][]byte
	// records are how many writes and flushes it took; wrong is what must not be and is.
	records int
	wrong   string
}

// slotsMachine is a disk with two slots, its helper, and firmware.
type slotsMachine struct {
	t   *testing.T
	dir Variables
	// parts are the partitions of every disk here, and kernels those of the releases.
	parts   [2]slot.Partitions
	kernels map[verity.Root][]byte
	// known are the outcomes of requests, which are the same each time.
	known map[string]outcome
	// medium is the disk as it was installed.
	medium *powercut.Memory
}

// digest is of blocks in any order.
type digest [sha256.Size]byte

func (d *digest) WriteAt(b []byte, at int64) (int, error) {
	for i, c := range sha256.Sum256(append(binary.LittleEndian.AppendUint64(nil, uint64(at)), b...)) {
		d[i] ^= c
	}
	return len(b), nil
}

func (m *slotsMachine) digest(disk *powercut.Memory) string {
	var d digest
	if err := disk.Save(&d); err != nil {
		m.t.Fatal(err)
	}
	return fmt.Sprintf("%x", d[:])
}

func (m *slotsMachine) key(s between) string {
	text, err := json.Marshal(s)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func newSlotsMachine(t *testing.T) (m *slotsMachine, first func(slotFaults) between) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "slots")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m = &slotsMachine{t: t, dir: Variables(dir), kernels: map[verity.Root][]byte{}, known: map[string]outcome{}}
	for _, r := range releases(t) {
		d, _ := m.open(installed(t, r), slot.A)
		m.parts = d.slots
		if m.kernels[r.RootHash], err = kernelOf(d, slot.A); err != nil {
			t.Fatal(err)
		}
	}
	m.medium = installed(t, releases(t)[0])
	return m, func(left slotFaults) between { return between{disk: m.medium, Content: m.digest(m.medium), Left: left} }
}

// open is the disk as the helper opens it.
func (m *slotsMachine) open(medium *powercut.Memory, running slot.Slot) (*Disk, *powercut.Disk) {
	d, dev := open(m.t, medium, running)
	return d, dev.Disk
}

func fault(b *search.Boot, left *int, where string, faults ...string) (what string) {
	if *left > 0 {
		if what = b.Choose(where, faults...); what != "" {
			*left--
		}
	}
	return what
}

// asking is a request, and what goes wrong with it: a source that lies, firmware that does not keep something, and the power that goes at
// a write or flush, counted from 1, after which chance decides what becomes of those that no flush has stored.
type asking struct {
	what, lie, broken string
	at                int
	chance            uint64
}

// step is one request, a restart, or what the host does.
func (m *slotsMachine) step(s between, b *search.Boot) (next between, ends bool) {
	if what := fault(b, &s.Left.Ask, "request", "stage 1", "stage 2", "try", "commit"); what != "" {
		m.request(&s, b, what)
		return s, false
	}
	switch {
	case fault(b, &s.Left.Restart, "then", "a restart") != "":
		m.start(&s, b)
	case fault(b, &s.Left.Host, "the host", "an old copy of the other ESP") != "":
		m.copyBack(&s)
	default:
		return s, true
	}
	return s, false
}

// request asks the helper, and lets something go wrong.
func (m *slotsMachine) request(s *between, b *search.Boot, what string) {
	a := asking{what: what}
	if what == "try" {
		if _, told := s.Variables["BootNext"]; !told { // It keeps what it was told before.
			a.broken = fault(b, &s.Left.Firmware, "firmware does not keep", "the entry", "BootNext", "anything, and says that it did")
		}
	} else {
		if what != "commit" {
			a.lie = fault(b, &s.Left.Lie, "the source gives", "another release", "another's ESP", "a damaged root", "a damaged tree", "a whole disk of another")
		}
		if s.Left.Cut > 0 && a.lie == "" {
			a.at, a.chance = m.cut(s, b, a)
		}
	}
	o := m.outcome(*s, a)
	if o.wrong != "" {
		b.Fail("%s", o.wrong)
	}
	s.disk, s.Content, s.Variables = o.disk, o.content, o.variables
	if a.at > 0 {
		b.Cut()
		m.start(s, b)
	}
}

// cut chooses where the power goes in a request.
func (m *slotsMachine) cut(s *between, b *search.Boot, a asking) (at int, chance uint64) {
	n := m.outcome(*s, a).records
	numbers := []int{1, 2, 3, n / 2, n - 2, n - 1, n}
	slices.Sort(numbers)
	var places []string
	for _, number := range slices.Compact(numbers) {
		for chance := range 3 {
			if number > 0 {
				places = append(places, fmt.Sprintf("power cut at write %d, %d", number, chance))
			}
		}
	}
	if len(places) == 0 {
		return 0, 0
	}
	if where := fault(b, &s.Left.Cut, a.what, places...); where != "" {
		if _, err := fmt.Sscanf(where, "power cut at write %d, %d", &at, &chance); err != nil {
			m.t.Fatal(err)
		}
	}
	return at, chance
}

// outcome is what comes of a request.
func (m *slotsMachine) outcome(s between, a asking) outcome {
	s.Left = slotFaults{}
	key := fmt.Sprintf("%s %+v", m.key(s), a)
	o, ok := m.known[key]
	if !ok {
		o = m.ask(s, a)
		m.known[key] = o
	}
	return o
}

// ask has the helper do something, as a process of its own.
func (m *slotsMachine) ask(s between, a asking) (o outcome) {
	o.disk = s.disk.Copy()
	before, _ := m.open(o.disk, s.Running)
	first, _ := before.Default()
	running, _ := before.Content(s.Running)

	q, sources := Request{Op: Op(strings.Fields(a.what)[0])}, []Source(nil)
	if q.Op == OpStage {
		r := releases(m.t)[a.what[len(a.what)-1]-'0']
		q.RootHash, q.Disk, q.Sources = hullmark.RootHash(r.RootHash), r.Disk, []string{"source"}
		sources = from(m.source(r, a.lie))
	}
	m.store(s.Variables, a.broken, s.Running)
	d, dev := m.open(o.disk, s.Running)
	dev.Watch = func(powercut.Record) bool { o.records++; return o.records == a.at }
	h := Helper{Disk: d, Variables: m.dir, Open: func([]string, [sha256.Size]byte) ([]Source, error) { return sources, nil }}
	var refused *hullmark.Condition
	if err := h.Answer(context.Background(), q, func(a Answer) error { refused = a.Failed; return nil }); err != nil {
		m.t.Fatal(err)
	}
	if a.at == 0 { // What nobody flushed is stored some time.
		if err := dev.Flush(); err != nil {
			m.t.Fatal(err)
		}
	} else if _, err := dev.Tear(rand.New(rand.NewPCG(a.chance, 1))); err != nil {
		m.t.Fatal(err)
	}
	o.content, o.variables = m.digest(o.disk), m.load()

	after, _ := m.open(o.disk, s.Running)
	if o.wrong = m.look(after); o.wrong == "" && q.Op == OpTry {
		o.wrong = m.lookAtFirmware(after, o.variables)
	}
	if o.wrong != "" {
		return o
	}
	if now, _ := after.Default(); now != first && q.Op != OpCommit {
		o.wrong = "another slot starts by itself, and nobody committed it"
	}
	if now, _ := after.Content(s.Running); now.Root != running.Root {
		o.wrong = "the slot that runs is written over"
	}
	if c, err := after.Content(s.Running.Other()); a.at == 0 && refused == nil && q.Op == OpStage && (err != nil || hullmark.RootHash(c.Root) != q.RootHash) {
		o.wrong = "what was staged is not what the slot holds"
	}
	return o
}

func (m *slotsMachine) explore(first between, most int) search.Report {
	return search.Machine[between]{Run: m.step, Key: m.key, Most: most}.Explore("slots", first)
}

// The faults of `make explore`, and of its full form.
var (
	smallSlots = slotFaults{Ask: 3, Lie: 1, Restart: 1, Cut: 1, Firmware: 1}
	fullSlots  = slotFaults{Ask: 4, Lie: 1, Restart: 2, Cut: 1, Firmware: 1, Host: 1}
)

// TestSlotsThroughFaults asks the helper for everything, in any order.
func TestSlotsThroughFaults(t *testing.T) {
	m, first := newSlotsMachine(t)
	for name, left := range map[string]slotFaults{"sources": {Ask: 1, Lie: 1}, "firmware and hosts": {Ask: 2, Restart: 1, Firmware: 1, Host: 1}} {
		r := m.explore(first(left), 0)
		t.Logf("%s: %d states, %d requests, up to %d events, %.1f s", name, r.States, r.Steps, r.Events, r.Seconds)
		if r.Violation != "" {
			t.Errorf("%s: %s:\n%s", name, r.Violation, strings.Join(r.Trace, "\n"))
		}
	}
}
