package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/hullmark/hullmark/internal/tooltest"
)

// tourPage shows commands in blocks of a terminal, each with what it prints.
const tourPage = "../../docs/tour.md"

var (
	updateTour = flag.Bool("update", false, "write what the commands of docs/tour.md print into the page")
	// tourBlock is what one terminal of the page shows.
	tourBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	// tourChance is the one line that is another each time: a new cluster's root. Any is as good as the one that the page shows.
	tourChance = regexp.MustCompile(`^cluster root [0-9a-f]{64}$`)
)

// TestTour runs the commands of the tour, one after the other, where they find what a clone has, and holds the page to what they print.
func TestTour(t *testing.T) {
	text, err := os.ReadFile(tourPage)
	if err != nil {
		t.Fatal(err)
	}
	g := newGuide(t)
	recorded := tourBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		return "```console\n" + g.record(tourBlock.FindStringSubmatch(block)[1]) + "```"
	})
	if g.commands < 15 || g.chances != 1 {
		t.Errorf("%d commands ran and %d lines were of chance, want 15 or more, and one: the page is written otherwise than this test reads it", g.commands, g.chances)
	}
	if g.status != 0 {
		t.Errorf("the last command ended with exit code %d, and the page does not show that", g.status)
	}
	switch {
	case t.Failed() || recorded == string(text):
	case *updateTour:
		if err := os.WriteFile(tourPage, []byte(recorded), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("docs/tour.md shows something else than its commands print; if that is right, make tour writes it, and its words have to fit:\n%s",
			diff.Diff("docs/tour.md", text, "what the commands print", []byte(recorded)))
	}
}

// guide runs commands as somebody would who follows the page.
type guide struct {
	t   *testing.T
	dir string
	// status is the last command's exit code.
	status            int
	commands, chances int
}

// newGuide makes a folder with what a clone has and the tour reads, and with this test's own binary as bin/hullmark.
func newGuide(t *testing.T) *guide {
	t.Helper()
	for _, program := range []string{"jq", "openssl"} {
		tooltest.Path(t, program, program)
	}
	dir := t.TempDir()
	for _, folder := range []string{"docs", "pcrs", "attest"} {
		from, err := filepath.Abs(filepath.Join("../..", folder))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(from, filepath.Join(dir, folder)); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	hullmark := "#!/bin/sh\n" + asProgram + "=1 exec '" + self + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "bin", "hullmark"), []byte(hullmark), 0o755); err != nil {
		t.Fatal(err)
	}
	return &guide{t: t, dir: dir}
}

// step is a command of the page, with the lines that it is written in, and those that the page says it prints.
type step struct {
	command string
	shown   []string
}

// steps reads what a terminal shows. A command begins after "$ ", and goes on behind a line that ends with a backslash.
func steps(t *testing.T, terminal string) (all []step) {
	t.Helper()
	open := false
	for line := range strings.Lines(terminal) {
		line = strings.TrimSuffix(line, "\n")
		command, begins := strings.CutPrefix(line, "$ ")
		switch {
		case open:
			all[len(all)-1].command += "\n" + line
		case begins:
			all = append(all, step{command: command})
		case len(all) == 0:
			t.Fatalf("a terminal of docs/tour.md begins with no command: %s", line)
		default:
			last := &all[len(all)-1]
			last.shown = append(last.shown, line)
			continue
		}
		open = strings.HasSuffix(line, `\`)
	}
	return all
}

// record runs what a terminal shows, and returns what it shows now.
func (g *guide) record(terminal string) string {
	g.t.Helper()
	var now strings.Builder
	for _, s := range steps(g.t, terminal) {
		fmt.Fprintf(&now, "$ %s\n", s.command)
		for i, line := range g.run(s.command) {
			if tourChance.MatchString(line) {
				g.chances++
				if i < len(s.shown) && tourChance.MatchString(s.shown[i]) {
					line = s.shown[i]
				}
			}
			fmt.Fprintln(&now, line)
		}
	}
	return now.String()
}

// run runs a command, with the exit code of the one before in $?, and returns the lines that it printed, without spaces at their ends. Of a
// command that fails the page has to show the exit code next.
func (g *guide) run(command string) (lines []string) {
	g.t.Helper()
	if g.status != 0 && command != "echo $?" {
		g.t.Errorf("exit code %d, which the page does not show, before %s", g.status, command)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", fmt.Sprintf("(exit %d)\n%s", g.status, command))
	cmd.Dir, cmd.Env = g.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.dir, "LC_ALL=C", "TZ=UTC"}
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		g.t.Fatalf("%s: %v", command, err)
	}
	g.status, g.commands = cmd.ProcessState.ExitCode(), g.commands+1
	g.t.Logf("%4.1f s  %s", time.Since(begin).Seconds(), command)
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, " \n")
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "```") {
			g.t.Errorf("%s prints a line that the page could not show: %s", command, line)
		}
		lines = append(lines, line)
	}
	return lines
}
