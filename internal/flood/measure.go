package flood

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// Waits is how long those took whom the server is for.
type Waits []time.Duration

// Percentile returns the time that so many of a hundred took at most; 0 if there were none.
func (w Waits) Percentile(percent int) time.Duration {
	if len(w) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(w))
	return sorted[(len(sorted)*percent+99)/100-1]
}

// Measure lets each of those go on trying, with a pause between two attempts, until stop is closed, and returns how long each
// took; err is of those that failed.
func Measure(stop <-chan struct{}, pause time.Duration, each []func() error) (waits Waits, err error) {
	var all sync.WaitGroup
	var mutex sync.Mutex
	for _, try := range each {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(pause):
				}
				began := time.Now()
				failed := try()
				mutex.Lock()
				waits, err = append(waits, time.Since(began)), errors.Join(err, failed)
				mutex.Unlock()
			}
		})
	}
	all.Wait()
	return waits, err
}

// Row is what became of one kind of flood.
type Row struct {
	Kind string
	Sent Sent
	// Memory is what the server had at most, in bytes, and CPU the part of its processor that it used.
	Memory int64
	CPU    float64
	// Alone and Meanwhile are without the flood and with it.
	Alone, Meanwhile Waits
}

// Ratio is by how much the slowest of a hundred took longer.
func (r Row) Ratio() float64 {
	return float64(r.Meanwhile.Percentile(99)) / float64(max(r.Alone.Percentile(99), 1))
}

// Print prints a table; capacity is how many exchanges the server ends in a second.
func Print(w io.Writer, what string, capacity float64, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s\ttried/s\t× capacity\tanswered/s\tmemory, MiB\tprocessor\tjoins\tp50 alone\tp50\tp99 alone\tp99\tratio\t\n", what)
	short := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%d\t%.0f %%\t%d\t%v\t%v\t%v\t%v\t%.2f\t\n", r.Kind, r.Sent.Rate(), r.Sent.Rate()/capacity, r.Sent.Served(), r.Memory>>20, 100*r.CPU,
			len(r.Meanwhile), short(r.Alone.Percentile(50)), short(r.Meanwhile.Percentile(50)), short(r.Alone.Percentile(99)), short(r.Meanwhile.Percentile(99)), r.Ratio())
	}
	fmt.Fprintf(t, "capacity: %.0f exchanges/s\t\n", capacity)
	return t.Flush()
}
