package search

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

// Wanted is what `make explore` asks the test TestExplore of a package for.
type Wanted struct {
	Scenario string
	// Small allows fewer faults; Most, if not 0, is after how many states to stop.
	Small bool
	Most  int
}

// Flags adds them to a test's flags.
func Flags(f *flag.FlagSet) *Wanted {
	w := &Wanted{}
	f.StringVar(&w.Scenario, "scenario", "", "what to explore")
	f.BoolVar(&w.Small, "small", false, "allow fewer faults")
	f.IntVar(&w.Most, "most", 0, "stop after so many states")
	return w
}

// Print writes what was found, as a line by itself.
func (w *Wanted) Print(r Report) {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // A report has nothing that cannot be encoded.
	}
	fmt.Fprintf(os.Stdout, "REPORT %s\n", text)
}
