package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"
)

// Limits of a console, in bytes: a guest that writes for ever fills neither disk nor memory.
const (
	maxConsoleLog = 64 << 20
	consoleWindow = 4 << 20 // what a late WaitConsole can still see
)

// console keeps what the guest writes on its serial line: in a file, in a window of memory, and in the copy that a caller
// asked for.
type console struct {
	mu      sync.Mutex
	file    *os.File
	written int64 // into file
	window  []byte
	start   int64 // offset of window[0] in all that was written
	changed chan struct{}
	closed  bool
	copy    io.Writer
}

// openConsole begins a new log in the state folder and keeps the one before it.
func openConsole(dir string, output io.Writer) (*console, error) {
	path := filepath.Join(dir, consoleName)
	if err := os.Rename(path, filepath.Join(dir, previousName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("vm: console: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("vm: console: %w", err)
	}
	return &console{file: f, changed: make(chan struct{}), copy: output}, nil
}

// Write takes all of b, whatever becomes of the file and the copy: the guest must not stop because a disk is full.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.log(b)
	c.window = append(c.window, b...)
	if over := len(c.window) - consoleWindow; over > 0 {
		c.window = append(c.window[:0], c.window[over:]...)
		c.start += int64(over)
	}
	c.wake()
	c.mu.Unlock()
	if c.copy != nil {
		_, _ = c.copy.Write(b)
	}
	return len(b), nil
}

func (c *console) log(b []byte) {
	const truncated = "\n[the log ends here: it reached its limit]\n"
	if c.written >= maxConsoleLog {
		return
	}
	_, _ = c.file.Write(b)
	c.written += int64(len(b))
	if c.written >= maxConsoleLog {
		_, _ = c.file.WriteString(truncated)
	}
}

// wake tells all who wait that there is more to see. The caller holds mu.
func (c *console) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// close ends the log; whoever still waits is told.
func (c *console) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.wake()
	c.file.Close()
}

// errConsoleClosed is what a waiter gets when the machine ended without having written what it waits for.
var errConsoleClosed = errors.New("the machine ended before it was written")

// wait returns the first line that matches. Lines are tried as they grow, so a prompt without a newline matches as well.
func (c *console) wait(ctx context.Context, re *regexp.Regexp) (string, error) {
	var from int64
	for {
		line, next, changed, closed := c.search(re, from)
		switch {
		case line != "":
			return line, nil
		case closed:
			return "", fmt.Errorf("vm: console: %q: %w", re, errConsoleClosed)
		}
		from = next
		select {
		case <-changed:
		case <-ctx.Done():
			return "", fmt.Errorf("vm: console: %q: %w", re, context.Cause(ctx))
		}
	}
}

// search looks through the window from an offset on. next is where the last, still growing line begins.
func (c *console) search(re *regexp.Regexp, from int64) (line string, next int64, changed chan struct{}, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from = max(from, c.start)
	for rest := c.window[from-c.start:]; ; {
		end := bytes.IndexByte(rest, '\n')
		candidate := rest
		if end >= 0 {
			candidate = rest[:end]
		}
		if re.Match(candidate) && len(candidate) > 0 {
			return string(bytes.TrimRight(candidate, "\r")), from, c.changed, c.closed
		}
		if end < 0 {
			return "", from, c.changed, c.closed
		}
		rest = rest[end+1:]
		from += int64(end) + 1
	}
}
