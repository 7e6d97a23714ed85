package initrd

import (
	"encoding/hex"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image/verity"
)

// verityName is the name of the root's device-mapper device: /dev/mapper/root once udev runs.
const verityName = "root"

// openVerity maps data through dm-verity with the tree in another partition, and returns the device file. A block that does not match makes the
// kernel panic: an error code could be ignored by the program that reads.
func openVerity(data, tree, hash string) (string, error) {
	table, sectors, err := verityTable(data, tree, hash)
	if err != nil {
		return "", fmt.Errorf("open verified root: %w", err)
	}
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("open verified root: %w", err)
	}
	defer func() { _ = control.Close() }()
	dm := mapper{fd: control.Fd()}
	minor, err := dm.create(verityName, "verity", table, sectors)
	if err != nil {
		return "", fmt.Errorf("open verified root: %w", err)
	}
	return fmt.Sprintf("/dev/dm-%d", minor), nil
}

// verityTable makes the target's parameters (Linux, Documentation/admin-guide/device-mapper/verity.rst). Salt and size come from the superblock; a
// wrong one gives another root hash, so it need not be trusted.
func verityTable(data, tree, hash string) (table string, sectors uint64, err error) {
	f, err := os.Open(tree)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = f.Close() }()
	s, err := verity.ReadSuperblock(f)
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", tree, err)
	}
	table = fmt.Sprintf("1 %s %s %d %d %d 1 sha256 %s %s 1 panic_on_corruption",
		data, tree, verity.BlockSize, verity.BlockSize, s.DataSize/verity.BlockSize, hash, hex.EncodeToString(s.Salt[:]))
	return table, uint64(s.DataSize / 512), nil
}

// mapper speaks the device-mapper's ioctl interface (Linux, include/uapi/linux/dm-ioctl.h).
type mapper struct{ fd uintptr }

// request is the largest message that is sent: the fixed part, one target and its parameters.
const request = unix.SizeofDmIoctl + unix.SizeofDmTargetSpec + 1024

// create makes a read-only device of one target over sectors of 512 bytes and returns its minor number.
func (m mapper) create(name, target, table string, sectors uint64) (minor uint32, err error) {
	if len(table) >= 1024 {
		return 0, fmt.Errorf("table of %d bytes is too long", len(table))
	}
	var buf [request]byte
	head := (*unix.DmIoctl)(unsafe.Pointer(&buf[0]))
	if err := m.call(unix.DM_DEV_CREATE, head, name); err != nil {
		return 0, fmt.Errorf("create device %s: %w", name, err)
	}
	minor = unix.Minor(head.Dev)
	head.Flags, head.Target_count = unix.DM_READONLY_FLAG, 1
	spec := (*unix.DmTargetSpec)(unsafe.Pointer(&buf[unix.SizeofDmIoctl]))
	*spec = unix.DmTargetSpec{Length: sectors}
	copy(spec.Target_type[:], target)
	copy(buf[unix.SizeofDmIoctl+unix.SizeofDmTargetSpec:], table)
	if err := m.call(unix.DM_TABLE_LOAD, head, name); err != nil {
		return 0, fmt.Errorf("load table %q: %w", table, err)
	}
	*head = unix.DmIoctl{Flags: unix.DM_READONLY_FLAG}
	if err := m.call(unix.DM_DEV_SUSPEND, head, name); err != nil { // without its suspend flag this resumes
		return 0, fmt.Errorf("activate device %s: %w", name, err)
	}
	return minor, nil
}

func (m mapper) call(op uintptr, head *unix.DmIoctl, name string) error {
	head.Version = [3]uint32{unix.DM_VERSION_MAJOR, 0, 0}
	head.Data_size, head.Data_start = request, unix.SizeofDmIoctl
	head.Dev = 0
	clear(head.Name[:])
	copy(head.Name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, m.fd, op, uintptr(unsafe.Pointer(head))); errno != 0 {
		return errno
	}
	return nil
}
