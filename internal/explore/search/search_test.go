package search

import (
	"fmt"
	"slices"
	"testing"
)

// counter is a machine that counts to three. A fault takes it back by one, twice at most.
type counter struct{ at, faults int }

func counting(run func(counter, *Boot) (counter, bool)) Machine[counter] {
	return Machine[counter]{Run: run, Key: func(c counter) string { return fmt.Sprint(c) }}
}

func count(c counter, b *Boot) (counter, bool) {
	b.Say("at %d", c.at)
	if c.faults > 0 && b.Choose("counting", "back") != "" {
		b.Cut()
		return counter{c.at - 1, c.faults - 1}, false
	}
	c.at++
	return c, c.at == 3
}

func TestSearch(t *testing.T) {
	r := counting(count).Explore("counting", counter{faults: 2})
	// Three states without a fault, four with one left, five with none left.
	if r.Violation != "" || r.States != 3+4+5 || r.Ends != 3 || r.Crashes != 2 {
		t.Errorf("%+v", r)
	}
	r = counting(func(c counter, b *Boot) (counter, bool) {
		if c.at == -2 {
			b.Fail("below minus one")
		}
		return count(c, b)
	}).Explore("counting", counter{faults: 2})
	if want := []string{"at 0", "counting: back", "at -1", "counting: back"}; r.Violation != "below minus one" || !slices.Equal(r.Trace, want) {
		t.Errorf("%+v", r)
	}
	stays := func(c counter, b *Boot) (counter, bool) {
		if c.at == 1 {
			return c, false
		}
		return count(c, b)
	}
	if r := counting(stays).Explore("counting", counter{}); r.Violation != "left alone, the machine restarts again and again" {
		t.Errorf("%+v", r)
	}
	m := counting(count)
	m.Most = 2
	if r := m.Explore("counting", counter{faults: 2}); r.States > 4 {
		t.Errorf("%+v", r)
	}
}
