package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"

	cryptsetup "github.com/martinjungblut/go-cryptsetup"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

// mkfs makes the file system; it is called with the device and a number of blocks as last arguments.
// Sectors that were never written cannot be read through dm-integrity, so
// everything that mkfs, a mount or the kernel later would read back has to be
// written: the journal in full, because a lazily
// initialised one does not survive a crash, and the inode tables, because ext4
// reads a table's block when two inodes of it are taken at the same time. Without
// checksums the kernel writes all of the groups that it adds, and reads none of them: dm-integrity
// has better ones. One inode for each 64 KiB keeps the tables small.
var mkfs = []string{
	"/usr/sbin/mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(blockSize), "-i", "65536", "-J", "size=64", "-O", "^metadata_csum,^uninit_bg",
	"-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", "-L", "hullmark-state",
}

// blockSize is the file system's, in bytes.
const blockSize = luks2.SectorSize

// groupSize is how much a group of blocks has. mke2fs reads the first block of those that get a backup superblock: it writes a
// quarter of it.
const groupSize = 32768 * blockSize

// How much at the ends of the volume is zeroed for what probes read, in bytes.
const (
	zeroHead = 16 << 20
	zeroTail = 4 << 20
)

// format writes a disk in an order in which a power cut leaves it blank,
// formatting or ready, and nothing else: record A, the data behind 16 MiB, the
// LUKS area, and record B as the commit.
func (w Workspace) format(path string, found hullmark.DiskClaim, g hullmark.DiskGrant, keys statedisk.Keys) error {
	disk, size, err := openDisk(path)
	if err != nil {
		return fmt.Errorf("format state disk: %w", err)
	}
	id := statedisk.Identity{UUID: g.UUID, Generation: g.Generation, Owner: g.Owner}
	err = begin(disk, size, found, id, keys)
	// The handle is exclusive: libcryptsetup takes its own.
	if err := errors.Join(err, disk.Close()); err != nil {
		return err
	}
	geometry, err := w.fill(path, size, id, g.Epoch.Committed, keys)
	if err != nil {
		return fmt.Errorf("format state disk: %w", errors.Join(err, closeVolume()))
	}
	if err := w.commit(path, statedisk.Ready{Identity: id, Geometry: geometry}, keys); err != nil {
		return fmt.Errorf("format state disk: commit: %w", err)
	}
	return nil
}

// begin writes record A, unless an interrupted formatting of the same disk has
// done so. A complete record A that does not verify is someone else's formatting.
func begin(disk *os.File, size int64, found hullmark.DiskClaim, id statedisk.Identity, keys statedisk.Keys) error {
	if found.State == hullmark.DiskFormatting {
		if begun, err := checkBegun(disk, size, keys); err != nil || begun {
			return err
		}
	}
	if err := writeThrough(disk, statedisk.EncodeA(id, keys.Header), statedisk.OffsetA); err != nil {
		return fmt.Errorf("format state disk: record A: %w", err)
	}
	return nil
}

// checkBegun reports whether record A is whole and ours, and fails if it is whole and not ours.
func checkBegun(disk *os.File, size int64, keys statedisk.Keys) (bool, error) {
	b := make([]byte, statedisk.RecordSize)
	if _, err := disk.ReadAt(b, statedisk.OffsetA); err != nil {
		return false, fmt.Errorf("format state disk: record A: %w", err)
	}
	verr := statedisk.VerifyA(b, keys.Header)
	if verr == nil {
		return true, nil
	}
	torn, err := statedisk.OnlyBegun(disk, size)
	if err != nil {
		return false, fmt.Errorf("format state disk: %w", err)
	}
	if !torn {
		return false, tampered(verr)
	}
	return false, nil
}

// fill writes everything behind luks2.DataOffset: dm-integrity's layout and
// the file system. The LUKS header goes to the workspace only.
func (w Workspace) fill(path string, size int64, id statedisk.Identity, epoch uint64, keys statedisk.Keys) (statedisk.Geometry, error) {
	if err := w.newHeader(); err != nil {
		return statedisk.Geometry{}, err
	}
	if err := w.luksFormat(path, size, id.UUID, keys); err != nil {
		return statedisk.Geometry{}, err
	}
	// Private: udev must not read a volume of which nothing was written.
	if err := w.activate(path, keys, cryptsetup.CRYPT_ACTIVATE_PRIVATE); err != nil {
		return statedisk.Geometry{}, err
	}
	geometry, err := liveGeometry(path)
	if err != nil {
		return statedisk.Geometry{}, err
	}
	if err := w.makeFilesystem(id.UUID, epoch, keys); err != nil {
		return statedisk.Geometry{}, err
	}
	return geometry, closeVolume()
}

// integrityJournal is how much dm-integrity writes twice before it is in its place, in bytes, for a disk of that size. The kernel holds all
// of the journal in memory, so this is a quarter of its own choice for disks of 8 GiB and more, which is 64 MiB (Linux,
// drivers/md/dm-integrity.c, DEFAULT_MAX_JOURNAL_SECTORS and DEFAULT_JOURNAL_SIZE_FACTOR).
func integrityJournal(size int64) uint64 { return uint64(min(size/128, 16<<20)) }

func (w Workspace) luksFormat(path string, size int64, uuid hullmark.UUID, keys statedisk.Keys) error {
	device, err := cryptsetup.InitDataDevice(w.header(), path)
	if err != nil {
		return err
	}
	defer device.Free()
	err = device.Format(cryptsetup.LUKS2{
		SectorSize: luks2.SectorSize, DataAlignment: luks2.DataOffset / 512, DataDevice: path, Integrity: luks2.Integrity,
		IntegrityParams: &cryptsetup.IntegrityParams{JournalSize: integrityJournal(size)},
		PBKDFType: &cryptsetup.PbkdfType{
			Type: "pbkdf2", Hash: luks2.Hash, Iterations: luks2.Iterations, Flags: cryptsetup.CRYPT_PBKDF_NO_BENCHMARK,
		},
	}, cryptsetup.GenericParams{Cipher: luks2.Cipher, CipherMode: luks2.Mode, UUID: uuid.String(), VolumeKeySize: luks2.KeySize})
	if err != nil {
		return err
	}
	return device.KeyslotAddByVolumeKey(0, "", string(keys.LUKS.Expose()))
}

func (w Workspace) makeFilesystem(disk hullmark.UUID, epoch uint64, keys statedisk.Keys) error {
	size, err := zeroRead("/dev/mapper/" + Name)
	if err != nil {
		return err
	}
	out, err := exec.Command(mkfs[0], append(mkfs[1:], "/dev/mapper/"+Name, strconv.FormatInt(min(size, newSize)/blockSize, 10))...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %.300s", mkfs[0], err, out)
	}
	return w.mounted(func(root *os.Root) error { return makeTree(root, disk, epoch, keys.Manifest) })
}

// zeroRead writes what is read before it is written, in whole blocks, and returns the device's size in bytes.
func zeroRead(device string) (size int64, err error) {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err = f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	zeros := make([]byte, 1<<20)
	spans := [][2]int64{{0, zeroHead}, {size - zeroTail, size}}
	for group := int64(groupSize); group < min(size, newSize); group += groupSize {
		spans = append(spans, [2]int64{group, group + blockSize})
	}
	for _, span := range spans {
		for at := span[0]; at < span[1]; at += int64(len(zeros)) {
			if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), span[1]-at)], at); err != nil {
				return 0, fmt.Errorf("zero %s at %d: %w", device, at, err)
			}
		}
	}
	return size, f.Sync()
}

// commit writes the LUKS area and, once that is stored, record B.
func (w Workspace) commit(path string, r statedisk.Ready, keys statedisk.Keys) error {
	header, err := os.ReadFile(w.header())
	if err != nil {
		return err
	}
	area := header[:luks2.AreaSize]
	if _, err := luks2.Decode(area); err != nil {
		return fmt.Errorf("libcryptsetup wrote another header than expected: %w", err)
	}
	disk, _, err := openDisk(path)
	if err != nil {
		return err
	}
	defer disk.Close()
	if err := writeThrough(disk, area, 0); err != nil {
		return err
	}
	return writeThrough(disk, statedisk.EncodeB(r, area, keys.Header), statedisk.OffsetB)
}
