package vm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
)

// loopback is the only address that forwarded ports listen on: a machine under test is nobody else's business.
const loopback = "127.0.0.1"

// Forward makes a TCP port of a guest reachable on 127.0.0.1. A Host of 0 takes a free port; Machine.Forwards and
// Network.Forwards tell which.
type Forward struct {
	Host uint16
	// Address is the guest's in a network; the zero Addr for a machine's own forward.
	Address netip.Addr
	Guest   uint16
}

// String is HOST:GUEST or HOST:ADDRESS:GUEST, as ParseForward reads it.
func (f Forward) String() string {
	if f.Address.IsValid() {
		return fmt.Sprintf("%d:%s:%d", f.Host, f.Address, f.Guest)
	}
	return fmt.Sprintf("%d:%d", f.Host, f.Guest)
}

// ParseForward reads HOST:GUEST, two decimal port numbers, or HOST:ADDRESS:GUEST with a guest's IPv4 address in a network;
// HOST may be 0.
func ParseForward(s string) (Forward, error) {
	bad := func() (Forward, error) {
		return Forward{}, fmt.Errorf("forward %q: want HOST:GUEST, two port numbers, for example 7443:7443, or in a network HOST:ADDRESS:GUEST", s)
	}
	fields := strings.Split(s, ":")
	if len(fields) != 2 && len(fields) != 3 {
		return bad()
	}
	host, errHost := strconv.ParseUint(fields[0], 10, 16)
	guest, errGuest := strconv.ParseUint(fields[len(fields)-1], 10, 16)
	if errHost != nil || errGuest != nil || guest == 0 {
		return bad()
	}
	f := Forward{Host: uint16(host), Guest: uint16(guest)}
	if len(fields) == 3 {
		var err error
		if f.Address, err = netip.ParseAddr(fields[1]); err != nil {
			return bad()
		}
	}
	return f, nil
}

// hostForwards are the options of a user-mode network that make the forwards.
func hostForwards(forwards []Forward) string {
	var options strings.Builder
	for _, f := range forwards {
		address := ""
		if f.Address.IsValid() {
			address = f.Address.String()
		}
		fmt.Fprintf(&options, ",hostfwd=tcp:%s:%d-%s:%d", loopback, f.Host, address, f.Guest)
	}
	return options.String()
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
		chosen[i] = f
		chosen[i].Host = uint16(l.Addr().(*net.TCPAddr).Port)
	}
	return chosen, nil
}
