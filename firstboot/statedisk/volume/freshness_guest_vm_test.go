//go:build vm

package volume

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	cryptsetup "github.com/martinjungblut/go-cryptsetup"
	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
	"github.com/hullmark/hullmark/firstboot/statedisk"
)

const testsOfFreshness = "^TestGuestFreshness$"

// storage is a way to keep files on a disk that the host can write.
type storage struct {
	name, integrity string
	flags           int
	mkfs            []string
}

var btrfs = []string{"/usr/sbin/mkfs.btrfs", "-q", "-f", "-K"}

// storages are what docs/state-disk.md weighs.
var storages = []storage{
	{"ext4 on dm-crypt and dm-integrity", luks2.Integrity, 0, mkfs},
	{"the same without dm-integrity's journal", luks2.Integrity, cryptsetup.CRYPT_ACTIVATE_NO_JOURNAL, mkfs},
	{"ext4 on dm-crypt alone", "", 0, mkfs},
	{"btrfs on dm-crypt and dm-integrity", luks2.Integrity, 0, btrfs},
	{"btrfs with SHA-256 on dm-crypt alone", "", 0, append(btrfs, "--csum", "sha256")},
}

// TestGuestFreshness measures what each costs: one large file, a log that is synced with each entry as etcd does, and blocks
// here and there.
func TestGuestFreshness(t *testing.T) {
	onlyInGuest(t)
	path, err := Find(hullmark.DiskSelector{Serial: guestSerial})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := statedisk.DeriveKeys(grant(0, 1).Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range storages {
		if err := s.measure(t, path, keys); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		check(t, closeVolume())
	}
}

func (s storage) measure(t *testing.T, path string, keys statedisk.Keys) error {
	if err := errors.Join(workspace.newHeader(), s.format(path, keys), workspace.activate(path, keys, s.flags)); err != nil {
		return err
	}
	device := "/dev/mapper/" + Name
	if s.integrity != "" {
		if _, err := zeroRead(device); err != nil {
			return err
		}
	}
	if out, err := exec.Command(s.mkfs[0], append(s.mkfs[1:], device)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", s.mkfs[0], err, out)
	}
	kind := "ext4"
	if s.mkfs[0] == btrfs[0] {
		kind = "btrfs"
	}
	dir := workspace.mount()
	if err := unix.Mount(device, dir, kind, 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	large, err1 := timed(func() error { return writeLarge(filepath.Join(dir, "large")) })
	log, err2 := timed(func() error { return writeLog(filepath.Join(dir, "log")) })
	spread, err3 := timed(func() error { return writeSpread(filepath.Join(dir, "large")) })
	t.Logf("freshness | %s | %.1f MB/s | %.1f ms | %.2f ms", s.name, largeSize/1e6/large.Seconds(),
		1e3*log.Seconds()/logEntries, 1e3*spread.Seconds()/spreadBlocks)
	return errors.Join(err1, err2, err3, unix.Unmount(dir, 0))
}

func (s storage) format(path string, keys statedisk.Keys) error {
	device, err := cryptsetup.InitDataDevice(workspace.header(), path)
	if err != nil {
		return err
	}
	defer device.Free()
	err = device.Format(cryptsetup.LUKS2{
		SectorSize: luks2.SectorSize, DataAlignment: luks2.DataOffset / 512, DataDevice: path, Integrity: s.integrity,
		PBKDFType: &cryptsetup.PbkdfType{Type: "pbkdf2", Hash: luks2.Hash, Iterations: luks2.Iterations, Flags: cryptsetup.CRYPT_PBKDF_NO_BENCHMARK},
	}, cryptsetup.GenericParams{Cipher: luks2.Cipher, CipherMode: luks2.Mode, VolumeKeySize: s.keySize()})
	if err != nil {
		return err
	}
	return device.KeyslotAddByVolumeKey(0, "", string(keys.LUKS.Expose()))
}

// keySize is that of the volume key in bytes: the cipher's, and with tags their key's beside it.
func (s storage) keySize() int {
	if s.integrity == "" {
		return 64
	}
	return luks2.KeySize
}

func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}

const (
	largeSize    = 96 << 20
	logEntries   = 200
	spreadBlocks = 2000
)

func writeLarge(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for range largeSize >> 20 {
		if _, err := f.Write(noise(1 << 20)); err != nil {
			return err
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// writeLog appends entries of 2 KiB, each synced.
func writeLog(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for range logEntries {
		if _, err := f.Write(noise(2 << 10)); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
	}
	return f.Close()
}

// writeSpread writes blocks all over a file, and syncs every hundred.
func writeSpread(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for i := range spreadBlocks {
		if _, err := f.WriteAt(noise(blockSize), rand.Int64N(largeSize/blockSize)*blockSize); err != nil {
			return err
		}
		if i%100 == 99 {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	return f.Close()
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 31)
	}
	b[0], b[1] = byte(rand.Int()), byte(rand.Int())
	return b
}
