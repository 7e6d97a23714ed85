package slot

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/gpt"
)

func TestMedium(t *testing.T) {
	sizes := Sizes{ESP: 3 << 20, Root: 5 << 20, Tree: 1 << 20}
	partitions, size := PlanMedium(sizes)
	if size != (2+3+5+1+1)<<20 {
		t.Errorf("%d bytes", size)
	}
	release, config, err := FindMedium(table(t, MediumDisk(), partitions, size))
	if err != nil || release.sizes() != sizes || config != partitions[3] {
		t.Errorf("%+v, %+v, %v", release, config, err)
	}
	disk, end := Plan(Sizes{ESP: 3 << 20, Root: 5 << 20, Tree: 1 << 20, Config: 1})
	for want, other := range map[string]*gpt.Table{
		"disk GUID":    table(t, Disk(), partitions, size),
		"3 partitions": table(t, MediumDisk(), partitions[:3], size),
		"7 partitions": table(t, Disk(), disk, end),
	} {
		if _, _, err := FindMedium(other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := Find(table(t, MediumDisk(), partitions, size)); err == nil {
		t.Error("a medium passed for a disk with slots")
	}
}

func TestFindConfig(t *testing.T) {
	sizes := Sizes{ESP: 3 << 20, Root: 5 << 20, Tree: 1 << 20, Config: 1 << 20}
	partitions, size := Plan(sizes)
	with := table(t, Disk(), partitions, size)
	slots, err := Find(with)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := FindConfig(with, slots); err != nil || p != partitions[Count] || p.Name != "hullmark-config" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := FindConfig(table(t, Disk(), partitions[:Count], size), slots); err == nil || !strings.Contains(err.Error(), "no partition hullmark-config") {
		t.Errorf("a disk without one: %v", err)
	}
	partitions[Count].GUID[0]++
	if _, err := FindConfig(table(t, Disk(), partitions, size), slots); err == nil || !strings.Contains(err.Error(), "partition 7 is") {
		t.Errorf("another partition: %v", err)
	}
}

func TestReadConfig(t *testing.T) {
	p := gpt.Partition{Name: "c", FirstLBA: 1, LastLBA: 2048}
	disk := make([]byte, 2049*gpt.SectorSize)
	for _, want := range []string{"", "{}"} {
		copy(disk[gpt.SectorSize:], want)
		if got, err := ReadConfig(bytes.NewReader(disk), p); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", want, got, err)
		}
	}
	disk[len(disk)-1] = 1
	if _, err := ReadConfig(bytes.NewReader(disk), p); err == nil || !strings.Contains(err.Error(), "nothing but zeros") {
		t.Errorf("something behind it: %v", err)
	}
	if _, err := ReadConfig(bytes.NewReader(disk[:700]), p); err == nil {
		t.Error("a short disk was read")
	}
}
