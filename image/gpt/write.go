package gpt

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf16"
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
	if err := checkSize(size); err != nil {
		return nil, nil, fmt.Errorf("write GPT: %w", err)
	}
	entries, err := encodeEntries(diskGUID, partitions)
	if err != nil {
		return nil, nil, fmt.Errorf("write GPT: %w", err)
	}
	sectors := uint64(size / SectorSize)
	sum := crc32.ChecksumIEEE(entries)
	primary = append(encodeMBR(sectors), encodeHeader(1, 2, sectors, diskGUID, sum)...)
	primary = append(primary, entries...)
	backup = append(entries, encodeHeader(sectors-1, sectors-1-arraySectors, sectors, diskGUID, sum)...)
	// The strict reader is the check of bounds and overlaps.
	if _, err := Read(ends{size, primary, backup}, size); err != nil {
		return nil, nil, fmt.Errorf("write GPT: check the result: %w", err)
	}
	return primary, backup, nil
}

func encodeEntries(diskGUID GUID, partitions []Partition) ([]byte, error) {
	if len(partitions) > EntryCount {
		return nil, fmt.Errorf("%d partitions, want at most %d", len(partitions), EntryCount)
	}
	array := make([]byte, arraySize)
	for i, p := range partitions {
		if p.GUID == (GUID{}) || p.Type == (GUID{}) || diskGUID == (GUID{}) {
			return nil, fmt.Errorf("partition %d: a GUID is not set", i+1)
		}
		units := utf16.Encode([]rune(p.Name))
		if len(units) > maxName {
			return nil, fmt.Errorf("partition %d: name of %d UTF-16 units, want at most %d", i+1, len(units), maxName)
		}
		le, entry := binary.LittleEndian, array[i*EntrySize:]
		copy(entry, p.Type.disk())
		copy(entry[16:], p.GUID.disk())
		le.PutUint64(entry[32:], p.FirstLBA)
		le.PutUint64(entry[40:], p.LastLBA)
		le.PutUint64(entry[48:], p.Attributes)
		for j, u := range units {
			le.PutUint16(entry[56+2*j:], u)
		}
	}
	return array, nil
}

// encodeMBR returns the protective MBR: one partition of type 0xee over the
// disk, with the CHS addresses that UEFI 2.10 table 5.4 prescribes.
func encodeMBR(sectors uint64) []byte {
	mbr := make([]byte, SectorSize)
	entry := mbr[446:]
	copy(entry, []byte{0x00, 0x00, 0x02, 0x00, 0xee, 0xff, 0xff, 0xff})
	binary.LittleEndian.PutUint32(entry[8:], 1)
	binary.LittleEndian.PutUint32(entry[12:], uint32(min(sectors-1, 0xffffffff)))
	mbr[510], mbr[511] = 0x55, 0xaa
	return mbr
}

// encodeHeader returns the sector of the header at sector lba, whose entries
// start at sector array and have the checksum sum (UEFI 2.10 table 5.5).
func encodeHeader(lba, array, sectors uint64, diskGUID GUID, sum uint32) []byte {
	h := append(make([]byte, 0, SectorSize), "EFI PART"...)
	le := binary.LittleEndian
	h = le.AppendUint32(h, 0x00010000)
	h = le.AppendUint32(h, HeaderSize)
	h = le.AppendUint64(h, 0) // checksum, set below, and reserved
	for _, v := range []uint64{lba, sectors - lba, firstUsable, sectors - firstUsable} {
		h = le.AppendUint64(h, v)
	}
	h = append(h, diskGUID.disk()...)
	h = le.AppendUint64(h, array)
	h = le.AppendUint32(h, EntryCount)
	h = le.AppendUint32(h, EntrySize)
	h = le.AppendUint32(h, sum)
	le.PutUint32(h[16:], crc32.ChecksumIEEE(h))
	return h[:SectorSize]
}

// ends reads a disk of which only the two ends are known.
type ends struct {
	size            int64
	primary, backup []byte
}

func (e ends) ReadAt(b []byte, offset int64) (int, error) {
	part := e.primary
	if start := e.size - BackupSize; offset >= start {
		part, offset = e.backup, offset-start
	}
	if offset+int64(len(b)) > int64(len(part)) {
		return 0, io.EOF
	}
	return copy(b, part[offset:]), nil
}
