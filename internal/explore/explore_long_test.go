//go:build long

package explore

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// build compiles the explorer that has a scenario, with edited code, and returns the program.
func build(t *testing.T, scenario string, edits ...edit) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	pkg, fakes := explorer(scenario)
	files, err := apply(root, append(fakes, edits...)...)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range files {
		at := filepath.Join(dir, filepath.Base(filepath.Dir(name))+"-"+filepath.Base(name))
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, name)] = at
	}
	out, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), out, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "explorer")
	if out, err := exec.Command("go", "test", "-c", "-tags", "explore", "-vet=off", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, filepath.Join(root, pkg)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

var reportLine = regexp.MustCompile(`(?m)^REPORT (.*)$`)

// explore runs the explorer.
func explore(t *testing.T, program string, args ...string) (found report) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	command := exec.CommandContext(ctx, program, append([]string{"-test.run", "^TestExplore$", "-test.timeout", "0"}, args...)...)
	command.Env = append(command.Environ(), "GOGC=400")
	out, err := command.CombinedOutput()
	line := reportLine.FindSubmatch(out)
	if err != nil || line == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := json.Unmarshal(line[1], &found); err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	all  = flag.Bool("all", false, "go through all scenarios, and take each check out")
	full = flag.Bool("full", false, "allow more faults, in hours")
)

// uncut are the scenarios that, but in their full form, have no power cut.
var uncut = []string{"asks", "restarts"}

// endless are the scenarios that take hours in any form.
var endless = []string{"behind", "owners"}

// The states in which a node, its disk and the cluster's records can be, through all that may happen to them, are good ones.
func TestStates(t *testing.T) {
	programs, through := map[string]string{}, []string{"forged", "updates"}
	if *all {
		through = append(slices.Clone(names), updateNames...)
	}
	args, cuts := []string{"-small"}, 1
	if *full {
		args, cuts = nil, 2
	}
	for _, name := range through {
		if !*full && slices.Contains(endless, name) {
			continue
		}
		pkg, _ := explorer(name)
		if programs[pkg] == "" {
			programs[pkg] = build(t, name)
		}
		t.Run(name, func(t *testing.T) {
			cuts, least := cuts, report{Events: 12, States: 500}
			r := explore(t, programs[pkg], append(args, "-scenario", name)...)
			t.Logf("%d states, %d steps, up to %d events and %d power cuts, %d ends, %.0f s", r.States, r.Steps, r.Events, r.Crashes, r.Ends, r.Seconds)
			if r.Violation != "" {
				t.Errorf("%s:\n%s", r.Violation, strings.Join(r.Trace, "\n"))
			}
			if slices.Contains(updateNames, name) { // Each of their boots is many events of the others.
				cuts, least.Events, least.States = 1, 9, 200
			}
			if r.Events < least.Events || r.Crashes < cuts && !slices.Contains(uncut, name) || r.States < least.States {
				t.Error("that is not deep enough to show anything")
			}
		})
	}
}

// everyDay are scenarios whose first check is taken out every day.
var everyDay = []string{"crashes", "forged", "slots"}

// Whoever takes a check out of the code is found out.
func TestChecks(t *testing.T) {
	without := slices.Concat(checks(), updateChecks(), slotChecks())
	if !*all {
		var some []check
		for _, scenario := range everyDay {
			some = append(some, without[slices.IndexFunc(without, func(c check) bool { return c.scenario == scenario })])
		}
		without = some
	}
	for _, c := range without {
		t.Run(c.scenario+": "+c.what, func(t *testing.T) {
			r := explore(t, build(t, c.scenario, c.without...), "-small", "-scenario", c.scenario, "-most", "40000")
			t.Logf("%s: %q after %d events and %d states", c.scenario, r.Violation, len(r.Trace), r.States)
			if r.Violation != c.finds {
				t.Errorf("want %q", c.finds)
			}
		})
	}
}
