// Package search goes through all that can happen to a machine, from one time that it is off to the next.
//
// What outlives a boot is a state. A boot asks what happens at each choice that it comes to, and is run once for each combination of
// answers; what it leaves is the next state, from which the search goes on unless it was there before. How often something may happen is
// the state's to count.
package search

import (
	"fmt"
	"slices"
	"time"
)

// Report is what a search found.
type Report struct {
	Scenario string
	// States are those that were reached, Steps the boots from them. Events and Crashes led to the last of them.
	States, Steps   int
	Events, Crashes int
	// Ends are the states after which nothing is left to do.
	Ends    int
	Seconds float64
	// Violation is what must not happen and does, after what Trace tells.
	Violation string   `json:",omitempty"`
	Trace     []string `json:",omitempty"`
}

// Boot is one, and what happens in it.
type Boot struct {
	given, widths []int
	lines         []string
	cuts          int
}

// violation is what Fail unwinds with.
type violation string

// Choose returns which of the faults comes here; empty is none. What is not a fault is the same each time.
func (b *Boot) Choose(where string, faults ...string) string {
	at := len(b.widths)
	b.widths = append(b.widths, len(faults)+1)
	if at >= len(b.given) || b.given[at] == 0 {
		return ""
	}
	fault := faults[b.given[at]-1]
	b.Say("%s: %s", where, fault)
	return fault
}

// Say tells what happens.
func (b *Boot) Say(format string, args ...any) {
	b.lines = append(b.lines, fmt.Sprintf(format, args...))
}

// Cut counts a power cut.
func (b *Boot) Cut() { b.cuts++ }

// Fail ends the search: something happens that must not.
func (b *Boot) Fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// Machine is what is explored.
type Machine[State any] struct {
	// Run boots the machine, and returns what it leaves. ends says that nothing is left to do.
	Run func(State, *Boot) (next State, ends bool)
	// Key is the same of two states from which the same follows.
	Key func(State) string
	// Most, if not 0, is after how many states the search stops.
	Most int
}

// reached is a state, and how it was reached first.
type reached[State any] struct {
	state        State
	from         *reached[State]
	lines        []string
	events, cuts int
	// next is where it goes if nothing goes wrong, nil where that ends; it is set once that is known.
	next  *reached[State]
	known bool
}

func (r *reached[State]) trace(last []string) []string {
	lines := last
	for ; r != nil; r = r.from {
		lines = append(slices.Clone(r.lines), lines...)
	}
	return lines
}

// todo is a boot that was not run yet.
type todo[State any] struct {
	from  *reached[State]
	given []int
}

// Explore searches from a state on, the shortest ways first.
func (m Machine[State]) Explore(scenario string, first State) (r Report) {
	began := time.Now()
	r = m.explore(first)
	r.Scenario, r.Seconds = scenario, time.Since(began).Seconds()
	return r
}

func (m Machine[State]) explore(first State) (r Report) {
	start := &reached[State]{state: first}
	states, all := map[string]*reached[State]{m.Key(first): start}, []*reached[State]{start}
	left := []todo[State]{{from: start}}
	for len(left) > 0 && (m.Most == 0 || len(all) <= m.Most) {
		item := left[0]
		left = left[1:]
		b := &Boot{given: item.given}
		next, ends, wrong := m.run(item.from.state, b)
		r.States, r.Steps = len(all), r.Steps+1
		if wrong != "" {
			r.Violation, r.Trace = wrong, item.from.trace(b.lines)
			return r
		}
		for i := len(item.given); i < len(b.widths); i++ {
			for fault := 1; fault < b.widths[i]; fault++ {
				given := append(slices.Clone(item.given), make([]int, i-len(item.given))...)
				left = append(left, todo[State]{item.from, append(given, fault)})
			}
		}
		var to *reached[State]
		if ends {
			r.Ends++
		} else if to = states[m.Key(next)]; to == nil {
			from := item.from
			to = &reached[State]{state: next, from: from, lines: b.lines, events: from.events + len(b.lines), cuts: from.cuts + b.cuts}
			states[m.Key(next)], all = to, append(all, to)
			left = append(left, todo[State]{from: to})
			r.Events, r.Crashes = max(r.Events, to.events), max(r.Crashes, to.cuts)
		}
		if len(item.given) == 0 {
			item.from.next, item.from.known = to, true
		}
	}
	r.States = len(all)
	for _, s := range all {
		if lines := endless(s); lines != nil {
			r.Violation, r.Trace = "left alone, the machine restarts again and again", s.trace(lines)
			return r
		}
	}
	return r
}

// run runs one boot, and returns what must not happen and did.
func (m Machine[State]) run(from State, b *Boot) (next State, ends bool, wrong string) {
	defer func() {
		if p := recover(); p != nil {
			v, ok := p.(violation)
			if !ok {
				panic(p)
			}
			wrong = string(v)
		}
	}()
	next, ends = m.Run(from, b)
	return next, ends, ""
}

// endless follows a state, left alone, and returns what happens if that never ends.
func endless[State any](s *reached[State]) (lines []string) {
	seen := map[*reached[State]]bool{}
	for ; s != nil && s.known; s = s.next {
		if seen[s] {
			return append(lines, "and so on for ever")
		}
		seen[s] = true
		lines = append(lines, s.lines...)
	}
	return nil
}
