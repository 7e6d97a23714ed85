//go:build explore

package explore

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// reached is what is kept of a state.
type reached struct {
	// from is the state from which it was first reached, by the event text, after so many events and power cuts.
	from    [16]byte
	text    string
	events  int
	crashes int
	// next is where it goes if it is left alone; it is itself where that ends.
	next [16]byte
}

// todo is an event that was not taken yet.
type todo struct {
	from  *world
	path  []int
	state [16]byte
}

type exploration struct {
	site   *site
	states map[[16]byte]*reached
	todo   []todo
	report report
	budget budget
}

func TestExplore(t *testing.T) {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == *scenarioFlag })
	if i < 0 {
		t.Fatalf("no scenario %q: this test runs inside of `make explore`", *scenarioFlag)
	}
	if !slices.EqualFunc(scenarios, names, func(s scenario, name string) bool { return s.name == name }) {
		t.Fatal("names is not the list of the scenarios")
	}
	s := &exploration{site: newSite(t, scenarios[i]), states: map[[16]byte]*reached{}, budget: scenarios[i].full}
	if *shortFlag {
		s.budget = scenarios[i].small
	}
	began := time.Now()
	err := s.explore()
	s.report.Scenario, s.report.States, s.report.Seconds = scenarios[i].name, len(s.states), time.Since(began).Seconds()
	if err != nil {
		s.report.Violation = err.Error()
	}
	out, err := json.Marshal(s.report)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(os.Stdout, "REPORT %s\n", out)
}

// explore goes through all states that the faults allow.
func (s *exploration) explore() error {
	first := s.site.first(s.budget)
	s.todo = []todo{{from: first}}
	for len(s.todo) > 0 {
		last := len(s.todo) - 1
		item := s.todo[last]
		s.todo = s.todo[:last]
		if err := s.follow(item); err != nil {
			return err
		}
		if *mostFlag > 0 && len(s.states) > *mostFlag {
			return nil
		}
	}
	return s.settle()
}

// follow repeats what led to a state, takes the event that was not taken there yet, and goes on as if left alone until it comes
// to a state that is known.
func (s *exploration) follow(item todo) error {
	r := s.site.start(item.from)
	defer r.end()
	from, path, at := item.from, item.path, item.state
	if len(path) == 0 { // the beginning
		at = r.state()
		s.states[at] = &reached{text: "the beginning"}
		if _, err := s.open(r, from, nil, at); err != nil {
			return err
		}
		path = []int{0}
	}
	for _, i := range path[:len(path)-1] {
		r.choices()[i].do()
	}
	if got := r.state(); got != at {
		return fmt.Errorf("the same events led to another state than before")
	}
	path = slices.Clone(path)
	for {
		all := r.choices()
		c := all[path[len(path)-1]]
		crashes := r.w.left.Crash
		c.do()
		if *traceFlag {
			fmt.Println(c.text)
		}
		s.report.Steps++
		next := r.state()
		before := s.states[at]
		if path[len(path)-1] == 0 && !c.fault {
			before.next = next
		}
		known := s.states[next]
		if known == nil {
			s.states[next] = &reached{from: at, text: c.text, events: before.events + 1, crashes: before.crashes + crashes - r.w.left.Crash}
			s.report.Events = max(s.report.Events, before.events+1)
			s.report.Crashes = max(s.report.Crashes, s.states[next].crashes)
		}
		if r.violated != nil {
			s.trace(at, c.text)
			return *r.violated
		}
		if known != nil {
			return nil
		}
		at = next
		if len(r.procs) == 0 {
			from, path = r.w.clone(), nil
		}
		if more, err := s.open(r, from, path, at); err != nil || !more {
			return err
		}
		path = append(slices.Clone(path), 0)
	}
}

// open notes all events of a state but the first, and reports whether there are any. A state in which nothing happens any more
// without a fault has to be a good end.
func (s *exploration) open(r *run, from *world, path []int, at [16]byte) (more bool, err error) {
	all := r.choices()
	if len(all) == 0 || all[0].fault {
		s.report.Ends++
		s.states[at].next = at
		if what := r.unfinished(); what != "" {
			s.trace(at, "")
			return false, fmt.Errorf("left alone, it ends: %s", what)
		}
	}
	for i := 1; i < len(all); i++ {
		s.todo = append(s.todo, todo{from: from, path: append(slices.Clone(path), i), state: at})
	}
	return len(all) > 0, nil
}

// unfinished says what is wrong with a state in which nothing happens any more.
func (r *run) unfinished() string {
	for i, m := range r.w.machines {
		if m.mode != ready && !(m.mode == refused && slices.Contains(r.site.scenario.stands, m.code)) {
			return fmt.Sprintf("machine %d is %s %s", i, m.mode, m.code)
		}
	}
	if len(r.procs) > 0 {
		return "an exchange waits for ever"
	}
	for id, node := range r.w.records.Tokens() {
		m, _, _ := r.w.records.Load(context.Background(), node)
		if m.Token != id {
			return "a token is left that no record names"
		}
	}
	return ""
}

// settle follows each state, left alone, to its end.
func (s *exploration) settle() error {
	ends := map[[16]byte]bool{}
	for state := range s.states {
		var way [][16]byte
		seen := map[[16]byte]bool{}
		for at := state; !ends[at]; {
			if seen[at] {
				s.trace(at, "and so on for ever")
				return fmt.Errorf("left alone, it never ends")
			}
			seen[at] = true
			way = append(way, at)
			next := s.states[at].next
			if next == at {
				break
			}
			at = next
		}
		for _, at := range way {
			ends[at] = true
		}
	}
	return nil
}

// trace notes how a state is reached.
func (s *exploration) trace(at [16]byte, last string) {
	events := []string{last}
	for s.states[at].events > 0 {
		events = append(events, s.states[at].text)
		at = s.states[at].from
	}
	slices.Reverse(events)
	s.report.Trace = events
	if *traceFlag {
		fmt.Println(strings.Join(events, "\n"))
	}
}
