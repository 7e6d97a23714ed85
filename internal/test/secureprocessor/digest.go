package main

import (
	"bytes"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
)

// The sizes of what is measured, in bytes.
const (
	pageSize = 4096
	fourGiB  = 1 << 32
	// lastPage is where the hardware keeps a processor's first state (52 bits of guest physical addresses).
	lastPage = 0xfffffffff000
)

// The types of pages (AMD 56860, SNP_LAUNCH_UPDATE).
const (
	normalPage  = 1
	vmsaPage    = 2
	zeroPage    = 3
	secretsPage = 5
	cpuidPage   = 6
)

// measurement is the digest that the hardware keeps while a guest is put into memory.
type measurement [48]byte

// add measures one page.
func (m *measurement) add(kind byte, content []byte, address uint64) {
	info := make([]byte, 0, 112)
	info = append(info, m[:]...)
	digest := [48]byte{}
	if content != nil {
		digest = sha512.Sum384(content)
	}
	info = append(info, digest[:]...)
	info = append(info, 112, 0, kind, 0, 0, 0, 0, 0)
	*m = sha512.Sum384(binary.LittleEndian.AppendUint64(info, address))
}

// launchOf returns the digest of a guest with this firmware and so many processors, as QEMU starts one from a disk.
func launchOf(firmware []byte, processors int) (measurement, error) {
	var m measurement
	if len(firmware) == 0 || len(firmware)%pageSize != 0 || len(firmware) > 64<<20 {
		return m, fmt.Errorf("firmware of %d bytes: want whole pages, at most 64 MiB", len(firmware))
	}
	if processors < 1 || processors > 512 {
		return m, fmt.Errorf("%d processors", processors)
	}
	table, err := tableOf(firmware)
	if err != nil {
		return m, err
	}
	for at := 0; at < len(firmware); at += pageSize {
		m.add(normalPage, firmware[at:at+pageSize], uint64(fourGiB-len(firmware)+at))
	}
	if err := table.addSections(firmware, &m); err != nil {
		return m, err
	}
	reset, err := table.word("00f771de-1a7e-4fcb-890e-68c77e2fb44e", 0)
	if err != nil {
		return m, err
	}
	for n := range processors {
		start := uint32(0xfffffff0)
		if n > 0 {
			start = reset
		}
		m.add(vmsaPage, firstState(start, signature), lastPage)
	}
	return m, nil
}

// table are the entries at the end of an OVMF image, by their GUIDs as they stand there.
type table map[string][]byte

// tableOf reads them from the end on: each is its content, its length with all of itself, and its GUID.
func tableOf(firmware []byte) (table, error) {
	const head = 18 // length and GUID
	end := len(firmware) - 32
	if end < head {
		return nil, errors.New("firmware without a table of GUIDs")
	}
	foot := firmware[end-head : end]
	if !bytes.Equal(foot[2:], guid("96b582de-1fb2-45f7-baea-a366c55a082d")) {
		return nil, errors.New("firmware without a table of GUIDs")
	}
	first := end - int(binary.LittleEndian.Uint16(foot))
	if first < 0 {
		return nil, errors.New("the firmware's table is longer than itself")
	}
	entries := table{}
	for at := end - head; at > first; {
		if at-first < head {
			return nil, errors.New("the firmware's table ends within an entry")
		}
		length := int(binary.LittleEndian.Uint16(firmware[at-head:]))
		if length < head || length > at-first {
			return nil, errors.New("an entry of the firmware's table is longer than itself")
		}
		entries[string(firmware[at-16:at])] = firmware[at-length : at-head]
		at -= length
	}
	return entries, nil
}

// guid returns the bytes of a GUID as they stand in firmware: the first three parts with their low bytes first.
func guid(text string) []byte {
	var a uint32
	var b, c uint16
	var d, e uint64
	if _, err := fmt.Sscanf(text, "%8x-%4x-%4x-%4x-%12x", &a, &b, &c, &d, &e); err != nil {
		panic(err)
	}
	out := binary.LittleEndian.AppendUint32(nil, a)
	out = binary.LittleEndian.AppendUint16(out, b)
	out = binary.LittleEndian.AppendUint16(out, c)
	return binary.BigEndian.AppendUint64(out, d<<48|e)
}

func (t table) word(name string, at int) (uint32, error) {
	entry := t[string(guid(name))]
	if len(entry) < at+4 {
		return 0, fmt.Errorf("the firmware's table has no entry %s", name)
	}
	return binary.LittleEndian.Uint32(entry[at:]), nil
}

// addSections measures the memory that the firmware wants to have accepted before it runs.
func (t table) addSections(firmware []byte, m *measurement) error {
	back, err := t.word("dc886566-984a-4798-a75e-5585a7bf67cc", 0)
	if err != nil {
		return err
	}
	if int64(back) > int64(len(firmware)) || back < 16 {
		return errors.New("the firmware's metadata is outside of it")
	}
	metadata := firmware[len(firmware)-int(back):]
	le := binary.LittleEndian
	count := int(le.Uint32(metadata[12:]))
	if string(metadata[:4]) != "ASEV" || le.Uint32(metadata[8:]) != 1 || count > 64 || 16+12*count > len(metadata) {
		return errors.New("the firmware's metadata is of another form")
	}
	kinds := map[uint32]byte{1: zeroPage, 2: secretsPage, 3: cpuidPage, 4: zeroPage, 16: zeroPage}
	for n := range count {
		section := metadata[16+12*n:]
		kind, known := kinds[le.Uint32(section[8:])]
		if !known {
			return fmt.Errorf("the firmware's metadata has a section of type %d", le.Uint32(section[8:]))
		}
		first, size := uint64(le.Uint32(section)), uint64(le.Uint32(section[4:]))
		for at := first; at < first+size; at += pageSize {
			m.add(kind, nil, at)
		}
	}
	return nil
}

// firstState returns the state that a processor begins in, as QEMU makes it: that of a reset (AMD 24593, table 14-1 and appendix B).
func firstState(start, signature uint32) []byte {
	state, le := make([]byte, pageSize), binary.LittleEndian
	segment := func(at int, selector, attributes uint16, base uint64) {
		le.PutUint16(state[at:], selector)
		le.PutUint16(state[at+2:], attributes)
		le.PutUint32(state[at+4:], 0xffff)
		le.PutUint64(state[at+8:], base)
	}
	for _, data := range []int{0x00, 0x20, 0x30, 0x40, 0x50} {
		segment(data, 0, 0x93, 0)
	}
	segment(0x10, 0xf000, 0x9b, uint64(start&^0xffff))
	segment(0x60, 0, 0, 0)    // GDTR
	segment(0x70, 0, 0x82, 0) // LDTR
	segment(0x80, 0, 0, 0)    // IDTR
	segment(0x90, 0, 0x8b, 0) // TR
	for at, value := range map[int]uint64{
		0xd0:  0x1000,                 // EFER: SVME
		0x148: 0x40,                   // CR4: MCE
		0x158: 0x10,                   // CR0: ET
		0x160: 0x400,                  // DR7
		0x168: 0xffff0ff0,             // DR6
		0x170: 2,                      // RFLAGS
		0x178: uint64(start & 0xffff), // RIP
		0x268: 0x7040600070406,        // PAT
		0x310: uint64(signature),      // RDX
		0x3b0: 1,                      // SEV features: SNP
		0x3e8: 1,                      // XCR0
		0x408: 0x1f80,                 // MXCSR
		0x410: 0x37f,                  // x87 control word
	} {
		le.PutUint64(state[at:], value)
	}
	return state
}
