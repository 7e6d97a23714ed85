package firmware

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark/image/efi"
)

// The entries of the table of GUIDs that OVMF's reset vector ends with (edk2, OvmfPkg/ResetVector/Ia16/ResetVectorVtf0.asm).
var (
	guidTable     = efi.MustGUID("96b582de-1fb2-45f7-baea-a366c55a082d")
	guidSEV       = efi.MustGUID("dc886566-984a-4798-a75e-5585a7bf67cc")
	guidSEVHashes = efi.MustGUID("7255371f-3a3b-4b04-927b-1da6efa8d454")
	guidSEVReset  = efi.MustGUID("00f771de-1a7e-4fcb-890e-68c77e2fb44e")
	guidTDX       = efi.MustGUID("e47a6535-984a-4798-865e-4685a7bf8ec2")
	guidSVSM      = efi.MustGUID("a789a612-0597-4c4b-a49f-cbb1fe9d1ddd")
)

// Sizes in bytes.
const (
	// PageSize is that of the pages that are measured before a machine runs.
	PageSize = 4096
	// entryHead is the end of an entry of the table: its whole length in 16 bits, and its GUID.
	entryHead = 18
	// tableEnd is how far before the end of the file the table ends.
	tableEnd = 32
	// maxSections bounds how many parts of memory firmware may name.
	maxSections = 64
	// maxSectionPages bounds a part of memory: 1 GiB.
	maxSectionPages = 1 << 18
)

// SEVSectionKind says what has to be in a part of memory before an SEV-SNP guest runs (OvmfPkg/ResetVector/X64/OvmfSevMetadata.asm).
type SEVSectionKind uint32

// The kinds of parts.
const (
	SEVMemory       SEVSectionKind = 1
	SEVSecrets      SEVSectionKind = 2
	SEVCPUID        SEVSectionKind = 3
	SEVCallingArea  SEVSectionKind = 4
	SEVKernelHashes SEVSectionKind = 0x10
)

// SEVSection is a part of memory, of whole pages.
type SEVSection struct {
	Address, Size uint64
	Kind          SEVSectionKind
}

// SEV is what an OVMF or SVSM image tells about how an SEV-SNP guest is started with it.
type SEV struct {
	// Sections are in the order of the image.
	Sections []SEVSection
	// Hashes is the address of the table with the hashes of a kernel that the host hands over; 0 if there is none.
	Hashes uint32
	// Reset is where all processors but the first begin; of an SVSM, where all of them do, counted from its first byte, which may be
	// 0. SaysReset reports whether the image says it.
	Reset     uint32
	SaysReset bool
}

// OpenSEV reads what an image tells. It fails for one without such metadata, and where that contradicts itself.
func OpenSEV(file []byte) (SEV, error) {
	entries, err := guidedTable(file)
	if err != nil {
		return SEV{}, err
	}
	at, ok, err := word(entries, guidSEV)
	if err == nil && !ok {
		err = errors.New("the firmware has no SEV metadata: it was not built for SEV-SNP")
	}
	if err != nil {
		return SEV{}, err
	}
	var s SEV
	if s.Sections, err = sevSections(file, at); err != nil {
		return SEV{}, fmt.Errorf("SEV metadata: %w", err)
	}
	if s.Hashes, _, err = word(entries, guidSEVHashes); err != nil {
		return SEV{}, err
	}
	s.Reset, s.SaysReset, err = word(entries, guidSVSM)
	if err == nil && !s.SaysReset {
		s.Reset, s.SaysReset, err = word(entries, guidSEVReset)
	}
	return s, err
}

func sevSections(file []byte, back uint32) ([]SEVSection, error) {
	const header, item = 16, 12
	rest, err := fromEnd(file, back, header)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	size, version, count := le.Uint32(rest[4:]), le.Uint32(rest[8:]), le.Uint32(rest[12:])
	switch {
	case string(rest[:4]) != "ASEV":
		return nil, errors.New("it does not begin with ASEV")
	case version != 1:
		return nil, fmt.Errorf("version %d, want 1", version)
	case count > maxSections || uint64(size) != header+item*uint64(count) || uint64(size) > uint64(len(rest)):
		return nil, fmt.Errorf("%d sections in %d bytes, of which there are %d", count, size, len(rest))
	}
	sections := make([]SEVSection, count)
	for i := range sections {
		b := rest[header+item*i:]
		s := SEVSection{Address: uint64(le.Uint32(b)), Size: uint64(le.Uint32(b[4:])), Kind: SEVSectionKind(le.Uint32(b[8:]))}
		switch s.Kind {
		case SEVMemory, SEVSecrets, SEVCPUID, SEVCallingArea, SEVKernelHashes:
		default:
			return nil, fmt.Errorf("section %d is of type %#x, which is not known", i, uint32(s.Kind))
		}
		if err := wholePages(s.Address, s.Size); err != nil {
			return nil, fmt.Errorf("section %d: %w", i, err)
		}
		for _, other := range sections[:i] {
			if s.Address < other.Address+other.Size && other.Address < s.Address+s.Size {
				return nil, fmt.Errorf("section %d overlaps another", i)
			}
		}
		sections[i] = s
	}
	return sections, nil
}

// TDXSectionKind says what a part of memory is for before a TDX guest runs (Intel TDX Virtual Firmware Design Guide §11).
type TDXSectionKind uint32

// The kinds of parts: the firmware's code, its variables, the list of memory that the host hands over, and memory without content.
const (
	TDXCode      TDXSectionKind = 0
	TDXVariables TDXSectionKind = 1
	TDXHandOff   TDXSectionKind = 2
	TDXMemory    TDXSectionKind = 3
)

// TDXSection is a part of memory, of whole pages.
type TDXSection struct {
	Address, Size uint64
	Kind          TDXSectionKind
	// Content is what the file has for it; nil for memory without content.
	Content []byte
	// Measured says that the content is measured into MRTD, and not only that there is memory.
	Measured bool
	// Augmented says that the guest accepts the memory by itself, so that the host adds and measures nothing.
	Augmented bool
}

// OpenTDX reads how a TDX guest is started with an OVMF image, which has to be whole: variables and code. It fails for an image
// without such metadata, and where that contradicts itself.
func OpenTDX(file []byte) ([]TDXSection, error) {
	entries, err := guidedTable(file)
	if err != nil {
		return nil, err
	}
	back, ok, err := word(entries, guidTDX)
	if err == nil && !ok {
		err = errors.New("the firmware has no TDX metadata: it was not built for TDX")
	}
	if err != nil {
		return nil, err
	}
	sections, err := tdxSections(file, back)
	if err != nil {
		return nil, fmt.Errorf("TDX metadata: %w", err)
	}
	return sections, nil
}

func tdxSections(file []byte, back uint32) ([]TDXSection, error) {
	const header, item = 16, 32
	rest, err := fromEnd(file, back, header)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	size, version, count := le.Uint32(rest[4:]), le.Uint32(rest[8:]), le.Uint32(rest[12:])
	switch {
	case string(rest[:4]) != "TDVF":
		return nil, errors.New("it does not begin with TDVF")
	case version != 1:
		return nil, fmt.Errorf("version %d, want 1", version)
	case count == 0 || count > maxSections || uint64(size) != header+item*uint64(count) || uint64(size) > uint64(len(rest)):
		return nil, fmt.Errorf("%d sections in %d bytes, of which there are %d", count, size, len(rest))
	}
	sections := make([]TDXSection, count)
	for i := range sections {
		if sections[i], err = tdxSection(file, rest[header+item*i:][:item]); err != nil {
			return nil, fmt.Errorf("section %d: %w", i, err)
		}
		for _, other := range sections[:i] {
			if s := sections[i]; s.Address < other.Address+other.Size && other.Address < s.Address+s.Size {
				return nil, fmt.Errorf("section %d overlaps another", i)
			}
		}
	}
	return sections, nil
}

func tdxSection(file, item []byte) (TDXSection, error) {
	const measured, augmented = 1, 2
	le := binary.LittleEndian
	offset, length := uint64(le.Uint32(item)), uint64(le.Uint32(item[4:]))
	kind, attributes := TDXSectionKind(le.Uint32(item[24:])), le.Uint32(item[28:])
	s := TDXSection{
		Address: le.Uint64(item[8:]), Size: le.Uint64(item[16:]), Kind: kind,
		Measured: attributes&measured != 0, Augmented: attributes&augmented != 0,
	}
	switch {
	case kind > TDXMemory:
		return s, fmt.Errorf("type %d is not known", kind)
	case attributes&^uint32(measured|augmented) != 0:
		return s, fmt.Errorf("attributes %#x are not known", attributes)
	case s.Measured && s.Augmented:
		return s, errors.New("it is measured, and not added")
	case offset+length > uint64(len(file)):
		return s, fmt.Errorf("its content, %d bytes from %d on, is outside of the file, which has %d bytes; want variables and code in one file", length, offset, len(file))
	case length != 0 && length != s.Size:
		return s, fmt.Errorf("%d bytes of the file in %d bytes of memory", length, s.Size)
	case (kind == TDXCode || kind == TDXVariables) != (length != 0):
		return s, fmt.Errorf("type %d with %d bytes of the file", kind, length)
	case s.Measured && length == 0:
		return s, errors.New("it is measured, and has no content")
	}
	if length > 0 {
		s.Content = file[offset : offset+length]
	}
	return s, wholePages(s.Address, s.Size)
}

// wholePages refuses parts of memory that are none, or wrap around.
func wholePages(address, size uint64) error {
	switch {
	case address%PageSize != 0 || size%PageSize != 0 || size == 0:
		return fmt.Errorf("%#x bytes at %#x: want whole pages", size, address)
	case size > maxSectionPages*PageSize || address > 1<<52-size:
		return fmt.Errorf("%#x bytes at %#x: too much, or too high", size, address)
	}
	return nil
}

// fromEnd returns a file from so many bytes before its end on, of which there are at least least.
func fromEnd(file []byte, back uint32, least int) ([]byte, error) {
	if uint64(back) > uint64(len(file)) || int(back) < least {
		return nil, fmt.Errorf("it begins %d bytes before the end of a file of %d", back, len(file))
	}
	return file[len(file)-int(back):], nil
}

// guidedTable reads the table of GUIDs, from its end on: each entry is data, the entry's whole length, and its GUID.
func guidedTable(file []byte) (map[efi.GUID][]byte, error) {
	if len(file) > MaxFile {
		return nil, fmt.Errorf("the file has %d bytes, at most %d are read", len(file), MaxFile)
	}
	if len(file)%PageSize != 0 || len(file) == 0 {
		return nil, fmt.Errorf("the file has %d bytes: want whole pages", len(file))
	}
	end := len(file) - tableEnd
	if efi.GUID(file[end-len(efi.GUID{}):end]) != guidTable {
		return nil, errors.New("the firmware has no table of GUIDs at its end: it was not built for confidential machines")
	}
	whole := int(binary.LittleEndian.Uint16(file[end-entryHead:]))
	if whole < entryHead || whole > end {
		return nil, fmt.Errorf("table of GUIDs: %d bytes", whole)
	}
	first, at := end-whole, end-entryHead
	entries := map[efi.GUID][]byte{}
	for at > first {
		if at-first < entryHead {
			return nil, fmt.Errorf("table of GUIDs: %d bytes before its first entry", at-first)
		}
		id, length := efi.GUID(file[at-len(efi.GUID{}):at]), int(binary.LittleEndian.Uint16(file[at-entryHead:]))
		if length < entryHead || length > at-first {
			return nil, fmt.Errorf("table of GUIDs: an entry of %d bytes, where %d are left", length, at-first)
		}
		if _, twice := entries[id]; twice {
			return nil, errors.New("table of GUIDs: an entry is there twice")
		}
		entries[id] = file[at-length : at-entryHead]
		at -= length
	}
	return entries, nil
}

// word returns the 32 bits that an entry begins with, and whether there is such an entry.
func word(entries map[efi.GUID][]byte, id efi.GUID) (value uint32, ok bool, err error) {
	entry, ok := entries[id]
	if ok && len(entry) < 4 {
		return 0, false, fmt.Errorf("table of GUIDs: an entry with %d bytes of data, want 4", len(entry))
	}
	if !ok {
		return 0, false, nil
	}
	return binary.LittleEndian.Uint32(entry), true, nil
}
