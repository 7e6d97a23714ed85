package gpt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	diskfsgpt "github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/hullmark/hullmark/internal/tooltest"
)

const diskSize = 8 << 20

func guid(t testing.TB, s string) GUID {
	t.Helper()
	g, err := ParseGUID(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func sample(t testing.TB) []Partition {
	return []Partition{
		{Type: TypeESP, GUID: guid(t, "01234567-89ab-cdef-0123-456789abcdef"), FirstLBA: 2048, LastLBA: 4095, Name: "esp"},
		{Type: TypeRootAMD64, GUID: guid(t, "11234567-89ab-cdef-0123-456789abcdef"), FirstLBA: 4096, LastLBA: 6143, Attributes: 1 << 60, Name: "root"},
	}
}

func encode(t testing.TB) []byte {
	t.Helper()
	primary, backup, err := Encode(diskSize, guid(t, "21234567-89ab-cdef-0123-456789abcdef"), sample(t))
	if err != nil {
		t.Fatal(err)
	}
	disk := make([]byte, diskSize)
	copy(disk, primary)
	copy(disk[diskSize-BackupSize:], backup)
	return disk
}

func read(disk []byte) (*Table, error) {
	return Read(bytes.NewReader(disk), int64(len(disk)))
}

func TestReadsBack(t *testing.T) {
	table, err := read(encode(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Partitions) != 2 || table.Partitions[0] != sample(t)[0] || table.Partitions[1] != sample(t)[1] {
		t.Errorf("read back %+v", table.Partitions)
	}
	if table.GUID.String() != "21234567-89ab-cdef-0123-456789abcdef" {
		t.Errorf("disk GUID %v", table.GUID)
	}
	if p := table.Partitions[0]; p.Offset() != 1<<20 || p.Size() != 1<<20 {
		t.Errorf("offset %d size %d", p.Offset(), p.Size())
	}
	if !bytes.Equal(encode(t), encode(t)) {
		t.Error("two encodings differ")
	}
}

func TestSgdiskAgrees(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, encode(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := tooltest.Run(t, "gdisk", "sgdisk", "-v", file); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk -v: %s", out)
	}
	info := tooltest.Run(t, "gdisk", "sgdisk", "-i", "2", file)
	for _, want := range []string{"11234567-89AB-CDEF-0123-456789ABCDEF", "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "1000000000000000", "'root'"} {
		if !strings.Contains(info, want) {
			t.Errorf("sgdisk -i 2: no %s in %s", want, info)
		}
	}
}

// TestGoDiskfsAgrees writes the same table with go-diskfs: all bytes but the CHS
// addresses of the protective MBR, which it leaves zero, are the same.
func TestGoDiskfsAgrees(t *testing.T) {
	other := &diskfsgpt.Table{ProtectiveMBR: true, GUID: "21234567-89ab-cdef-0123-456789abcdef"}
	for i, p := range sample(t) {
		other.Partitions = append(other.Partitions, &diskfsgpt.Partition{
			Index: i + 1, Type: diskfsgpt.Type(p.Type.String()), GUID: p.GUID.String(),
			Start: p.FirstLBA, End: p.LastLBA, Attributes: p.Attributes, Name: p.Name,
		})
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := errors.Join(file.Truncate(diskSize), other.Write(file, diskSize)); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	got := encode(t)
	for _, disk := range [][]byte{got, want} {
		clear(disk[447:450])
		clear(disk[451:454])
	}
	if !bytes.Equal(got, want) {
		t.Error("the tables differ")
	}
}

func TestReadsWhatSgdiskWrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	tooltest.Run(t, "gdisk", "sgdisk", "-n", "3:2048:4095", "-c", "3:data", "-u", "3:31234567-89ab-cdef-0123-456789abcdef", file)
	disk, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	table, err := read(disk)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Partitions) != 1 || table.Partitions[0].Name != "data" || table.Partitions[0].GUID.String()[0] != '3' {
		t.Errorf("%+v", table.Partitions)
	}
}

func TestEventIsHeaderCountAndEntries(t *testing.T) {
	disk := encode(t)
	table, err := read(disk)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(disk[512 : 512+92])
	want = append(want, 2, 0, 0, 0, 0, 0, 0, 0)
	want = append(want, disk[1024:1024+2*128]...)
	if sha256.Sum256(table.Event()) != sha256.Sum256(want) {
		t.Error("the event is not header, count and entries")
	}
}

func TestReadRefusesDamage(t *testing.T) {
	whole := encode(t)
	for _, offset := range []int{446 + 4, 510, 512, 512 + 24, 512 + 60, 512 + 200, 1024, 1024 + 60, 1024 + 300, diskSize - 512, diskSize - 512 + 60, diskSize - BackupSize} {
		disk := bytes.Clone(whole)
		disk[offset] ^= 0x10
		if _, err := read(disk); err == nil {
			t.Errorf("a flipped bit at %d: no error", offset)
		}
	}
	for _, size := range []int{0, 512, 4 << 20, diskSize - 512, diskSize - 1} {
		if _, err := read(whole[:size]); err == nil {
			t.Errorf("truncated to %d: no error", size)
		}
	}
	if _, err := read(append(bytes.Clone(whole), make([]byte, 1<<20)...)); err == nil {
		t.Error("a longer disk: no error")
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, change := range map[string]func(p []Partition){
		"no GUID":       func(p []Partition) { p[0].GUID = GUID{} },
		"no type":       func(p []Partition) { p[1].Type = GUID{} },
		"same GUID":     func(p []Partition) { p[1].GUID = p[0].GUID },
		"overlap":       func(p []Partition) { p[1].FirstLBA = p[0].LastLBA },
		"end before":    func(p []Partition) { p[0].LastLBA = p[0].FirstLBA - 2 },
		"outside":       func(p []Partition) { p[1].LastLBA = diskSize / 512 },
		"in the table":  func(p []Partition) { p[0].FirstLBA = 20 },
		"surrogates":    func(p []Partition) { p[0].Name = strings.Repeat("\U0001f6a2", 19) },
		"name too long": func(p []Partition) { p[0].Name = strings.Repeat("x", 37) },
	} {
		p := sample(t)
		change(p)
		if _, _, err := Encode(diskSize, p[1].Type, p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, _, err := Encode(diskSize, GUID{}, sample(t)); err == nil {
		t.Error("no disk GUID: no error")
	}
}

func TestParseGUIDRefuses(t *testing.T) {
	for _, s := range []string{"", "01234567-89ab-cdef-0123-456789abcdeg", "0123456789abcdef0123456789abcdef", "0123456-789ab-cdef-0123-456789abcdef", "01234567-89ab-cdef-0123-456789abcdef0"} {
		if _, err := ParseGUID(s); err == nil {
			t.Errorf("%q: no error", s)
		}
	}
}

// FuzzRead changes header and entries and repairs the checksums, so that the
// checks behind them are reached.
func FuzzRead(f *testing.F) {
	const size = 256 * SectorSize
	part := Partition{Type: TypeESP, GUID: guid(f, "01234567-89ab-cdef-0123-456789abcdef"), FirstLBA: 34, LastLBA: 99, Name: "esp"}
	primary, backup, err := Encode(size, part.GUID, []Partition{part})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(primary[512:604], primary[1024:1024+256])
	f.Fuzz(func(t *testing.T, header, entries []byte) {
		disk := make([]byte, size)
		copy(disk, primary)
		copy(disk[size-BackupSize:], backup)
		copy(disk[512:604], header)
		copy(disk[1024:1024+arraySize], entries)
		copy(disk[size-BackupSize:], disk[1024:1024+arraySize])
		sum := crc32.ChecksumIEEE(disk[1024 : 1024+arraySize])
		for _, h := range [][]byte{disk[512:604], disk[size-512:][:92]} {
			binary.LittleEndian.PutUint32(h[88:], sum)
			clear(h[16:20])
			binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h))
		}
		table, err := read(disk)
		if err != nil {
			return
		}
		for _, p := range table.Partitions {
			if p.Offset() < PrimarySize || p.Offset()+p.Size() > size-BackupSize {
				t.Errorf("accepted %+v", p)
			}
		}
	})
}

// FuzzSizeWithin wants an end within the disk, whatever its first sectors say.
func FuzzSizeWithin(f *testing.F) {
	table := make([]byte, 2*SectorSize)
	binary.LittleEndian.PutUint64(table[SectorSize+32:], 99)
	f.Add(table, int64(1<<20))
	f.Add(table, int64(SectorSize))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, disk []byte, size int64) {
		size &= 1<<50 - 1
		if end := SizeWithin(bytes.NewReader(disk), size); end < 0 || end > size || end != size && end%SectorSize != 0 {
			t.Errorf("an image of %d bytes on a disk of %d", end, size)
		}
	})
}
