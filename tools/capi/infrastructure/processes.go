package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hullmark/hullmark/internal/atomicfile"
)

// Processes start, find and stop what a host runs for a cluster. What has been started outlives the controller.
type Processes interface {
	// Start starts hullmark with these arguments, for the network or the machine of a folder. It returns once that holds the folder's
	// lock, or says what it failed of. What it says goes to the file log, in the place of what was there.
	Start(ctx context.Context, folder, log string, args ...string) error
	// Look says whether a network or a machine runs on the folder, whoever started it.
	Look(folder string) (running bool, err error)
	// Stop asks what runs on the folder to end, and ends it when it has not done so after grace. It does not wait: it is called until
	// it says that nothing runs.
	Stop(folder string, grace time.Duration) (ended bool, err error)
}

// Hullmark starts the program hullmark.
type Hullmark struct {
	// Program is its full path, or its name where PATH has it.
	Program string
}

// lockName is the file in a network's or a machine's folder that its process holds a lock on.
const lockName = "lock"

// stopSuffix ends the name of the file that says since when a folder's process has been asked to end: the second time that hullmark is
// asked, it does not wait for its guest.
const stopSuffix = ".stop"

// Start implements Processes. The process is a session of its own, so no terminal and no group of the controller's ends it.
func (h Hullmark) Start(ctx context.Context, folder, log string, args ...string) error {
	if err := os.Remove(folder + stopSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start hullmark: %w", err)
	}
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("start hullmark: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(h.Program, args...) // without a context: it is to outlive us
	cmd.Dir, cmd.Stderr = "/", out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start hullmark: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return awaitLock(ctx, folder, cmd.Process.Pid, ended, log)
}

// lookEvery is how often a process that starts is looked at.
const lookEvery = 20 * time.Millisecond

func awaitLock(ctx context.Context, folder string, pid int, ended <-chan error, log string) error {
	for {
		holder, err := lockHolder(folder)
		if err != nil || holder == pid {
			return err
		}
		select {
		case err := <-ended:
			return fmt.Errorf("hullmark ended as it started (%v): %s", err, lastLine(log))
		case <-ctx.Done():
			return fmt.Errorf("start hullmark: %w", context.Cause(ctx)) // the next look may find it
		case <-time.After(lookEvery):
		}
	}
}

// Look implements Processes.
func (h Hullmark) Look(folder string) (bool, error) {
	pid, err := lockHolder(folder)
	return pid != 0, err
}

// Stop implements Processes: first the signal that presses a machine's power button, then the one that cannot be refused.
func (h Hullmark) Stop(folder string, grace time.Duration) (bool, error) {
	pid, err := lockHolder(folder)
	if err != nil || pid == 0 {
		return pid == 0, err
	}
	asked, err := os.Stat(folder + stopSuffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := signalHolder(folder, pid, syscall.SIGTERM); err != nil {
			return false, err
		}
		return false, atomicfile.Write(folder+stopSuffix, nil, 0o600)
	case err != nil:
		return false, err
	case time.Since(asked.ModTime()) < grace:
		return false, nil
	}
	return false, signalHolder(folder, pid, syscall.SIGKILL)
}

// signalHolder signals the process that holds a folder's lock. The process is opened first and looked at again then, so that a pid
// that has become another's is not signalled.
func signalHolder(folder string, pid int, signal syscall.Signal) error {
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("process of %s: %w", folder, err)
	}
	defer process.Release()
	if holder, err := lockHolder(folder); err != nil || holder != pid {
		return err
	}
	if err := process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("process of %s: %w", folder, err)
	}
	return nil
}

// lockHolder returns the process that holds the lock of a folder (flock(2)), 0 if none does. It takes no lock itself, which could stop
// a machine that is just starting: it looks at the files that processes have open. The kernel's list of all locks (proc_locks(5)) would
// be shorter to read, but is read in parts, and what is locked and unlocked between them hides others.
func lockHolder(folder string) (pid int, err error) {
	lock, err := os.Stat(filepath.Join(folder, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("lock of %s: %w", folder, err)
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("lock of %s: %w", folder, err)
	}
	for _, p := range processes {
		if pid, err := strconv.Atoi(p.Name()); err == nil && holdsLock(pid, lock) {
			return pid, nil
		}
	}
	return 0, nil
}

// holdsLock reports whether a process has a file open that it locked. A process that has gone meanwhile holds none, nor does another
// user's, whose files cannot be looked at.
func holdsLock(pid int, lock fs.FileInfo) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return false
	}
	for _, f := range files {
		if open, err := os.Stat(filepath.Join(proc, "fd", f.Name())); err != nil || !os.SameFile(open, lock) {
			continue
		}
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", f.Name()))
		if err == nil && lockedBy(string(info), pid) {
			return true
		}
	}
	return false
}

// lockedBy reports whether a process itself took the lock of an open file, by its fdinfo (proc_pid_fdinfo(5)): a child that has not
// yet closed what it inherited shows its parent's.
func lockedBy(fdinfo string, pid int) bool {
	for line := range strings.Lines(fdinfo) {
		fields := strings.Fields(line) // "lock: 1: FLOCK ADVISORY WRITE PID …"
		if len(fields) > 5 && fields[0] == "lock:" && fields[2] == "FLOCK" && fields[4] == "WRITE" && fields[5] == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// maxLine bounds what a condition quotes of a log.
const maxLine = 1000

// lastLine returns the last line of a log that says something, or why it cannot be read.
func lastLine(log string) string {
	content, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(content))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	return strings.ToValidUTF8(text[max(0, len(text)-maxLine):], "?")
}

// isFailure reports whether a line of hullmark's log says what it failed of.
func isFailure(line string) bool { return strings.HasPrefix(line, "hullmark: ") }

// lastFailure is what the process before failed of, whose log this is; empty where there was none.
func lastFailure(log string) string {
	if said, err := hasContent(log); err != nil || !said {
		return ""
	}
	if last := lastLine(log); isFailure(last) {
		return last
	}
	return "its process was killed"
}
