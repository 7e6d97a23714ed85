package pcrs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

// maxBootEntries bounds BootOrder; firmware reads all of them each time.
const maxBootEntries = 512

// bootEntry is a variable Boot####.
type bootEntry struct {
	number uint16
	data   []byte
	option efi.Option
	source Source
}

func (e bootEntry) name() string { return bootName(e.number) }

func bootName(number uint16) string { return fmt.Sprintf("Boot%04X", number) }

// newEntry is what the firmware makes by itself; the number is given when it is added.
func newEntry(data []byte, source Source) bootEntry {
	option, err := efi.ParseLoadOption(data)
	if err != nil {
		panic("an entry of our own making: " + err.Error())
	}
	return bootEntry{data: data, option: option, source: source}
}

// bootManager follows OVMF's boot manager from the variables that it finds to those that it measures and boots by: EDK2's
// UefiBootManagerLib, and OvmfPkg's PlatformBootManagerLib and QemuBootOrderLib, on a machine whose host names one disk to boot from.
type bootManager struct {
	machine Machine
	disk    *gpt.Table      // of the disk that is booted from; nil for a blank one
	files   map[string]bool // programs on its ESP, in lower case
	order   []bootEntry
	next    *uint16 // BootNext
}

// bootPlan is what comes of it.
type bootPlan struct {
	// order is BootOrder with its entries, and earlier says that some of it is from the variables.
	order   []bootEntry
	earlier bool
	// first says which entry is tried first, if it is another than the image's.
	first string
	// options says which entry hands the image options for its command line.
	options string
}

// bootPlan computes what firmware makes of its variables. It fails where that is not known.
func (m Machine) bootPlan(table *gpt.Table, files map[string]bool) (p bootPlan, err error) {
	b := bootManager{machine: m, disk: table, files: files}
	if err := b.read(); err != nil {
		return p, err
	}
	description, path := m.Shape.bootDisk()
	disk := newEntry(efi.LoadOption(efi.OptionActive, description, path, guidAutoCreatedEntry[:]),
		Source{Kind: FromBootVariable, Number: m.Shape.BootSlot})
	for i, a := range m.Firmware.applications {
		e := newEntry(efi.LoadOption(a.Attributes, a.Name, efi.VolumePath(a.Volume, a.File), nil), Source{Kind: FromBootVariable, File: a.Name})
		if i > 0 {
			b.add(e, e.data)
			continue
		}
		b.add(e, e.option.Path) // The setup program is known by its path, and registered before the disks.
		b.refresh(disk)
	}
	if len(m.Firmware.applications) == 0 {
		b.refresh(disk)
	}
	b.dropStale()
	if err := b.sort(disk); err != nil {
		return p, err
	}
	p.order = b.order
	p.earlier = slices.ContainsFunc(p.order, func(e bootEntry) bool { return e.source.File == VariableFile })
	return p, b.whoIsFirst(&p)
}

// read takes BootOrder, the entries in it and BootNext. An entry that is missing, or that firmware cannot read, leaves BootOrder.
func (b *bootManager) read() error {
	vars := b.machine.Vars
	for _, name := range []string{"DriverOrder", "SysPrepOrder"} {
		if data, _ := vars.Lookup(efi.GlobalVariable, name); len(data) > 0 {
			return fmt.Errorf("variable %s names programs that firmware starts before it boots", name)
		}
	}
	if next, ok := vars.Lookup(efi.GlobalVariable, "BootNext"); ok && len(next) == 2 {
		number := binary.LittleEndian.Uint16(next)
		b.next = &number
	}
	order, _ := vars.Lookup(efi.GlobalVariable, "BootOrder")
	if len(order)%2 != 0 || len(order) > 2*maxBootEntries {
		return fmt.Errorf("variable BootOrder has %d bytes, want pairs, of at most %d", len(order), 2*maxBootEntries)
	}
	for ; len(order) > 0; order = order[2:] {
		number := binary.LittleEndian.Uint16(order)
		if b.has(number) {
			return fmt.Errorf("variable BootOrder names %s twice", bootName(number))
		}
		data, ok := vars.Lookup(efi.GlobalVariable, bootName(number))
		if !ok {
			continue
		}
		option, err := efi.ParseLoadOption(data)
		if err != nil {
			return fmt.Errorf("variable %s: %w", bootName(number), err)
		}
		b.order = append(b.order, bootEntry{number: number, data: data, option: option, source: Source{Kind: FromBootVariable, Bytes: len(data), File: VariableFile}})
	}
	return nil
}

func (b *bootManager) has(number uint16) bool {
	return slices.ContainsFunc(b.order, func(e bootEntry) bool { return e.number == number })
}

// add appends an entry under the first free number (BmGetFreeOptionNumber), whatever an entry outside of BootOrder has under it. It
// does nothing if there is one with the same bytes: all of the variable's, or only those of its path.
func (b *bootManager) add(e bootEntry, same []byte) {
	for i, other := range b.order {
		if bytes.Equal(other.data, same) || bytes.Equal(other.option.Path, same) {
			if bytes.Equal(other.data, e.data) {
				b.order[i].source = e.source // It is what would be made.
			}
			return
		}
	}
	for b.has(e.number) || b.next != nil && *b.next == e.number {
		e.number++
	}
	b.order = append(b.order, e)
}

// refresh drops entries that an earlier boot made of disks which are no more, and adds that of the disk
// (EfiBootManagerRefreshAllBootOption).
func (b *bootManager) refresh(disk bootEntry) {
	b.order = slices.DeleteFunc(b.order, func(e bootEntry) bool {
		return bytes.Equal(e.option.Optional, guidAutoCreatedEntry[:]) && !bytes.Equal(e.data, disk.data)
	})
	b.add(disk, disk.data)
}

// dropStale drops entries of programs inside of firmware that this one has not (RemoveStaleFvFileOptions).
func (b *bootManager) dropStale() {
	known := b.machine.Firmware
	b.order = slices.DeleteFunc(b.order, func(e bootEntry) bool {
		nodes := e.option.Nodes
		if len(nodes) != 2 || nodes[0].Kind != efi.NodeVolume || nodes[1].Kind != efi.NodeVolumeFile {
			return false
		}
		volume, file := nodes[0].Raw[4:], nodes[1].Raw[4:]
		return len(file) != len(efi.GUID{}) || !bytes.Equal(volume, known.volume[:]) || !known.files[efi.GUID(file)]
	})
}

// sort puts the entries of the disk first that the host names, in the order that they had. Of the others it drops those of other
// disks and those that firmware would not try by itself (SetBootOrderFromQemu).
func (b *bootManager) sort(disk bootEntry) error {
	var first, rest []bootEntry
	for _, e := range b.order {
		if e.option.Attributes&efi.OptionActive == 0 {
			continue
		}
		where, err := b.placeOf(e, disk)
		if err != nil {
			return err
		}
		switch where {
		case onDisk:
			first = append(first, e)
		case elsewhere:
			rest = append(rest, e)
		}
	}
	b.order = append(first, rest...)
	return nil
}

// place is where an entry leads: to the disk that the host names, to something that firmware keeps in BootOrder behind that, or out
// of it.
type place int

const (
	nowhere place = iota
	onDisk
	elsewhere
)

// placeOf follows QemuBootOrderLib (Match, BootOrderComplete). It loads the file of a short path to find out where that leads.
func (b *bootManager) placeOf(e, disk bootEntry) (place, error) {
	nodes := e.option.Nodes
	device := disk.option.Path[:len(disk.option.Path)-4] // without its end
	switch {
	case bytes.HasPrefix(e.option.Path, device):
		return onDisk, nil
	case len(nodes) == 0:
		return nowhere, fmt.Errorf("variable %s has an empty device path", e.name())
	case nodes[0].Kind == efi.NodeHardDrive:
		esp, err := b.onESP(nodes)
		if err != nil {
			return nowhere, fmt.Errorf("variable %s %w", e.name(), err)
		}
		if file, ok := efi.File(nodes[1:]); esp && ok && b.files[strings.ToLower(file)] {
			return onDisk, nil
		}
		return nowhere, nil
	case bytes.HasPrefix(e.option.Path, device[:rootNode]):
		return nowhere, nil // another device on the same bus
	case nodes[0].Kind == efi.NodeVolume:
		return elsewhere, nil
	}
	return nowhere, fmt.Errorf("variable %s has a device path that begins with %#04x, and what firmware makes of that on this machine is not known", e.name(), nodes[0].Kind)
}

// rootNode is the length of PciRoot(0) in a device path.
const rootNode = 12

// onESP reports whether a path begins with the partition that the image's kernel image is on, as the image was built. Of the other
// slot it is not known what is there.
func (b *bootManager) onESP(nodes []efi.Node) (bool, error) {
	if b.disk == nil || len(nodes) == 0 {
		return false, nil
	}
	p, ok := nodes[0].Partition()
	if !ok {
		return false, nil
	}
	first := true
	for i, q := range b.disk.Partitions {
		if q.Type != gpt.TypeESP {
			continue
		}
		if efi.MustGUID(q.GUID.String()) == p.GUID && p.Number == uint32(i+1) {
			if !first {
				return false, errors.New("names the ESP of the other slot, and what is there is not known")
			}
			return true, nil
		}
		first = false
	}
	return false, nil
}

// BootVariables are the events of BootOrder and of the entries in their order, as OVMF makes them on a machine whose variables hold
// none, with the disk first: the hash of each variable's data alone (EV_EFI_VARIABLE_BOOT).
func (m Machine) BootVariables() []Event {
	m.Vars = firmware.Vars{}
	p, err := m.bootPlan(nil, nil)
	if err != nil {
		panic("boot entries of no variables: " + err.Error())
	}
	return p.events()
}

func (p bootPlan) events() []Event {
	var order []byte
	for _, e := range p.order {
		order = binary.LittleEndian.AppendUint16(order, e.number)
	}
	source := Source{Kind: FromBootVariable, Name: "BootOrder", Count: len(p.order)}
	if p.earlier {
		source.File = VariableFile
	}
	out := []Event{derived(1, EvVariableBoot, order, source)}
	for _, e := range p.order {
		e.source.Name = e.name()
		out = append(out, derived(1, EvVariableBoot, e.data, e.source))
	}
	return out
}

// trialEntries are the entries that start the slots of a disk; none if it has no slots.
func trialEntries(table *gpt.Table) map[string][]byte {
	entries := map[string][]byte{}
	if table == nil {
		return entries
	}
	slots, err := slot.Find(table)
	if err != nil {
		return entries
	}
	for _, n := range slot.Both() {
		name, _ := slot.BootEntry(n)
		entries[name] = slot.LoadOption(n, slots[n].ESP)
	}
	return entries
}
