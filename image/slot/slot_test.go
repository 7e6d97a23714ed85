package slot

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/gpt"
)

func table(t *testing.T, disk gpt.GUID, partitions []gpt.Partition, size int64) *gpt.Table {
	t.Helper()
	primary, backup, err := gpt.Encode(size, disk, partitions)
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]byte, size)
	copy(raw, primary)
	copy(raw[size-int64(len(backup)):], backup)
	read, err := gpt.Read(bytes.NewReader(raw), size)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestFind(t *testing.T) {
	partitions, size := Plan(Sizes{ESP: 3 << 20, Root: 5<<20 - 1, Tree: 1})
	if size != (2+2*(3+5+1))<<20 {
		t.Errorf("%d bytes", size)
	}
	found, err := Find(table(t, Disk(), partitions, size))
	if err != nil || found[A].ESP != partitions[0] || found[B].Tree != partitions[5] || found[B].ESP.Name != "esp-b" {
		t.Errorf("%+v, %v", found, err)
	}
	for want, change := range map[string]func(p []gpt.Partition) []gpt.Partition{
		"5 partitions":          func(p []gpt.Partition) []gpt.Partition { return p[:5] },
		`partition 4 is "mine"`: func(p []gpt.Partition) []gpt.Partition { p[3].Name = "mine"; return p },
		"partition 5 is":        func(p []gpt.Partition) []gpt.Partition { p[4].LastLBA -= 2048; return p },
		"partition 6 is":        func(p []gpt.Partition) []gpt.Partition { p[5].Attributes = 0; return p },
		"partition 1 is":        func(p []gpt.Partition) []gpt.Partition { p[0].GUID[0]++; return p },
		"partition 2 is":        func(p []gpt.Partition) []gpt.Partition { p[1], p[4] = p[4], p[1]; return p },
	} {
		changed := change(append([]gpt.Partition{}, partitions...))
		if _, err := Find(table(t, Disk(), changed, size)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := Find(table(t, gpt.GUID{1}, partitions, size)); err == nil || !strings.Contains(err.Error(), "disk GUID") {
		t.Errorf("another disk: %v", err)
	}
}

// TestIdentifiers holds what is on every disk that was ever installed: another value is another table, which no release may bring.
func TestIdentifiers(t *testing.T) {
	partitions, _ := Plan(Sizes{Config: 1})
	medium, _ := PlanMedium(Sizes{})
	got := []string{Disk().String()}
	for _, p := range partitions {
		got = append(got, p.GUID.String())
	}
	got = append(got, MediumDisk().String())
	for _, p := range medium {
		got = append(got, p.GUID.String())
	}
	const want = "9f0960b7-cd57-809b-aff3-4647ee162b45 79354c97-a3ff-8587-ba74-d279bbf43cf7 da6063bb-da1b-899e-9e99-00f09875fc08 " +
		"f8292d22-a49b-8314-b51d-d63709c5cde6 2917b68b-ddce-870f-948d-9583df6482d1 7077da9d-137e-8c90-b6a3-dec6a826fb22 9f0572b2-2b5b-8b8c-941a-dd1cd38fd2dc " +
		"0f3f953b-2ae1-80a6-be22-0ce408dbe1c6 e944631f-8b80-8528-bd1e-d2bb0b95b62a " +
		"f6c73728-067f-877b-9740-c6b261a893eb a996e71e-2033-8e32-a855-d28964e0de9a f163708a-7290-806f-ab4f-711f4a813b39 7c3e344c-a959-8ee5-9b3d-c764bd74f3de"
	if all := strings.Join(got, " "); all != want {
		t.Errorf("the GUIDs are %s, want %s", all, want)
	}
}

func TestNames(t *testing.T) {
	for _, s := range Both() {
		if got, err := Parse(s.String()); err != nil || got != s || s.Other() == s || s.Other().Other() != s {
			t.Errorf("%v: %v, %v", s, got, err)
		}
	}
	if _, err := Parse("c"); err == nil {
		t.Error("slot c was parsed")
	}
}

func TestParseSizes(t *testing.T) {
	if got, err := ParseSizes("ESP_MIB=64\nROOT_MIB=768\n"); err != nil || got != (Sizes{ESP: 64 << 20, Root: 768 << 20}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseSizes("ESP_MIB=64\nROOT_MIB=768\nCONFIG_MIB=1\n"); err != nil || got != (Sizes{ESP: 64 << 20, Root: 768 << 20, Config: 1 << 20}) {
		t.Errorf("with a configuration: %+v, %v", got, err)
	}
	for _, text := range []string{"", "CONFIG_MIB=1\n", "ESP_MIB=64\nROOT_MIB=768\nCONFIG_MIB=2\n", "CONFIG_MIB=1\nESP_MIB=64\nROOT_MIB=768\n", "ESP_MIB=64\n", "ESP_MIB=64\nROOT_MIB=768", "ESP_MIB=0\nROOT_MIB=768\n", "ESP_MIB=64\nROOT_MIB=-8\n", "ESP_MIB=064\nROOT_MIB=768\n", "ESP_MIB=64\nROOT_MIB=76888\n", "ESP_MIB=64\nROOT_MIB=768\n\n"} {
		if got, err := ParseSizes(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
