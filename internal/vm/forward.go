package vm

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
)

// loopback is the only address that forwarded ports listen on: a machine under test is nobody else's business.
const loopback = "127.0.0.1"

// Forward makes a TCP port of the guest reachable on 127.0.0.1. A Host of 0 takes a free port; Machine.Forwards tells which.
type Forward struct {
	Host  uint16
	Guest uint16
}

// String is HOST:GUEST, as ParseForward reads it.
func (f Forward) String() string {
	return fmt.Sprintf("%d:%d", f.Host, f.Guest)
}

// ParseForward reads HOST:GUEST, two decimal port numbers; HOST may be 0.
func ParseForward(s string) (Forward, error) {
	hostText, guestText, found := strings.Cut(s, ":")
	host, errHost := strconv.ParseUint(hostText, 10, 16)
	guest, errGuest := strconv.ParseUint(guestText, 10, 16)
	if !found || errHost != nil || errGuest != nil || guest == 0 {
		return Forward{}, fmt.Errorf("forward %q: want HOST:GUEST, two port numbers, for example 7443:7443", s)
	}
	return Forward{Host: uint16(host), Guest: uint16(guest)}, nil
}

// choosePorts checks that each host port is free, and picks one where none was asked for. Somebody may still take a port
// before QEMU listens; then QEMU fails with its own message.
func choosePorts(forwards []Forward) ([]Forward, error) {
	chosen := make([]Forward, len(forwards))
	for i, f := range forwards {
		l, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(int(f.Host))))
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("vm: forward %s: port %d of %s is taken: stop what listens there, or forward another port", f, f.Host, loopback)
		}
		if err != nil {
			return nil, fmt.Errorf("vm: forward %s: %w", f, err)
		}
		// Held until all are chosen, so that two forwards never get one port.
		defer l.Close()
		chosen[i] = Forward{Host: uint16(l.Addr().(*net.TCPAddr).Port), Guest: f.Guest}
	}
	return chosen, nil
}
