package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// node is one machine of the demo: where its things are, and what runs.
type node struct {
	name    string // of its Kubernetes node
	folder  string // of the machine
	file    string // the machine file
	address string // in the demo's network; empty where the machine is alone
	agent   string // host port of its agent
	outside string // host port of the pods that answer on it
	running *process
	judged  int64  // how much of its console has been read for boots
	runs    string // the release of the last of them
	// uid and boot are what the cluster knew the node by when it was last seen Ready.
	uid, boot string
}

// ek is the ID of the machine's endorsement key.
func (n *node) ek() (string, error) {
	text, err := os.ReadFile(filepath.Join(n.folder, "ek.id"))
	return strings.TrimSpace(string(text)), err
}

// cut cuts the machine's power and waits until nothing of it runs.
func (n *node) cut(ctx context.Context) error {
	fmt.Printf("$ kill -9 %d   # %s\n", n.running.cmd.Process.Pid, n.name)
	if err := n.running.end(syscall.SIGKILL); err != nil {
		return err
	}
	// QEMU dies with hullmark, but a moment later.
	for {
		conn, err := net.Dial("unix", filepath.Join(n.folder, "run", "qmp.sock"))
		if err != nil {
			return nil
		}
		conn.Close()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// process is a hullmark that runs in the background: a machine, or the network.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; err is set by then
	err  error
	log  *os.File
}

// start starts hullmark with the given arguments and returns once the file is
// there that tells that it works. A machine's is the name of its endorsement
// key, which is written before it boots.
func start(ctx context.Context, logName, works string, args ...string) (*process, error) {
	return startProgram(ctx, hullmarkPath(), logName, works, args...)
}

// startProgram starts a program in the background, and returns once the file is there that tells that it works.
func startProgram(ctx context.Context, program, logName, works string, args ...string) (*process, error) {
	log, err := os.OpenFile(logName, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	fmt.Printf("$ %s %s   # in the background, its output in %s\n", filepath.Base(program), strings.Join(args, " "), log.Name())
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	p := &process{cmd: cmd, done: make(chan struct{}), log: log}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, p.await(ctx, works)
}

func (p *process) await(ctx context.Context, file string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			return fmt.Errorf("it ended at once: %w; read %s", p.err, p.log.Name())
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if _, err := os.Stat(file); err == nil {
				return nil
			}
		}
	}
}

// stop lets the process end: a machine's power button is pressed. It waits until it has ended.
func (p *process) stop() error {
	return p.end(syscall.SIGTERM)
}

func (p *process) end(signal os.Signal) error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	if err := p.log.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
