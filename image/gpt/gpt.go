// Package gpt reads and writes GUID partition tables, and gives the bytes that
// firmware measures of one (UEFI 2.10 §5.3, TCG PC Client PFP §10.4.3).
//
// Reading is strict: both copies of the table must be present, whole and equal,
// because firmware measures the first and a repair tool may restore the second.
package gpt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf16"
)

// Sizes of the format, in bytes unless said otherwise.
const (
	// SectorSize is the only logical sector size that is supported.
	SectorSize = 512
	// HeaderSize is the length of the header without its padding.
	HeaderSize = 92
	// EntrySize is the only size of a partition entry that is supported.
	EntrySize = 128
	// EntryCount is the only number of entries that is supported; every
	// partitioning tool writes it.
	EntryCount = 128

	// maxName is the length of a name in UTF-16 code units.
	maxName = 36

	arraySize    = EntrySize * EntryCount
	arraySectors = arraySize / SectorSize
	// firstUsable is the first sector after MBR, header and entries.
	firstUsable = 2 + arraySectors
)

// Table is a partition table that was read from a disk.
type Table struct {
	// Header is the first copy of the header, HeaderSize bytes as on the disk.
	Header []byte
	// GUID identifies the disk.
	GUID GUID
	// Partitions are the used entries, in the order of the array.
	Partitions []Partition

	entries [][]byte // the used entries as on the disk
}

// Partition is a used entry of the table.
type Partition struct {
	// Type says what the partition is for.
	Type GUID
	// GUID identifies the partition.
	GUID GUID
	// FirstLBA and LastLBA are its first and last sector, both included.
	FirstLBA, LastLBA uint64
	// Attributes are the flags of UEFI 2.10 table 5.8.
	Attributes uint64
	// Name is at most 36 UTF-16 code units.
	Name string
}

// Offset returns where the partition starts, in bytes.
func (p Partition) Offset() int64 { return int64(p.FirstLBA) * SectorSize }

// Size returns the length of the partition, in bytes.
func (p Partition) Size() int64 { return int64(p.LastLBA-p.FirstLBA+1) * SectorSize }

// Read reads the table of a disk of the given size in bytes. It fails unless
// protective MBR, both headers and both entry arrays are valid and agree, the
// second copy ends the disk, and the partitions overlap neither each other nor
// the table.
func Read(r io.ReaderAt, size int64) (*Table, error) {
	if err := checkSize(size); err != nil {
		return nil, fmt.Errorf("read GPT: %w", err)
	}
	d := disk{r: r, sectors: uint64(size / SectorSize)}
	t, err := d.read()
	if err != nil {
		return nil, fmt.Errorf("read GPT: %w", err)
	}
	return t, nil
}

// maxSectors bounds what DiskSize takes for a disk.
const maxSectors = 1 << 40

// DiskSize returns how long a disk is by the first copy of its table, in bytes. An image that was written to a larger disk has its second
// copy where the image ends, and not the disk. Nothing else of the table is looked at.
func DiskSize(r io.ReaderAt) (int64, error) {
	var alternate [8]byte
	if _, err := r.ReadAt(alternate[:], SectorSize+32); err != nil {
		return 0, fmt.Errorf("read GPT: size of the disk: %w", err)
	}
	last := binary.LittleEndian.Uint64(alternate[:])
	if last >= maxSectors {
		return 0, fmt.Errorf("read GPT: its second copy is to be at sector %d", last)
	}
	return int64(last+1) * SectorSize, nil
}

// SizeWithin is DiskSize for a disk of size bytes: what is not within it is not believed.
func SizeWithin(r io.ReaderAt, size int64) int64 {
	if end, err := DiskSize(r); err == nil && end <= size {
		return end
	}
	return size
}

func checkSize(size int64) error {
	if size%SectorSize != 0 || size < 2*firstUsable*SectorSize {
		return fmt.Errorf("disk of %d bytes: not a multiple of %d, or too small for a table", size, SectorSize)
	}
	return nil
}

type disk struct {
	r       io.ReaderAt
	sectors uint64
}

func (d disk) read() (*Table, error) {
	if err := d.checkMBR(); err != nil {
		return nil, fmt.Errorf("protective MBR: %w", err)
	}
	header, entries, err := d.readCopy(1, 2)
	if err != nil {
		return nil, fmt.Errorf("first copy: %w", err)
	}
	backup, backupEntries, err := d.readCopy(d.sectors-1, d.sectors-1-arraySectors)
	if err != nil {
		return nil, fmt.Errorf("second copy, at the end of the disk: %w; was the image truncated or the disk resized?", err)
	}
	// Everything from the usable range to the disk GUID has to agree, and so
	// have the entries, of which the headers hold the checksum.
	if !bytes.Equal(header[40:72], backup[40:72]) || !bytes.Equal(entries, backupEntries) {
		return nil, errors.New("the two copies differ")
	}
	t := &Table{Header: header, GUID: guidFromDisk(header[56:72])}
	return t, t.parseEntries(entries, d.sectors)
}

// checkMBR checks for one protective partition that covers the disk. Boot code
// is allowed; UEFI ignores it.
func (d disk) checkMBR() error {
	mbr := make([]byte, SectorSize)
	if err := d.readAt(mbr, 0); err != nil {
		return err
	}
	entry := mbr[446:462]
	length := min(d.sectors-1, 0xffffffff)
	switch {
	case mbr[510] != 0x55 || mbr[511] != 0xaa:
		return errors.New("no boot signature; this is not a partitioned disk")
	case entry[0] != 0 || entry[4] != 0xee || !allZero(mbr[462:510]):
		return errors.New("not exactly one partition of type 0xee")
	case binary.LittleEndian.Uint32(entry[8:]) != 1 || uint64(binary.LittleEndian.Uint32(entry[12:])) != length:
		return errors.New("its partition does not cover the disk: the file was cut off or grew, so build or copy it again")
	}
	return nil
}

// readCopy reads the header at sector lba, whose entries must be at sector array.
func (d disk) readCopy(lba, array uint64) (header, entries []byte, err error) {
	sector := make([]byte, SectorSize)
	if err := d.readAt(sector, lba); err != nil {
		return nil, nil, err
	}
	header = sector[:HeaderSize:HeaderSize]
	if err := d.checkHeader(header, lba, array); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	if !allZero(sector[HeaderSize:]) {
		return nil, nil, errors.New("header: the rest of its sector is not zero")
	}
	entries = make([]byte, arraySize)
	if err := d.readAt(entries, array); err != nil {
		return nil, nil, err
	}
	if crc32.ChecksumIEEE(entries) != binary.LittleEndian.Uint32(header[88:]) {
		return nil, nil, errors.New("entries: wrong checksum")
	}
	return header, entries, nil
}

func (d disk) checkHeader(h []byte, lba, array uint64) error {
	le := binary.LittleEndian
	sum := bytes.Clone(h)
	clear(sum[16:20])
	switch {
	case string(h[:8]) != "EFI PART":
		return errors.New("no EFI PART signature")
	case le.Uint32(h[8:]) != 0x00010000 || le.Uint32(h[12:]) != HeaderSize || le.Uint32(h[20:]) != 0:
		return errors.New("not revision 1.0 with a header of 92 bytes")
	case crc32.ChecksumIEEE(sum) != le.Uint32(h[16:]):
		return errors.New("wrong checksum")
	case le.Uint64(h[24:]) != lba || le.Uint64(h[32:]) != d.sectors-lba:
		return fmt.Errorf("it says sector %d with the other copy at %d, want %d and %d", le.Uint64(h[24:]), le.Uint64(h[32:]), lba, d.sectors-lba)
	case le.Uint64(h[40:]) < firstUsable || le.Uint64(h[48:]) > d.sectors-firstUsable || le.Uint64(h[40:]) > le.Uint64(h[48:]):
		return errors.New("the usable sectors overlap the table")
	case le.Uint64(h[72:]) != array:
		return fmt.Errorf("entries at sector %d, want %d", le.Uint64(h[72:]), array)
	case le.Uint32(h[80:]) != EntryCount || le.Uint32(h[84:]) != EntrySize:
		return fmt.Errorf("not %d entries of %d bytes", EntryCount, EntrySize)
	}
	return nil
}

func (t *Table) parseEntries(array []byte, sectors uint64) error {
	first, last := binary.LittleEndian.Uint64(t.Header[40:]), binary.LittleEndian.Uint64(t.Header[48:])
	for i := range EntryCount {
		raw := array[i*EntrySize : (i+1)*EntrySize]
		if allZero(raw[:16]) {
			if !allZero(raw) {
				return fmt.Errorf("entry %d: unused but not zero", i+1)
			}
			continue
		}
		p, err := parseEntry(raw)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i+1, err)
		}
		if p.FirstLBA < first || p.LastLBA > last || p.FirstLBA > p.LastLBA {
			return fmt.Errorf("entry %d: sectors %d to %d are not inside %d to %d of %d", i+1, p.FirstLBA, p.LastLBA, first, last, sectors)
		}
		for _, q := range t.Partitions {
			if p.FirstLBA <= q.LastLBA && q.FirstLBA <= p.LastLBA {
				return fmt.Errorf("entry %d: overlaps partition %q", i+1, q.Name)
			}
			if p.GUID == q.GUID {
				return fmt.Errorf("entry %d: has the GUID of partition %q", i+1, q.Name)
			}
		}
		t.Partitions = append(t.Partitions, p)
		t.entries = append(t.entries, raw)
	}
	return nil
}

func parseEntry(raw []byte) (Partition, error) {
	units := make([]uint16, 0, maxName)
	name := raw[56:]
	for i := 0; i < len(name); i += 2 {
		u := binary.LittleEndian.Uint16(name[i:])
		if u == 0 {
			if !allZero(name[i:]) {
				return Partition{}, errors.New("name: bytes after its end")
			}
			break
		}
		units = append(units, u)
	}
	return Partition{
		Type:       guidFromDisk(raw[:16]),
		GUID:       guidFromDisk(raw[16:32]),
		FirstLBA:   binary.LittleEndian.Uint64(raw[32:]),
		LastLBA:    binary.LittleEndian.Uint64(raw[40:]),
		Attributes: binary.LittleEndian.Uint64(raw[48:]),
		Name:       string(utf16.Decode(units)),
	}, nil
}

// Event returns the bytes that firmware hashes into PCR 5 as EV_EFI_GPT_EVENT:
// UEFI_GPT_DATA, that is the header, the number of used entries as a
// little-endian 64-bit integer, and the used entries in array order.
func (t *Table) Event() []byte {
	out := bytes.Clone(t.Header)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(t.entries)))
	for _, e := range t.entries {
		out = append(out, e...)
	}
	return out
}

func (d disk) readAt(b []byte, lba uint64) error {
	_, err := io.ReadFull(io.NewSectionReader(d.r, int64(lba)*SectorSize, int64(len(b))), b)
	if err != nil {
		return fmt.Errorf("sector %d: %w", lba, err)
	}
	return nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
