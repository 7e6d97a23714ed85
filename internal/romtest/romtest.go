// Package romtest makes small firmware images with the tables by which confidential machines are started. It imports nothing of what
// reads them, so that one checks the other.
package romtest

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
)

// SEVSection is a part of memory for SEV-SNP.
type SEVSection struct{ Address, Size, Kind uint32 }

// TDXSection is a part of memory for TDX.
type TDXSection struct {
	Offset, Raw      uint32
	Address, Size    uint64
	Kind, Attributes uint32
}

// ROM is an image of Pages pages, of which the last has the tables. What is zero is left out.
type ROM struct {
	Pages         int
	SEV           []SEVSection
	TDX           []TDXSection
	Hashes, Reset uint32
	// SVSM is where processors begin in an SVSM, nil in other firmware.
	SVSM *uint32
}

// Good is an image for every platform: eight pages, of which the first two are variables.
func Good() ROM {
	const base = 1<<32 - 8*4096
	return ROM{
		Pages: 8, Hashes: 0x80fc00, Reset: 0x80b004,
		SEV: []SEVSection{{0x800000, 0x9000, 1}, {0x80a000, 0x3000, 1}, {0x80d000, 0x1000, 2}, {0x80e000, 0x1000, 3}, {0x80f000, 0x1000, 0x10}},
		TDX: []TDXSection{
			{0x2000, 0x6000, base + 0x2000, 0x6000, 0, 1},
			{0, 0x2000, base, 0x2000, 1, 0},
			{0, 0, 0x810000, 0x2000, 3, 0},
			{0, 0, 0x809000, 0x2000, 2, 0},
			{0, 0, 0x900000, 0x1000, 3, 2},
		},
	}
}

// SVSM is an image of an SVSM, where processors begin at an offset.
func SVSM(start uint32) ROM {
	return ROM{Pages: 2, SVSM: &start, SEV: []SEVSection{{0x10000, 0x1000, 3}, {0x11000, 0x1000, 2}}}
}

// Image writes the file.
func (r ROM) Image() []byte {
	image := make([]byte, r.Pages*4096)
	for i := range image[:len(image)-4096] {
		image[i] = byte(i>>8 ^ i)
	}
	le := binary.LittleEndian
	var entries []byte
	put := func(guid string, value uint32) {
		entries = append(le.AppendUint16(le.AppendUint32(entries, value), 22), GUID(guid)...)
	}
	at := len(image) - 4096
	describe := func(guid string, content []byte) {
		put(guid, uint32(len(image)-at))
		at += copy(image[at:], content)
	}
	if r.SEV != nil {
		describe("dc886566-984a-4798-a75e-5585a7bf67cc", r.sev())
	}
	if r.TDX != nil {
		at += copy(image[at:], GUID("e9eaf9f3-168e-44d5-a8eb-7f4d8738f6ae")) // What is described begins behind it.
		describe("e47a6535-984a-4798-865e-4685a7bf8ec2", r.tdx())
	}
	for _, e := range []struct {
		guid  string
		value uint32
	}{{"7255371f-3a3b-4b04-927b-1da6efa8d454", r.Hashes}, {"00f771de-1a7e-4fcb-890e-68c77e2fb44e", r.Reset}} {
		if e.value != 0 {
			put(e.guid, e.value)
		}
	}
	if r.SVSM != nil {
		put("a789a612-0597-4c4b-a49f-cbb1fe9d1ddd", *r.SVSM)
	}
	entries = append(le.AppendUint16(entries, uint16(len(entries)+18)), GUID("96b582de-1fb2-45f7-baea-a366c55a082d")...)
	copy(image[len(image)-32-len(entries):], entries)
	return image
}

func (r ROM) sev() []byte {
	le := binary.LittleEndian
	out := append([]byte("ASEV"), 0, 0, 0, 0, 1, 0, 0, 0)
	out = le.AppendUint32(out, uint32(len(r.SEV)))
	for _, s := range r.SEV {
		out = le.AppendUint32(le.AppendUint32(le.AppendUint32(out, s.Address), s.Size), s.Kind)
	}
	le.PutUint32(out[4:], uint32(len(out)))
	return out
}

func (r ROM) tdx() []byte {
	le := binary.LittleEndian
	out := append([]byte("TDVF"), 0, 0, 0, 0, 1, 0, 0, 0)
	out = le.AppendUint32(out, uint32(len(r.TDX)))
	for _, s := range r.TDX {
		out = le.AppendUint64(le.AppendUint64(le.AppendUint32(le.AppendUint32(out, s.Offset), s.Raw), s.Address), s.Size)
		out = le.AppendUint32(le.AppendUint32(out, s.Kind), s.Attributes)
	}
	le.PutUint32(out[4:], uint32(len(out)))
	return out
}

// GUID returns a GUID as it stands in firmware: the first three numbers with their low bytes first.
func GUID(text string) []byte {
	raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil {
		panic(err)
	}
	slices.Reverse(raw[:4])
	slices.Reverse(raw[4:6])
	slices.Reverse(raw[6:8])
	return raw
}
