package verity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	dmverity "github.com/containerd/go-dmverity/pkg/verity"

	"github.com/hullmark/hullmark/internal/tooltest"
)

var params = Params{Salt: sha256.Sum256([]byte("salt")), UUID: [16]byte{0x11, 0x22, 2: 0x40, 8: 0x80, 15: 0xff}}

// randomBytes returns n bytes that are the same in every run.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte("data"))).Read(b)
	return b
}

func write(t testing.TB, data []byte) ([]byte, Root) {
	t.Helper()
	var tree bytes.Buffer
	root, err := Write(bytes.NewReader(data), int64(len(data)), &tree, params)
	if err != nil {
		t.Fatal(err)
	}
	return tree.Bytes(), root
}

// sizes, in blocks, around every change of the number of levels.
var sizes = []int{1, 2, 127, 128, 129, 1000, 128*128 + 1}

func TestRootOf(t *testing.T) {
	digits := strings.Repeat("0a", 32)
	if _, err := RootOf("x roothash=" + digits + " y"); err != nil {
		t.Error(err)
	}
	for _, c := range []string{"", "xroothash=" + digits, "roothash=00", "roothash=" + strings.ToUpper(digits), "roothash=" + digits + " roothash=" + digits} {
		if _, err := RootOf(c); err == nil {
			t.Errorf("%q: no error", c)
		}
	}
}

func TestLeaves(t *testing.T) {
	for _, blocks := range []int{2, 127, 128, 129, 128*128 + 1} {
		data := make([]byte, blocks*BlockSize)
		for i := range blocks {
			binary.LittleEndian.PutUint32(data[i*BlockSize:], uint32(i+1))
		}
		var area bytes.Buffer
		root, err := Write(bytes.NewReader(data), int64(len(data)), &area, Params{Salt: [SaltSize]byte{3}})
		if err != nil {
			t.Fatal(err)
		}
		super, leaves, err := Leaves(area.Bytes(), root)
		if err != nil || len(leaves) != 32*blocks || super.DataSize != int64(len(data)) {
			t.Fatalf("%d blocks: %d bytes of hashes, %v", blocks, len(leaves), err)
		}
		for _, i := range []int{0, blocks / 2, blocks - 1} {
			if got := BlockHash(data[i*BlockSize:][:BlockSize], super.Salt); !bytes.Equal(got[:], leaves[32*i:][:32]) {
				t.Errorf("%d blocks: hash of block %d is another", blocks, i)
			}
		}
		// Every byte of the tree counts, its padding too.
		for at := 0; at < area.Len(); at += 1 + area.Len()/999 {
			changed := bytes.Clone(area.Bytes())
			changed[at] ^= 1
			if _, _, err := Leaves(changed, root); err == nil && (at < 16 || at >= 32) { // but for the superblock's UUID
				t.Errorf("%d blocks: byte %d was changed, and nobody noticed", blocks, at)
			}
		}
		for _, other := range [][]byte{nil, area.Bytes()[:area.Len()-1], append(bytes.Clone(area.Bytes()), 0)} {
			if _, _, err := Leaves(other, root); err == nil {
				t.Errorf("%d blocks: %d bytes were taken for the hash area", blocks, len(other))
			}
		}
	}
}

func TestTop(t *testing.T) {
	data := bytes.Repeat([]byte("data"), 300*BlockSize/4)
	var tree bytes.Buffer
	root, err := Write(bytes.NewReader(data), int64(len(data)), &tree, Params{Salt: [SaltSize]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Top(bytes.NewReader(tree.Bytes())); err != nil || got != root {
		t.Errorf("%x, %v, want %x", got, err, root)
	}
	for at, same := range map[int]bool{88: false, BlockSize: false, 2*BlockSize - 1: false, 2 * BlockSize: true} {
		changed := bytes.Clone(tree.Bytes())
		changed[at] ^= 1
		if got, err := Top(bytes.NewReader(changed)); err != nil || (got == root) != same {
			t.Errorf("with byte %d changed: %x, %v", at, got, err)
		}
	}
	for _, short := range []int{0, BlockSize - 1, BlockSize, 2*BlockSize - 1} {
		if _, err := Top(bytes.NewReader(tree.Bytes()[:short])); err == nil {
			t.Errorf("%d bytes: no error", short)
		}
	}
	tree.Reset()
	if _, err := Write(bytes.NewReader(data), BlockSize, &tree, Params{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Top(bytes.NewReader(tree.Bytes())); err == nil {
		t.Error("a single block has a tree")
	}
}

func TestEqualsVeritysetup(t *testing.T) {
	dir := t.TempDir()
	dataFile, treeFile := filepath.Join(dir, "data"), filepath.Join(dir, "tree")
	uuid := fmt.Sprintf("%x-%x-%x-%x-%x", params.UUID[:4], params.UUID[4:6], params.UUID[6:8], params.UUID[8:10], params.UUID[10:])
	rootLine := regexp.MustCompile(`Root hash:\s+([0-9a-f]{64})`)
	for _, blocks := range sizes {
		data := randomBytes(blocks * BlockSize)
		if err := os.WriteFile(dataFile, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(treeFile)
		out := tooltest.Run(t, "cryptsetup-bin", "veritysetup", "format", "--salt", hex.EncodeToString(params.Salt[:]), "--uuid", uuid, dataFile, treeFile)
		want, err := os.ReadFile(treeFile)
		if err != nil {
			t.Fatal(err)
		}
		tree, root := write(t, data)
		match := rootLine.FindStringSubmatch(out)
		if match == nil || match[1] != hex.EncodeToString(root[:]) {
			t.Errorf("%d blocks: root %x, veritysetup says\n%s", blocks, root, out)
		}
		// veritysetup leaves the rest of the superblock's block out of a file
		// that ends with it.
		if !bytes.Equal(tree[:len(want)], want) || !allZero(tree[len(want):]) {
			t.Errorf("%d blocks: the trees differ (%d and %d bytes)", blocks, len(tree), len(want))
		}
		if int64(len(tree)) != Size(int64(len(data))) {
			t.Errorf("%d blocks: Size says %d, wrote %d", blocks, Size(int64(len(data))), len(tree))
		}
	}
}

func TestEqualsGoDmverity(t *testing.T) {
	dir := t.TempDir()
	dataFile, treeFile := filepath.Join(dir, "data"), filepath.Join(dir, "tree")
	data := randomBytes(1000 * BlockSize)
	if err := os.WriteFile(dataFile, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tree, root := write(t, data)
	if err := os.WriteFile(treeFile, make([]byte, len(tree)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := dmverity.DefaultParams()
	p.Salt, p.SaltSize, p.UUID = params.Salt[:], SaltSize, params.UUID
	p.DataBlockSize, p.HashBlockSize = BlockSize, BlockSize
	p.DataBlocks, p.HashAreaOffset = 1000, BlockSize
	got, err := dmverity.Create(&p, dataFile, treeFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, root[:]) {
		t.Errorf("root %x, go-dmverity says %x", root, got)
	}
}

func TestVerify(t *testing.T) {
	data := randomBytes(300 * BlockSize)
	tree, root := write(t, data)
	check := func(data, tree []byte, root Root) error {
		return Verify(bytes.NewReader(data), int64(len(data)), bytes.NewReader(tree), int64(len(tree)), root)
	}
	if err := check(data, tree, root); err != nil {
		t.Fatal(err)
	}
	flip := func(b []byte, i int) []byte {
		c := bytes.Clone(b)
		c[i] ^= 1
		return c
	}
	for _, c := range []struct {
		name       string
		data, tree []byte
		root       Root
		want       string
	}{
		{"data", flip(data, 217*BlockSize+9), tree, root, "block 217 of the data"},
		{"tree", data, flip(tree, 2*BlockSize+9), root, "damaged in its block 2"},
		{"superblock", data, flip(tree, 80), root, "superblock"},
		{"salt", data, flip(tree, 90), root, "root hash"},
		{"root", data, tree, Root{}, "other data"},
		{"truncated data", data[:len(data)-BlockSize], tree, root, "covers"},
		{"truncated tree", data, tree[:len(tree)-BlockSize], root, "covers"},
		{"no tree", data, nil, root, "EOF"},
	} {
		err := check(c.data, c.tree, c.root)
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestWriteRefusesSizes(t *testing.T) {
	for _, size := range []int64{-BlockSize, 0, 1, BlockSize + 1, MaxSize + BlockSize} {
		if _, err := Write(bytes.NewReader(nil), size, &bytes.Buffer{}, params); err == nil {
			t.Errorf("%d bytes: no error", size)
		}
	}
	if _, err := Write(bytes.NewReader(nil), BlockSize, &bytes.Buffer{}, params); err == nil {
		t.Error("data shorter than its size: no error")
	}
}

func FuzzReadSuperblock(f *testing.F) {
	f.Add(superblock(BlockSize, params))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ReadSuperblock(bytes.NewReader(b))
		if err == nil && !bytes.Equal(superblock(s.DataSize, s.Params), b[:BlockSize]) {
			t.Error("accepted a superblock that it would not write")
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	data := randomBytes(64 << 20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		write(b, data)
	}
}

// BenchmarkPlainHash is what one core hashes without a tree.
func BenchmarkPlainHash(b *testing.B) {
	data := randomBytes(64 << 20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		sha256.Sum256(data)
	}
}

func allZero(b []byte) bool {
	return len(bytes.Trim(b, "\x00")) == 0
}

func FuzzRootOf(f *testing.F) {
	f.Add("quiet roothash=" + strings.Repeat("0f", 32) + " lockdown=integrity")
	f.Add("roothash= roothash=" + strings.Repeat("A0", 32))
	f.Fuzz(func(t *testing.T, line string) {
		root, err := RootOf(line)
		if err == nil && (strings.Count(line, "roothash=") < 1 || !strings.Contains(strings.ToLower(line), "roothash="+hex.EncodeToString(root[:]))) {
			t.Errorf("%q gave %x", line, root)
		}
	})
}

// FuzzImageSize holds what a table says of the image's end to the disk.
