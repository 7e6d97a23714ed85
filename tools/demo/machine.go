package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// machine is a running `hullmark vm`.
type machine struct {
	cmd  *exec.Cmd
	done chan error
	log  *os.File
}

// startMachine starts hullmark with the given arguments and returns once the
// machine's folder names its endorsement key, which is before it has booted.
func startMachine(ctx context.Context, dir string, args ...string) (*machine, error) {
	log, err := os.Create(filepath.Clean(dir) + ".log")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, hullmarkPath(), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	fmt.Printf("$ hullmark %s   # in the background, its console in %s\n", strings.Join(args, " "), log.Name())
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	m := &machine{cmd: cmd, done: make(chan error, 1), log: log}
	go func() { m.done <- cmd.Wait() }()
	return m, m.waitForKey(ctx, filepath.Join(dir, "ek.id"))
}

func (m *machine) waitForKey(ctx context.Context, file string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-m.done:
			m.done <- err
			return fmt.Errorf("the machine ended at once: %w; read %s", err, m.log.Name())
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if _, err := os.Stat(file); err == nil {
				return nil
			}
		}
	}
}

// stop presses the machine's power button and waits until it is off.
func (m *machine) stop() error {
	if m == nil {
		return nil
	}
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-m.done
	return m.log.Close()
}
