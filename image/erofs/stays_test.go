package erofs

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestMostOfAnImageStays lets a file's end have another length: that moves no other file's blocks, and of the blocks before them only some.
func TestMostOfAnImageStays(t *testing.T) {
	files := []File{folder("."), folder("a")}
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 2000 {
		files = append(files, regular(fmt.Sprintf("a/%04d", n), random(uint64(n), r.IntN(20_000))))
	}
	const changed = 102
	_, before := packTree(t, files)
	have := map[string]bool{}
	for at := 0; at < len(before); at += blockSize {
		have[string(before[at:at+blockSize])] = true
	}
	files[changed] = regular(files[changed].Name, random(77, int(files[changed].Size)+40))
	_, after := packTree(t, files)
	missing := 0
	for at := 0; at < len(after); at += blockSize {
		if !have[string(after[at:at+blockSize])] {
			missing++
		}
	}
	if len(before) != len(after) || missing > 20 {
		t.Errorf("%d of %d blocks are in no earlier image of %d", missing, len(after)/blockSize, len(before)/blockSize)
	}
}
