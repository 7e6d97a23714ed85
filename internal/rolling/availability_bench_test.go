//go:build bench

package rolling

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/hullmark/hullmark/upgrade"
)

var (
	rounds = flag.Int("rounds", 3, "how often each side restarts all control planes")
	atOnce = flag.Bool("at-once", true, "restart them once more, with the API server and its member of etcd asked to end at once")
)

// BenchmarkUpgrade has three control planes restart while clients read, write and watch: by the engine, to another release; and, in turn
// with that, one after another with nobody who looks at the others, as soon as the API server of the one before is ready. Both end and
// start the same programs in the same order. At the end it is seen what that order is good for.
func BenchmarkUpgrade(b *testing.B) {
	s := newSite(b, 3, 0)
	f := startTraffic(b, s.admin)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nby\tround\tstep\tends\taway\treads failed\twrites failed\tno read\tno write\tslowest\twatches\tno watch\t\n")
	for round := range *rounds {
		s.byEngine(b, round+1)
		s.print(t, f, "engine", round)
		s.byNobody(b)
		s.print(t, f, "nobody", round)
	}
	if *atOnce {
		s.ordered = false
		s.byNobody(b)
		s.print(t, f, "nobody", *rounds)
	}
	f.check(b, s.admin)
	if err := t.Flush(); err != nil {
		b.Fatal(err)
	}
}

// byEngine upgrades to the other image.
func (s *site) byEngine(b *testing.B, number int) {
	b.Helper()
	s.setEngines(b, true)
	if last := s.wanted(b, fmt.Sprintf("%016x", number), images[number%len(images)]); last.Phase != upgrade.Done {
		b.Fatalf("it ended as %s: %+v", last.Phase, last.Failed)
	}
	time.Sleep(settle)
}

// settle lies between two sides, so that what one leaves is not the other's.
const settle = 15 * time.Second

// byNobody restarts one plane after the other.
func (s *site) byNobody(b *testing.B) {
	b.Helper()
	s.setEngines(b, false)
	for _, p := range s.planes {
		// An API server that has lost its member may have to be killed.
		if err := s.halt(p); err != nil && s.ordered {
			b.Fatal(err)
		}
		time.Sleep(away)
		must(b, s.boot(b.Context(), b, p))
	}
	time.Sleep(settle)
}

// setEngines starts all engines, or ends them.
func (s *site) setEngines(b *testing.B, run bool) {
	b.Helper()
	if s.engines == run {
		return
	}
	s.engines = run
	for _, p := range s.planes {
		if p.endEngine(); run {
			must(b, s.startEngine(b, p))
		}
	}
}

// print adds a row for each step since the last, which lasts until the next one.
func (s *site) print(t *tabwriter.Writer, f *traffic, by string, round int) {
	ends := map[bool]string{true: "API server first", false: "at once"}[s.ordered]
	steps := s.taken()
	for i, one := range steps {
		until := one.back.Add(settle)
		if i+1 < len(steps) && steps[i+1].left.Before(until) {
			until = steps[i+1].left
		}
		g := f.seen(one.left, until)
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%.1f s\t%d of %d\t%d of %d\t%.2f s\t%.2f s\t%.2f s\t%d\t%.2f s\t%q\n", by, round+1, one.plane, ends, one.back.Sub(one.left).Seconds(),
			g.failedReads, g.reads, g.failedWrites, g.writes, g.noRead.Seconds(), g.noWrite.Seconds(), g.slowest.Seconds(), g.watches, g.noWatch.Seconds(), g.why[:min(len(g.why), 3)])
	}
	_ = t.Flush() // Somebody may watch.
}
