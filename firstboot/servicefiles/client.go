package servicefiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/internal/atomicfile"
)

// Socket is where the agent waits, as the join service's unit shows it to the service.
const Socket = "/run/hullmark/kept/socket"

// timeout bounds one request: a manifest is written within it.
const timeout = 20 * time.Second

// Files are all of them.
type Files struct {
	// Socket is the agent's; empty outside of nodes, where Folder has the files.
	Socket, Folder string
}

// File returns one of them.
func (f Files) File(name string) File {
	if f.Socket != "" {
		return remote{socket: f.Socket, name: name}
	}
	return Plain(filepath.Join(f.Folder, name))
}

// remote is a file that the agent keeps.
type remote struct{ socket, name string }

// Read asks the agent.
func (f remote) Read() ([]byte, error) { return f.ask(opRead, nil) }

// Write asks the agent.
func (f remote) Write(content []byte) error {
	_, err := f.ask(opWrite, content)
	return err
}

func (f remote) ask(op string, content []byte) ([]byte, error) {
	q := request{Op: op, Name: f.name, Size: len(content)}
	if err := q.check(); err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("unix", f.socket, timeout)
	if err != nil {
		return nil, unreachable(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if err := write(conn, q, content); err != nil {
		return nil, unreachable(err)
	}
	got, err := readAnswer(conn, f.name)
	var told *hullmark.Condition
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &told) {
		err = unreachable(err)
	}
	return got, err
}

// unreachable is what a join service says that cannot read or write its files.
func unreachable(cause error) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "kept-unreachable", Step: "DISK", Title: "the agent does not give the join service what it keeps in the state disk's manifest: " + cause.Error(), Retry: true,
		Next: "wait: systemd starts both again; if it lasts, read the agent's journal",
	}
}

// Plain is a file of a folder, by its path: where there is no agent, in tests and outside of nodes.
type Plain string

// Read reads the file.
func (f Plain) Read() ([]byte, error) {
	file, err := os.Open(string(f))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	limit := limits[Policy]
	content, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err == nil && len(content) > limit {
		err = fmt.Errorf("%s: more than %d bytes", f, limit)
	}
	return content, err
}

// Write replaces the file.
func (f Plain) Write(content []byte) error { return atomicfile.Write(string(f), content, 0o600) }
