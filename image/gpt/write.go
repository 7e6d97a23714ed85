package gpt

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
	"unicode/utf16"

	diskfsgpt "github.com/diskfs/go-diskfs/partition/gpt"
)

// Sizes of the two areas that Encode returns, in bytes.
const (
	// PrimarySize is the protective MBR, the header and the entries.
	PrimarySize = firstUsable * SectorSize
	// BackupSize is the second copy of the entries and the header.
	BackupSize = (arraySectors + 1) * SectorSize
)

// Encode returns the bytes of a table for a disk of the given size in bytes:
// primary, the first PrimarySize bytes of the disk, and backup, its last
// BackupSize bytes. Every GUID must be set, so nothing in the result is random.
func Encode(size int64, diskGUID GUID, partitions []Partition) (primary, backup []byte, err error) {
	if size%SectorSize != 0 || size < 2*PrimarySize {
		return nil, nil, fmt.Errorf("write GPT: disk of %d bytes: not a multiple of %d, or too small for a table", size, SectorSize)
	}
	table := &diskfsgpt.Table{
		GUID: diskGUID.String(), ProtectiveMBR: true,
		LogicalSectorSize: SectorSize, PhysicalSectorSize: SectorSize,
	}
	for i, p := range partitions {
		if p.GUID == (GUID{}) || p.Type == (GUID{}) || diskGUID == (GUID{}) {
			return nil, nil, fmt.Errorf("write GPT: partition %d: a GUID is not set", i+1)
		}
		if n := len(utf16.Encode([]rune(p.Name))); n > maxName {
			return nil, nil, fmt.Errorf("write GPT: partition %d: name of %d UTF-16 units, want at most %d", i+1, n, maxName)
		}
		table.Partitions = append(table.Partitions, &diskfsgpt.Partition{
			Index: i + 1, Start: p.FirstLBA, End: p.LastLBA, Attributes: p.Attributes,
			Type: diskfsgpt.Type(p.Type.String()), GUID: p.GUID.String(), Name: p.Name,
		})
	}
	e := &ends{size: size, primary: make([]byte, PrimarySize), backup: make([]byte, BackupSize)}
	if err := table.Write(e, size); err != nil {
		return nil, nil, fmt.Errorf("write GPT: %w", err)
	}
	// The strict reader is the check of bounds, overlaps and names.
	if _, err := Read(e, size); err != nil {
		return nil, nil, fmt.Errorf("write GPT: check the result: %w", err)
	}
	return e.primary, e.backup, nil
}

// ends is a disk of which only the two ends are kept; go-diskfs writes the
// table to it, so that no disk-sized buffer is needed.
type ends struct {
	size            int64
	primary, backup []byte
}

var errOutside = errors.New("outside of the partition table")

// window returns the kept bytes at the offset.
func (e *ends) window(n int, offset int64) ([]byte, error) {
	start := e.size - BackupSize
	switch {
	case offset >= 0 && offset+int64(n) <= PrimarySize:
		return e.primary[offset : offset+int64(n)], nil
	case offset >= start && offset+int64(n) <= e.size:
		return e.backup[offset-start : offset-start+int64(n)], nil
	}
	return nil, fmt.Errorf("%d bytes at %d: %w", n, offset, errOutside)
}

func (e *ends) WriteAt(b []byte, offset int64) (int, error) {
	w, err := e.window(len(b), offset)
	return copy(w, b), err
}

func (e *ends) ReadAt(b []byte, offset int64) (int, error) {
	w, err := e.window(len(b), offset)
	return copy(b, w), err
}

// go-diskfs asks for a whole file, but writing a table uses WriteAt alone.

func (e *ends) Read([]byte) (int, error)       { return 0, errOutside }
func (e *ends) Seek(int64, int) (int64, error) { return 0, errOutside }
func (e *ends) Close() error                   { return nil }
func (e *ends) Stat() (fs.FileInfo, error)     { return e, nil }
func (e *ends) Name() string                   { return "" }
func (e *ends) Size() int64                    { return e.size }
func (e *ends) Mode() fs.FileMode              { return 0 }
func (e *ends) ModTime() time.Time             { return time.Time{} }
func (e *ends) IsDir() bool                    { return false }
func (e *ends) Sys() any                       { return nil }
