package fat

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/internal/tooltest"
)

var epoch = Params{Label: "ESP", VolumeID: 0x1234abcd, Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)}

func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

func sample() []File {
	return []File{
		{Path: "EFI/BOOT/BOOTX64.EFI", Data: content(3<<20 + 5)},
		{Path: "loader/a file with a long name.conf", Data: []byte("x")},
		{Path: "EFI/BOOT/second.bin", Data: content(512)},
	}
}

func build(t *testing.T, files []File) []byte {
	t.Helper()
	v, err := Build(files, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestFsckAcceptsTheVolume(t *testing.T) {
	for name, files := range map[string][]File{
		"small":             sample(),
		"above the minimum": {{Path: "EFI/BOOT/BOOTX64.EFI", Data: content(61 << 20)}},
	} {
		file := filepath.Join(t.TempDir(), "esp")
		if err := os.WriteFile(file, build(t, files), 0o600); err != nil {
			t.Fatal(err)
		}
		tooltest.Run(t, "dosfstools", "fsck.vfat", "-n", "-v", file)
		for _, f := range files {
			got, err := exec.Command(tooltest.Path(t, "mtools", "mtype"), "-i", file, "::"+f.Path).Output()
			if err != nil || !bytes.Equal(got, f.Data) {
				t.Errorf("%s: mtype %s: %d bytes, %v", name, f.Path, len(got), err)
			}
		}
	}
}

func TestFilesReadBack(t *testing.T) {
	v := build(t, sample())
	f, err := Open(bytes.NewReader(v), int64(len(v)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range sample() {
		for _, p := range []string{want.Path, "/" + strings.ToLower(want.Path)} {
			got, err := f.File(p)
			if err != nil || !bytes.Equal(got, want.Data) {
				t.Errorf("%s: %d bytes, %v", p, len(got), err)
			}
			if at, err := f.Time(p); err != nil || !at.Equal(epoch.Time) {
				t.Errorf("%s: time %v, %v", p, at, err)
			}
		}
	}
	if id := binary.LittleEndian.Uint32(v[bpbVolumeID:]); id != epoch.VolumeID {
		t.Errorf("volume id %#x", id)
	}
	for _, p := range []string{"EFI", "", "EFI/BOOT/none", "EFI/BOOT/BOOTX64.EFI/x"} {
		if _, err := f.File(p); err == nil {
			t.Errorf("%q: no error", p)
		}
	}
}

func TestReadsWhatMkfsWrites(t *testing.T) {
	file := filepath.Join(t.TempDir(), "esp")
	for _, args := range [][]string{
		{"dosfstools", "mkfs.vfat", "-C", "-F", "32", "-s", "1", file, "40960"},
		{"mtools", "mmd", "-i", file, "::EFI"},
		{"mtools", "mcopy", "-i", file, "fat_test.go", "::EFI/a rather long name.go"},
	} {
		tooltest.Run(t, args[0], args[1], args[2:]...)
	}
	volume, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(bytes.NewReader(volume), int64(len(volume)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("fat_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.File("EFI/a rather long name.go"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestBuildDependsOnItsArgumentsOnly(t *testing.T) {
	files := sample()
	first := build(t, files)
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	t.Setenv("TZ", "Asia/Tokyo")
	files[0], files[2] = files[2], files[0]
	if !bytes.Equal(first, build(t, files)) {
		t.Error("two builds differ")
	}
}

func TestBuildRefuses(t *testing.T) {
	one := []byte("x")
	for name, files := range map[string][]File{
		"absolute path": {{Path: "/a", Data: one}},
		"dots":          {{Path: "../a", Data: one}},
		"empty":         {{Path: "a"}},
		"twice":         {{Path: "a", Data: one}, {Path: "a", Data: one}},
	} {
		if _, err := Build(files, epoch); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Build(sample(), Params{Label: "ESP"}); err == nil {
		t.Error("time before 1980: no error")
	}
}

func TestBuildOfASize(t *testing.T) {
	p := Params{Label: "ESP", VolumeID: 7, Time: time.Unix(1700000000, 0)}
	for size, want := range map[int64]string{80 << 20: "", 34 << 20: "", 64 << 20: "take another size", 32 << 20: "the files need 33 MiB", 80<<20 + 512: "the files need"} {
		p.Size = size
		volume, err := Build(sample(), p)
		if want == "" && (err != nil || int64(len(volume)) != size) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes: %d, %v, want %q", size, len(volume), err, want)
		}
		if err != nil {
			continue
		}
		if opened, err := Open(bytes.NewReader(volume), size); err != nil || opened.ID != 7 {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestRenamed(t *testing.T) {
	const from, to = "EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/TRIAL.EFI"
	volume := build(t, []File{{Path: from, Data: []byte("kernel")}, {Path: "EFI/other.file.with.a.long.name", Data: []byte("x")}})
	before := bytes.Clone(volume)
	rename := func(path, name string) error {
		f, err := Open(bytes.NewReader(volume), int64(len(volume)))
		if err != nil {
			t.Fatal(err)
		}
		at, sector, err := f.Renamed(path, name)
		if err == nil {
			copy(volume[at:], sector)
		}
		return err
	}
	if err := rename(from, "TRIAL.EFI"); err != nil {
		t.Fatal(err)
	}
	f, err := Open(bytes.NewReader(volume), int64(len(volume)))
	if err != nil {
		t.Fatal(err)
	}
	if content, err := f.File(to); err != nil || string(content) != "kernel" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := f.File(from); err == nil {
		t.Error("the file still has its earlier name")
	}
	if err := rename(to, "BOOTX64.EFI"); err != nil || !bytes.Equal(volume, before) {
		t.Errorf("not as before: %v", err)
	}
	for _, c := range [][2]string{{"EFI/absent", "A"}, {from, "BOOTX64.EFI"}, {from, "lower.efi"}, {from, "MUCHTOOLONG.EFI"}, {from, ""}, {from, "A/B"}, {from, "A.B.C"}, {"EFI/other.file.with.a.long.name", "SHORT"}} {
		if err := rename(c[0], c[1]); err == nil {
			t.Errorf("%s was renamed to %q", c[0], c[1])
		}
	}
	if !bytes.Equal(volume, before) {
		t.Error("a refusal changed the volume")
	}
}

func TestOpenRefusesDamage(t *testing.T) {
	v := build(t, sample())
	for name, change := range map[string]func([]byte) []byte{
		"truncated":      func(b []byte) []byte { return b[:len(b)-SectorSize] },
		"boot signature": func(b []byte) []byte { b[510]++; return b },
		"sectors":        func(b []byte) []byte { b[bpbSectors]++; return b },
		"one table":      func(b []byte) []byte { b[reservedSectors*SectorSize+40]++; return b },
		"cluster size":   func(b []byte) []byte { b[bpbClusterSize] = 3; return b },
	} {
		b := change(bytes.Clone(v))
		if _, err := Open(bytes.NewReader(b), int64(len(b))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFiles(t *testing.T) {
	v := build(t, sample())
	f, err := Open(bytes.NewReader(v), int64(len(v)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Files()
	want := []string{"EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/second.bin", "loader/a file with a long name.conf"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestFilesEndsInLoop lets every directory contain itself many times over.
func TestFilesEndsInLoop(t *testing.T) {
	v := build(t, sample())
	f, err := Open(bytes.NewReader(v), int64(len(v)))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := f.readDir(f.root)
	if err != nil {
		t.Fatal(err)
	}
	root := v[f.dataStart : f.dataStart+f.clusterSize]
	dir := bytes.Clone(v[entries[1].offset : entries[1].offset+entrySize])
	binary.LittleEndian.PutUint16(dir[26:], uint16(f.root))
	for i := 0; i+entrySize < len(root); i += entrySize {
		copy(root[i:], dir)
	}
	if _, err := f.Files(); err == nil {
		t.Error("no error")
	}
}

// FuzzRead changes the parts of a volume that the reader interprets.
func FuzzRead(f *testing.F) {
	v, err := Build([]File{{Path: "EFI/BOOT/BOOTX64.EFI", Data: content(2000)}}, epoch)
	if err != nil {
		f.Fatal(err)
	}
	opened, err := Open(bytes.NewReader(v), int64(len(v)))
	if err != nil {
		f.Fatal(err)
	}
	areas := []int64{0, opened.fatStart, opened.dataStart}
	f.Add(v[:90], v[opened.fatStart:opened.fatStart+64], v[opened.dataStart:opened.dataStart+1536])
	f.Fuzz(func(t *testing.T, boot, table, data []byte) {
		for i, part := range [][]byte{boot, table, data} {
			area := v[areas[i]:][:4096]
			whole := bytes.Clone(area)
			defer copy(area, whole)
			copy(area, part)
		}
		o, err := Open(bytes.NewReader(v), int64(len(v)))
		if err != nil {
			return
		}
		if _, err := o.Files(); err == nil {
			_, _ = o.File("EFI/BOOT/BOOTX64.EFI")
		}
	})
}
