// Command fuzz fuzzes every target of the module, one after the other, and ends with a table of what each did.
package main

import (
	"bufio"
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
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

const module = "github.com/hullmark/hullmark"

// target is one fuzz test, and what is told of it in the end.
type target struct {
	pkg, name string
	// last is what the fuzzer said last; grew is when it found its last new input, from its start on.
	last figures
	grew time.Duration
	// coverage is how much of the package's code seeds and corpus reach.
	coverage string
}

// figures are the fuzzer's own: corpus is what it has to start from the next time.
type figures struct {
	elapsed                   time.Duration
	executions, found, corpus int
}

func main() {
	var l limits
	flag.DurationVar(&l.most, "time", 10*time.Second, "how long each target is fuzzed at most")
	flag.DurationVar(&l.quiet, "quiet", 0, "fuzz a target no longer once it has found no new input for so long; 0 is never")
	only := flag.String("only", "", "fuzz those whose package and name match this `pattern`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, l, *only); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// limits is how long a target is fuzzed.
type limits struct{ most, quiet time.Duration }

func run(ctx context.Context, l limits, only string) error {
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
		if err := t.fuzz(ctx, l, farm); err != nil {
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
var progress = regexp.MustCompile(`^fuzz: elapsed: (\S+), execs: (\d+) .*new interesting: (\d+) \(total: (\d+)\)`)

// fuzz runs the target. Without a bound, the fuzzer spends its whole time making the first large input smaller.
func (t *target) fuzz(ctx context.Context, l limits, farm string) error {
	program := filepath.Join(farm, "fuzz.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-fuzz", "^"+t.name+"$", "-o", program, t.pkg).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", t.pkg, err, out)
	}
	kept, err := kept(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime", l.most.String(),
		"-test.fuzzminimizetime", "20x", "-test.fuzzcachedir", filepath.Join(kept, t.pkg))
	cmd.Dir = "." + strings.TrimPrefix(t.pkg, module)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout // where the figures come
	if err := cmd.Start(); err != nil {
		return err
	}
	// An interrupt ends it as its time does, a second one kills it; it may have ended by itself.
	interrupt := sync.OnceFunc(func() { _ = cmd.Process.Signal(os.Interrupt) })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fmt.Println(lines.Text())
		if t.note(lines.Text()); l.quiet > 0 && t.last.elapsed-t.grew >= l.quiet {
			interrupt()
		}
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return fmt.Errorf("%s %s: %w", t.pkg, t.name, err)
	}
	if t.last.executions == 0 {
		return fmt.Errorf("%s %s: the fuzzer told no figures", t.pkg, t.name)
	}
	return nil
}

// note reads a line of the fuzzer's.
func (t *target) note(line string) {
	words := progress.FindStringSubmatch(line)
	if words == nil {
		return
	}
	// The pattern lets only numbers through.
	elapsed, _ := time.ParseDuration(words[1])
	executions, _ := strconv.Atoi(words[2])
	found, _ := strconv.Atoi(words[3])
	corpus, _ := strconv.Atoi(words[4])
	if found > t.last.found {
		t.grew = elapsed
	}
	t.last = figures{elapsed, executions, found, corpus}
}

// kept is the folder of Go's cache where inputs are kept that a fuzzer found.
func kept(ctx context.Context) (string, error) {
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return "", fmt.Errorf("find Go's cache: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(cache)), "fuzz"), nil
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
	kept, err := kept(ctx)
	if err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(kept, t.pkg, t.name, "*"))
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
	fmt.Fprint(t, "\npackage\ttarget\texecutions\ta second\tnew\tthe last after\tcorpus\tcovers of its package\n")
	all := 0
	for _, x := range targets {
		all += x.last.executions
		rate := float64(x.last.executions) / max(x.last.elapsed.Seconds(), 1)
		fmt.Fprintf(t, "%s\t%s\t%d\t%.0f\t%d\t%v\t%d\t%s\n", strings.TrimPrefix(strings.TrimPrefix(x.pkg, module), "/"), x.name,
			x.last.executions, rate, x.last.found, x.grew, x.last.corpus, x.coverage)
	}
	fmt.Fprintf(t, "%d targets\t\t%d\n", len(targets), all)
	return t.Flush()
}
