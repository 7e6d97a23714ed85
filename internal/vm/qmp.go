package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	qmpTimeout = 10 * time.Second // for one command
	maxQMPLine = 1 << 20
)

// monitor speaks QMP, QEMU's control protocol: one JSON object a line. Its events are read past; what matters of them is asked.
type monitor struct {
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Scanner
}

// dialMonitor connects to QEMU's socket as soon as it is there and negotiates. It gives up when stop is closed.
func dialMonitor(ctx context.Context, path string, stop <-chan struct{}) (*monitor, error) {
	conn, err := dialUnix(ctx, path, stop)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn: conn, in: bufio.NewScanner(conn)}
	m.in.Buffer(nil, maxQMPLine)
	// The greeting is the server's first line; before this command it accepts no other.
	if _, err := m.execute("qmp_capabilities", nil); err != nil {
		conn.Close()
		return nil, err
	}
	return m, nil
}

// dialUnix connects to the socket of a child that is only just starting. It gives up when stop is closed.
func dialUnix(ctx context.Context, path string, stop <-chan struct{}) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-stop:
			return nil, errors.New("vm: the process ended while it started")
		case <-ctx.Done():
			return nil, fmt.Errorf("vm: connect: %w", errors.Join(err, context.Cause(ctx)))
		}
	}
}

type qmpReply struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

// execute runs a command with its arguments, nil for none, and returns its result.
func (m *monitor) execute(command string, arguments map[string]any) (json.RawMessage, error) {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	line, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("vm: qmp %s: %w", command, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.conn.SetDeadline(time.Now().Add(qmpTimeout)); err != nil {
		return nil, fmt.Errorf("vm: qmp %s: %w", command, err)
	}
	if _, err := m.conn.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("vm: qmp %s: %w", command, err)
	}
	for m.in.Scan() {
		var reply qmpReply
		if err := json.Unmarshal(m.in.Bytes(), &reply); err != nil {
			return nil, fmt.Errorf("vm: qmp %s: %w", command, err)
		}
		if reply.Error != nil {
			return nil, fmt.Errorf("vm: qmp %s: %s: %s", command, reply.Error.Class, reply.Error.Desc)
		}
		if reply.Return != nil {
			return reply.Return, nil
		}
	}
	return nil, fmt.Errorf("vm: qmp %s: connection ended: %w", command, errors.Join(m.in.Err()))
}

// status is QEMU's run state: "running", "paused", "internal-error", …
func (m *monitor) status() (string, error) {
	reply, err := m.execute("query-status", nil)
	if err != nil {
		return "", err
	}
	var s struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(reply, &s); err != nil {
		return "", fmt.Errorf("vm: qmp query-status: %w", err)
	}
	return s.Status, nil
}

func (m *monitor) close() {
	m.conn.Close()
}
