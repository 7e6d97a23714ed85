package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
)

// entry is a file or directory of a directory.
type entry struct {
	name    string // long name, or the short one where there is none
	short   string
	dir     bool
	cluster uint32
	size    uint32
	time    time.Time // of the last modification, in UTC
	volume  bool      // the volume's label
	offset  int64     // of the 32 bytes in the volume
}

func find(entries []entry, name string) (entry, bool) {
	for _, e := range entries {
		if !e.volume && (strings.EqualFold(e.name, name) || strings.EqualFold(e.short, name)) {
			return e, true
		}
	}
	return entry{}, false
}

// readDir returns the entries of the directory that starts at the cluster,
// with "." and "..".
func (f *FS) readDir(cluster uint32) ([]entry, error) {
	chain, err := f.chain(cluster)
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	if int64(len(chain))*f.clusterSize > maxDirEntries*entrySize {
		return nil, fmt.Errorf("directory: more than %d entries", maxDirEntries)
	}
	data, err := f.readChain(chain)
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	var (
		out  []entry
		long longName
	)
	for i := 0; i+entrySize <= len(data) && data[i] != 0; i += entrySize {
		raw := data[i : i+entrySize]
		switch {
		case raw[0] == 0xe5: // deleted
			long = longName{}
		case raw[11] == attrLongName:
			if err := long.add(raw); err != nil {
				return nil, fmt.Errorf("directory: %w", err)
			}
		default:
			e, err := parseEntry(raw, long)
			if err != nil {
				return nil, fmt.Errorf("directory: %w", err)
			}
			position := int64(i)
			e.offset = f.offset(chain[position/f.clusterSize]) + position%f.clusterSize
			out, long = append(out, e), longName{}
		}
	}
	return out, nil
}

func parseEntry(raw []byte, long longName) (entry, error) {
	le := binary.LittleEndian
	e := entry{
		short:   shortName(raw),
		dir:     raw[11]&attrDir != 0,
		volume:  raw[11]&attrVolume != 0,
		cluster: uint32(le.Uint16(raw[20:]))<<16 | uint32(le.Uint16(raw[26:])),
		size:    le.Uint32(raw[28:]),
		time:    goTime(le.Uint16(raw[22:]), le.Uint16(raw[24:])),
	}
	e.name = e.short
	if !long.started {
		return e, nil
	}
	if long.left != 0 || long.sum != checksum(raw[:11]) {
		return e, fmt.Errorf("long name before %s does not belong to it", e.short)
	}
	e.name = string(utf16.Decode(long.units))
	return e, nil
}

// goTime is the inverse of fatTime.
func goTime(clock, date uint16) time.Time {
	return time.Date(1980+int(date>>9), time.Month(date>>5&15), int(date&31), int(clock>>11), int(clock>>5&63), int(clock&31)*2, 0, time.UTC)
}

// Renamed returns the one sector that changes, with its offset in the volume, when the file at path is called name, in the same folder:
// writing it renames the file at once. Both are short names (FAT specification §6.1), in upper case, and nothing may have name yet.
func (f *FS) Renamed(path, name string) (offset int64, sector []byte, err error) {
	e, err := f.lookup(path)
	if err != nil {
		return 0, nil, fmt.Errorf("rename on FAT volume: %w", err)
	}
	base, extension, _ := strings.Cut(name, ".")
	if e.name != e.short || base == "" || len(base) > 8 || len(extension) > 3 || strings.Trim(base+extension, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" {
		return 0, nil, fmt.Errorf("rename on FAT volume: %s to %q: want short names of letters and digits", path, name)
	}
	folder := path[:strings.LastIndexByte(path, '/')+1]
	if _, err := f.lookup(folder + name); err == nil {
		return 0, nil, fmt.Errorf("rename on FAT volume: %s%s is there already", folder, name)
	}
	offset = e.offset / SectorSize * SectorSize
	if sector, err = f.read(offset, SectorSize); err != nil {
		return 0, nil, fmt.Errorf("rename on FAT volume: %w", err)
	}
	copy(sector[e.offset-offset:], fmt.Sprintf("%-8s%-3s", base, extension))
	return offset, sector, nil
}

func shortName(raw []byte) string {
	base := strings.TrimRight(string(raw[:8]), " ")
	if extension := strings.TrimRight(string(raw[8:11]), " "); extension != "" {
		return base + "." + extension
	}
	return base
}

// longName collects the entries that hold a long name, which come last part
// first (FAT specification §7).
type longName struct {
	started bool
	left    byte
	sum     byte
	units   []uint16
}

func (l *longName) add(raw []byte) error {
	number := raw[0]
	if number&0x40 != 0 {
		*l = longName{started: true, left: number &^ 0x40, sum: raw[13]}
		number = l.left
	}
	if !l.started || number == 0 || number != l.left || number > 20 || raw[13] != l.sum {
		return errors.New("parts of a long name are out of order")
	}
	var units []uint16
	for _, span := range [][2]int{{1, 11}, {14, 26}, {28, 32}} {
		for i := span[0]; i < span[1]; i += 2 {
			u := binary.LittleEndian.Uint16(raw[i:])
			if u == 0 {
				break
			}
			if u != 0xffff {
				units = append(units, u)
			}
		}
	}
	l.units = append(units, l.units...)
	l.left--
	return nil
}

// checksum ties the parts of a long name to the short entry that they precede.
func checksum(short []byte) byte {
	var sum byte
	for _, c := range short {
		sum = sum>>1 | sum<<7
		sum += c
	}
	return sum
}

// Bounds of what Files visits, so that directories which contain each other end.
const (
	maxDepth = 8
	maxFiles = 4096
)

// Files returns the paths of all files, in the order of the directories.
func (f *FS) Files() ([]string, error) {
	l := lister{fs: f, left: maxFiles}
	if err := l.list(f.root, "", maxDepth); err != nil {
		return nil, fmt.Errorf("list FAT volume: %w", err)
	}
	return l.paths, nil
}

// lister is the state of one Files.
type lister struct {
	fs    *FS
	left  int // entries that may still be read
	paths []string
}

func (l *lister) list(cluster uint32, prefix string, depth int) error {
	if depth == 0 {
		return fmt.Errorf("more than %d directories deep", maxDepth)
	}
	entries, err := l.fs.readDir(cluster)
	if err != nil {
		return err
	}
	if l.left -= len(entries); l.left < 0 {
		return fmt.Errorf("more than %d files and directories", maxFiles)
	}
	for _, e := range entries {
		if e.volume || e.short == "." || e.short == ".." {
			continue
		}
		if !e.dir {
			l.paths = append(l.paths, prefix+e.name)
			continue
		}
		if err := l.list(e.cluster, prefix+e.name+"/", depth-1); err != nil {
			return err
		}
	}
	return nil
}
