// Package powercut is a disk whose power can be cut. Killing a virtual machine leaves what its guest wrote in the host's page
// cache; here, what was not flushed is held apart, and at the cut a random part of it is lost.
package powercut

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
)

// Sector is what is always written as a whole or not at all, in bytes.
const Sector = 512

// Medium is what is stored for good: a file, or Memory.
type Medium interface {
	io.ReaderAt
	io.WriterAt
}

// Record is one thing that a disk was given: a write of Data, whose bytes nobody changes any more, a flush, or a mark.
type Record struct {
	Offset int64
	Data   []byte
	// Flush stores every write before it.
	Flush bool
	// Mark changes nothing. It tells whoever reads the log what was going on.
	Mark string
}

// ErrCut is what a disk without power answers.
var ErrCut = errors.New("the power was cut")

// Disk is a disk with a volatile cache: a write stays there until a flush stores all of them. It is safe for concurrent use.
type Disk struct {
	// Watch, if set, is called with each record before it has an effect. If it returns true the power goes at that moment.
	Watch func(Record) (cut bool)

	mutex  sync.Mutex
	medium Medium
	size   int64
	// cached are the writes that no flush has stored, in their order; newest has for each sector the last of them that wrote it.
	cached []Record
	newest map[int64]int
	gone   chan struct{}
}

// NewDisk returns a disk of size bytes, a multiple of Sector, that holds what the medium does.
func NewDisk(m Medium, size int64) *Disk {
	return &Disk{medium: m, size: size, newest: map[int64]int{}, gone: make(chan struct{})}
}

// Size is the disk's, in bytes.
func (d *Disk) Size() int64 { return d.size }

// ReadAt reads whole sectors, as they were written last, stored or not.
func (d *Disk) ReadAt(b []byte, offset int64) (int, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.check(b, offset); err != nil {
		return 0, err
	}
	if n, err := d.medium.ReadAt(b, offset); err != nil {
		return n, err
	}
	for at := 0; at < len(b); at += Sector {
		if i, ok := d.newest[offset+int64(at)]; ok {
			w := d.cached[i]
			copy(b[at:at+Sector], w.Data[offset+int64(at)-w.Offset:])
		}
	}
	return len(b), nil
}

// WriteAt writes whole sectors into the cache. It keeps b.
func (d *Disk) WriteAt(b []byte, offset int64) (int, error) {
	return len(b), d.Do(Record{Offset: offset, Data: b})
}

// Flush stores what was written.
func (d *Disk) Flush() error { return d.Do(Record{Flush: true}) }

// Do does what the record says. To do all records of a disk's log makes the same disk again.
func (d *Disk) Do(r Record) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.check(r.Data, r.Offset); err != nil {
		return err
	}
	if d.Watch != nil && d.Watch(r) {
		d.cut()
		return ErrCut
	}
	if r.Flush {
		return d.flush()
	}
	for at := 0; at < len(r.Data); at += Sector {
		d.newest[r.Offset+int64(at)] = len(d.cached)
	}
	if len(r.Data) > 0 {
		d.cached = append(d.cached, r)
	}
	return nil
}

func (d *Disk) check(b []byte, offset int64) error {
	switch {
	case d.isCut():
		return ErrCut
	case offset < 0 || offset+int64(len(b)) > d.size || offset%Sector != 0 || len(b)%Sector != 0:
		return fmt.Errorf("%d bytes at %d of a disk of %d: want whole sectors", len(b), offset, d.size)
	}
	return nil
}

func (d *Disk) flush() error {
	for _, w := range d.cached {
		if _, err := d.medium.WriteAt(w.Data, w.Offset); err != nil {
			return err
		}
	}
	d.forget()
	return nil
}

func (d *Disk) forget() {
	d.cached = nil
	clear(d.newest)
}

// Cut takes the power away. From now on nothing reaches the disk, and nothing of it is answered.
func (d *Disk) Cut() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.cut()
}

func (d *Disk) cut() {
	if !d.isCut() {
		close(d.gone)
	}
}

func (d *Disk) isCut() bool {
	select {
	case <-d.gone:
		return true
	default:
		return false
	}
}

// Gone is closed when the power is cut.
func (d *Disk) Gone() <-chan struct{} { return d.gone }

// Loss is what a cut did to the writes in the cache.
type Loss struct {
	// Writes were in the cache. Of these Lost were lost, and Torn in part.
	Writes, Lost, Torn int
	// Unit is how much of a torn write met the same fate, in bytes.
	Unit int
}

// String says it for people.
func (l Loss) String() string {
	if l.Writes == 0 {
		return "nothing unflushed"
	}
	return fmt.Sprintf("of %d unflushed %d lost, %d torn at %d", l.Writes, l.Lost, l.Torn, l.Unit)
}

// Tear decides what becomes of the cache, after a cut: of each write all, nothing, or some sectors are stored, whatever became
// of those before it. How much survives in all is another share each time, from nothing to everything, and in every third cut
// the newest write does in any case: whoever forgot to flush before it shall notice. The medium then is the disk as the next
// boot finds it.
func (d *Disk) Tear(random *rand.Rand) (Loss, error) {
	d.Cut()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	kept := float64(random.IntN(5)) / 4
	loss := Loss{Writes: len(d.cached), Unit: []int{Sector, 8 * Sector}[random.IntN(2)]}
	newestKept := random.IntN(3) == 0
	for i, w := range d.cached {
		unit, kept := int64(loss.Unit), kept
		if random.IntN(2) == 0 {
			unit = d.size // This write is stored or lost as a whole.
		}
		if newestKept && i == len(d.cached)-1 {
			kept = 1
		}
		stored, err := d.tear(w, unit, func() bool { return random.Float64() < kept })
		if err != nil {
			return loss, err
		}
		if stored == 0 {
			loss.Lost++
		} else if stored < len(w.Data) {
			loss.Torn++
		}
	}
	d.forget()
	return loss, nil
}

// tear stores those units of a write that are kept, and returns how many bytes these are.
func (d *Disk) tear(w Record, unit int64, kept func() bool) (stored int, err error) {
	end := w.Offset + int64(len(w.Data))
	for at := w.Offset; at < end; {
		next := min((at/unit+1)*unit, end)
		if kept() {
			n, err := d.medium.WriteAt(w.Data[at-w.Offset:next-w.Offset], at)
			if err != nil {
				return stored, err
			}
			stored += n
		}
		at = next
	}
	return stored, nil
}
