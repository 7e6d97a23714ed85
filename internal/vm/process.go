package vm

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a child that does not outlive this process.
type process struct {
	name   string
	pid    int
	stderr *tail
	done   chan struct{} // closed when the child has ended; err is set by then
	err    error
}

// startProcess starts a child in a process group of its own, so that a terminal's interrupt does not reach it before we
// decide what to do, and with the kernel's order to kill it when its parent dies.
//
// That order is bound to the thread that started the child. So the thread is this child's alone and waits for it.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{name: cmd.Args[0], stderr: &tail{}, done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Stderr = p.stderr
	cmd.WaitDelay = 5 * time.Second
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("vm: start %s: %w", p.name, err)
	}
	return p, nil
}

// kill ends the child and its group at once, and waits for it.
func (p *process) kill() {
	select {
	case <-p.done:
		return
	default:
	}
	// The child is the leader of its group; ESRCH only means that it ended just now.
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	<-p.done
}

// ended waits up to d for the child to end by itself.
func (p *process) ended(d time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(d):
		return false
	}
}

// failure describes how a child that has ended failed, with the last that it said; nil if it succeeded.
func (p *process) failure() error {
	if p.err == nil {
		return nil
	}
	if said := p.stderr.String(); said != "" {
		return fmt.Errorf("vm: %s: %w: %s", p.name, p.err, said)
	}
	return fmt.Errorf("vm: %s: %w", p.name, p.err)
}

// endedFailure is failure for a child that may still run, in which case it has not failed.
func (p *process) endedFailure() error {
	select {
	case <-p.done:
		return p.failure()
	default:
		return nil
	}
}

// tailSize is how much of a child's standard error is kept for an error message, in bytes.
const tailSize = 4096

// tail keeps the last that was written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

// String is what was kept, without the space around it.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.kept))
}
