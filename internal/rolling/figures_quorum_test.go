//go:build quorum || bench

package rolling

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"
)

// figures are what clients saw in a time.
type figures struct {
	reads, writes, failedReads, failedWrites int
	// noRead and noWrite are the longest times without a successful answer, slowest how long the slowest that was answered took.
	noRead, noWrite, slowest time.Duration
	// watches ended and were begun again, the slowest after noWatch.
	watches int
	noWatch time.Duration
	// why are the failures, without repetitions.
	why []string
}

// seen returns what clients saw of requests sent between two times. The times between answers are measured to that end.
func (f *traffic) seen(from, to time.Time) (g figures) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	answered := map[bool][]time.Time{false: {from}, true: {from}}
	for _, c := range f.calls {
		if c.sent.Before(from) || c.sent.After(to) {
			continue
		}
		total, failed := &g.reads, &g.failedReads
		if c.write {
			total, failed = &g.writes, &g.failedWrites
		}
		*total++
		if c.err == nil {
			answered[c.write] = append(answered[c.write], c.ended)
			g.slowest = max(g.slowest, c.ended.Sub(c.sent))
			continue
		}
		*failed++
		if why := fmt.Sprintf("%.150s", cause(c.err)); len(g.why) < 20 && !slices.Contains(g.why, why) {
			g.why = append(g.why, why)
		}
	}
	g.noRead, g.noWrite = longest(append(answered[false], to)), longest(append(answered[true], to))
	for _, b := range f.broken {
		if !b.at.Before(from) && !b.at.After(to) {
			g.watches++
			g.noWatch = max(g.noWatch, b.again.Sub(b.at))
		}
	}
	return g
}

// cause leaves the request's address out.
func cause(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}

// longest is the longest time between two that follow each other.
func longest(all []time.Time) (most time.Duration) {
	slices.SortFunc(all, time.Time.Compare)
	for i := 1; i < len(all); i++ {
		most = max(most, all[i].Sub(all[i-1]))
	}
	return most
}

// report is a line for people.
func (f *traffic) report(from, to time.Time) string {
	if from.IsZero() {
		f.mutex.Lock()
		from = f.calls[0].sent
		f.mutex.Unlock()
	}
	g := f.seen(from, to)
	return fmt.Sprintf("%d of %d reads and %d of %d writes failed; at most %v without a read, %v without a write, the slowest took %v; %d watches began again, within %v; %q",
		g.failedReads, g.reads, g.failedWrites, g.writes, g.noRead.Round(time.Millisecond), g.noWrite.Round(time.Millisecond), g.slowest.Round(time.Millisecond), g.watches, g.noWatch.Round(time.Millisecond), g.why)
}
