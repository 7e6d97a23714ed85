// Demo shows Cluster API with attested machines on this machine: an API server and etcd are the management cluster, in which core's own
// controllers and Hullmark's run; a Cluster of one control plane and one worker is declared, on QEMU machines, which prove what they
// booted before they are given anything; the worker is replaced; every Secret, log and process is searched for keys; and all of it is
// deleted.
//
// A person, who holds the root key, is played by the demo, by the commands of docs/cluster-api.md: each is printed before it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hullmark/hullmark/internal/canary"
	"github.com/hullmark/hullmark/internal/testenv"
	"github.com/hullmark/hullmark/tools/capi/internal/journey"
)

// demo is one run. It is a script: its methods are the steps.
type demo struct {
	out, state string
	// bin is the folder of the programs.
	bin  string
	keep bool
	// root is the cluster root that nodes pin.
	root string
	// journey is the page's.
	journey    *journey.Journey
	management *testenv.Environment
	programs   []*program
	watch      *canary.Watch
	secrets    canary.Secrets
	took       []string
	// The worker that there is.
	workerMachine, workerNode string
}

// step is a part of the demo that is timed.
type step struct {
	name string
	do   func(context.Context) error
}

func main() {
	var d demo
	flag.StringVar(&d.out, "out", "out", "folder for the image and its measurements")
	flag.StringVar(&d.state, "state", "", "folder for everything else (default: OUT/demo-capi); the default is emptied first")
	flag.BoolVar(&d.keep, "keep", false, "leave everything running, before the deletion, until interrupted")
	flag.Parse()
	d.bin = filepath.Dir(os.Args[0])
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func (d *demo) run(ctx context.Context) (err error) {
	began := time.Now()
	if err := d.prepare(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, s := range []step{
		{"build and measure the image", d.build},
		{"make a cluster file", d.makeCluster},
		{"start a management cluster", d.manage},
		{"start the controllers", d.control},
		{"name who may vouch for workers", d.enrol},
		{"declare the cluster", d.declare},
		{"lend it a file to begin with", d.lend},
		{"the control plane is Ready", d.begun},
		{"the worker is vouched for, Ready", d.joined},
		{"the worker is replaced", d.replace},
		{"look for keys everywhere", d.search},
		{"delete the cluster", d.remove},
	} {
		if s.name == "delete the cluster" && d.keep {
			fmt.Printf("\nWhat runs keeps running; interrupt to end it.\n  %s --kubeconfig %s get clusters,machines -A\n", d.kubectlPath(), d.path("management.conf"))
			<-ctx.Done()
			return nil
		}
		if err := d.step(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	fmt.Printf("\nStep by step:\n%s\n  %-34s %7.1f s\n", strings.Join(d.took, "\n"), "together", time.Since(began).Seconds())
	return nil
}

// prepare makes the folder of this run.
func (d *demo) prepare() (err error) {
	if d.out, err = filepath.Abs(d.out); err != nil {
		return err
	}
	if d.state == "" {
		d.state = filepath.Join(d.out, "demo-capi")
		if err := os.RemoveAll(d.state); err != nil {
			return err
		}
	}
	if d.state, err = filepath.Abs(d.state); err != nil {
		return err
	}
	if _, err := os.Stat(d.path("cluster")); err == nil {
		return fmt.Errorf("%s holds an earlier demo: name another folder with --state, or remove it", d.state)
	}
	if d.journey, err = journey.Read(filepath.Join("docs", "cluster-api.md"), "## A cluster, step by step"); err != nil {
		return err
	}
	if d.journey.Len() != blocks {
		return fmt.Errorf("the page has %d blocks, want %d", d.journey.Len(), blocks)
	}
	if d.bin, err = filepath.Abs(d.bin); err != nil {
		return err
	}
	path := d.bin + string(os.PathListSeparator) + d.out + string(os.PathListSeparator) + os.Getenv("PATH")
	d.journey.Dir, d.journey.Out = d.state, os.Stdout
	d.journey.Env = append(os.Environ(), "PATH="+path, "KUBECONFIG="+d.path("management.conf"))
	return os.MkdirAll(d.path("logs"), 0o700)
}

func (d *demo) step(ctx context.Context, s step) error {
	fmt.Printf("\n== %s\n", s.name)
	start := time.Now()
	err := s.do(ctx)
	d.took = append(d.took, fmt.Sprintf("  %-34s %7.1f s", s.name, time.Since(start).Seconds()))
	return err
}

// stop ends the controllers, then the machines that a failed run has left, then the management cluster.
func (d *demo) stop() (err error) {
	for i := len(d.programs) - 1; i >= 0; i-- {
		err = errors.Join(err, d.programs[i].end())
	}
	if d.watch != nil {
		d.watch.End()
	}
	err = errors.Join(err, d.endMachines())
	if d.management != nil {
		err = errors.Join(err, d.management.Stop())
	}
	return err
}

func (d *demo) path(elements ...string) string {
	return filepath.Join(append([]string{d.state}, elements...)...)
}

// kubectlPath is the bundle's own kubectl, which `hullmark build` leaves beside the image.
func (d *demo) kubectlPath() string { return filepath.Join(d.out, "kubectl") }

// program is the path of a program of this checkout.
func (d *demo) program(name string) string { return filepath.Join(d.bin, name) }

// hullmark runs a command of the person's.
func (d *demo) hullmark(ctx context.Context, args ...string) error {
	return show(ctx, d.program("hullmark"), args...)
}

// kubectl runs a command in the management cluster.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	return show(ctx, d.kubectlPath(), append([]string{"--kubeconfig", d.path("management.conf")}, args...)...)
}

// show runs a program, and prints what it is called with and what it prints.
func show(ctx context.Context, program string, args ...string) error {
	fmt.Println("$", program, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd.Run()
}

// ask returns what a command in the management cluster prints.
func (d *demo) ask(ctx context.Context, args ...string) (string, error) {
	return d.askOf(ctx, "management.conf", args...)
}

// askOf returns what a command in the cluster of a kubeconfig prints.
func (d *demo) askOf(ctx context.Context, kubeconfig string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.kubectlPath(), append([]string{"--kubeconfig", d.path(kubeconfig)}, args...)...)
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("kubectl %s: %s", strings.Join(args, " "), strings.TrimSpace(string(failed.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// patience bounds how long anything is waited for: on machines that emulate their processors everything takes minutes.
const patience = 25 * time.Minute

// until asks again and again until done says so, and prints what it was told when that changes.
func (d *demo) until(ctx context.Context, what string, done func(ctx context.Context) (ok bool, seen string, err error)) error {
	fmt.Printf("waiting until %s\n", what)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began, last := time.Now(), ""
	for {
		ok, seen, err := done(ctx)
		if err != nil {
			seen = err.Error()
		}
		if seen != last {
			fmt.Printf("  %4.0f s  %s\n", time.Since(began).Seconds(), seen)
			last = seen
		}
		if ok && err == nil {
			return nil
		}
		for _, p := range d.programs {
			if err := p.ended(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v; last seen: %s", time.Since(began).Round(time.Second), last)
		case <-time.After(3 * time.Second):
		}
	}
}

// program is one that runs in the background.
type program struct {
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{} // closed when it has ended; err is set by then
	err  error
}

// start starts a program in the background.
func (d *demo) start(program string, env []string, args ...string) error {
	return d.startAs(program, program, env, args...)
}

// startAs starts a program in the background, with a log of this name. It goes on until end.
func (d *demo) startAs(name, called string, env []string, args ...string) error {
	log, err := os.Create(d.path("logs", name+".log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(d.program(called), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // An interrupt is the demo's, which then ends them in order.
	fmt.Printf("$ %s %s %s   # in the background, its output in %s\n", strings.Join(env, " "), d.program(called), strings.Join(args, " "), log.Name())
	if err := cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	p := &program{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	d.programs = append(d.programs, p)
	return nil
}

// ended is an error if the program has ended by itself.
func (p *program) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended (%w); its output is in %s", filepath.Base(p.cmd.Path), p.err, p.log.Name())
	default:
		return nil
	}
}

func (p *program) end() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within a minute", filepath.Base(p.cmd.Path))
	}
	return p.log.Close()
}
