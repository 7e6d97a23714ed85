package servicefiles

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hullmark/hullmark"
)

// Store is where the agent keeps the files.
type Store interface {
	// Read returns a file's content, and whether there is such a file.
	Read(name string) (content []byte, found bool, err error)
	// Write replaces a file, and returns once it is stored.
	Write(name string, content []byte) error
}

// inner is the folder that the join service's unit binds over outer: whoever is not root reaches the socket there alone.
const (
	outer = "kept"
	inner = "joinservice"
)

// Listen waits in the agent's folder for the join service.
func Listen(runDir string) (net.Listener, error) {
	folder := filepath.Join(runDir, outer)
	// An agent before this one left its socket.
	if err := os.RemoveAll(filepath.Join(folder, inner, filepath.Base(Socket))); err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(folder, inner), 0o700), os.Chmod(folder, 0o700), os.Chmod(filepath.Join(folder, inner), 0o711)); err != nil {
		return nil, err
	}
	path := SocketOf(runDir)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o666) // The service has a user of its own, which nobody knows before it runs.
}

// SocketOf returns where Listen waits.
func SocketOf(runDir string) string {
	return filepath.Join(runDir, outer, inner, filepath.Base(Socket))
}

// Serve answers one request after the other until the listener is closed.
func Serve(listener net.Listener, store Store) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(timeout))
		_ = serveOne(conn, store) // Whoever asked is gone, or asks again.
		conn.Close()
	}
}

func serveOne(conn net.Conn, store Store) error {
	q, content, err := readRequest(conn)
	found := true
	switch {
	case err != nil:
	case q.Op == opWrite:
		content, err = nil, store.Write(q.Name, content)
	default:
		content, found, err = store.Read(q.Name)
	}
	if err != nil {
		return write(conn, answer{Failed: conditionOf(err)}, nil)
	}
	return write(conn, answer{Absent: !found, Size: len(content)}, content)
}

func conditionOf(err error) *hullmark.Condition {
	var c *hullmark.Condition
	if errors.As(err, &c) {
		return c
	}
	return unreachable(err)
}
