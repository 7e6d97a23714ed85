package image

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// configurable is a disk with a partition for a node's configuration.
func configurable(t *testing.T) (*Disk, []byte) {
	t.Helper()
	p := parts(t)
	p.Slot.Config = 1 << 20
	_, raw := plan(t, p)
	d, err := open(raw)
	if err != nil {
		t.Fatal(err)
	}
	return d, raw
}

func written(t *testing.T, l *Layout) []byte {
	t.Helper()
	var disk bytes.Buffer
	if _, err := l.WriteTo(&disk); err != nil {
		t.Fatal(err)
	}
	at := make([]byte, l.Size())
	if n, err := l.ReadAt(at, 0); err != nil || !bytes.Equal(at[:n], disk.Bytes()) {
		t.Errorf("ReadAt has %d bytes that are not those of WriteTo, %v", n, err)
	}
	return disk.Bytes()
}

// A disk that is installed from a medium is the published one, with the configuration in its place and nothing else changed.
func TestDiskFromMedium(t *testing.T) {
	d, raw := configurable(t)
	config := []byte(`{"version": 1}`)
	l, err := d.Medium(config)
	if err != nil {
		t.Fatal(err)
	}
	stick := append(written(t, l), "what a stick has behind it"+strings.Repeat(".", 486)...)
	medium, found, err := OpenMedium(bytes.NewReader(stick), int64(len(stick)))
	if err != nil || !bytes.Equal(found, config) {
		t.Fatalf("%q, %v", found, err)
	}
	if err := medium.Verify(); err != nil {
		t.Fatal(err)
	}
	if measured, err := d.MediumTable(); err != nil || !bytes.Equal(measured.Event(), medium.Table.Event()) {
		t.Errorf("the medium's table is not the one that is predicted, %v", err)
	}
	installed, err := medium.Configured(config)
	if err != nil {
		t.Fatal(err)
	}
	got, want := written(t, installed), bytes.Clone(raw)
	slots, err := slot.Find(d.Table)
	if err != nil {
		t.Fatal(err)
	}
	place, err := slot.FindConfig(d.Table, slots)
	if err != nil {
		t.Fatal(err)
	}
	copy(want[place.Offset():], config)
	if !bytes.Equal(got, want) {
		t.Error("the installed disk is not the published one with a configuration")
	}
	if _, err := open(got); err == nil || !strings.Contains(err.Error(), "hullmark-config is not empty") {
		t.Errorf("a configured disk as an image: %v", err)
	}
	if _, err := open(stick); err == nil {
		t.Error("a medium passed for an image")
	}
	if _, _, err := OpenMedium(bytes.NewReader(raw), int64(len(raw))); err == nil || !strings.Contains(err.Error(), "7 partitions, want the 4") {
		t.Errorf("an image as a medium: %v", err)
	}
}

func TestMediumRefuses(t *testing.T) {
	d, raw := configurable(t)
	for name, config := range map[string][]byte{"too long": bytes.Repeat([]byte("x"), 1<<20+1), "with zeros": []byte("a\x00b")} {
		if _, err := d.Medium(config); err == nil {
			t.Errorf("medium, %s: no error", name)
		}
		if _, err := d.Configured(config); err == nil {
			t.Errorf("disk, %s: no error", name)
		}
	}
	_, other := plan(t, parts(t))
	plain, err := open(other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Medium(nil); err == nil || !strings.Contains(err.Error(), "profile baremetal") {
		t.Errorf("medium of an image without a place for configurations: %v", err)
	}
	if _, err := plain.Configured(nil); err == nil || !strings.Contains(err.Error(), "profile baremetal") {
		t.Errorf("such an image, configured: %v", err)
	}
	used, err := Used(bytes.NewReader(raw))
	if err != nil || len(used) != 5 || used[4].Offset+used[4].Size != int64(len(raw)) {
		t.Errorf("used: %v, %v", used, err)
	}
	l, err := d.Medium([]byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	stick := written(t, l)
	stick[l.partitions[1].Offset()+70000] ^= 1
	medium, _, err := OpenMedium(bytes.NewReader(stick), int64(len(stick)))
	if err != nil {
		t.Fatal(err)
	}
	if err := medium.Verify(); err == nil {
		t.Error("a damaged medium passed")
	}
	stick[gpt.SectorSize] ^= 1
	if _, _, err := OpenMedium(bytes.NewReader(stick), int64(len(stick))); err == nil {
		t.Error("a medium with a damaged table passed")
	}
}

// FuzzOpenMedium overwrites a part of a real medium, of its table or its configuration.
func FuzzOpenMedium(f *testing.F) {
	p := parts(f)
	p.Slot.Config = 1 << 20
	_, raw := plan(f, p)
	d, err := open(raw)
	if err != nil {
		f.Fatal(err)
	}
	l, err := d.Medium([]byte("{}"))
	if err != nil {
		f.Fatal(err)
	}
	stick := make([]byte, l.Size())
	if _, err := l.ReadAt(stick, 0); err != nil {
		f.Fatal(err)
	}
	config := l.Config().Offset()
	for _, at := range []int64{0, 512, 1024, config} {
		f.Add(uint32(at), stick[at:at+512])
	}
	f.Add(uint32(config), []byte("{}\x00{}"))
	f.Fuzz(func(t *testing.T, offset uint32, patch []byte) {
		area := stick[int64(offset)%l.Size():]
		area = area[:min(len(area), len(patch))]
		whole := bytes.Clone(area)
		defer copy(area, whole)
		copy(area, patch)
		d, config, err := OpenMedium(bytes.NewReader(stick), l.Size())
		if err != nil {
			return
		}
		if bytes.IndexByte(config, 0) >= 0 || d.Root.Size() > l.Size() {
			t.Error("opened a medium whose parts do not belong together")
		}
	})
}
