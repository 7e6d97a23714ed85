//go:build vm

package volume

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/internal/powercut"
)

var (
	cuts = flag.Int("cuts", 8, "how often TestPowerCuts cuts the power")
	seed = flag.Uint64("seed", 1, "chooses where TestPowerCuts cuts the power, and what is lost")
)

const (
	guestControl = "control"
	// cutDiskSize leaves something to grow by.
	cutDiskSize = newSize + 2<<30
	// cutTimeout is what a cut, and the boot after it, may take at most on average.
	cutTimeout = time.Minute
)

// A guest with the image's kernel formats, opens and uses a state disk. Its writes are recorded; then the power is cut before,
// within and after each of its steps, what was not flushed is lost or torn, and the guest boots from what is left. Some of
// these boots are cut as well.
func TestPowerCuts(t *testing.T) {
	t.Parallel() // Its guest has one processor.
	if *cuts < 1 {
		t.Fatal("-cuts: want at least 1")
	}
	dir := t.TempDir()
	h := &host{t: t, random: rand.New(rand.NewPCG(*seed, 0)), current: &life{base: powercut.NewMemory(), began: time.Now()}}
	h.start(h.current)
	serve(t, filepath.Join(dir, guestSerial), h)
	serve(t, filepath.Join(dir, guestControl), &controlDisk{host: h})
	runGuest(t, guestTimeout+time.Duration(*cuts)*cutTimeout, testsOfPowerCuts, dir,
		drive{guestSerial, "nbd+unix:///?socket=" + filepath.Join(dir, guestSerial)}, drive{guestControl, "nbd+unix:///?socket=" + filepath.Join(dir, guestControl)})
	h.report()
}

func serve(t *testing.T, socket string, d powercut.Device) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go powercut.Serve(l, d)
}

// life is what happens to a disk between two cuts: what it held, what was known, and all that it was then given.
type life struct {
	base   *powercut.Memory
	known  json.RawMessage
	log    []powercut.Record
	states []json.RawMessage // what is known after each mark of the log, in their order
	began  time.Time
	cut    // the one that it began with
}

// cut is one row of the report.
type cut struct {
	number int
	step   string
	loss   powercut.Loss
	after  int // of how many boots that were cut before
	result *result
	took   time.Duration
}

// host answers the guest. What it serves as the state disk is another one after each cut.
type host struct {
	t      *testing.T
	mutex  sync.Mutex
	random *rand.Rand
	disk   *powercut.Disk
	// current is the life of the disk, story the first one, and points are where that is cut next.
	current, story *life
	points         []int
	cuts           []cut
}

// start gives the guest the disk that a life begins with.
func (h *host) start(l *life) {
	h.disk = powercut.NewDisk(l.base.Copy(), cutDiskSize)
	h.disk.Watch = func(r powercut.Record) bool {
		l.log = append(l.log, r)
		return false
	}
	h.current = l
}

// ReadAt, WriteAt, Flush and Size are the state disk's.
func (h *host) ReadAt(b []byte, offset int64) (int, error)  { return h.device().ReadAt(b, offset) }
func (h *host) WriteAt(b []byte, offset int64) (int, error) { return h.device().WriteAt(b, offset) }
func (h *host) Flush() error                                { return h.device().Flush() }
func (h *host) Size() int64                                 { return cutDiskSize }

func (h *host) device() *powercut.Disk {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.disk
}

// controlDisk is the disk by which the guest speaks to the host.
type controlDisk struct {
	host   *host
	answer []byte
}

// Size is one that every kernel takes.
func (c *controlDisk) Size() int64 { return 1 << 20 }

// Flush does nothing.
func (c *controlDisk) Flush() error { return nil }

// ReadAt reads the answer to the last message.
func (c *controlDisk) ReadAt(b []byte, offset int64) (int, error) {
	clear(b)
	if offset < int64(len(c.answer)) {
		copy(b, c.answer[offset:])
	}
	return len(b), nil
}

// WriteAt takes a message.
func (c *controlDisk) WriteAt(b []byte, _ int64) (int, error) {
	var m struct {
		Mark   string
		Known  json.RawMessage
		Next   bool
		Result *result
	}
	if err := json.Unmarshal(bytes.TrimRight(b, "\x00"), &m); err != nil {
		return 0, err
	}
	switch {
	case m.Mark != "":
		return len(b), c.host.mark(m.Mark, m.Known)
	case m.Result != nil:
		c.host.done(m.Result)
	case m.Next:
		var err error
		c.answer, err = c.host.next()
		return len(b), err
	}
	return len(b), nil
}

func (h *host) mark(step string, known json.RawMessage) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.current.states = append(h.current.states, slices.Clone(known))
	return h.disk.Do(powercut.Record{Mark: step})
}

// done notes how the boot from a cut disk went.
func (h *host) done(r *result) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	c := h.current.cut
	c.result, c.took = r, time.Since(h.current.began)
	h.cuts = append(h.cuts, c)
	h.t.Logf("%s", c)
	if r.Failed != "" {
		h.t.Errorf("cut %d: %s", c.number, r.Failed)
		h.keep(h.current)
	}
}

// keep leaves the disk of a boot that failed as the boot found it, and what was known of it, for people.
func (h *host) keep(l *life) {
	name := filepath.Join(h.t.ArtifactDir(), fmt.Sprintf("cut-%d", l.number))
	f, err := os.Create(name + ".raw")
	if err == nil {
		err = errors.Join(f.Truncate(cutDiskSize), l.base.Save(f), f.Close(), os.WriteFile(name+".json", l.known, 0o600))
	}
	if err != nil {
		h.t.Error(err)
	}
	h.t.Logf("the disk as this boot found it, and what was known of it, are in %s.*", name)
}

// next cuts the power: of the story, or now and then of the boot that just went on from a cut.
func (h *host) next() ([]byte, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.story == nil {
		h.story = h.current
		h.points = h.story.points(*cuts, h.random)
		h.t.Logf("%d records, %d of them marks, seed %d", len(h.story.log), len(h.story.states), *seed)
	}
	if len(h.cuts) == *cuts {
		return json.Marshal(message{End: true})
	}
	from, at := h.current, 0
	if from == h.story || from.after == maxAfter || h.random.IntN(3) > 0 {
		from, at = h.story, h.points[0]
		h.points = h.points[1:]
	} else {
		points := from.points(1, h.random)
		at = points[0]
	}
	l, err := from.cutAt(at, h.random)
	if err != nil {
		return nil, err
	}
	l.number = len(h.cuts) + 1
	h.start(l)
	return fmt.Appendf(nil, `{"Known":%s}`, l.known), nil
}

// maxAfter is how often in a row the boot after a cut is cut.
const maxAfter = 2

// cutAt begins the life of the disk after a cut at a place of the log: only what stands before it has happened.
func (l *life) cutAt(at int, random *rand.Rand) (*life, error) {
	next := &life{base: l.base.Copy(), known: l.known, began: time.Now()}
	d, marks, now := powercut.NewDisk(next.base, cutDiskSize), 0, moment{mark: "start"}
	for _, r := range l.log[:at] {
		if err := d.Do(r); err != nil {
			return nil, err
		}
		if r.Mark != "" {
			next.known = l.states[marks]
			marks++
		}
		now = now.after(r)
	}
	if next.known == nil {
		next.known = json.RawMessage("{}")
	}
	var err error
	next.loss, err = d.Tear(random)
	next.cut.step, next.after = now.mark+now.part, l.after
	if l.number > 0 {
		next.after++
	}
	return next, err
}

// moment is what was the last to happen: a mark, and within formatting what is written.
type moment struct{ mark, part string }

// after is the step once r has happened.
func (s moment) after(r powercut.Record) moment {
	switch {
	case r.Mark != "":
		return moment{mark: r.Mark}
	case r.Flush || s.mark != "formatting":
	case r.Offset == statedisk.OffsetA:
		s.part = ", record A"
	case r.Offset == statedisk.OffsetB:
		s.part = ", record B"
	case r.Offset < statedisk.OffsetA:
		s.part = ", LUKS area"
	case s.part == ", record B", s.part == ", epoch":
		s.part = ", epoch"
	default:
		s.part = ", volume"
	}
	return s
}

// points chooses places of the log to cut at, a place being the number of records before it: of each kind of step in turn,
// those with the most writes first, within one such step or at its end. In two rounds of three something is unflushed there, if
// it ever is.
func (l *life) points(n int, random *rand.Rand) []int {
	var kinds []moment
	places, lossy := map[moment][]int{}, map[moment][]int{}
	now, unflushed := moment{mark: "start"}, false
	for i, r := range l.log {
		if now = now.after(r); places[now] == nil {
			kinds = append(kinds, now)
		}
		places[now] = append(places[now], i+1)
		if unflushed = !r.Flush && (unflushed || len(r.Data) > 0); unflushed {
			lossy[now] = append(lossy[now], i+1)
		}
	}
	slices.SortStableFunc(kinds, func(a, b moment) int { return len(places[b]) - len(places[a]) })
	var points []int
	for i := range n {
		kind := kinds[i%len(kinds)]
		of := places[kind]
		if i/len(kinds)%3 < 2 && len(lossy[kind]) > 0 {
			of = lossy[kind]
		}
		points = append(points, of[random.IntN(len(of))])
	}
	return points
}

// String is a row of the report.
func (c cut) String() string {
	where := c.step
	if c.after > 0 {
		where += fmt.Sprintf(" (of boot %d after a cut)", c.after)
	}
	return fmt.Sprintf("cut %3d  %-45s  %-48s  %-10s  %-24s  %4.1f s", c.number, where, c.loss, c.result.Found, c.result.Did, c.took.Seconds())
}

// report sums up, and fails if the cuts were of one kind.
func (h *host) report() {
	found, did := map[string]int{}, map[string]int{}
	var writes, lost, torn int
	for _, c := range h.cuts {
		how, _, _ := strings.Cut(c.result.Did, ",")
		found[c.result.Found]++
		did[how]++
		writes, lost, torn = writes+c.loss.Writes, lost+c.loss.Lost, torn+c.loss.Torn
	}
	h.t.Logf("%d cuts: found %v, then %v; of %d unflushed writes %d were lost, %d torn", len(h.cuts), found, did, writes, lost, torn)
	if len(h.cuts) != *cuts || lost == 0 || torn == 0 || did["opened"] == 0 || did["formatted"] == 0 {
		h.t.Errorf("%d cuts, want %d, with writes lost and torn, and disks that were opened and formatted after it", len(h.cuts), *cuts)
	}
}
