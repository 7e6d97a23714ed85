package slot

import (
	"bytes"
	"fmt"
	"io"

	"github.com/hullmark/hullmark/image/verity"
)

// ESPTree returns the hash tree of an ESP as far as that is not zero, in whole blocks. A published disk has it behind the tree of its
// root: who has another release finds by it which blocks of the ESP are to be fetched. It has no salt, and nothing rests on it but that.
// Zeros at the end of esp may be missing.
func ESPTree(esp []byte) ([]byte, error) {
	used := (int64(len(bytes.TrimRight(esp, "\x00"))) + verity.BlockSize - 1) / verity.BlockSize * verity.BlockSize
	data := make([]byte, used)
	copy(data, esp)
	var tree bytes.Buffer
	if _, err := verity.Write(bytes.NewReader(data), used, &tree, verity.Params{}); err != nil {
		return nil, fmt.Errorf("hash tree of the ESP: %w", err)
	}
	return tree.Bytes(), nil
}

// TreeRoom is how long the partition of a hash tree has to be for any root and any ESP of those sizes, in bytes.
func (s Sizes) TreeRoom() int64 { return verity.Size(s.Root) + verity.Size(s.ESP) }

// Used is how much a published release takes of its slot's partitions, each from its start, in bytes; zeros follow.
type Used struct {
	ESP, Root int64
	// Tree is the hash tree of the root, and ESPTree that of the ESP, which follows it.
	Tree, ESPTree int64
}

// ReadUsed reads what the superblocks in the partition of the hash trees say. It fails for what does not fit the slot; whether anything
// of it is true, hashes have to tell.
func ReadUsed(trees io.ReaderAt, p Partitions) (u Used, err error) {
	root, err := verity.ReadSuperblock(trees)
	if err != nil {
		return u, fmt.Errorf("hash tree of the root: %w", err)
	}
	if u.Root, u.Tree = root.DataSize, verity.Size(root.DataSize); u.Root > p.Root.Size() {
		return u, fmt.Errorf("a root of %d bytes does not fit the slot", u.Root)
	}
	esp, err := verity.ReadSuperblock(io.NewSectionReader(trees, u.Tree, verity.BlockSize))
	if err != nil {
		return u, fmt.Errorf("hash tree of the ESP: %w", err)
	}
	u.ESP, u.ESPTree = esp.DataSize, verity.Size(esp.DataSize)
	if u.ESP > p.ESP.Size() || u.Tree+u.ESPTree > p.Tree.Size() {
		return u, fmt.Errorf("an ESP of %d bytes, with its hash tree behind that of the root, does not fit the slot", u.ESP)
	}
	return u, nil
}
