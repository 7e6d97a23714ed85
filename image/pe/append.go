package pe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// NewSection is a section that Append adds.
type NewSection struct {
	// Name is 1 to 8 bytes of ASCII that no section of the image has.
	Name string
	// Data is the content; the section's VirtualSize is its length.
	Data []byte
	// Flags are the characteristics, for instance FlagInitializedData|FlagRead.
	Flags uint32
}

// Append returns a copy of the image with the sections added after its last
// one, in the given order, each aligned in the file and in memory. CheckSum
// becomes zero (firmware does not check it). The result depends on nothing but
// the arguments. It fails if the image carries a signature, which would no
// longer hold, or if the headers have no room for the new entries.
func Append(image []byte, sections []NewSection) ([]byte, error) {
	f, err := Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, fmt.Errorf("append sections: %w", err)
	}
	if err := f.checkRoom(len(sections)); err != nil {
		return nil, fmt.Errorf("append sections: %w", err)
	}
	out, err := f.withoutSymbols(image)
	if err != nil {
		return nil, fmt.Errorf("append sections: %w", err)
	}
	last := f.Sections[len(f.Sections)-1]
	e := extender{file: f, out: out, address: int64(last.VirtualAddress) + int64(last.VirtualSize)}
	for _, s := range sections {
		if err := e.add(s); err != nil {
			return nil, fmt.Errorf("append section %s: %w", s.Name, err)
		}
	}
	return e.finish(), nil
}

func (f *File) checkRoom(added int) error {
	if f.certSize > 0 {
		return errors.New("the image is signed; append to the unsigned one")
	}
	if total := f.count + added; total > MaxSections {
		return fmt.Errorf("%d sections, want at most %d", total, MaxSections)
	}
	end := f.table + int64(f.count+added)*sectionHeaderSize
	if end > f.sizeOfHeader {
		return fmt.Errorf("section table would end at %d, the headers have %d bytes", end, f.sizeOfHeader)
	}
	return nil
}

// withoutSymbols returns a copy of the image that ends with its last section.
// Old linkers leave a COFF symbol table after it, which images should not have
// (PE/COFF §3.3) and nothing at boot reads; left in place it would lie between
// two sections. Other data after the sections is an error.
func (f *File) withoutSymbols(image []byte) ([]byte, error) {
	end := f.sizeOfHeader
	for _, s := range f.byOffset() {
		end = max(end, int64(s.RawOffset)+int64(s.RawSize))
	}
	out := bytes.Clone(image[:end])
	symbols := out[f.coff+coffSymbols : f.coff+coffSymbols+8]
	if pointer := int64(binary.LittleEndian.Uint32(symbols)); end < f.size && pointer != end {
		return nil, fmt.Errorf("%d bytes after the last section are not a symbol table", f.size-end)
	}
	clear(symbols)
	return pad(out, f.fileAlign), nil
}

// extender is the state of one Append.
type extender struct {
	file    *File
	out     []byte
	address int64 // first free address
	added   []Section
	data    uint32 // bytes of initialized data added
}

func (e *extender) add(s NewSection) error {
	if _, exists := e.file.Section(s.Name); exists {
		return errors.New("the image already has a section of that name")
	}
	for _, a := range e.added {
		if a.Name == s.Name {
			return errors.New("given twice")
		}
	}
	if len(s.Name) > 8 {
		return errors.New("the name is longer than 8 bytes")
	}
	address := alignUp(e.address, e.file.sectionAlign)
	end := address + int64(len(s.Data))
	raw := alignUp(int64(len(s.Data)), e.file.fileAlign)
	if end+e.file.sectionAlign > math.MaxUint32 || int64(len(e.out))+raw > math.MaxUint32 {
		return errors.New("the image would be larger than 4 GiB")
	}
	header := Section{
		Name: s.Name, VirtualSize: uint32(len(s.Data)), VirtualAddress: uint32(address),
		RawSize: uint32(raw), RawOffset: uint32(len(e.out)), Flags: s.Flags,
	}
	entry := appendHeader(nil, header)
	if _, err := parseSection(entry); err != nil {
		return err
	}
	copy(e.out[e.file.table+int64(e.file.count+len(e.added))*sectionHeaderSize:], entry)
	e.out = pad(append(e.out, s.Data...), e.file.fileAlign)
	e.added = append(e.added, header)
	e.address = end
	e.data += header.VirtualSize
	return nil
}

// finish updates the header fields that describe all sections together.
func (e *extender) finish() []byte {
	le, opt := binary.LittleEndian, e.out[e.file.opt:]
	le.PutUint16(e.out[e.file.coff+2:], uint16(e.file.count+len(e.added)))
	le.PutUint32(opt[optSizeOfInitData:], le.Uint32(opt[optSizeOfInitData:])+e.data)
	le.PutUint32(opt[optSizeOfImage:], uint32(alignUp(e.address, e.file.sectionAlign)))
	le.PutUint32(opt[optCheckSum:], 0)
	return e.out
}

func appendHeader(b []byte, s Section) []byte {
	var name [8]byte
	copy(name[:], s.Name)
	b = append(b, name[:]...)
	for _, v := range []uint32{s.VirtualSize, s.VirtualAddress, s.RawSize, s.RawOffset, 0, 0, 0, s.Flags} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// ClearNXCompat removes the flag that File.NXCompat reports from the image, in
// place: an image must not claim more than the kernel that it starts.
func ClearNXCompat(image []byte) error {
	f, err := Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return fmt.Errorf("clear NX_COMPAT: %w", err)
	}
	flags := image[f.opt+optDllChars:]
	binary.LittleEndian.PutUint16(flags, binary.LittleEndian.Uint16(flags)&^nxCompat)
	return nil
}

func pad(b []byte, align int64) []byte {
	return append(b, make([]byte, alignUp(int64(len(b)), align)-int64(len(b)))...)
}

func alignUp(n, align int64) int64 { return (n + align - 1) / align * align }
