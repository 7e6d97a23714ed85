package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is one program that runs until it is stopped. A nil Process was never started. Its methods are for one goroutine.
type Process struct {
	name, log string
	cmd       *exec.Cmd
	// ended is closed when the program has ended by itself or was stopped.
	ended chan struct{}
	// stopped says that Stop was called.
	stopped bool
}

// Launch starts a program; what it prints is added to the file NAME.log of dir, its working folder.
func Launch(dir string, cmd *exec.Cmd) (*Process, error) {
	name := filepath.Base(cmd.Path)
	p := &Process{name: name, log: filepath.Join(dir, name+".log"), cmd: cmd, ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	// A test that dies takes its programs along: the kernel kills them with the thread that started them, so that one waits for them.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// PID returns the program's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Name returns the program's name.
func (p *Process) Name() string { return p.name }

// CPU returns how much processor time the running program has used, to 10 ms (proc_pid_stat(5): utime and stime, in USER_HZ).
func (p *Process) CPU() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, err
	}
	// The name, in brackets, may hold anything; twelve fields follow before the two.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s: /proc/%d/stat: %q", p.name, p.PID(), text)
	}
	user, err := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err, err2)
}

// Memory is a line of the kernel's account of a process (proc_pid_status(5)).
type Memory string

// Held is memory that is no file's, and Peak all that is resident, at most since ForgetPeak.
const (
	Held Memory = "RssAnon"
	Peak Memory = "VmHWM"
)

// Memory returns how much memory the running program has, in bytes.
func (p *Process) Memory(which Memory) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, string(which)+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s: /proc/%d/status says no %s", p.name, p.PID(), which)
}

// ForgetPeak makes Peak what is resident now (proc_pid_clear_refs(5)).
func (p *Process) ForgetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0o200)
}

// Alive is an error if the program has ended.
func (p *Process) Alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended: %s", p.name, p.tail())
	default:
		return nil
	}
}

// Stop kills the program, if it was not stopped before, as a power cut would, and returns once it has ended. That it ended by
// itself is an error.
func (p *Process) Stop() error {
	if p == nil || p.stopped {
		return nil
	}
	p.stopped = true
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %s", p.name, p.tail())
	default:
	}
	err := p.cmd.Process.Kill()
	<-p.ended
	return err
}

// Terminate asks the program to end (SIGTERM), and returns once it has. One that has not after grace is killed, and is an error.
func (p *Process) Terminate(grace time.Duration) error {
	if p == nil || p.stopped || p.Alive() != nil {
		return p.Stop()
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		p.stopped = true
		return nil
	case <-time.After(grace):
		return errors.Join(fmt.Errorf("%s did not end within %v: %s", p.name, grace, p.tail()), p.Stop())
	}
}

// Await calls ready until it returns nil, the program ends or ctx does.
func (p *Process) Await(ctx context.Context, ready func() error) error {
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", p.name, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w: %s", p.name, ctx.Err(), err, p.tail())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tail returns the last lines that the program printed.
func (p *Process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// get asks for a page and wants 200.
func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return nil
}

// Poll looks again and again whether something is done, with a pause between, for five minutes at most.
func Poll(ctx context.Context, pause time.Duration, done func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}
