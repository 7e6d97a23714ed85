package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"testing"
	"text/tabwriter"
	"time"
)

// out is the folder of a built image.
var out = flag.String("out", "../../out", "`folder` of the image that hullmark build made")

// comparison is one line of the report.
type comparison struct {
	what, peer string
	ours       time.Duration
	peers      time.Duration
	// target is how the ratio is meant to be, and atMost whether that is an upper bound of ours/peer or a lower one of peer/ours.
	target float64
	atMost bool
}

var comparisons []comparison

// goal is one line of the report about what has no peer.
type goal struct {
	what, measured, target string
	met                    bool
}

var goals []goal

func TestMain(m *testing.M) {
	code := m.Run()
	if err := errors.Join(reportComparisons(os.Stdout), reportGoals(os.Stdout)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func reportGoals(w io.Writer) error {
	if len(goals) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nwhat has no peer\tmeasured\ttarget\t\n")
	for _, g := range goals {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", g.what, g.measured, g.target, verdict(g.met))
	}
	return t.Flush()
}

func reportComparisons(w io.Writer) error {
	if len(comparisons) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nwhat\tours\tpeer\tratio\ttarget\t\tthe peer\n")
	for _, c := range comparisons {
		fmt.Fprintf(t, "%s\t%v\t%v\t%.2f×\t%s\t%s\t%s\n", c.what, short(c.ours), short(c.peers), c.ratio(), c.bound(), verdict(c.met()), c.peer)
	}
	return t.Flush()
}

func short(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

func (c comparison) ratio() float64 {
	if c.atMost {
		return float64(c.ours) / float64(c.peers)
	}
	return float64(c.peers) / float64(c.ours)
}

func (c comparison) bound() string {
	if c.atMost {
		return fmt.Sprintf("ours/peer at most %.1f×", c.target)
	}
	return fmt.Sprintf("peer/ours at least %.1f×", c.target)
}

func (c comparison) met() bool { return c.atMost == (c.ratio() <= c.target) || c.ratio() == c.target }

func verdict(met bool) string {
	if met {
		return "ok"
	}
	return "missed"
}

// compare times both sides and reports the comparison.
func compare(b *testing.B, c comparison, rounds int, ours, peer func(round int)) {
	b.Helper()
	times := medians(rounds, ours, peer)
	c.ours, c.peers = times[0], times[1]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(c.ratio(), "ratio")
	comparisons = append(comparisons, c)
}

// medians times all sides in turn, so that a busy moment of the machine meets each of them.
func medians(rounds int, sides ...func(round int)) []time.Duration {
	times := make([][]time.Duration, len(sides))
	for round := range rounds {
		for i, do := range sides {
			start := time.Now()
			do(round)
			times[i] = append(times[i], time.Since(start))
		}
	}
	out := make([]time.Duration, len(sides))
	for i := range sides {
		slices.Sort(times[i])
		out[i] = times[i][rounds/2]
	}
	return out
}

// mallocs is how many pieces of memory do takes from the heap, on average.
func mallocs(rounds int, do func(round int)) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for round := range rounds {
		do(round)
	}
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / uint64(rounds)
}
