// Package button tells when somebody presses the machine's power button, so
// that a node without a login manager can still be switched off in order.
package button

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The kernel's ACPI event interface over generic netlink (linux/drivers/acpi/event.c).
const (
	family     = "acpi_event"
	group      = "acpi_mc_group"
	eventAttr  = 1  // ACPI_GENL_ATTR_EVENT
	classSize  = 20 // struct acpi_genl_event begins with the device's class, NUL-padded
	powerClass = "button/power"
)

// Wait returns nil when the power button is pressed, or ctx's error when it
// ends. The kernel module "button" has to be loaded; without it no event comes.
func Wait(ctx context.Context) error {
	id, err := groupID()
	if err != nil {
		return fmt.Errorf("power button: %w", err)
	}
	socket, err := nl.Subscribe(unix.NETLINK_GENERIC, id)
	if err != nil {
		return fmt.Errorf("power button: subscribe to ACPI events: %w", err)
	}
	defer context.AfterFunc(ctx, socket.Close)()
	for {
		messages, _, err := socket.Receive()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return fmt.Errorf("power button: receive: %w", err)
		}
		for _, m := range messages {
			if isPress(m.Data) {
				return nil
			}
		}
	}
}

func groupID() (uint, error) {
	f, err := netlink.GenlFamilyGet(family)
	if err != nil {
		return 0, fmt.Errorf("the kernel offers no ACPI events: %w", err)
	}
	for _, g := range f.Groups {
		// Subscribe takes the group as a bit of a 32-bit mask.
		if g.Name == group && g.ID >= 1 && g.ID <= 32 {
			return uint(g.ID), nil
		}
	}
	return 0, fmt.Errorf("netlink family %s has no usable group %s", family, group)
}

// isPress reports whether a generic netlink message (header, then attributes) is a press of a power button.
func isPress(message []byte) bool {
	if len(message) < nl.SizeofGenlmsg {
		return false
	}
	// ParseRouteAttr takes it that a message ends at a multiple of the alignment, and panics where it does not.
	padded := append(bytes.Clone(message[nl.SizeofGenlmsg:]), make([]byte, -len(message)&(unix.NLA_ALIGNTO-1))...)
	attributes, err := nl.ParseRouteAttr(padded)
	if err != nil {
		return false
	}
	for _, a := range attributes {
		if a.Attr.Type == eventAttr && len(a.Value) >= classSize {
			class, _, _ := bytes.Cut(a.Value[:classSize], []byte{0})
			return string(class) == powerClass
		}
	}
	return false
}
