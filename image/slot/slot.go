// Package slot says where the two slots of a Hullmark disk are. A slot is what one release takes: an ESP, a root file system and its
// hash tree. The partition table, with all GUIDs in it, is the same whatever the slots hold: a release that goes into the other slot
// changes no byte of the table, and so no register that firmware measures it into.
package slot

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/uki"
)

// Slot is one of the two.
type Slot int

// The slots, in the order of the disk. Firmware that looks for something to boot takes the first ESP that it can read.
const (
	A Slot = iota
	B
)

// Both are the slots, in the order of the disk.
func Both() []Slot { return []Slot{A, B} }

// String returns a or b, as partitions' names end.
func (s Slot) String() string { return string("ab"[s]) }

// Other is the slot that is not s.
func (s Slot) Other() Slot { return B - s }

// Parse reads a or b.
func Parse(text string) (Slot, error) {
	for _, s := range Both() {
		if text == s.String() {
			return s, nil
		}
	}
	return A, fmt.Errorf("slot %.20q: a and b exist", text)
}

// readOnly is the attribute of the root and verity partitions (UAPI.2 Discoverable Partitions Specification, bit 60).
const readOnly = 1 << 60

// Sizes are the lengths of a slot's partitions in bytes, which are the same in both.
type Sizes struct {
	ESP, Root, Tree int64
	// Config is the length of the partition behind the slots that holds the node's configuration; zero where that comes from elsewhere.
	Config int64
}

// SizesFile is where an image says the sizes of its slots, below its root.
const SizesFile = "usr/lib/hullmark/slot-sizes"

// ParseSizes reads SizesFile: two lines, ESP_MIB=80 and ROOT_MIB=512, each of 1 to 9999, and CONFIG_MIB=1 where the disk holds the node's
// configuration. The tree's size follows from the root's.
func ParseSizes(text string) (Sizes, error) {
	var esp, root int64
	slots, config := strings.CutSuffix(text, "CONFIG_MIB=1\n")
	if n, err := fmt.Sscanf(slots, "ESP_MIB=%4d\nROOT_MIB=%4d\n", &esp, &root); n != 2 || err != nil || slots != fmt.Sprintf("ESP_MIB=%d\nROOT_MIB=%d\n", esp, root) || min(esp, root) < 1 {
		return Sizes{}, fmt.Errorf("%s: want two lines, such as ESP_MIB=80 and ROOT_MIB=512, and CONFIG_MIB=1 where the disk holds the node's configuration", SizesFile)
	}
	sizes := Sizes{ESP: esp << 20, Root: root << 20}
	if config {
		sizes.Config = configSize
	}
	return sizes, nil
}

// BootEntry is the firmware's variable with the load option that starts a slot for a trial: Boot4841 and Boot4842. Firmware counts its own
// entries from 0, so these numbers are nobody's; they are in no BootOrder, so they are in no register.
func BootEntry(s Slot) (name string, number uint16) {
	number = 0x4841 + uint16(s)
	return fmt.Sprintf("Boot%04X", number), number
}

// LoadOption is what BootEntry holds: it starts the slot's kernel image at uki.TrialPath. esp is the slot's.
func LoadOption(s Slot, esp gpt.Partition) []byte {
	return loadOption("Hullmark slot "+s.String(), s, esp, uki.TrialPath)
}

// InstalledEntry is the variable with the load option that starts a disk for the first time, which was installed just now.
func InstalledEntry() (name string, number uint16) { return "Boot4840", 0x4840 }

// InstalledOption is what InstalledEntry holds: it starts the kernel image at uki.Path. esp is that of slot A.
func InstalledOption(esp gpt.Partition) []byte {
	return loadOption("Hullmark", A, esp, uki.Path)
}

func loadOption(description string, s Slot, esp gpt.Partition, file string) []byte {
	path := efi.FilePath(efi.Partition{
		Number: 1 + uint32(s)*Count/2, First: esp.FirstLBA, Sectors: esp.LastLBA - esp.FirstLBA + 1, GUID: efi.MustGUID(esp.GUID.String()),
	}, file)
	return efi.LoadOption(efi.OptionActive, description, path, nil)
}

// alignment of partitions, and configSize, are in bytes.
const (
	alignment  = 1 << 20
	configSize = alignment
)

// Count is how many partitions the slots are.
const Count = 6

// ConfigName is the name of the partition behind the slots that holds the node's configuration, and zeros behind it.
const ConfigName = "hullmark-config"

// Partitions are a slot's.
type Partitions struct{ ESP, Root, Tree gpt.Partition }

// Disk is the GUID of every Hullmark disk.
func Disk() gpt.GUID { return fixed("disk") }

// fixed derives a GUID from its purpose, and marks it as a UUID of version 8, whose content its maker chooses (RFC 9562 §5.8).
func fixed(purpose string) gpt.GUID {
	d := sha256.Sum256([]byte("hullmark slots 1: " + purpose))
	g := gpt.GUID(d[:16])
	g[6] = g[6]&0x0f | 0x80
	g[8] = g[8]&0x3f | 0x80
	return g
}

// of returns a slot's partitions without their places.
func of(s Slot) Partitions {
	name := func(what string) string { return what + "-" + s.String() }
	return Partitions{
		ESP:  gpt.Partition{Type: gpt.TypeESP, GUID: fixed(name("esp")), Name: name("esp")},
		Root: gpt.Partition{Type: gpt.TypeRootAMD64, GUID: fixed(name("root")), Name: name("root"), Attributes: readOnly},
		Tree: gpt.Partition{Type: gpt.TypeRootVerityAMD64, GUID: fixed(name("root-verity")), Name: name("root-verity"), Attributes: readOnly},
	}
}

// Plan places both slots on a disk, and returns its partitions in their order and its size in bytes. Each length is rounded up to
// a whole MiB; before the first partition and behind the last there is room for a copy of the table.
func Plan(sizes Sizes) (partitions []gpt.Partition, size int64) {
	d := plan{end: alignment}
	for _, s := range Both() {
		d.place(of(s), sizes)
	}
	if sizes.Config > 0 {
		d.add(gpt.Partition{Type: gpt.TypeLinux, GUID: fixed("config"), Name: ConfigName}, sizes.Config)
	}
	return d.partitions, d.end + alignment
}

// plan is a disk to which partitions are added.
type plan struct {
	partitions []gpt.Partition
	end        int64
}

func (d *plan) place(p Partitions, sizes Sizes) {
	d.add(p.ESP, sizes.ESP)
	d.add(p.Root, sizes.Root)
	d.add(p.Tree, sizes.Tree)
}

func (d *plan) add(p gpt.Partition, length int64) {
	length = Align(length)
	p.FirstLBA, p.LastLBA = uint64(d.end/gpt.SectorSize), uint64((d.end+length)/gpt.SectorSize)-1
	d.partitions, d.end = append(d.partitions, p), d.end+length
}

// Align rounds a length in bytes up to that of a partition.
func Align(length int64) int64 { return (length + alignment - 1) / alignment * alignment }

// Find returns a table's slots. It fails unless the table begins as one that Plan made: those partitions, in their places, on a disk
// with that GUID. Others may follow them.
func Find(t *gpt.Table) ([2]Partitions, error) {
	var found [2]Partitions
	if len(t.Partitions) < Count {
		return found, fmt.Errorf("%d partitions, want those of two slots: an ESP, a root and a hash tree each", len(t.Partitions))
	}
	for _, s := range Both() {
		p := t.Partitions[3*s:]
		found[s] = Partitions{p[0], p[1], p[2]}
	}
	planned, _ := Plan(found[A].sizes())
	return found, equal(t, planned, Disk())
}

func (p Partitions) sizes() Sizes {
	return Sizes{ESP: p.ESP.Size(), Root: p.Root.Size(), Tree: p.Tree.Size()}
}

// equal compares a table, as far as it was planned.
func equal(t *gpt.Table, planned []gpt.Partition, disk gpt.GUID) error {
	for i, want := range planned {
		if got := t.Partitions[i]; got != want {
			return fmt.Errorf("partition %d is %q of type %s with GUID %s, sectors %d to %d; want %q of type %s with GUID %s, sectors %d to %d",
				i+1, got.Name, got.Type, got.GUID, got.FirstLBA, got.LastLBA, want.Name, want.Type, want.GUID, want.FirstLBA, want.LastLBA)
		}
	}
	if t.GUID != disk {
		return fmt.Errorf("disk GUID %s, want %s", t.GUID, disk)
	}
	return nil
}

// FindConfig returns the partition with the node's configuration, which follows the slots that Find found. It fails if there is none.
func FindConfig(t *gpt.Table, slots [2]Partitions) (gpt.Partition, error) {
	sizes := slots[A].sizes()
	sizes.Config = configSize
	planned, _ := Plan(sizes)
	if len(t.Partitions) < len(planned) {
		return gpt.Partition{}, fmt.Errorf("the disk has no partition %s: it holds an image that takes its configuration from elsewhere", ConfigName)
	}
	return t.Partitions[Count], equal(t, planned, Disk())
}
