package pcrs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/gpt"
	"github.com/hullmark/hullmark/image/slot"
)

// diskDescription is what OVMF calls a disk whose device has no name of its own, such as virtio-blk.
const diskDescription = "UEFI Misc Device"

// bootEntry is a variable Boot####.
type bootEntry struct {
	number int
	data   []byte
	source Source
}

func (e bootEntry) name() string { return fmt.Sprintf("Boot%04X", e.number) }

// bootEntries are what OVMF makes of a machine whose variables hold none, with the disk first (BootOrder): the setup program is
// registered first, then the disks, then the shell, if the build has one.
func (m Machine) bootEntries() []bootEntry {
	disk := bootEntry{
		number: 1, data: efi.LoadOption(efi.OptionActive, diskDescription, efi.PCIPath(m.Shape.BootSlot), guidAutoCreatedEntry[:]),
		source: Source{Kind: FromBootVariable, Number: m.Shape.BootSlot},
	}
	entries := []bootEntry{disk}
	for i, a := range m.Firmware.applications {
		number := 2 * i // the disk is 1
		entries = append(entries, bootEntry{
			number: number, data: efi.LoadOption(a.Attributes, a.Name, efi.VolumePath(a.Volume, a.File), nil),
			source: Source{Kind: FromBootVariable, File: a.Name},
		})
	}
	return entries
}

// BootVariables are the events of BootOrder and of the entries in their order: the hash of each variable's data alone
// (EV_EFI_VARIABLE_BOOT).
func (m Machine) BootVariables() []Event {
	entries := m.bootEntries()
	var order []byte
	for _, e := range entries {
		order = binary.LittleEndian.AppendUint16(order, uint16(e.number))
	}
	out := []Event{derived(1, EvVariableBoot, order, Source{Kind: FromBootVariable, Name: "BootOrder", Count: len(entries)})}
	for _, e := range entries {
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

// checkBootVariables fails for variables with boot entries that are not what firmware makes by itself: it would try them, and measure
// them. Those that start a slot for a trial are in no BootOrder: nobody measures them, or BootNext, which is taken for one boot.
func (m Machine) checkBootVariables(table *gpt.Table) error {
	known := trialEntries(table)
	if next, ok := m.Vars.Lookup(efi.GlobalVariable, "BootNext"); ok && len(next) == 2 && known[fmt.Sprintf("Boot%04X", binary.LittleEndian.Uint16(next))] != nil {
		known["BootNext"] = next
	}
	var order []byte
	for _, e := range m.bootEntries() {
		known[e.name()] = e.data
		order = binary.LittleEndian.AppendUint16(order, uint16(e.number))
	}
	known["BootOrder"] = order
	for key, data := range m.Vars.All() {
		name := printableText(key.Name)
		entry := len(name) == len("Boot0000") && strings.Trim(name[4:], "0123456789ABCDEF") == ""
		if key.Vendor != efi.GlobalVariable || !strings.HasPrefix(name, "Boot") || !entry && name != "BootOrder" && name != "BootNext" {
			continue
		}
		if want, ok := known[name]; !ok || !bytes.Equal(want, data) {
			return fmt.Errorf("variable %s is not what the firmware makes for this machine; use variables without boot entries of their own", name)
		}
	}
	return nil
}
