// Package devmapper asks the kernel's device mapper for the few things that a
// booting node needs: one device with one target, and what a live device's
// table says (Linux, include/uapi/linux/dm-ioctl.h). It runs no program and
// needs no library, so the initrd can use it.
package devmapper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ControlPath is the device mapper's control node; devtmpfs makes it once the
// module is loaded.
const ControlPath = "/dev/mapper/control"

// Sizes of the kernel's structures, in bytes.
const (
	headerSize = unix.SizeofDmIoctl
	targetSize = unix.SizeofDmTargetSpec
	nameSize   = unix.DM_NAME_LEN
	uuidSize   = unix.DM_UUID_LEN
	bufferSize = 16 << 10
)

// Target maps a range of the device. Offsets and lengths are in sectors of 512 bytes.
type Target struct {
	Start, Length uint64
	// Type names the kernel's target, such as "verity" or "crypt".
	Type string
	// Params are the target's own, as its documentation orders them.
	Params string
}

// Control is an open connection to the device mapper.
type Control struct{ file *os.File }

// Open connects to the device mapper; it needs CAP_SYS_ADMIN for every further call.
func Open() (*Control, error) {
	f, err := os.OpenFile(ControlPath, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open device mapper: %w (is module dm-mod loaded?)", err)
	}
	return &Control{file: f}, nil
}

// Close ends the connection; devices stay.
func (c *Control) Close() error { return c.file.Close() }

// CreateReadOnly makes and starts a read-only device with one target and
// returns its device number. A device that does not start is removed again.
func (c *Control) CreateReadOnly(name, uuid string, t Target) (uint64, error) {
	m, err := c.do(unix.DM_DEV_CREATE, message{name: name, uuid: uuid, flags: unix.DM_READONLY_FLAG})
	if err != nil {
		return 0, fmt.Errorf("create device %s: %w", name, err)
	}
	if err := c.start(name, t); err != nil {
		_, _ = c.do(unix.DM_DEV_REMOVE, message{name: name})
		return 0, fmt.Errorf("create device %s: %w", name, err)
	}
	return m.dev, nil
}

func (c *Control) start(name string, t Target) error {
	if _, err := c.do(unix.DM_TABLE_LOAD, message{name: name, flags: unix.DM_READONLY_FLAG, target: &t}); err != nil {
		return fmt.Errorf("load %s table: %w", t.Type, err)
	}
	// Without its suspend flag this resumes.
	if _, err := c.do(unix.DM_DEV_SUSPEND, message{name: name, flags: unix.DM_READONLY_FLAG}); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}

// Table returns the live table of a device. Keys in it are the caller's to keep out of sight.
func (c *Control) Table(name string) ([]Target, error) {
	return c.targets(name, unix.DM_STATUS_TABLE_FLAG)
}

// Status returns the status of a device's targets; Params then holds the status.
func (c *Control) Status(name string) ([]Target, error) { return c.targets(name, 0) }

// Number returns a device's number as major:minor, the way tables name it.
func (c *Control) Number(name string) (string, error) {
	m, err := c.do(unix.DM_DEV_STATUS, message{name: name})
	if err != nil {
		return "", fmt.Errorf("read number of device %s: %w", name, err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(m.dev), unix.Minor(m.dev)), nil
}

func (c *Control) targets(name string, flags uint32) ([]Target, error) {
	m, err := c.do(unix.DM_TABLE_STATUS, message{name: name, flags: flags | unix.DM_SECURE_DATA_FLAG})
	if err != nil {
		return nil, fmt.Errorf("read table of device %s: %w", name, err)
	}
	targets, err := decodeTargets(m.data, m.count)
	if err != nil {
		return nil, fmt.Errorf("read table of device %s: %w", name, err)
	}
	return targets, nil
}

// message is what goes into or comes out of one ioctl.
type message struct {
	name, uuid string
	flags      uint32
	dev        uint64
	target     *Target // in
	count      uint32  // out
	data       []byte  // out
}

func (c *Control) do(request uintptr, in message) (message, error) {
	buf, err := in.encode()
	if err != nil {
		return message{}, err
	}
	defer clear(buf)
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, c.file.Fd(), request, uintptr(unsafe.Pointer(&buf[0])))
		if errno == 0 {
			return decodeMessage(buf)
		}
		if !errors.Is(errno, unix.EINTR) {
			return message{}, errno
		}
	}
}

func (m message) encode() ([]byte, error) {
	if m.name == "" || len(m.name) >= nameSize || len(m.uuid) >= uuidSize {
		return nil, errors.New("name or uuid is empty or too long")
	}
	buf := make([]byte, bufferSize)
	le := binary.LittleEndian
	le.PutUint32(buf[0:], 4) // interface version 4.0.0
	le.PutUint32(buf[12:], bufferSize)
	le.PutUint32(buf[16:], headerSize)
	le.PutUint32(buf[28:], m.flags)
	copy(buf[48:], m.name)
	copy(buf[48+nameSize:], m.uuid)
	if m.target == nil {
		return buf, nil
	}
	t := *m.target
	if len(t.Type) >= 16 || headerSize+targetSize+len(t.Params) >= bufferSize {
		return nil, errors.New("target too long")
	}
	le.PutUint32(buf[20:], 1)
	spec := buf[headerSize:]
	le.PutUint64(spec[0:], t.Start)
	le.PutUint64(spec[8:], t.Length)
	copy(spec[24:40], t.Type)
	copy(spec[targetSize:], t.Params)
	return buf, nil
}

func decodeMessage(buf []byte) (message, error) {
	le := binary.LittleEndian
	m := message{flags: le.Uint32(buf[28:]), dev: le.Uint64(buf[40:]), count: le.Uint32(buf[20:])}
	if m.flags&unix.DM_BUFFER_FULL_FLAG != 0 {
		return message{}, errors.New("the kernel's answer is longer than expected")
	}
	start := le.Uint32(buf[16:])
	if start > uint32(len(buf)) {
		return message{}, errors.New("the kernel's answer starts outside the buffer")
	}
	m.data = bytes.Clone(buf[start:])
	return m, nil
}

func decodeTargets(data []byte, count uint32) ([]Target, error) {
	var targets []Target
	le := binary.LittleEndian
	for at, i := uint32(0), uint32(0); i < count; i++ {
		if uint64(at)+targetSize > uint64(len(data)) {
			return nil, errors.New("target outside the answer")
		}
		spec := data[at:]
		targets = append(targets, Target{
			Start: le.Uint64(spec[0:]), Length: le.Uint64(spec[8:]),
			Type: cString(spec[24:40]), Params: cString(spec[targetSize:]),
		})
		at = le.Uint32(spec[20:])
	}
	return targets, nil
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
