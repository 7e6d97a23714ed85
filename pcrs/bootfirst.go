package pcrs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/image/efi"
	"github.com/hullmark/hullmark/image/uki"
)

// leadsToImage reports whether an entry starts the image's kernel image.
func (b *bootManager) leadsToImage(e bootEntry) bool {
	nodes := e.option.Nodes
	if _, device := b.machine.Shape.bootDisk(); bytes.HasPrefix(e.option.Path, device[:len(device)-4]) {
		if bytes.Equal(e.option.Path, device) {
			return true // Firmware looks for the file by itself.
		}
		for rest := len(device) - 4; rest > 0; nodes = nodes[1:] {
			rest -= len(nodes[0].Raw)
		}
	}
	esp, err := b.onESP(nodes)
	if err != nil || !esp {
		return false
	}
	file, ok := efi.File(nodes[1:])
	return ok && strings.EqualFold(file, uki.Path)
}

// whoIsFirst finds the entry that firmware tries first: BootNext's, or the first of BootOrder that is for booting.
func (b *bootManager) whoIsFirst(p *bootPlan) error {
	entry, err := b.bootNext()
	if err != nil {
		return err
	}
	if entry == nil {
		i := slices.IndexFunc(p.order, func(e bootEntry) bool { return e.option.Attributes&efi.OptionCategory == 0 })
		entry = &p.order[i] // There is the disk's.
	}
	name := fmt.Sprintf("variable %s (%q)", entry.name(), printableText(entry.option.Description))
	switch optional := entry.option.Optional; {
	case trialEntries(b.disk)[entry.name()] != nil && bytes.Equal(trialEntries(b.disk)[entry.name()], entry.data):
	case !b.leadsToImage(*entry):
		p.first = fmt.Sprintf("firmware first tries %s, which is not the image's, and what that measures is not known", name)
	case len(optional) > 0 && !bytes.Equal(optional, guidAutoCreatedEntry[:]):
		p.options = fmt.Sprintf("%s hands options to the image, which replace its command line with Secure Boot off", name)
	}
	return nil
}

// bootNext is the entry that BootNext names; nil if there is none.
func (b *bootManager) bootNext() (*bootEntry, error) {
	if b.next == nil {
		return nil, nil
	}
	for i, e := range b.order {
		if e.number == *b.next {
			return &b.order[i], nil
		}
	}
	data, ok := b.machine.Vars.Lookup(efi.GlobalVariable, bootName(*b.next))
	if !ok {
		return nil, nil
	}
	option, err := efi.ParseLoadOption(data)
	if err != nil {
		return nil, fmt.Errorf("variable %s, which BootNext names: %w", bootName(*b.next), err)
	}
	return &bootEntry{number: *b.next, data: data, option: option}, nil
}

// looksLikeProgram decides as EDK2 does before it takes a file for one that an entry names (BmIsLoadOptionPeHeaderValid).
func looksLikeProgram(b []byte) bool {
	const dosHeader, peHeaders, magic = 64, 4 + 20 + 240, 4 + 20
	if len(b) < dosHeader || string(b[:2]) != "MZ" {
		return false
	}
	at := uint64(binary.LittleEndian.Uint32(b[60:]))
	if uint64(len(b)) < at+peHeaders || string(b[at:at+4]) != "PE\x00\x00" {
		return false
	}
	kind := binary.LittleEndian.Uint16(b[at+magic:])
	return kind == 0x10b || kind == 0x20b
}

// afterFirmware are the registers that a program which firmware starts may extend before it starts another one, as boot loaders and
// shims do.
var afterFirmware = []Register{4, 5, 8, 9, 12, 14}

// bootEntries follows the boot manager. What cannot be said of it stays open.
func (p *predictor) bootEntries() []Event {
	m := p.boot.Machine
	if m.Shape.BootSlot == 0 {
		return nil // No machine was named, so no disk is.
	}
	files := map[string]bool{strings.ToLower(uki.Path): true}
	for name, content := range p.boot.ESP {
		files[strings.ToLower(name)] = looksLikeProgram(content)
	}
	plan, err := m.bootPlan(p.boot.Table, files)
	first := plan.first
	if err != nil {
		first = err.Error()
		p.leaveOpen(first, 1)
	}
	if first != "" {
		p.leaveOpen(first, afterFirmware...)
		if m.SecureBoot() {
			p.leaveOpen(first, 7)
		}
	}
	if plan.options != "" && !m.SecureBoot() {
		p.leaveOpen(plan.options, 9, 12)
	}
	if err != nil {
		return nil
	}
	return plan.events()
}
