package flood

import (
	"cmp"
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/testenv"
)

const (
	// attackers try at once, from sources addresses, and make rate connections a second at most: of more, the kernel would let
	// most wait for its own sake.
	attackers, sources, rate = 8000, 16, 3000
	// pause is how long each of those does nothing between two attempts whom the server is for: unauthenticated peers, who come behind
	// them, have the processor meanwhile.
	pause = 250 * time.Millisecond
	// least is how often they try at least.
	least = 300
	// probers find out how many that is.
	probers = 64
	// short is how long a flood lasts whose figures are not held to targets.
	short = time.Second
	// The targets of the others: by how much the slowest of a hundred may take longer, and how many times its capacity the
	// server is offered.
	mostRatio, leastOffer = 2, 10
)

// Floods are several floods of one server, one after the other.
type Floods struct {
	Server *testenv.Process
	// Each are those whom the server is for.
	Each []func() error
	// Flood is what all have in common, and Kinds are their kinds.
	Flood
	Kinds []string
	// Probe is the kind whose answers a second are the server's capacity; without one it is how many exchanges those have whom it is for.
	Probe string
	// Memory is what the server may have, in bytes.
	Memory int64
}

var (
	figures = flag.Duration("figures", 0, "how long each flood lasts whose figures are held to their targets; 0 for short ones that are not: timings are no tests")
	only    = flag.String("kind", "", "the one kind of flood; all if it is empty")
)

// Run floods the server. Everyone whom it is for gets through at the first attempt, it stays the same process, and has no more
// memory than it may.
func (f Floods) Run(t *testing.T, what string) {
	t.Helper()
	capacity := f.capacity(t)
	length := cmp.Or(*figures, short)
	var rows []Row
	for _, kind := range f.Kinds {
		if *only == "" || *only == kind {
			rows = append(rows, f.run(t, kind, length, capacity))
		}
	}
	if err := Print(t.Output(), what, capacity, rows); err != nil {
		t.Error(err)
	}
	for _, r := range rows {
		if offer := r.Sent.Rate() / capacity; *figures > 0 && (r.Ratio() > mostRatio || offer < leastOffer) {
			t.Errorf("%s: the slowest of a hundred took %.2f times as long, want at most %d; %.1f times the capacity was offered, want at least %d",
				r.Kind, r.Ratio(), mostRatio, offer, leastOffer)
		}
	}
}

// capacity lets those come for whom the server is, or unauthenticated peers as many as it can take at once, one after the other
// without a pause.
func (f Floods) capacity(t *testing.T) float64 {
	t.Helper()
	const length = 5 * time.Second
	if f.Probe == "" {
		waits, err := f.during(0, func() error { time.Sleep(length); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return float64(len(waits)) / length.Seconds()
	}
	probe := f.Flood
	probe.Kind, probe.Attackers, probe.Sources, probe.For = f.Probe, probers, sources, length
	sent, err := probe.Run(t.Context())
	if err != nil || sent.Answered == 0 {
		t.Fatalf("%+v: %v", sent, err)
	}
	return sent.Served()
}

// during measures while something goes on.
func (f Floods) during(pause time.Duration, do func() error) (Waits, error) {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(stop)
		done <- do()
	}()
	waits, err := Measure(stop, pause, f.Each)
	return waits, errors.Join(err, <-done)
}

// run lets unauthenticated peers do one thing from many addresses.
func (f Floods) run(t *testing.T, kind string, length time.Duration, capacity float64) Row {
	t.Helper()
	one := f.Flood
	one.Kind, one.Attackers, one.Sources, one.Rate, one.For = kind, attackers, sources, rate, length
	one.Least, one.Behind = least, *figures > 0
	row := Row{Kind: kind}
	var err error
	if row.Alone, err = f.during(pause, func() error { time.Sleep(length); return nil }); err == nil {
		err = f.Server.ForgetPeak()
	}
	if err != nil {
		t.Fatal(err)
	}
	row.Meanwhile, err = f.during(pause, func() error {
		used, err := f.Server.CPU()
		if err == nil {
			row.Sent, err = one.Run(t.Context())
		}
		after, failed := f.Server.CPU()
		row.CPU = (after - used).Seconds() / max(row.Sent.Took.Seconds(), 1)
		return errors.Join(err, failed)
	})
	if err != nil {
		t.Errorf("%s: %v", kind, err)
	}
	if err := f.Server.Alive(); err != nil { // A process that was started anew would be another one.
		t.Fatalf("%s: %v", kind, err)
	}
	if row.Memory, err = f.Server.Memory(testenv.Peak); err != nil || row.Memory > f.Memory {
		t.Errorf("%s: the server had %d MiB, at most %d are allowed: %v", kind, row.Memory>>20, f.Memory>>20, err)
	}
	if row.Sent.Tried < least || len(row.Meanwhile) < len(f.Each) {
		t.Errorf("%s: %d tries of unauthenticated peers, and %d of those whom the server is for: this shows nothing", kind, row.Sent.Tried, len(row.Meanwhile))
	}
	return row
}
