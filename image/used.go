package image

import (
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// Extent is a run of bytes of a disk.
type Extent struct{ Offset, Size int64 }

// Used returns which parts of a published disk may be other than zero, in their order, up to the disk's end. It reads some KiB of it: the
// tables, and what its hash trees say of themselves. r may be anybody's: only the digest of what is made so tells that it is right.
func Used(r io.ReaderAt) ([]Extent, error) {
	size, err := gpt.DiskSize(r)
	if err != nil {
		return nil, fmt.Errorf("used part of a disk: %w", err)
	}
	table, err := gpt.Read(r, size)
	if err != nil {
		return nil, fmt.Errorf("used part of a disk: %w", err)
	}
	slots, _, err := findSlots(table)
	if err != nil {
		return nil, fmt.Errorf("used part of a disk: %w", err)
	}
	p := slots[slot.A]
	used, err := slot.ReadUsed(section(r, p.Tree), p)
	if err != nil {
		return nil, fmt.Errorf("used part of a disk: %w", err)
	}
	return []Extent{
		{0, gpt.PrimarySize},
		{p.ESP.Offset(), used.ESP},
		{p.Root.Offset(), used.Root},
		{p.Tree.Offset(), used.Tree + used.ESPTree},
		{size - gpt.BackupSize, gpt.BackupSize},
	}, nil
}
