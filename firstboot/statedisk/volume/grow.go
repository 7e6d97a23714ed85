package volume

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// newSize is how large a new file system is at most, in bytes. A larger one would have to be written in full before its
	// first use: inode tables are 4 MiB of each GiB. The rest comes by Grow.
	newSize = 8 << 30
	// growStep is how much Grow adds at a time, in bytes: a step is not interrupted, and a shutdown waits for it.
	growStep = 16 << 30
)

// resizeFS is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64): the new number of blocks (Linux, Documentation/filesystems/ext4/ioctl).
const resizeFS = 1<<30 | 8<<16 | 'f'<<8 | 16

// Where an ext4 superblock is, and its fields, little-endian (Linux, Documentation/filesystems/ext4/super.rst).
const (
	superblockAt   = 1024
	superblockSize = 1024
	offBlocksLow   = 0x4
	offMagic       = 0x38
	offBlocksHigh  = 0x150
	ext4Magic      = 0xef53
)

// Grow lets the file system of the open disk, mounted at dir, have the whole volume, step by step while it is in use. It can
// end at any moment, and goes on the next time. The kernel writes all of what it adds before anything reads it.
func Grow(ctx context.Context, dir string) error {
	device, err := os.OpenFile("/dev/mapper/"+Name, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("grow the state disk: %w", err)
	}
	defer device.Close()
	size, err := device.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("grow the state disk: %w", err)
	}
	if err := growTo(ctx, device, dir, size/blockSize); err != nil {
		return fmt.Errorf("grow the state disk: %w", err)
	}
	return nil
}

// growTo grows to a number of blocks.
func growTo(ctx context.Context, device *os.File, dir string, want int64) error {
	mounted, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer mounted.Close()
	for {
		have, err := blocks(device)
		if err != nil || have >= want || ctx.Err() != nil {
			return err
		}
		next := min(have+growStep/blockSize, want)
		// The kernel reads the last block to see whether the device is as large, and none was written there.
		if err := writeThrough(device, make([]byte, blockSize), (next-1)*blockSize); err != nil {
			return err
		}
		if err := resize(mounted, next); err != nil {
			return fmt.Errorf("from %d to %d blocks: %w", have, next, err)
		}
		after, err := blocks(device)
		if err != nil {
			return err
		}
		if after < next {
			return nil // What is left is too small for a group of blocks.
		}
	}
}

func resize(mounted *os.File, blocks int64) error {
	n := uint64(blocks)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, mounted.Fd(), resizeFS, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return errno
	}
	return nil
}

// blocks returns how many blocks the file system on a device has.
func blocks(device io.ReaderAt) (int64, error) {
	b := make([]byte, superblockSize)
	if _, err := device.ReadAt(b, superblockAt); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	if le.Uint16(b[offMagic:]) != ext4Magic {
		return 0, errors.New("no ext4 superblock")
	}
	return int64(uint64(le.Uint32(b[offBlocksHigh:]))<<32 | uint64(le.Uint32(b[offBlocksLow:]))), nil
}
