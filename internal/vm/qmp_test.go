package vm

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// fakeMonitor answers each line it gets with the next of the given blocks of lines.
func fakeMonitor(t *testing.T, replies ...string) *monitor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "q")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintln(conn, `{"QMP":{"version":{},"capabilities":[]}}`)
		buffer := make([]byte, 1024)
		for _, r := range append([]string{`{"return":{}}`}, replies...) {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
			fmt.Fprintln(conn, r)
		}
	}()
	m, err := dialMonitor(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

func TestMonitorReadsPastEvents(t *testing.T) {
	m := fakeMonitor(t, `{"event":"STOP","timestamp":{"seconds":1}}`+"\n"+`{"return":{"status":"internal-error","running":false}}`)
	if s, err := m.status(); s != "internal-error" || err != nil {
		t.Errorf("%q, %v", s, err)
	}
}

func TestMonitorErrors(t *testing.T) {
	m := fakeMonitor(t, `{"error":{"class":"CommandNotFound","desc":"no such"}}`, `not json`)
	if _, err := m.execute("x", nil); err == nil || !strings.Contains(err.Error(), "CommandNotFound: no such") {
		t.Error(err)
	}
	if _, err := m.execute("x", nil); err == nil {
		t.Error("accepted what is not JSON")
	}
	if _, err := m.execute("x", nil); err == nil {
		t.Error("accepted the end of the connection")
	}
}
