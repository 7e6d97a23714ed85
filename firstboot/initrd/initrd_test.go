package initrd

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/verity"
)

var testRoot = func() (r verity.Root) {
	for i := range r {
		r[i] = byte(i + 1)
	}
	return r
}()

func TestRootHash(t *testing.T) {
	const hash = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
	got, err := rootHash("quiet panic=1 roothash=" + hash + " console=ttyS0\n")
	if err != nil || got != testRoot {
		t.Errorf("rootHash = %x, %v; want %x", got, err, testRoot)
	}
	for _, line := range []string{
		"", "roothash=", "roothash=12", "roothash=" + strings.Repeat("zz", 32),
		"roothash=" + strings.Repeat("+1", 32), "roothash=" + hash + " roothash=" + hash,
	} {
		if _, err := rootHash(line); err == nil {
			t.Errorf("rootHash(%q) succeeded", line)
		}
	}
}

// machine builds a sysfs and a devtmpfs that hold one disk with the root's
// partitions, under the names that a driver gives.
func machine(t *testing.T, disk, separator string) scanner {
	t.Helper()
	s := scanner{sys: t.TempDir(), dev: t.TempDir()}
	const size = 4 << 20
	parts := []gpt.Partition{
		{Type: gpt.TypeESP, GUID: gpt.GUID{9}, FirstLBA: 64, LastLBA: 127, Name: "ESP"},
		{Type: gpt.TypeRootAMD64, GUID: gpt.GUID(testRoot[:16]), FirstLBA: 128, LastLBA: 255, Name: "root"},
		{Type: gpt.TypeRootVerityAMD64, GUID: gpt.GUID(testRoot[16:]), FirstLBA: 256, LastLBA: 383, Name: "verity"},
	}
	primary, backup, err := gpt.Encode(size, gpt.GUID{1}, parts)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, size)
	copy(content, primary)
	copy(content[size-len(backup):], backup)
	write(t, filepath.Join(s.dev, disk), content)
	block := filepath.Join(s.sys, "class/block")
	write(t, filepath.Join(block, disk, "size"), []byte(strconv.Itoa(size/sector)+"\n"))
	for i, p := range parts {
		name := disk + separator + strconv.Itoa(i+1)
		for _, dir := range []string{filepath.Join(block, disk, name), filepath.Join(block, name)} {
			write(t, filepath.Join(dir, "partition"), []byte(strconv.Itoa(i+1)+"\n"))
			write(t, filepath.Join(dir, "start"), []byte(strconv.FormatUint(p.FirstLBA, 10)+"\n"))
		}
	}
	return s
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFindPartitions(t *testing.T) {
	for _, tc := range []struct{ disk, separator string }{{"vda", ""}, {"sdb", ""}, {"nvme0n1", "p"}} {
		s := machine(t, tc.disk, tc.separator)
		// An empty drive and a blank disk are looked at first, and passed over.
		write(t, filepath.Join(s.sys, "class/block/aaa/size"), []byte("0\n"))
		write(t, filepath.Join(s.sys, "class/block/bbb/size"), []byte("2048\n"))
		write(t, filepath.Join(s.dev, "bbb"), bytes.Repeat([]byte{0}, 1<<20))
		got, err := s.find(testRoot)
		want := partitions{
			data: filepath.Join(s.dev, tc.disk+tc.separator+"2"),
			tree: filepath.Join(s.dev, tc.disk+tc.separator+"3"),
		}
		if err != nil || got != want {
			t.Errorf("find on %s = %+v, %v; want %+v", tc.disk, got, err, want)
		}
	}
}

// An image of 4 MiB on a disk of 8 MiB: the table's second copy is in the middle.
func TestFindOnALargerDisk(t *testing.T) {
	s := machine(t, "vda", "")
	if err := os.Truncate(filepath.Join(s.dev, "vda"), 8<<20); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(s.sys, "class/block/vda/size"), []byte("16384\n"))
	if _, err := s.find(testRoot); err != nil {
		t.Error(err)
	}
}

func TestFindNamesWhatIsWrong(t *testing.T) {
	s := machine(t, "vda", "")
	other := testRoot
	other[0]++
	if _, err := waitForPartitions(s, other, time.Millisecond); err == nil || !strings.Contains(err.Error(), "root hash") {
		t.Errorf("another root hash: error %v", err)
	}
	disk, err := os.ReadFile(filepath.Join(s.dev, "vda"))
	if err != nil {
		t.Fatal(err)
	}
	disk[512+20]++
	write(t, filepath.Join(s.dev, "vda"), disk)
	if _, err := s.find(testRoot); err == nil || !strings.Contains(err.Error(), "vda") {
		t.Errorf("damaged table: error %v", err)
	}
}

func TestVerityTarget(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	write(t, data, make([]byte, 2*verity.BlockSize))
	super := verity.Superblock{Params: verity.Params{Salt: [32]byte{0xab}}, DataSize: 2 * verity.BlockSize}
	got, err := verityTarget(partitions{data: data, tree: "/dev/t"}, super, testRoot)
	if err != nil {
		t.Fatal(err)
	}
	want := "1 " + data + " /dev/t 4096 4096 2 1 sha256 0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20 ab" +
		strings.Repeat("0", 62) + " 1 panic_on_corruption"
	if got.Length != 16 || got.Type != "verity" || got.Params != want {
		t.Errorf("target = %+v, want %d sectors of verity %q", got, 16, want)
	}
	super.DataSize += verity.BlockSize
	if _, err := verityTarget(partitions{data: data}, super, testRoot); err == nil {
		t.Error("a tree that covers more than the partition was accepted")
	}
}

func TestRunRefusesOutsideOfPID1(t *testing.T) {
	if err := Run(); err == nil {
		t.Fatal("Run worked in a process that is not the machine's first")
	}
}

// FuzzRootHash holds the reader of the command line to one root hash, which it names once.
func FuzzRootHash(f *testing.F) {
	f.Add("quiet roothash=" + strings.Repeat("0f", 32) + " lockdown=integrity")
	f.Add("roothash= roothash=" + strings.Repeat("A0", 32))
	f.Fuzz(func(t *testing.T, line string) {
		root, err := rootHash(line)
		if err == nil && (strings.Count(line, "roothash=") < 1 || !strings.Contains(strings.ToLower(line), "roothash="+hex.EncodeToString(root[:]))) {
			t.Errorf("%q gave %x", line, root)
		}
	})
}

// FuzzImageSize holds what a table says of the image's end to the disk.
func FuzzImageSize(f *testing.F) {
	table := make([]byte, 2*sector)
	binary.LittleEndian.PutUint64(table[sector+32:], 99)
	f.Add(table, int64(1<<20))
	f.Add(table, int64(sector))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, disk []byte, size int64) {
		size &= 1<<50 - 1
		if end := imageSize(bytes.NewReader(disk), size); end < 0 || end > size || end != size && end%sector != 0 {
			t.Errorf("an image of %d bytes on a disk of %d", end, size)
		}
	})
}
