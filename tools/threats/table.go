package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// verdict is what a test has shown, or several have: the worst of theirs.
type verdict int

const (
	passed verdict = iota
	// notRun is on a test behind a build tag that was not asked for.
	notRun
	skipped
	missing
	failed
)

func (v verdict) String() string {
	return [...]string{"passed", "not run", "SKIPPED", "MISSING", "FAILED"}[v]
}

// results are how the tests that were asked for ended.
type results struct {
	found map[function]declared
	tags  []string
	of    map[source]outcomes
}

func (r results) verdict(test reference) verdict {
	d, ok := r.found[test.function()]
	switch {
	case !ok:
		return missing
	case !d.asked(r.tags):
		return notRun
	}
	return r.of[source{test.folder, d.tag}].verdict(test)
}

func (r results) worst(tests []reference) verdict {
	worst := passed
	for _, test := range tests {
		worst = max(worst, r.verdict(test))
	}
	return worst
}

// sum counts rows.
type sum struct{ rows, refused, controls, notRun, wrong int }

func (s *sum) add(refused, control verdict) {
	s.rows++
	if refused == passed {
		s.refused++
	}
	if control == passed {
		s.controls++
	}
	switch max(refused, control) {
	case passed:
	case notRun:
		s.notRun++
	default:
		s.wrong++
	}
}

// printTable returns an error if any test was not run that was asked for, or did not pass.
func printTable(w io.Writer, rows []row, r results) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var s sum
	for _, row := range rows {
		refused, control := r.worst(row.refused), r.worst(row.accepted())
		s.add(refused, control)
		fmt.Fprintf(t, "\n%s\t%s\n", row.attack, ending(refused, control))
		for _, test := range row.refused {
			r.print(t, "", test)
		}
		for _, test := range row.controls {
			r.print(t, "control: ", test)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d rows, %d refused, %d positive controls accepted, %d not run\n", s.rows, s.refused, s.controls, s.notRun)
	if s.wrong > 0 {
		return fmt.Errorf("%d attacks are not shown refused, or their controls not accepted", s.wrong)
	}
	return nil
}

// ending says what a row has shown. What was not run in full is not counted.
func ending(refused, control verdict) string {
	say := func(v verdict, what string) string {
		switch v {
		case passed:
			return what
		case notRun:
			return what + " as far as it was run"
		}
		return "NOT SHOWN " + what
	}
	return say(refused, "refused") + ", control " + say(control, "accepted")
}

func (r results) print(w io.Writer, what string, test reference) {
	v := r.verdict(test)
	text := v.String()
	if v == notRun {
		text += ": behind the tag " + r.found[test.function()].tag
	}
	fmt.Fprintf(w, "  %s%s\t%s\n", what, test, text)
}
