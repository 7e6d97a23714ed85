package initrd

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
)

var testRoot = func() (r verity.Root) {
	for i := range r {
		r[i] = byte(i + 1)
	}
	return r
}()

// slotTree is a hash tree, and its root hash.
func slotTree(t *testing.T, data byte) (verity.Root, []byte) {
	t.Helper()
	content := bytes.Repeat([]byte{data}, 4*verity.BlockSize)
	var tree bytes.Buffer
	root, err := verity.Write(bytes.NewReader(content), int64(len(content)), &tree, verity.Params{Salt: [32]byte{data}})
	if err != nil {
		t.Fatal(err)
	}
	return root, tree.Bytes()
}

// machine has a disk with a release in each slot, whose root hashes it returns.
func machine(t *testing.T, disk, separator string) (s scanner, roots [2]verity.Root) {
	t.Helper()
	s = scanner{sys: t.TempDir(), dev: t.TempDir()}
	s.add(t, disk+separator, slot.Disk(), slot.Plan)
	for _, n := range slot.Both() {
		var tree []byte
		roots[n], tree = slotTree(t, byte(1+n))
		write(t, filepath.Join(s.dev, disk+separator+strconv.Itoa(3*int(n)+3)), tree)
	}
	return s, roots
}

// add gives the machine a disk, whose name ends with what its partitions' have before their numbers.
func (s scanner) add(t *testing.T, prefix string, guid gpt.GUID, plan func(slot.Sizes) ([]gpt.Partition, int64)) {
	t.Helper()
	disk := strings.TrimSuffix(prefix, "p")
	parts, size := plan(slot.Sizes{ESP: 1, Root: 1, Tree: 1})
	primary, backup, err := gpt.Encode(size, guid, parts)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, size)
	copy(content, primary)
	copy(content[size-int64(len(backup)):], backup)
	write(t, filepath.Join(s.dev, disk), content)
	block := filepath.Join(s.sys, "class/block")
	write(t, filepath.Join(block, disk, "size"), []byte(strconv.FormatInt(size/sector, 10)+"\n"))
	for i, p := range parts {
		name := prefix + strconv.Itoa(i+1)
		for _, dir := range []string{filepath.Join(block, disk, name), filepath.Join(block, name)} {
			write(t, filepath.Join(dir, "partition"), []byte(strconv.Itoa(i+1)+"\n"))
			write(t, filepath.Join(dir, "start"), []byte(strconv.FormatUint(p.FirstLBA, 10)+"\n"))
		}
	}
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
		s, roots := machine(t, tc.disk, tc.separator)
		// An empty drive and a blank disk are looked at first, and passed over.
		write(t, filepath.Join(s.sys, "class/block/aaa/size"), []byte("0\n"))
		write(t, filepath.Join(s.sys, "class/block/bbb/size"), []byte("2048\n"))
		write(t, filepath.Join(s.dev, "bbb"), bytes.Repeat([]byte{0}, 1<<20))
		for _, n := range slot.Both() {
			got, err := s.find(roots[n])
			want := partitions{
				data: filepath.Join(s.dev, tc.disk+tc.separator+strconv.Itoa(3*int(n)+2)),
				tree: filepath.Join(s.dev, tc.disk+tc.separator+strconv.Itoa(3*int(n)+3)),
			}
			if err != nil || got != want {
				t.Errorf("find slot %v on %s = %+v, %v; want %+v", n, tc.disk, got, err, want)
			}
		}
	}
}

// TestFindWhatFirmwareStarted: a disk and the medium that installed it hold the same release.
func TestFindWhatFirmwareStarted(t *testing.T) {
	s, roots := machine(t, "vda", "")
	s.add(t, "sdb", slot.MediumDisk(), slot.PlanMedium)
	root, tree := slotTree(t, 1)
	if root != roots[0] {
		t.Fatal("the medium holds another release")
	}
	write(t, filepath.Join(s.dev, "sdb3"), tree)
	onDisk, onMedium := filepath.Join(s.dev, "vda2"), filepath.Join(s.dev, "sdb2")
	disk, _ := slot.Plan(slot.Sizes{ESP: 1, Root: 1, Tree: 1})
	medium, _ := slot.PlanMedium(slot.Sizes{ESP: 1, Root: 1, Tree: 1})
	for _, c := range []struct {
		name    string
		started *gpt.GUID
		want    string
	}{{"disk", &disk[0].GUID, onDisk}, {"medium", &medium[0].GUID, onMedium}} {
		s.started = c.started
		if got, err := s.find(root); err != nil || got.data != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	s.started = &gpt.GUID{1}
	if _, err := s.find(root); err == nil || !strings.Contains(err.Error(), "vda: firmware did not start it") {
		t.Errorf("another: %v", err)
	}
	s.started = nil
	if _, err := s.find(root); err != nil {
		t.Errorf("not known: %v", err)
	}
}

func TestParseStarted(t *testing.T) {
	content := []byte{6, 0, 0, 0}
	for _, c := range "79354C97-A3FF-8587-BA74-D279BBF43CF7\x00" {
		content = append(content, byte(c), 0)
	}
	if got, err := parseStarted(content); err != nil || got.String() != "79354c97-a3ff-8587-ba74-d279bbf43cf7" {
		t.Errorf("%v, %v", got, err)
	}
	for _, other := range [][]byte{nil, content[:4], content[:76], append(content, 0, 0), []byte(strings.Repeat("x", len(content)))} {
		if got, err := parseStarted(other); err == nil {
			t.Errorf("%q is %v", other, got)
		}
	}
}

func TestFindOnALargerDisk(t *testing.T) {
	s, roots := machine(t, "vda", "")
	if err := os.Truncate(filepath.Join(s.dev, "vda"), 16<<20); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(s.sys, "class/block/vda/size"), []byte("32768\n"))
	if _, err := s.find(roots[1]); err != nil {
		t.Error(err)
	}
}

func TestFindNamesWhatIsWrong(t *testing.T) {
	s, roots := machine(t, "vda", "")
	wants := func(name string, words ...string) {
		t.Helper()
		_, err := waitForPartitions(s, roots[0], time.Millisecond)
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: error %v, want one with %q", name, err, word)
			}
		}
	}
	// Slot A is torn, foreign or another release's: the error says what each slot holds.
	_, other := slotTree(t, 9)
	write(t, filepath.Join(s.dev, "vda3"), other)
	wants("another release", "no disk has a slot", "slot a: its root hash is", "slot b: its root hash is")
	write(t, filepath.Join(s.dev, "vda3"), make([]byte, 8192))
	wants("an empty slot", "slot a: read verity superblock")
	write(t, filepath.Join(s.dev, "vda3"), other[:verity.BlockSize])
	wants("a torn slot", "slot a: read verity tree")
	if _, err := s.find(roots[1]); err != nil {
		t.Errorf("the whole slot beside a torn one: %v", err)
	}
	disk, err := os.ReadFile(filepath.Join(s.dev, "vda"))
	if err != nil {
		t.Fatal(err)
	}
	disk[512+20]++
	write(t, filepath.Join(s.dev, "vda"), disk)
	wants("damaged table", "vda", "GPT")
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
