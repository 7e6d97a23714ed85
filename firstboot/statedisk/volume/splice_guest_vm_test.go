//go:build vm

package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// The drives of the splicing guest: beside the state disk, a copy of it as it was, and one as it is.
const (
	guestOld = "old"
	guestNew = "new"
	// spliceDiskSize is the size of each in bytes.
	spliceDiskSize = 320 << 20
	testsOfSplices = "^TestGuestSplices$"
)

// region is a run of bytes of the raw disk.
type region struct{ offset, length int64 }

// integrityLayout says where dm-integrity keeps what (Linux, drivers/md/dm-integrity.c: calculate_device_limits, get_area_and_offset).
type integrityLayout struct {
	start, initial, metadata int64 // in sectors: where its superblock is, what lies before the first area, and an area's tags
	interleave               uint  // log2 of an area's data sectors
	tagSize                  int64
}

const sectorsPerBlock = 8

// readIntegrity reads dm-integrity's superblock, of a journal without MAC and blocks of 4096 bytes.
func readIntegrity(t *testing.T, raw io.ReaderAt) integrityLayout {
	t.Helper()
	b := make([]byte, 512)
	const start = 16 << 20
	if _, err := raw.ReadAt(b, start); err != nil {
		t.Fatal(err)
	}
	if string(b[:8]) != "integrt\x00" || b[9] > 30 || 1<<b[28] != sectorsPerBlock {
		t.Fatalf("dm-integrity's superblock is % x", b[:48])
	}
	l := integrityLayout{start: start / 512, interleave: uint(b[9]), tagSize: int64(binary.LittleEndian.Uint16(b[10:]))}
	const roundTo = 8
	entry := (8 + 8*sectorsPerBlock + l.tagSize + roundTo - 1) / roundTo * roundTo
	section := 504/entry*8*sectorsPerBlock + 8
	l.initial = 8 + section*int64(binary.LittleEndian.Uint32(b[12:]))
	const run = 128 << 10
	l.metadata = (l.tagSize<<l.interleave/sectorsPerBlock + run - 1) / run * run / 512
	return l
}

// data and tag are where a block of the file system is, and its tag.
func (l integrityLayout) data(block int64) region {
	area, offset := block*sectorsPerBlock>>l.interleave, block*sectorsPerBlock&(1<<l.interleave-1)
	return region{512 * (l.start + l.initial + area<<l.interleave + (area+1)*l.metadata + offset), blockSize}
}

func (l integrityLayout) tag(block int64) region {
	area, offset := block*sectorsPerBlock>>l.interleave, block*sectorsPerBlock&(1<<l.interleave-1)
	return region{512*(l.start+l.initial+area<<l.interleave+area*l.metadata) + offset/sectorsPerBlock*l.tagSize, l.tagSize}
}

func (l integrityLayout) both(blocks []int64) (regions []region) {
	return slices.Concat(l.each(blocks, l.data), l.each(blocks, l.tag))
}

func (l integrityLayout) each(blocks []int64, where func(int64) region) (regions []region) {
	for _, b := range blocks {
		regions = append(regions, where(b))
	}
	return regions
}

// spliced is the disk and its two copies.
type spliced struct {
	path           string
	disk, old, now *os.File
	layout         integrityLayout
}

func openSpliced(t *testing.T) *spliced {
	t.Helper()
	s := &spliced{}
	for serial, file := range map[string]**os.File{guestSerial: &s.disk, guestOld: &s.old, guestNew: &s.now} {
		path, err := Find(hullmark.DiskSelector{Serial: serial})
		if err != nil {
			t.Fatal(err)
		}
		if serial == guestSerial {
			s.path = path
		}
		if *file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// flushBuffers is BLKFLSBUF: dm writes past the cache of the disk that lies below it.
const flushBuffers = 0x1261

// keep copies the disk.
func (s *spliced) keep(t *testing.T, to *os.File) {
	t.Helper()
	s.fresh(t)
	if _, err := io.Copy(io.NewOffsetWriter(to, 0), io.NewSectionReader(s.disk, 0, spliceDiskSize)); err != nil {
		t.Fatal(err)
	}
	check(t, to.Sync())
}

func (s *spliced) fresh(t *testing.T) {
	t.Helper()
	check(t, s.disk.Sync())
	check(t, unix.IoctlSetInt(int(s.disk.Fd()), flushBuffers, 0))
}

// restore puts the disk back to what it is now, where it differs.
func (s *spliced) restore(t *testing.T) {
	t.Helper()
	s.fresh(t)
	const chunk = 1 << 20
	have, want := make([]byte, chunk), make([]byte, chunk)
	for at := int64(0); at < spliceDiskSize; at += chunk {
		read2(t, s.disk, have, s.now, want, at)
		if bytes.Equal(have, want) {
			continue
		}
		if _, err := s.disk.WriteAt(want, at); err != nil {
			t.Fatal(err)
		}
	}
	s.fresh(t)
}

func read2(t *testing.T, a io.ReaderAt, inA []byte, b io.ReaderAt, inB []byte, at int64) {
	t.Helper()
	_, errA := a.ReadAt(inA, at)
	_, errB := b.ReadAt(inB, at)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
}

// splice puts old bytes into the disk, and returns how many of the regions had changed since.
func (s *spliced) splice(t *testing.T, regions []region) (changed int) {
	t.Helper()
	for _, r := range regions {
		old, now := make([]byte, r.length), make([]byte, r.length)
		read2(t, s.old, old, s.now, now, r.offset)
		if bytes.Equal(old, now) {
			continue
		}
		changed++
		if _, err := s.disk.WriteAt(old, r.offset); err != nil {
			t.Fatal(err)
		}
	}
	s.fresh(t)
	return changed
}

// generation is what the disk's files hold: in place, as a database writes; or each time in a new file, as the agent writes.
type generation struct {
	blocks  map[string][]int64 // of each file and folder
	inodes  map[string]int64
	content map[string][]byte
}

// inPlace and replaced are the test's files.
const (
	inPlace  = "var/lib/etcd/member/snap/db"
	replaced = "var/lib/kubelet/pki/kubelet-client-current.pem"
)

func (s *spliced) write(t *testing.T, number byte) generation {
	t.Helper()
	g := generation{map[string][]int64{}, map[string]int64{}, map[string][]byte{
		inPlace: bytes.Repeat([]byte{number}, 1<<20), replaced: bytes.Repeat([]byte{number}, 3000),
	}}
	check(t, mountedDir(func(dir string) error {
		if err := otherFiles(dir); err != nil {
			return err
		}
		for name, content := range g.content {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
			write := replaceInTest
			if name == inPlace {
				write = overwriteInTest
			}
			if err := write(path, content); err != nil {
				return err
			}
		}
		unix.Sync()
		return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(dir, path)
			var stat unix.Stat_t
			if err := unix.Lstat(path, &stat); err != nil {
				return err
			}
			g.inodes[name] = int64(stat.Ino)
			g.blocks[name], err = extents(path)
			return err
		})
	}))
	return g
}

// otherFiles takes inodes on both sides of those of the test's files, as a node's many files do: else the epoch's would be in
// the same block.
func otherFiles(dir string) error {
	for i := range 200 {
		name := filepath.Join(dir, "var", fmt.Sprintf("other-%d", i))
		if err := overwriteInTest(name, nil); err != nil {
			return err
		}
	}
	return nil
}

func overwriteInTest(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func replaceInTest(path string, content []byte) error {
	return errors.Join(overwriteInTest(path+".new", content), os.Rename(path+".new", path))
}

// extents are the blocks of a file or folder (Linux, Documentation/filesystems/fiemap.rst).
func extents(path string) (blocks []int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const most, header, size = 64, 32, 56
	request := make([]byte, header+most*size)
	binary.NativeEndian.PutUint64(request[8:], 1<<62)
	binary.NativeEndian.PutUint32(request[24:], most)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0xc020660b, uintptr(unsafe.Pointer(&request[0]))); e != 0 {
		return nil, fmt.Errorf("%s: where it lies: %w", path, e)
	}
	for i := range int(binary.NativeEndian.Uint32(request[20:])) {
		e := request[header+i*size:]
		first := int64(binary.NativeEndian.Uint64(e[8:])) / blockSize
		for b := range int64(binary.NativeEndian.Uint64(e[16:])) / blockSize {
			blocks = append(blocks, first+b)
		}
	}
	return blocks, nil
}

// changed are the blocks of the file system that differ between the copies.
func (s *spliced) changed(t *testing.T) (blocks []int64) {
	t.Helper()
	old, now := make([]byte, blockSize), make([]byte, blockSize)
	for b := int64(0); s.layout.data(b).offset+blockSize <= spliceDiskSize; b++ {
		read2(t, s.old, old, s.now, now, s.layout.data(b).offset)
		if !bytes.Equal(old, now) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// kinds sorts changed blocks of the file system by what they are: a file or folder, or a part of ext4 itself.
func (s *spliced) kinds(changed []int64, meta ext4Meta, generations ...generation) map[string][]int64 {
	kinds := map[string][]int64{}
	for _, b := range changed {
		kind := meta.of(b)
		for _, g := range generations {
			for name, blocks := range g.blocks {
				if slices.Contains(blocks, b) {
					kind = name
				}
			}
		}
		kinds[kind] = append(kinds[kind], b)
	}
	return kinds
}

// ext4Meta is where ext4 keeps what (Linux, Documentation/filesystems/ext4).
type ext4Meta struct {
	descriptors, journal int64 // how many blocks follow the superblock's; the journal's first
	journalBlocks        int64
	blockBitmap, inodes  map[int64]bool
	inodeBitmap          map[int64]bool
	tables               []int64 // the first block of each group's inode table
	inodesPerGroup       int64
	inodeSize            int64
}

// inode is the block that holds an inode.
func (m ext4Meta) inode(number int64) int64 {
	group, index := (number-1)/m.inodesPerGroup, (number-1)%m.inodesPerGroup
	return m.tables[group] + index*m.inodeSize/blockSize
}

func (m ext4Meta) of(block int64) string {
	switch {
	case block == 0:
		return "ext4's superblock"
	case block <= m.descriptors:
		return "ext4's group descriptors"
	case m.blockBitmap[block]:
		return "ext4's block bitmaps"
	case m.inodeBitmap[block]:
		return "ext4's inode bitmaps"
	case m.inodes[block]:
		return "ext4's inode tables"
	case block >= m.journal && block < m.journal+m.journalBlocks:
		return "ext4's journal"
	}
	return "free blocks"
}

// ext4Parts reads the open disk's superblock and group descriptors, of 32 or 64 bytes, and inode 8, which is the journal in one run.
func ext4Parts(t *testing.T) ext4Meta {
	t.Helper()
	f, err := os.Open("/dev/mapper/" + Name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := func(offset, length int64) []byte {
		b := make([]byte, length)
		if _, err := f.ReadAt(b, offset); err != nil {
			t.Fatal(err)
		}
		return b
	}
	super := at(1024, 1024)
	u32 := func(b []byte, at int) int64 { return int64(binary.LittleEndian.Uint32(b[at:])) }
	groups := (u32(super, 4) + u32(super, 32) - 1) / u32(super, 32)
	size := int64(32)
	if u32(super, 0x60)&0x80 != 0 {
		size = int64(binary.LittleEndian.Uint16(super[0xfe:]))
	}
	inodeSize := int64(binary.LittleEndian.Uint16(super[0x58:]))
	tableBlocks := u32(super, 40) * inodeSize / blockSize
	m := ext4Meta{
		descriptors: (groups*size + blockSize - 1) / blockSize, blockBitmap: map[int64]bool{}, inodes: map[int64]bool{}, inodeBitmap: map[int64]bool{},
		inodesPerGroup: u32(super, 40), inodeSize: inodeSize,
	}
	for g := range groups {
		d := at(blockSize+g*size, size)
		m.blockBitmap[u32(d, 0)], m.inodeBitmap[u32(d, 4)] = true, true
		m.tables = append(m.tables, u32(d, 8))
		for b := range tableBlocks {
			m.inodes[u32(d, 8)+b] = true
		}
	}
	journal := at(m.tables[0]*blockSize+7*inodeSize, inodeSize)[40:] // its extents: a header of 12 bytes, then the first
	m.journal, m.journalBlocks = u32(journal, 12+8), int64(binary.LittleEndian.Uint16(journal[12+4:]))
	if binary.LittleEndian.Uint16(journal) != 0xf30a || m.journalBlocks == 0 {
		t.Fatalf("the journal's inode is % x", journal[:24])
	}
	return m
}

// outcome is what a node makes of a disk with old blocks.
func (s *spliced) outcome(t *testing.T, old, now generation) string {
	t.Helper()
	before := unread(t)
	_, err := workspace.Open(s.path, grant(2, 3))
	if err != nil {
		var c *hullmark.Condition
		if errors.As(err, &c) {
			return "found: " + c.Code
		}
		return fmt.Sprintf("found: does not open: %.100v", err)
	}
	var seen []string
	err = mountedDir(func(dir string) error {
		for _, name := range []string{inPlace, replaced} {
			if what := compare(filepath.Join(dir, name), old.content[name], now.content[name]); what != "new" {
				seen = append(seen, name+" is "+what)
			}
		}
		return nil
	})
	check(t, closeVolume())
	if err != nil {
		return fmt.Sprintf("found: does not mount: %.100v", err)
	}
	if n := unread(t) - before; n > 0 {
		seen = append(seen, "found: wrong tags")
	}
	if seen == nil {
		return "without effect"
	}
	return strings.Join(seen, "; ")
}

func compare(path string, old, now []byte) string {
	content, err := os.ReadFile(path)
	switch {
	case err != nil:
		return "unreadable"
	case bytes.Equal(content, now):
		return "new"
	case bytes.Equal(content, old):
		return "old"
	}
	return "neither old nor new"
}

// TestGuestSplices puts blocks of an older copy, kind by kind, into a disk whose epoch is the newest, and holds what is found
// of them to docs/state-disk.md.
func TestGuestSplices(t *testing.T) {
	onlyInGuest(t)
	s := openSpliced(t)
	g := grant(0, 1)
	g.FormatAllowed = true
	if _, err := workspace.Open(s.path, g); err != nil {
		t.Fatal(err)
	}
	old := s.write(t, 1)
	check(t, closeVolume())
	s.keep(t, s.old)
	if _, err := workspace.Open(s.path, grant(1, 2)); err != nil {
		t.Fatal(err)
	}
	now := s.write(t, 2)
	s.layout = readIntegrity(t, s.disk)
	check(t, closeVolume())
	s.keep(t, s.now)
	if _, err := workspace.Open(s.path, grant(1, 3)); err != nil { // ext4Parts wants it open
		t.Fatal(err)
	}
	changed := s.changed(t)
	meta := ext4Parts(t)
	kinds := s.kinds(changed, meta, old, now)
	check(t, closeVolume())
	s.restore(t)
	if len(kinds[inPlace]) != 1<<20/blockSize {
		t.Fatalf("%d blocks of the file that is written in place changed: the layout %+v is not dm-integrity's", len(kinds[inPlace]), s.layout)
	}
	// A file that was replaced goes back with the folder that names it and both its inodes: all that leads to it.
	folder := filepath.Dir(replaced)
	kinds[replaced+", with its folder and inodes"] = slices.Concat(old.blocks[replaced], now.blocks[replaced], now.blocks[folder],
		[]int64{meta.inode(old.inodes[replaced]), meta.inode(now.inodes[replaced])})
	for _, c := range s.cases(changed, kinds) {
		n := s.splice(t, c.regions)
		got := s.outcome(t, old, now)
		t.Logf("splice | %s | %d | %s", c.name, n, got)
		if c.want != "" && got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		s.restore(t)
	}
	if got := s.outcome(t, old, now); got != "without effect" {
		t.Errorf("with everything put back: %s", got)
	}
}

type spliceCase struct {
	name    string
	regions []region
	want    string
}

func (s *spliced) cases(changed []int64, kinds map[string][]int64) []spliceCase {
	l := s.layout
	whole := []region{{0, 16 << 20}}
	for at := int64(16 << 20); at < spliceDiskSize; at += 1 << 20 {
		whole = append(whole, region{at, 1 << 20})
	}
	journal := region{512*l.start + blockSize, 512*l.initial - blockSize}
	epoch := kinds[statedisk.ManifestFile]
	rest := slices.DeleteFunc(slices.Clone(changed), func(b int64) bool { return slices.Contains(epoch, b) })
	cases := []spliceCase{
		{"the whole disk", whole, "found: rollback-detected"},
		{"all blocks of the file system", l.both(changed), "found: rollback-detected"},
		{"LUKS area and records", []region{{0, 16 << 20}}, "without effect"},
		{"dm-integrity's superblock", []region{{512 * l.start, blockSize}}, "without effect"},
		{"dm-integrity's journal", []region{journal}, ""},
		{"data without their tags: " + inPlace, l.each(kinds[inPlace], l.data), ""},
		{"tags without their data: " + inPlace, l.each(kinds[inPlace], l.tag), ""},
		{"all but the blocks of " + statedisk.ManifestFile, l.both(rest), ""},
	}
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		cases = append(cases, spliceCase{name, l.both(kinds[name]), ""})
	}
	return cases
}
