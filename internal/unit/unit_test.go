package unit

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/coreos/go-systemd/v22/daemon"
)

func TestNotify(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", address)
	Notify(daemon.SdNotifyReady)
	var b [64]byte
	if n, err := socket.Read(b[:]); err != nil || string(b[:n]) != daemon.SdNotifyReady {
		t.Errorf("systemd heard %q: %v", b[:n], err)
	}
}

func TestWatchdog(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	told := 0
	notify := func(line string) {
		if told++; line != daemon.SdNotifyWatchdog {
			t.Errorf("systemd heard %q", line)
		}
		if told == 3 {
			cancel()
		}
	}
	if err := Watchdog(ctx, notify); err != nil || told != 0 {
		t.Errorf("without an interval: %v, told %d times", err, told)
	}
	t.Setenv("WATCHDOG_USEC", "2000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	if err := Watchdog(ctx, notify); !errors.Is(err, context.Canceled) || told < 3 {
		t.Errorf("with an interval: %v, told %d times", err, told)
	}
}
