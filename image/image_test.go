package image

import (
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark/image/fat"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/pe"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/tooltest"
)

const stubPath = "/" + uki.DebianStub

// erofs makes a small root file system.
func erofs(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	tree, file := filepath.Join(dir, "tree"), filepath.Join(dir, "root.erofs")
	if err := os.MkdirAll(filepath.Join(tree, "usr", "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	content := []byte(strings.Repeat("a line of a file\n", 100000))
	if err := os.WriteFile(filepath.Join(tree, "usr", "lib", "file"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	tooltest.Run(t, "erofs-utils", "mkfs.erofs", "-T0", "-U", "00000000-0000-4000-8000-000000000001", file, tree)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parts returns the parts of a small disk, whose kernel is the stub: it is an
// EFI executable too.
func parts(t testing.TB) Parts {
	t.Helper()
	stub, err := os.ReadFile(stubPath)
	if err != nil {
		t.Fatalf("the stub is missing: apt-get install systemd-boot-efi: %v", err)
	}
	root := erofs(t)
	return Parts{
		Stub: stub, Kernel: stub, Initrd: bytes.Repeat([]byte("initrd"), 3000),
		OSRelease: []byte("ID=hullmark\n"), Cmdline: "console=ttyS0 panic=1",
		Root: bytes.NewReader(root), RootSize: int64(len(root)),
		Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
	}
}

func plan(t testing.TB, p Parts) (*Layout, []byte) {
	t.Helper()
	l, err := Plan(p)
	if err != nil {
		t.Fatal(err)
	}
	var disk bytes.Buffer
	if n, err := l.WriteTo(&disk); err != nil || n != l.Size() || int64(disk.Len()) != l.Size() {
		t.Fatalf("wrote %d of %d bytes: %v", n, l.Size(), err)
	}
	return l, disk.Bytes()
}

func open(disk []byte) (*Disk, error) {
	return Open(bytes.NewReader(disk), int64(len(disk)))
}

func TestWriteInto(t *testing.T) {
	l, disk := plan(t, parts(t))
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := l.WriteInto(f); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.NewSectionReader(f, 0, l.Size()+1)); err != nil || !bytes.Equal(got, disk) {
		t.Errorf("%d bytes that are not those of WriteTo, %v", len(got), err)
	}
}

func TestTwoPlansAreEqual(t *testing.T) {
	p := parts(t)
	_, first := plan(t, p)
	t.Setenv("TZ", "Asia/Tokyo")
	t.Setenv("SOURCE_DATE_EPOCH", "77")
	if _, second := plan(t, p); !bytes.Equal(first, second) {
		t.Error("two plans of the same parts differ")
	}
}

func TestReadsBack(t *testing.T) {
	l, disk := plan(t, parts(t))
	d, err := open(disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(); err != nil {
		t.Error(err)
	}
	if d.RootHash != l.RootHash() || d.Cmdline != l.Cmdline() || !bytes.Equal(d.UKIBytes, l.UKI()) {
		t.Error("root hash, command line or kernel image are not what was planned")
	}
	if want := "console=ttyS0 panic=1 roothash=" + hex.EncodeToString(d.RootHash[:]); d.Cmdline != want {
		t.Errorf("command line %q, want %q", d.Cmdline, want)
	}
	root, err := io.ReadAll(d.Root)
	if err != nil || !bytes.Equal(root, erofs(t)) {
		t.Errorf("root of %d bytes differs, %v", len(root), err)
	}
	slots, err := slot.Find(d.Table)
	if err != nil {
		t.Fatal(err)
	}
	second := slots[slot.B]
	if empty := disk[second.ESP.Offset() : second.Tree.Offset()+second.Tree.Size()]; len(bytes.Trim(empty, "\x00")) != 0 {
		t.Error("the second slot is not empty")
	}
}

// TestToolsAccept asks the tools that a person would ask.
func TestToolsAccept(t *testing.T) {
	l, disk := plan(t, parts(t))
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if out := tooltest.Run(t, "gdisk", "sgdisk", "-v", file("disk", disk)); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk -v: %s", out)
	}
	part := func(i int) []byte {
		p := l.partitions[i]
		return disk[p.Offset() : p.Offset()+p.Size()]
	}
	tooltest.Run(t, "dosfstools", "fsck.vfat", "-n", file("esp", part(0)))
	root, hash := file("root", part(1)), hex.EncodeToString(l.rootHash[:])
	tooltest.Run(t, "cryptsetup-bin", "veritysetup", "verify", root, file("tree", part(2)), hash)
	tooltest.Run(t, "erofs-utils", "fsck.erofs", root)
}

// TestTableStays has two releases of one size of slots: their tables are equal to the byte, so no release moves PCR 5.
func TestTableStays(t *testing.T) {
	p := parts(t)
	p.Slot = slot.Sizes{ESP: 40 << 20, Root: 8 << 20}
	_, disk := plan(t, p)
	p.Cmdline, p.Root, p.RootSize = "another", bytes.NewReader(make([]byte, 3<<20)), 3<<20
	_, other := plan(t, p)
	if len(disk) != len(other) || !bytes.Equal(disk[:gpt.PrimarySize], other[:gpt.PrimarySize]) || !bytes.Equal(disk[len(disk)-gpt.BackupSize:], other[len(disk)-gpt.BackupSize:]) {
		t.Error("another release has another table")
	}
	for _, raw := range [][]byte{disk, other} {
		if err := verify(raw); err != nil {
			t.Error(err)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *Parts)
		want   string
	}{
		"root hash given":  {func(p *Parts) { p.Cmdline = "a roothash=00" }, "roothash= already"},
		"second line":      {func(p *Parts) { p.Cmdline = "a\nb" }, "printable"},
		"no kernel":        {func(p *Parts) { p.Kernel = nil }, ".linux"},
		"no stub":          {func(p *Parts) { p.Stub = nil }, "truncated"},
		"root too short":   {func(p *Parts) { p.RootSize += 4096 }, "announced"},
		"root too large":   {func(p *Parts) { p.Slot.Root = p.RootSize - 1 }, "a slot has room for"},
		"ESP too small":    {func(p *Parts) { p.Slot.ESP = 1 << 20 }, "the files need"},
		"root not aligned": {func(p *Parts) { p.RootSize-- }, "multiple"},
		"no root":          {func(p *Parts) { p.RootSize = 0 }, "multiple"},
		"no time":          {func(p *Parts) { p.Time = time.Time{} }, "1980"},
	} {
		p := parts(t)
		c.change(&p)
		if _, err := Plan(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// TestFlippedByte flips one byte in every kind of content. Where the shape is
// still right, hashing finds it.
func TestFlippedByte(t *testing.T) {
	l, disk := plan(t, parts(t))
	esp, root, tree := l.partitions[0].Offset(), l.partitions[1].Offset(), l.partitions[2].Offset()
	at := func(pattern string) int64 { return int64(bytes.Index(disk, []byte(pattern))) }
	for name, c := range map[string]struct {
		offset int64
		want   string
	}{
		"protective MBR":  {510, "MBR"},
		"table":           {512 + 60, "checksum"},
		"entries":         {1024 + 20, "checksum"},
		"second table":    {l.size - 500, "second copy"},
		"ESP boot sector": {esp + 511, "boot sector"},
		"ESP table":       {esp + 32*512 + 100, "tables differ"},
		"kernel image":    {at("initrdinitrd") + 100, "kernel image"},
		"command line":    {at("panic=1"), "kernel image"},
		"root hash":       {at("roothash=") + 9, "roothash"},
		"root":            {root + 50000, "block 12 of the data"},
		"superblock":      {tree + 8, "superblock"},
		"tree":            {tree + 3*4096 + 5, "hash tree is damaged"},
		"tree's top":      {tree + 4096 + 5, "not that of root hash"},
		"second ESP":      {l.partitions[3].Offset(), "esp-b is not empty"},
		"second tree":     {l.partitions[5].Offset() + 4095, "root-verity-b is not empty"},
		"ESP's number":    {esp + 67, "serial number"},
		"tree's UUID":     {tree + 20, "UUID of the hash tree"},
		"tree of the ESP": {l.areas[4].offset + 5000, "not that of the ESP"},
		"FAT's free room": {esp + l.partitions[0].Size() - 1, "not that of the ESP"},
	} {
		changed := bytes.Clone(disk)
		changed[c.offset] ^= 0x80
		d, err := open(changed)
		if err == nil {
			err = d.Verify()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestTruncatedImage(t *testing.T) {
	l, disk := plan(t, parts(t))
	for _, n := range []int64{0, 511, 1 << 20, l.partitions[1].Offset(), l.size - 512, l.size - 1} {
		if _, err := open(disk[:n]); err == nil {
			t.Errorf("%d of %d bytes: no error", n, l.size)
		}
	}
}

// TestOpenRefusesCompanions puts an addon beside the kernel image, which the
// stub would load.
func TestOpenRefusesCompanions(t *testing.T) {
	l, disk := plan(t, parts(t))
	esp, err := fat.Build([]fat.File{
		{Path: uki.Path, Data: l.UKI()},
		{Path: uki.Path + ".extra.d/x.addon.efi", Data: []byte("x")},
	}, fat.Params{Label: espLabel, Time: parts(t).Time})
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(disk)
	copy(changed[l.partitions[0].Offset():][:l.partitions[0].Size()], esp)
	if _, err := open(changed); err == nil || !strings.Contains(err.Error(), "addon") {
		t.Errorf("got %v", err)
	}
}

func TestOpenRefusesOtherDisks(t *testing.T) {
	l, disk := plan(t, parts(t))
	for name, c := range map[string]struct {
		change func(p []gpt.Partition) []gpt.Partition
		want   string
	}{
		"two partitions": {func(p []gpt.Partition) []gpt.Partition { return p[:2] }, "want those of two slots"},
		"other type":     {func(p []gpt.Partition) []gpt.Partition { p[1].Type = gpt.TypeESP; return p }, "partition 2 is"},
		"other GUID":     {func(p []gpt.Partition) []gpt.Partition { p[1].GUID[0]++; return p }, "partition 2 is"},
		"one more": {func(p []gpt.Partition) []gpt.Partition {
			p[5].LastLBA -= 8
			more := p[5]
			more.FirstLBA, more.LastLBA, more.GUID = p[5].LastLBA+1, p[5].LastLBA+8, gpt.GUID{7}
			return append(p, more)
		}, "partition 6 is"},
		"other disk": {func(p []gpt.Partition) []gpt.Partition { return p }, "disk GUID"},
	} {
		table := c.change(append([]gpt.Partition{}, l.partitions...))
		primary, backup, err := gpt.Encode(l.size, gpt.GUID{1}, table)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Clone(disk)
		copy(changed, primary)
		copy(changed[l.size-gpt.BackupSize:], backup)
		if _, err := open(changed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// FuzzOpen overwrites a part of a real disk: of its table, its ESP with the kernel image, or the hash tree.
func FuzzOpen(f *testing.F) {
	l, disk := plan(f, parts(f))
	esp, tree := l.partitions[0].Offset(), l.partitions[2].Offset()
	for _, area := range []int64{0, 512, 1024, esp, esp + 32*512, tree} {
		f.Add(uint32(area), disk[area:area+512])
	}
	f.Add(uint32(bytes.Index(disk, []byte("roothash="))), []byte("roothash=00"))
	f.Add(uint32(bytes.Index(disk, []byte("BOOTX64 EFI"))), []byte("BOOTX64 EFI\x10"))
	f.Fuzz(func(t *testing.T, offset uint32, patch []byte) {
		area := disk[int64(offset)%l.Size():]
		area = area[:min(len(area), len(patch))]
		whole := bytes.Clone(area)
		defer copy(area, whole)
		copy(area, patch)
		d, err := open(disk)
		if err != nil {
			return
		}
		if !strings.Contains(d.Cmdline, hex.EncodeToString(d.RootHash[:])) || d.Root.Size() > l.Size() {
			t.Error("opened a disk whose parts do not belong together")
		}
	})
}

// TestWithUKI signs the kernel image of a disk: nothing but the ESP and its hash tree changes, and without the signature all is as it was.
func TestWithUKI(t *testing.T) {
	l, disk := plan(t, parts(t))
	d, err := open(disk)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := pe.WithSignatures(d.UKIBytes, bytes.Repeat([]byte{0x30}, 1500))
	if err != nil {
		t.Fatal(err)
	}
	with, again := relaid(t, disk, signed)
	beside := func(l *Layout, disk []byte) []byte {
		disk = bytes.Clone(disk)
		for _, a := range []area{l.areas[1], l.areas[4]} {
			clear(disk[a.offset : a.offset+a.size])
		}
		return disk
	}
	if !bytes.Equal(beside(with, again), beside(l, disk)) {
		t.Error("more than the ESP and its hash tree changed")
	}
	if _, back := relaid(t, again, d.UKIBytes); !bytes.Equal(back, disk) {
		t.Error("without its signature the disk is another than before")
	}
	large, err := pe.WithSignatures(d.UKIBytes, make([]byte, 34<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.WithUKI(large); err == nil || !strings.Contains(err.Error(), "the files need") {
		t.Errorf("a kernel image that is larger than the ESP: %v", err)
	}
}

// relaid is a disk with another form of its kernel image, which has to be right.
func relaid(t *testing.T, disk, uki []byte) (*Layout, []byte) {
	t.Helper()
	d, err := open(disk)
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.WithUKI(uki)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := l.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if err := verify(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	if l.Cmdline() != d.Cmdline || l.RootHash() != d.RootHash || !bytes.Equal(l.UKI(), uki) {
		t.Error("command line, root hash or kernel image are not those of the disk")
	}
	return l, out.Bytes()
}

func TestWithUKIRefuses(t *testing.T) {
	_, disk := plan(t, parts(t))
	d, err := open(disk)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(d.UKIBytes)
	other[len(other)-1] ^= 1
	huge, err := pe.WithSignatures(d.UKIBytes, make([]byte, 251<<20))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"another image":         {other, "another one"},
		"no image":              {nil, "truncated"},
		"too large for the ESP": {huge, "want at most 250 MiB"},
	} {
		if _, err := d.WithUKI(c.image); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
