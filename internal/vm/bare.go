package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Bare is a machine as people have them: a SATA disk that is blank at first, a screen, a slot for a USB stick, and firmware to which no
// host says what to boot.
type Bare struct {
	// Disk is the size of its disk in bytes; it has the serial number BareSerial.
	Disk int64
	// Stick is the file of a USB stick that is in its slot at the start, or empty. It is not written.
	Stick string
}

// What a bare machine is known by: its disk, and its network card, whose place and address are in the device path of what firmware fetches.
const (
	BareSerial  = "HULLMARK-0001"
	BareNICSlot = 3
	stick       = "stick"
)

// BareMAC is the address of a bare machine's network card.
var BareMAC = [6]byte{0x52, 0x54, 0, 0x12, 0x34, 0x56}

// bare attaches the disks and the screen of a bare machine.
func (h hardware) bare() []string {
	args := []string{
		"-device", "VGA,addr=2", "-device", "qemu-xhci,id=usb,addr=4",
		"-drive", "id=image,if=none,format=raw,discard=unmap," + h.drive(h.disk, ""), "-device", "ide-hd,drive=image,bus=ide.0,serial=" + BareSerial,
	}
	if file := h.config.Bare.Stick; file != "" {
		args = append(args,
			"-drive", "id="+stick+",if=none,format=raw,readonly=on,"+h.drive(file, ""),
			"-device", "usb-storage,bus=usb.0,drive="+stick+",id="+stick+",removable=on")
	}
	return args
}

// PullStick pulls the USB stick out of a bare machine.
func (m *Machine) PullStick() error {
	_, err := m.monitor.execute("device_del", map[string]any{"id": stick})
	return err
}

// Screen takes a picture of a machine's screen, as PNG.
func (m *Machine) Screen() ([]byte, error) {
	name := filepath.Join(m.config.Dir, "screen-"+strconv.Itoa(os.Getpid())+".png")
	defer os.Remove(name)
	_, err := m.monitor.execute("screendump", map[string]any{"filename": toolset{m.config.Tools}.inside(name), "format": "png"})
	if err != nil {
		return nil, fmt.Errorf("vm: screen: %w", err)
	}
	return os.ReadFile(name)
}
