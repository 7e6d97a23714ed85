package slot

import (
	"bytes"
	"fmt"

	"github.com/hullmark/hullmark/image/verity"
)

// ESPTree returns the hash tree of an ESP as far as that is not zero, in whole blocks. A published disk has it behind the tree of its
// root: who has another release finds by it which blocks of the ESP are to be fetched. It has no salt, and nothing rests on it but that.
func ESPTree(esp []byte) ([]byte, error) {
	used := (int64(len(bytes.TrimRight(esp, "\x00"))) + verity.BlockSize - 1) / verity.BlockSize * verity.BlockSize
	var tree bytes.Buffer
	if _, err := verity.Write(bytes.NewReader(esp), used, &tree, verity.Params{}); err != nil {
		return nil, fmt.Errorf("hash tree of the ESP: %w", err)
	}
	return tree.Bytes(), nil
}

// TreeRoom is how long the partition of a hash tree has to be for any root and any ESP of those sizes, in bytes.
func (s Sizes) TreeRoom() int64 { return verity.Size(s.Root) + verity.Size(s.ESP) }
