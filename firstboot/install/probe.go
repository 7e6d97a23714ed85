package install

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/statedisk"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/gpt"
)

// content is what a disk holds.
type content int

const (
	// holdsOther is anything that is not named below.
	holdsOther content = iota
	// holdsNothing is a disk both ends of which are zero, or where an installation of this very disk was interrupted.
	holdsNothing
	// holdsThis has been installed: table and configuration are what would be written. Its slots may hold other releases by now.
	holdsThis
	// holdsRelease has the table of such a disk, and another configuration; or it had, and a node's state is behind it, where it was about
	// to be given another and that was interrupted.
	holdsRelease
)

// edge is how much at each end of a disk has to be zero, or what an installation leaves there, for it to hold nothing, in bytes: as much
// as of a state disk.
const edge = statedisk.EdgeSize

// tableSize is where the first partition starts, in bytes: what comes before is written last.
const tableSize = 1 << 20

// probe says what a disk of size bytes holds, compared with what would be written to it. Overwriting a disk is allowed by its serial
// number for all but holdsNothing; probe only reads.
func probe(disk io.ReaderAt, size int64, want *image.Layout) (content, error) {
	table, err := same(disk, want, 0, tableSize)
	if err != nil {
		return holdsOther, err
	}
	if table {
		place := want.Config()
		config, err := same(disk, want, place.Offset(), place.Size())
		if err == nil && config {
			return holdsThis, nil
		}
		return holdsRelease, err
	}
	if state, err := hasState(disk, size, want); err != nil || state {
		return holdsRelease, err
	}
	for _, from := range []int64{0, max(0, size-edge)} {
		empty, err := zeroOrSame(disk, want, from, min(edge, size-from))
		if err != nil || !empty {
			return holdsOther, err
		}
	}
	return holdsNothing, nil
}

// hasState reports whether a node's state is behind where the slots were, on a disk whose table is gone. Of a disk that somebody emptied,
// by its two ends, what is in its middle is nothing any more.
func hasState(disk io.ReaderAt, size int64, want *image.Layout) (bool, error) {
	behind := size - want.Size()
	if behind < statedisk.MinSize {
		return false, nil
	}
	claim, err := statedisk.Probe(io.NewSectionReader(disk, want.Size(), behind), behind)
	if err != nil || claim.State != hullmark.DiskReady {
		return false, err
	}
	start := make([]byte, edge)
	if _, err := io.ReadFull(io.NewSectionReader(disk, 0, edge), start); err != nil {
		return false, fmt.Errorf("read the disk to install: %w", err)
	}
	return len(bytes.Trim(start, "\x00")) > 0, nil
}

// same compares a part of a disk with what would be written there.
func same(disk io.ReaderAt, want *image.Layout, at, size int64) (bool, error) {
	got, planned, err := both(disk, want, at, size)
	return err == nil && bytes.Equal(got, planned), err
}

// zeroOrSame reports whether each sector of a part is zero, or what would be written there. A sector is written whole or not at all.
func zeroOrSame(disk io.ReaderAt, want *image.Layout, at, size int64) (bool, error) {
	got, planned, err := both(disk, want, at, size)
	if err != nil {
		return false, err
	}
	var zero [gpt.SectorSize]byte
	for n := 0; n < len(got); n += gpt.SectorSize {
		sector := got[n : n+gpt.SectorSize]
		if !bytes.Equal(sector, zero[:]) && !bytes.Equal(sector, planned[n:n+gpt.SectorSize]) {
			return false, nil
		}
	}
	return true, nil
}

// both reads a part of the disk, and what would be written there: zeros behind the planned disk.
func both(disk io.ReaderAt, want *image.Layout, at, size int64) (got, planned []byte, err error) {
	got, planned = make([]byte, size), make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(disk, at, size), got); err != nil {
		return nil, nil, fmt.Errorf("read the disk to install at %d: %w", at, err)
	}
	if n := min(size, want.Size()-at); n > 0 {
		if _, err := io.ReadFull(io.NewSectionReader(want, at, n), planned[:n]); err != nil {
			return nil, nil, err
		}
	}
	return got, planned, nil
}

// clearEdges zeroes what lies behind the slots, from start to the disk's end, at both ends: there the node's state may be, and it has to
// find the place blank.
func clearEdges(disk io.WriterAt, start, end int64) error {
	zero := make([]byte, 1<<20)
	for _, from := range []int64{start, max(start, end-edge)} {
		for at := from; at < min(from+edge, end); at += int64(len(zero)) {
			if _, err := disk.WriteAt(zero[:min(int64(len(zero)), end-at)], at); err != nil {
				return err
			}
		}
	}
	return nil
}

// signatures are what others begin their disks with, at which byte. They only help a person to see which disk it is.
var signatures = []struct {
	at   int64
	text string
	what string
}{
	{0, "LUKS\xba\xbe", "an encrypted disk (LUKS)"},
	{0, "XFSB", "a file system (XFS)"},
	{3, "NTFS    ", "a file system (NTFS)"},
	{512, "LABELONE", "a physical volume (LVM)"},
	{0x218, "LVM2 001", "a physical volume (LVM)"},
	{1080, "\x53\xef", "a file system (ext)"},
	{4096, "\xfc\x4e\x2b\xa9", "a part of a RAID (md)"},
	{4086, "SWAPSPACE2", "swap space"},
	{0x8001, "CD001", "a file system (ISO 9660)"},
	{0x10040, "_BHRfS_M", "a file system (Btrfs)"},
	{510, "\x55\xaa", "a partition table (MBR), or something that boots"},
}

// describe says for people what a disk that is not empty seems to hold.
func describe(disk io.ReaderAt) string {
	start := make([]byte, 128<<10)
	if _, err := io.ReadFull(io.NewSectionReader(disk, 0, int64(len(start))), start); err != nil {
		return "which cannot be read: " + err.Error()
	}
	if bytes.HasPrefix(start[gpt.SectorSize:], []byte("EFI PART")) {
		return "with " + describeTable(disk)
	}
	for _, s := range signatures {
		if bytes.HasPrefix(start[s.at:], []byte(s.text)) {
			return "with " + s.what
		}
	}
	return "with something that is not known here"
}

// describeTable names the partitions of a table, if it can be read.
func describeTable(disk io.ReaderAt) string {
	size, err := gpt.DiskSize(disk)
	if err != nil {
		return "a partition table (GPT)"
	}
	table, err := gpt.Read(disk, size)
	if err != nil {
		return "a partition table (GPT)"
	}
	var names []string
	for _, p := range table.Partitions[:min(len(table.Partitions), 8)] {
		names = append(names, fmt.Sprintf("%q", p.Name))
	}
	return fmt.Sprintf("a table of %d partitions: %s", len(table.Partitions), strings.Join(names, ", "))
}
