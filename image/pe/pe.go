// Package pe reads and extends the PE32+ images that UEFI firmware starts: it
// finds sections, computes the digest that firmware measures and signs over,
// and appends sections to a stub.
//
// Only what UEFI on x86-64 needs is accepted. Anything else is an error rather
// than a guess, because a loader and a predictor that read the same bytes
// differently would disagree about what was booted.
package pe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"
)

// Offsets and sizes of the PE/COFF specification, revision 11. Names of
// optional-header fields are offsets from the start of the optional header.
const (
	dosHeaderSize     = 64
	lfanewOffset      = 0x3c
	coffHeaderSize    = 20
	coffSymbols       = 8 // offset of the symbol table's position and count
	sectionHeaderSize = 40
	dataDirectorySize = 8

	machineAMD64   = 0x8664
	magicPE32Plus  = 0x20b
	optFixedSize   = 112
	certificateDir = 4
	maxDirectories = 16

	optSizeOfInitData   = 8
	optSectionAlignment = 32
	optFileAlignment    = 36
	optSizeOfImage      = 56
	optSizeOfHeaders    = 60
	optCheckSum         = 64
	optDllChars         = 70
	optNumDirectories   = 108

	nxCompat = 0x0100
)

// Limits of what Parse accepts.
const (
	// MaxSections is the largest number of sections that a PE loader has to
	// accept (PE/COFF §3.3).
	MaxSections = 96
	// MaxHeaders bounds the bytes of all headers, which Parse holds in memory.
	MaxHeaders = 64 << 10
)

// Flags of a section (PE/COFF §4.1).
const (
	// FlagCode marks a section that contains code.
	FlagCode = 0x00000020
	// FlagInitializedData marks a section that contains initialized data.
	FlagInitializedData = 0x00000040
	// FlagRead marks a section that may be read once loaded.
	FlagRead = 0x40000000
)

// Section is one entry of the section table. Offsets and sizes are in bytes.
type Section struct {
	// Name is the name without its NUL padding, at most 8 bytes of ASCII.
	Name string
	// VirtualSize is the length of the section once loaded; systemd-stub
	// measures exactly that many bytes.
	VirtualSize uint32
	// VirtualAddress is where the section is loaded, relative to the image base.
	VirtualAddress uint32
	// RawSize is the length of the section in the file.
	RawSize uint32
	// RawOffset is where the section starts in the file.
	RawOffset uint32
	// Flags are the characteristics of the section.
	Flags uint32
}

// File is a parsed image. It reads from the io.ReaderAt given to Parse, which
// must stay valid and unchanged.
type File struct {
	// Sections are in the order of the section table, which is the order of
	// their virtual addresses.
	Sections []Section

	r    io.ReaderAt
	size int64
	// headers are the first SizeOfHeaders bytes of the file.
	headers []byte
	layout
}

// layout is where the header fields are that a digest skips or Append rewrites.
type layout struct {
	coff, opt    int64 // offsets of the COFF and the optional header
	table        int64 // offset of the section table
	count        int   // sections in it
	directories  int64 // data directories present
	sectionAlign int64
	fileAlign    int64
	sizeOfImage  int64
	sizeOfHeader int64
	certOffset   int64 // 0 if the image carries no certificate table
	certSize     int64
}

// Parse reads the headers of the image of the given size in bytes. It fails
// for anything but a PE32+ image for x86-64 whose sections lie inside the
// file, in ascending order of address, and overlap neither in the file nor in
// memory.
//
// Section addresses need not be multiples of the section alignment: the stub
// of systemd 252 has one that is not, and firmware loads it.
func Parse(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: size}
	for _, step := range []func() error{f.findHeaders, f.readOptional, f.readCertificate, f.readSections} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("read PE image: %w", err)
		}
	}
	return f, nil
}

// findHeaders locates the COFF and the optional header.
func (f *File) findHeaders() error {
	dos := make([]byte, dosHeaderSize)
	if err := f.readAt(dos, 0); err != nil {
		return fmt.Errorf("DOS header: %w", err)
	}
	if dos[0] != 'M' || dos[1] != 'Z' {
		return errors.New("DOS header: no MZ magic; this is not a PE image")
	}
	signature := int64(binary.LittleEndian.Uint32(dos[lfanewOffset:]))
	if signature < dosHeaderSize || signature > MaxHeaders {
		return fmt.Errorf("DOS header: PE header at %d, want %d to %d", signature, dosHeaderSize, MaxHeaders)
	}
	head := make([]byte, 4+coffHeaderSize)
	if err := f.readAt(head, signature); err != nil {
		return fmt.Errorf("PE header: %w", err)
	}
	if string(head[:4]) != "PE\x00\x00" {
		return errors.New("PE header: no PE signature")
	}
	f.coff = signature + 4
	f.opt = f.coff + coffHeaderSize
	return f.readCOFF(head[4:])
}

func (f *File) readCOFF(coff []byte) error {
	if m := binary.LittleEndian.Uint16(coff); m != machineAMD64 {
		return fmt.Errorf("COFF header: machine %#04x, want %#04x (x86-64)", m, machineAMD64)
	}
	f.count = int(binary.LittleEndian.Uint16(coff[2:]))
	if f.count < 1 || f.count > MaxSections {
		return fmt.Errorf("COFF header: %d sections, want 1 to %d", f.count, MaxSections)
	}
	optSize := int64(binary.LittleEndian.Uint16(coff[16:]))
	if optSize < optFixedSize {
		return fmt.Errorf("COFF header: optional header of %d bytes, want at least %d", optSize, optFixedSize)
	}
	f.table = f.opt + optSize
	return nil
}

// readOptional checks the optional header and keeps all headers in memory.
func (f *File) readOptional() error {
	opt := make([]byte, optFixedSize)
	if err := f.readAt(opt, f.opt); err != nil {
		return fmt.Errorf("optional header: %w", err)
	}
	if m := binary.LittleEndian.Uint16(opt); m != magicPE32Plus {
		return fmt.Errorf("optional header: magic %#x, want %#x (PE32+)", m, magicPE32Plus)
	}
	f.sectionAlign = int64(binary.LittleEndian.Uint32(opt[optSectionAlignment:]))
	f.fileAlign = int64(binary.LittleEndian.Uint32(opt[optFileAlignment:]))
	f.sizeOfImage = int64(binary.LittleEndian.Uint32(opt[optSizeOfImage:]))
	f.sizeOfHeader = int64(binary.LittleEndian.Uint32(opt[optSizeOfHeaders:]))
	f.directories = int64(binary.LittleEndian.Uint32(opt[optNumDirectories:]))
	if err := f.checkOptional(); err != nil {
		return fmt.Errorf("optional header: %w", err)
	}
	f.headers = make([]byte, f.sizeOfHeader)
	if err := f.readAt(f.headers, 0); err != nil {
		return fmt.Errorf("headers: %w", err)
	}
	return nil
}

func (f *File) checkOptional() error {
	// The specification wants at least 512; iPXE's drivers in option ROMs have 32, and firmware loads them.
	if !powerOfTwo(f.fileAlign) || f.fileAlign < 32 || f.fileAlign > 64<<10 {
		return fmt.Errorf("file alignment %d, want a power of two from 32 to 65536", f.fileAlign)
	}
	if !powerOfTwo(f.sectionAlign) || f.sectionAlign < f.fileAlign {
		return fmt.Errorf("section alignment %d, want a power of two not below the file alignment %d", f.sectionAlign, f.fileAlign)
	}
	if f.directories > maxDirectories {
		return fmt.Errorf("%d data directories, want at most %d", f.directories, maxDirectories)
	}
	if need := optFixedSize + f.directories*dataDirectorySize; f.table-f.opt < need {
		return fmt.Errorf("%d data directories need %d bytes, the header has %d", f.directories, need, f.table-f.opt)
	}
	if end := f.table + int64(f.count)*sectionHeaderSize; f.sizeOfHeader < end {
		return fmt.Errorf("headers of %d bytes end before the section table does at %d", f.sizeOfHeader, end)
	}
	if f.sizeOfHeader > MaxHeaders || f.sizeOfHeader > f.size {
		return fmt.Errorf("headers of %d bytes, want at most %d and not beyond the file's %d", f.sizeOfHeader, MaxHeaders, f.size)
	}
	return nil
}

// readCertificate locates the attribute certificate table. It has to be the
// last thing in the file, because firmware hashes everything before it.
func (f *File) readCertificate() error {
	if f.directories <= certificateDir {
		return nil
	}
	entry := f.headers[f.opt+optFixedSize+certificateDir*dataDirectorySize:]
	offset := int64(binary.LittleEndian.Uint32(entry))
	length := int64(binary.LittleEndian.Uint32(entry[4:]))
	if offset == 0 && length == 0 {
		return nil
	}
	if offset < f.sizeOfHeader || offset%8 != 0 || length == 0 || offset+length != f.size {
		return fmt.Errorf("certificate table: %d bytes at %d do not end the file of %d bytes on an 8-byte boundary", length, offset, f.size)
	}
	f.certOffset, f.certSize = offset, length
	return nil
}

func (f *File) readSections() error {
	next := f.sizeOfHeader
	for i := range f.count {
		s, err := parseSection(f.headers[f.table+int64(i)*sectionHeaderSize:])
		if err != nil {
			return fmt.Errorf("section %d: %w", i+1, err)
		}
		if err := f.checkSection(s, next); err != nil {
			return fmt.Errorf("section %s: %w", s.Name, err)
		}
		next = int64(s.VirtualAddress) + int64(s.VirtualSize)
		f.Sections = append(f.Sections, s)
	}
	return f.checkRawOverlap()
}

func parseSection(b []byte) (Section, error) {
	name := bytes.TrimRight(b[:8], "\x00")
	for _, c := range name {
		if c <= ' ' || c > '~' || c == '/' {
			return Section{}, fmt.Errorf("name %q is not plain ASCII", name)
		}
	}
	if len(name) == 0 {
		return Section{}, errors.New("name is empty")
	}
	return Section{
		Name:           string(name),
		VirtualSize:    binary.LittleEndian.Uint32(b[8:]),
		VirtualAddress: binary.LittleEndian.Uint32(b[12:]),
		RawSize:        binary.LittleEndian.Uint32(b[16:]),
		RawOffset:      binary.LittleEndian.Uint32(b[20:]),
		Flags:          binary.LittleEndian.Uint32(b[36:]),
	}, nil
}

// checkSection checks one section against the file and against next, the first
// address that is still free.
func (f *File) checkSection(s Section, next int64) error {
	if int64(s.VirtualAddress) < next {
		return fmt.Errorf("address %#x overlaps what comes before it, up to %#x", s.VirtualAddress, next)
	}
	if end := int64(s.VirtualAddress) + int64(s.VirtualSize); end > f.sizeOfImage {
		return fmt.Errorf("ends at %#x, beyond the image size %#x", end, f.sizeOfImage)
	}
	if s.RawSize == 0 {
		return nil
	}
	if int64(s.RawOffset)%f.fileAlign != 0 || int64(s.RawOffset) < f.sizeOfHeader {
		return fmt.Errorf("file offset %d is inside the headers or not a multiple of %d", s.RawOffset, f.fileAlign)
	}
	limit := f.size - f.certSize
	if end := int64(s.RawOffset) + int64(s.RawSize); end > limit {
		return fmt.Errorf("ends at file offset %d, beyond %d; the image is truncated", end, limit)
	}
	return nil
}

func (f *File) checkRawOverlap() error {
	sorted := f.byOffset()
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if int64(a.RawOffset)+int64(a.RawSize) > int64(b.RawOffset) {
			return fmt.Errorf("sections %s and %s overlap in the file", a.Name, b.Name)
		}
	}
	return nil
}

// byOffset returns the sections that occupy bytes of the file, in file order.
func (f *File) byOffset() []Section {
	var out []Section
	for _, s := range f.Sections {
		if s.RawSize > 0 {
			out = append(out, s)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].RawOffset < out[j].RawOffset })
	return out
}

// Section returns the first section of that name.
func (f *File) Section(name string) (Section, bool) {
	for _, s := range f.Sections {
		if s.Name == name {
			return s, true
		}
	}
	return Section{}, false
}

// Data returns a reader of the section as it is loaded: exactly VirtualSize
// bytes, zero-extended where the file holds fewer.
func (f *File) Data(s Section) io.Reader {
	inFile := min(s.RawSize, s.VirtualSize)
	return io.MultiReader(
		io.NewSectionReader(f.r, int64(s.RawOffset), int64(inFile)),
		io.LimitReader(zeros{}, int64(s.VirtualSize-inFile)),
	)
}

// NXCompat reports whether the image says that it runs with data pages not
// executable (IMAGE_DLLCHARACTERISTICS_NX_COMPAT).
func (f *File) NXCompat() bool {
	return binary.LittleEndian.Uint16(f.headers[f.opt+optDllChars:])&nxCompat != 0
}

// readAt fills b from offset or says that the file is too short.
func (f *File) readAt(b []byte, offset int64) error {
	if offset+int64(len(b)) > f.size {
		return fmt.Errorf("needs %d bytes at %d, the file has %d: it is truncated", len(b), offset, f.size)
	}
	_, err := io.ReadFull(io.NewSectionReader(f.r, offset, int64(len(b))), b)
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func powerOfTwo(n int64) bool { return n > 0 && n&(n-1) == 0 }
