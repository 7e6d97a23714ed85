package disks

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// behindNumber is the number of the partition that Behind makes: the last one that every driver has a device number for.
const behindNumber = 15

// Behind returns what a node's state lies on, if the disk at path is the one that the machine has booted from: a partition of all that lies
// behind the slots, which the kernel alone knows of. It is in no table, so that the table is the same on a disk of any size. Any other disk
// is returned as it is.
func (s System) Behind(path string) (string, error) {
	boot, _, err := s.Boot()
	if err != nil {
		return path, nil // A machine that has booted otherwise, as in tests.
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if filepath.Base(target) != boot {
		return path, nil
	}
	f, err := os.Open(target)
	if err != nil {
		return "", err
	}
	defer f.Close()
	start, length, err := room(f)
	if err != nil {
		return "", fmt.Errorf("behind the slots of %s: %w", target, err)
	}
	if name := s.partition(boot); name != "" {
		return filepath.Join(s.Dev, name), nil
	}
	if err := addPartition(f, start, length); err != nil {
		return "", fmt.Errorf("behind the slots of %s: %w", target, err)
	}
	name := s.partition(boot)
	if name == "" {
		return "", fmt.Errorf("behind the slots of %s: the kernel made no partition", target)
	}
	return filepath.Join(s.Dev, name), nil
}

// room returns where it starts, and how long it is, in bytes.
func room(f *os.File) (start, length int64, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	start = gpt.SizeWithin(f, size)
	table, err := gpt.Read(f, start)
	if err != nil {
		return 0, 0, err
	}
	if _, err := slot.Find(table); err != nil {
		return 0, 0, err
	}
	start = slot.Align(start)
	if length = (size - start) &^ (slot.Align(1) - 1); length <= 0 {
		return 0, 0, fmt.Errorf("there is no room: the disk has %d bytes, of which the slots take %d; name another state disk", size, start)
	}
	return start, length, nil
}

// partition returns the name of the disk's partition with that number, or "".
func (s System) partition(disk string) string {
	found, _ := filepath.Glob(filepath.Join(s.Sys, "block", disk, "*", "partition"))
	for _, file := range found {
		if n, err := readNumber(file); err == nil && n == behindNumber {
			return filepath.Base(filepath.Dir(file))
		}
	}
	return ""
}

// addPartition has the kernel make a partition that is in no table (Linux, include/uapi/linux/blkpg.h).
func addPartition(f *os.File, start, length int64) error {
	p := unix.BlkpgPartition{Start: start, Length: length, Pno: behindNumber}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_ADD_PARTITION, Datalen: int32(unsafe.Sizeof(p)), Data: (*byte)(unsafe.Pointer(&p))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(&p)
	if errno != 0 {
		return fmt.Errorf("add a partition from byte %d, %d long: %w", start, length, errno)
	}
	return nil
}
