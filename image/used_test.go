package image

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/slot"
)

func TestUsed(t *testing.T) {
	p := parts(t)
	p.Slot = slot.Sizes{ESP: 40 << 20, Root: 8 << 20}
	l, disk := plan(t, p)
	used, err := Used(bytes.NewReader(disk))
	if err != nil {
		t.Fatal(err)
	}
	made := make([]byte, len(disk))
	total := int64(0)
	for i, e := range used {
		if total += e.Size; i > 0 && used[i-1].Offset+used[i-1].Size > e.Offset {
			t.Errorf("part %d overlaps the one before it", i)
		}
		copy(made[e.Offset:e.Offset+e.Size], disk[e.Offset:])
	}
	if !bytes.Equal(made, disk) || total > int64(len(disk))/10 {
		t.Errorf("%d of %d bytes make another disk", total, len(disk))
	}
	tree := l.areas[3]
	for want, change := range map[string]func(disk []byte){
		"to be at sector":         func(disk []byte) { disk[551] = 1 },
		"second copy, at the end": func(disk []byte) { disk[len(disk)-1] = 1; disk[len(disk)-512] = 0 },
		"hash tree of the root":   func(disk []byte) { disk[tree.offset] = 0 },
		"hash tree of the ESP":    func(disk []byte) { disk[tree.offset+tree.size] = 0 },
		"a root of 4294967296":    func(disk []byte) { binary.LittleEndian.PutUint64(disk[tree.offset+72:], 1<<20) },
		"an ESP of 4294967296":    func(disk []byte) { binary.LittleEndian.PutUint64(disk[tree.offset+tree.size+72:], 1<<20) },
	} {
		changed := bytes.Clone(disk)
		change(changed)
		if _, err := Used(bytes.NewReader(changed)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func FuzzUsed(f *testing.F) {
	l, disk := plan(f, parts(f))
	tree := l.areas[3]
	for _, at := range []int64{0, 512, 1024, tree.offset, tree.offset + tree.size, l.size - 512} {
		f.Add(uint32(at), disk[at:at+512])
	}
	f.Fuzz(func(t *testing.T, offset uint32, patch []byte) {
		area := disk[int64(offset)%l.Size():]
		area = area[:min(len(area), len(patch))]
		whole := bytes.Clone(area)
		defer copy(area, whole)
		copy(area, patch)
		used, err := Used(bytes.NewReader(disk))
		if err != nil {
			return
		}
		end := int64(0)
		for _, e := range used {
			if e.Offset < end || e.Size <= 0 {
				t.Fatalf("%+v", used)
			}
			end = e.Offset + e.Size
		}
		if end != l.Size() {
			t.Errorf("it ends at %d of %d", end, l.Size())
		}
	})
}
