// Package fat writes the FAT32 volume from which firmware starts an image, and
// reads files back from one (Microsoft FAT specification, 2005; UEFI 2.10 §13.3).
package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Limits of what Open accepts, and the fixed sizes of the format in bytes.
const (
	// SectorSize is the only sector size that is supported.
	SectorSize = 512
	// MaxSize bounds the volume; Open holds its allocation table in memory.
	MaxSize = 1 << 30
	// minClusters is the smallest number of clusters of a FAT32 volume; a
	// volume with fewer is FAT16 to every driver (FAT specification §3.5).
	minClusters = 65525
	// maxDirEntries bounds a directory.
	maxDirEntries = 4096

	entrySize   = 32
	endOfChain  = 0x0ffffff8
	clusterMask = 0x0fffffff

	attrVolume   = 0x08
	attrDir      = 0x10
	attrLongName = 0x0f
)

// Offsets of the boot sector (FAT specification §3.1, §3.3).
const (
	bpbSectorSize  = 11
	bpbClusterSize = 13
	bpbReserved    = 14
	bpbFATs        = 16
	bpbSectors     = 32
	bpbFATSize     = 36
	bpbRoot        = 44
	bpbFSInfo      = 48
	bpbBackup      = 50
	bpbVolumeID    = 67
	bpbType        = 82
)

// FS is an opened volume. It reads from the io.ReaderAt given to Open.
type FS struct {
	// ID is the volume's serial number.
	ID uint32

	r           io.ReaderAt
	clusterSize int64
	dataStart   int64 // offset of cluster 2
	fatStart    int64
	fat         []uint32 // one value per cluster, from cluster 0
	root        uint32
}

// Open reads boot sector and allocation table of the volume of the given size
// in bytes. It fails for anything but FAT32 with 512-byte sectors and two equal
// allocation tables that fills its partition.
func Open(r io.ReaderAt, size int64) (*FS, error) {
	f := &FS{r: r}
	if err := f.open(size); err != nil {
		return nil, fmt.Errorf("open FAT volume: %w", err)
	}
	return f, nil
}

func (f *FS) open(size int64) error {
	if size > MaxSize {
		return fmt.Errorf("%d bytes, want at most %d", size, MaxSize)
	}
	b, err := f.read(0, SectorSize)
	if err != nil {
		return fmt.Errorf("boot sector: %w", err)
	}
	le := binary.LittleEndian
	if b[510] != 0x55 || b[511] != 0xaa || string(b[bpbType:bpbType+8]) != "FAT32   " || le.Uint16(b[bpbSectorSize:]) != SectorSize || b[bpbFATs] != 2 {
		return errors.New("boot sector: not FAT32 with 512-byte sectors and two allocation tables")
	}
	sectors := int64(le.Uint32(b[bpbSectors:]))
	if sectors*SectorSize != size {
		return fmt.Errorf("boot sector: volume of %d sectors in a partition of %d bytes", sectors, size)
	}
	perCluster := int64(b[bpbClusterSize])
	reserved, fatSectors := int64(le.Uint16(b[bpbReserved:])), int64(le.Uint32(b[bpbFATSize:]))
	data := reserved + 2*fatSectors
	if perCluster == 0 || perCluster&(perCluster-1) != 0 || reserved < 8 || data >= sectors {
		return errors.New("boot sector: sizes of clusters and tables do not fit the volume")
	}
	clusters := (sectors - data) / perCluster
	if clusters < minClusters || clusters+2 > fatSectors*SectorSize/4 {
		return fmt.Errorf("boot sector: %d clusters, want at least %d and no more than the table holds", clusters, minClusters)
	}
	f.clusterSize, f.dataStart, f.fatStart = perCluster*SectorSize, data*SectorSize, reserved*SectorSize
	f.root, f.ID = le.Uint32(b[bpbRoot:]), le.Uint32(b[bpbVolumeID:])
	return f.readTable(clusters+2, fatSectors*SectorSize)
}

// readTable reads the allocation table of n values and compares its copy.
func (f *FS) readTable(n, tableSize int64) error {
	first, err := f.read(f.fatStart, n*4)
	if err != nil {
		return fmt.Errorf("allocation table: %w", err)
	}
	second, err := f.read(f.fatStart+tableSize, n*4)
	if err != nil {
		return fmt.Errorf("second allocation table: %w", err)
	}
	if string(first) != string(second) {
		return errors.New("the two allocation tables differ")
	}
	f.fat = make([]uint32, n)
	for i := range f.fat {
		f.fat[i] = binary.LittleEndian.Uint32(first[i*4:]) & clusterMask
	}
	return nil
}

// File returns the content of the file at the path, whose elements are
// separated by slashes and compared without regard to case.
func (f *FS) File(path string) ([]byte, error) {
	data, err := f.file(path)
	if err != nil {
		return nil, fmt.Errorf("read %s from FAT volume: %w", path, err)
	}
	return data, nil
}

// Time returns when the file at the path was modified, in UTC and to two seconds.
func (f *FS) Time(path string) (time.Time, error) {
	e, err := f.lookup(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("time of %s on FAT volume: %w", path, err)
	}
	return e.time, nil
}

func (f *FS) file(path string) ([]byte, error) {
	e, err := f.lookup(path)
	if err != nil {
		return nil, err
	}
	return f.content(e)
}

// lookup finds a file.
func (f *FS) lookup(path string) (entry, error) {
	at := entry{dir: true, cluster: f.root}
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if !at.dir {
			return at, fmt.Errorf("%s is not a directory", at.name)
		}
		entries, err := f.readDir(at.cluster)
		if err != nil {
			return at, err
		}
		next, found := find(entries, name)
		if !found {
			return at, fmt.Errorf("no %q in its directory", name)
		}
		at = next
	}
	if at.dir {
		return at, errors.New("it is a directory")
	}
	return at, nil
}

// content reads a file, whose chain must be exactly as long as its size needs.
func (f *FS) content(e entry) ([]byte, error) {
	if e.size == 0 {
		return []byte{}, nil
	}
	chain, err := f.chain(e.cluster)
	if err != nil {
		return nil, err
	}
	if want := (int64(e.size) + f.clusterSize - 1) / f.clusterSize; int64(len(chain)) != want {
		return nil, fmt.Errorf("%d bytes in %d clusters, want %d clusters", e.size, len(chain), want)
	}
	data, err := f.readChain(chain)
	if err != nil {
		return nil, err
	}
	return data[:e.size], nil
}

// chain follows the allocation table. A chain longer than the table is a loop.
func (f *FS) chain(first uint32) ([]uint32, error) {
	var chain []uint32
	for c := first; c < endOfChain; c = f.fat[c] {
		if c < 2 || int64(c) >= int64(len(f.fat)) {
			return nil, fmt.Errorf("cluster %d is outside of the volume", c)
		}
		if len(chain) >= len(f.fat) {
			return nil, errors.New("its clusters form a loop")
		}
		chain = append(chain, c)
	}
	return chain, nil
}

func (f *FS) readChain(chain []uint32) ([]byte, error) {
	data := make([]byte, int64(len(chain))*f.clusterSize)
	for i := 0; i < len(chain); {
		n := 1 // clusters that follow each other are read at once
		for i+n < len(chain) && chain[i+n] == chain[i]+uint32(n) {
			n++
		}
		part := data[int64(i)*f.clusterSize : int64(i+n)*f.clusterSize]
		if _, err := io.ReadFull(io.NewSectionReader(f.r, f.offset(chain[i]), int64(len(part))), part); err != nil {
			return nil, fmt.Errorf("cluster %d: %w", chain[i], err)
		}
		i += n
	}
	return data, nil
}

func (f *FS) offset(cluster uint32) int64 {
	return f.dataStart + (int64(cluster)-2)*f.clusterSize
}

func (f *FS) read(offset, n int64) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(f.r, offset, n), b); err != nil {
		return nil, fmt.Errorf("%d bytes at %d: %w", n, offset, err)
	}
	return b, nil
}
