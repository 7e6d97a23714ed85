package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/filesystem/fat32"
)

// spareClusters leaves room for directories and for the library's rounding.
const spareClusters = 64

const mib = 1 << 20

// reservedSectors is where go-diskfs starts the first allocation table.
const reservedSectors = 32

// File is a file to write.
type File struct {
	// Path is relative, with slashes, for instance "EFI/BOOT/BOOTX64.EFI".
	Path string
	// Data is the content; it must not be empty.
	Data []byte
}

// Params are the values of a volume that do not follow from its files.
type Params struct {
	// Label is the volume's label, at most 11 bytes of upper-case ASCII.
	Label string
	// VolumeID is the volume's serial number.
	VolumeID uint32
	// Time is the time of every entry. FAT holds times from 1980 on, in steps
	// of two seconds; the zone is not stored, UTC is used.
	Time time.Time
	// Size is the volume's length in bytes, a multiple of 1 MiB; 0 takes the smallest that holds the files.
	Size int64
}

// Build returns a FAT32 volume that holds the files, a multiple of
// 1 MiB long and never below about 34 MiB, which the format demands. The result
// depends only on the arguments and not on the order of the files.
func Build(files []File, p Params) ([]byte, error) {
	sorted := slices.Clone(files)
	slices.SortFunc(sorted, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	if err := check(sorted, p); err != nil {
		return nil, fmt.Errorf("build FAT volume: %w", err)
	}
	size := volumeSize(sorted)
	if p.Size != 0 && (p.Size < size || p.Size%mib != 0) {
		return nil, fmt.Errorf("build FAT volume: the files need %d MiB, it has %d bytes", size/mib, p.Size)
	}
	volume := make([]byte, max(size, p.Size))
	if err := fill(volume, sorted, p); err != nil {
		return nil, fmt.Errorf("build FAT volume: %w", err)
	}
	if err := normalize(volume, p); err != nil {
		return nil, fmt.Errorf("build FAT volume: %w", err)
	}
	return volume, nil
}

func check(sorted []File, p Params) error {
	if year := p.Time.UTC().Year(); year < 1980 || year > 2107 {
		return fmt.Errorf("time %v: FAT holds 1980 to 2107", p.Time)
	}
	if len(p.Label) > 11 || p.Label == "" {
		return fmt.Errorf("label %q: want 1 to 11 bytes", p.Label)
	}
	total := int64(0)
	for i, f := range sorted {
		if !iofs.ValidPath(f.Path) || f.Path == "." || len(f.Data) == 0 {
			return fmt.Errorf("file %q: want a clean relative path and content", f.Path)
		}
		if i > 0 && f.Path == sorted[i-1].Path {
			return fmt.Errorf("file %q: given twice", f.Path)
		}
		total += int64(len(f.Data))
	}
	// 260 MiB is where go-diskfs changes to larger clusters.
	if total > 250<<20 {
		return fmt.Errorf("%d bytes of files, want at most 250 MiB; leave something out of the initrd, or pack it smaller", total)
	}
	return nil
}

// volumeSize returns the length in bytes for one-sector clusters.
func volumeSize(files []File) int64 {
	clusters := int64(spareClusters)
	for _, f := range files {
		clusters += (int64(len(f.Data))+SectorSize-1)/SectorSize + 1
	}
	clusters = max(clusters, minClusters+spareClusters)
	tables := 2 * ((clusters+2)*4/SectorSize + 1)
	return ((reservedSectors+tables+clusters)*SectorSize + mib - 1) / mib * mib
}

// fill formats the volume and writes the files through go-diskfs.
func fill(volume []byte, files []File, p Params) error {
	store := &memory{data: volume}
	v, err := fat32.Create(store, int64(len(volume)), 0, SectorSize, p.Label, true)
	if err != nil {
		return fmt.Errorf("format: %w", err)
	}
	for _, f := range files {
		if dir := path.Dir(f.Path); dir != "." {
			if err := v.Mkdir(dir); err != nil {
				return fmt.Errorf("make directory %s: %w", dir, err)
			}
		}
		out, err := v.OpenFile(f.Path, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return fmt.Errorf("create %s: %w", f.Path, err)
		}
		// One Write: the library rewrites the whole table for each.
		if _, err := out.Write(f.Data); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
		if err := out.Close(); err != nil {
			return fmt.Errorf("close %s: %w", f.Path, err)
		}
	}
	return nil
}

// normalize makes the volume depend on Params alone and mends what the library
// leaves wrong. Afterwards every entry has the given time (the library takes
// the clock or the environment), the serial number is set (it writes 0), the
// ".." of first-level directories is 0 (it writes the root's cluster, against
// FAT specification §6.5), and FSInfo holds the count of free clusters.
func normalize(volume []byte, p Params) error {
	store := &memory{data: volume}
	f, err := Open(store, int64(len(volume)))
	if err != nil {
		// For some sizes, such as 64 MiB, go-diskfs makes its tables one sector too short.
		return fmt.Errorf("of %d MiB there is no volume, take another size: %w", len(volume)/mib, err)
	}
	if err := f.normalizeDir(volume, f.root, fatTime(p.Time)); err != nil {
		return err
	}
	for _, boot := range []int64{0, int64(binary.LittleEndian.Uint16(volume[bpbBackup:]))} {
		sector := volume[boot*SectorSize:]
		binary.LittleEndian.PutUint32(sector[bpbVolumeID:], p.VolumeID)
		f.writeFSInfo(sector[int64(binary.LittleEndian.Uint16(volume[bpbFSInfo:]))*SectorSize:])
	}
	return nil
}

// writeFSInfo stores the free clusters and where to look for one (FAT
// specification §5).
func (f *FS) writeFSInfo(sector []byte) {
	free, next := uint32(0), uint32(0)
	for c := len(f.fat) - 1; c >= 2; c-- {
		if f.fat[c] == 0 {
			free++
			next = uint32(c)
		}
	}
	binary.LittleEndian.PutUint32(sector[488:], free)
	binary.LittleEndian.PutUint32(sector[492:], next)
}

func (f *FS) normalizeDir(volume []byte, cluster uint32, stamp [4]byte) error {
	entries, err := f.readDir(cluster)
	if err != nil {
		return err
	}
	for _, e := range entries {
		raw := volume[e.offset : e.offset+entrySize]
		setTimes(raw, stamp)
		switch {
		case e.short == ".." && e.cluster == f.root:
			binary.LittleEndian.PutUint16(raw[20:], 0)
			binary.LittleEndian.PutUint16(raw[26:], 0)
		case e.dir && e.short != "." && e.short != "..":
			if err := f.normalizeDir(volume, e.cluster, stamp); err != nil {
				return err
			}
		}
	}
	return nil
}

// setTimes writes creation, access and modification time.
func setTimes(raw []byte, stamp [4]byte) {
	raw[13] = 0 // tenths of a second of the creation
	copy(raw[14:18], stamp[:])
	copy(raw[18:20], stamp[2:])
	copy(raw[22:26], stamp[:])
}

// fatTime returns time and date as they stand in an entry.
func fatTime(t time.Time) (stamp [4]byte) {
	t = t.UTC()
	clock := t.Hour()<<11 | t.Minute()<<5 | t.Second()/2
	date := (t.Year()-1980)<<9 | int(t.Month())<<5 | t.Day()
	binary.LittleEndian.PutUint16(stamp[:], uint16(clock))
	binary.LittleEndian.PutUint16(stamp[2:], uint16(date))
	return stamp
}

var errNotUsed = errors.New("not supported by a volume in memory")
