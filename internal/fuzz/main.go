// Command fuzz fuzzes every target of the module, one after the other, and ends with a table of what each did.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
)

const module = "github.com/hullmark/hullmark"

// target is one fuzz test, and what is told of it in the end.
type target struct {
	pkg, name string
	// executions and found are the fuzzer's own figures; corpus is what it has to start from the next time.
	executions, found, corpus string
	// coverage is how much of the package's code seeds and corpus reach.
	coverage string
}

func main() {
	duration := flag.String("time", "10s", "how long each target is fuzzed")
	only := flag.String("only", "", "fuzz those whose package and name match this `pattern`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *duration, *only); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, duration, only string) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	targets, err := list(ctx, pattern)
	if err != nil {
		return err
	}
	farm, err := newFarm()
	defer func() { _ = os.RemoveAll(farm) }()
	if err != nil {
		return err
	}
	for i := range targets {
		t := &targets[i]
		fmt.Printf("== %s %s\n", t.pkg, t.name)
		if err := t.fuzz(ctx, duration); err != nil {
			return errors.Join(err, printTable(os.Stdout, targets[:i]))
		}
		if err := t.cover(ctx, farm); err != nil {
			return errors.Join(err, printTable(os.Stdout, targets[:i]))
		}
	}
	return printTable(os.Stdout, targets)
}

// declaration is how a fuzz test begins.
var declaration = regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z0-9_]+)\(`)

// list finds the fuzz tests of the checkout. It reads the files, since asking each package's tests means compiling all of them.
func list(ctx context.Context, pattern *regexp.Regexp) ([]target, error) {
	files, err := exec.CommandContext(ctx, "git", "ls-files", "*_test.go").Output()
	if err != nil {
		return nil, fmt.Errorf("list the checkout: %w", err)
	}
	var targets []target
	for _, file := range strings.Fields(string(files)) {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, found := range declaration.FindAllSubmatch(content, -1) {
			t := target{pkg: path.Join(module, path.Dir(file)), name: string(found[1])}
			if pattern.MatchString(t.pkg + " " + t.name) {
				targets = append(targets, t)
			}
		}
	}
	if len(targets) == 0 {
		return nil, errors.New("there are no such fuzz tests")
	}
	return targets, nil
}

// progress is the line that the fuzzer writes every three seconds and at its end.
var progress = regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+) \(total: (\d+)\)`)

// fuzz runs the target. Without a bound, the fuzzer spends its whole time making the first large input smaller.
func (t *target) fuzz(ctx context.Context, duration string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", duration, "-fuzzminimizetime", "20x", t.pkg)
	cmd.Stdout = io.MultiWriter(os.Stdout, &out)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", t.pkg, t.name, err)
	}
	lines := progress.FindAllStringSubmatch(out.String(), -1)
	if len(lines) == 0 {
		return fmt.Errorf("%s %s: the fuzzer told no figures", t.pkg, t.name)
	}
	last := lines[len(lines)-1]
	t.executions, t.found, t.corpus = last[1], last[2], last[3]
	return nil
}

// newFarm makes a temporary copy of the checkout out of symbolic links, in which inputs can be laid where a test looks for them.
func newFarm() (string, error) {
	farm, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return "", err
	}
	files, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return farm, fmt.Errorf("list the checkout: %w", err)
	}
	checkout, err := os.Getwd()
	if err != nil {
		return farm, err
	}
	for file := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		to := filepath.Join(farm, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(filepath.Join(checkout, file), to)); err != nil {
			return farm, err
		}
	}
	return farm, nil
}

var covered = regexp.MustCompile(`coverage: ([0-9.]+%) of statements`)

// cover runs the target once over its seeds and over all inputs that the fuzzer ever kept, with its package's coverage counted.
func (t *target) cover(ctx context.Context, farm string) error {
	dir := filepath.Join(farm, strings.TrimPrefix(t.pkg, module))
	if err := t.layInputs(ctx, dir); err != nil {
		return err
	}
	program := filepath.Join(farm, "cover.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-cover", "-coverpkg", t.pkg, "-o", program, t.pkg).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", t.pkg, err, out)
	}
	cmd := exec.CommandContext(ctx, program, "-test.run", "^"+t.name+"$")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	figure := covered.FindSubmatch(out)
	if figure == nil {
		err = errors.Join(err, errors.New("no figure"))
	}
	if err != nil {
		return fmt.Errorf("count the coverage of %s %s: %w\n%s", t.pkg, t.name, err, out)
	}
	t.coverage = string(figure[1])
	return nil
}

// layInputs shows the fuzzer's cache of this target beside the kept inputs of the checkout.
func (t *target) layInputs(ctx context.Context, dir string) error {
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("find Go's cache: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(cache)), "fuzz", t.pkg, t.name, "*"))
	if err != nil {
		return err
	}
	to := filepath.Join(dir, "testdata", "fuzz", t.name)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, file := range found {
		if err := os.Symlink(file, filepath.Join(to, filepath.Base(file))); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func printTable(w io.Writer, targets []target) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\npackage\ttarget\texecutions\tnew\tcorpus\tcovers of its package\n")
	for _, x := range targets {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", strings.TrimPrefix(strings.TrimPrefix(x.pkg, module), "/"), x.name, x.executions, x.found, x.corpus, x.coverage)
	}
	return t.Flush()
}
