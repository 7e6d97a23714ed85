// Package uki builds unified kernel images and reads from them what
// systemd-stub measures: a PE stub to which a kernel, an initrd, a command line
// and an os-release file are appended as sections (UAPI.5, systemd-stub(7)).
//
// Which sections a stub measures depends on its version. A version or a
// section that this package has no rule for is an error, so that a value is
// never predicted by guessing.
package uki

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/hullmark/hullmark/image/pe"
)

// MaxSize is the largest image in bytes, in the file and once loaded, that
// Build and Open accept. The firmware's and this package's memory hold it.
const MaxSize = 512 << 20

// maxZeros bounds the bytes of all sections together that are in memory only,
// so that a small file cannot take much of it.
const maxZeros = 1 << 20

// Section is a named part of the image.
type Section struct {
	// Name is the section's name with its dot, for instance ".cmdline".
	Name string
	// Data is the content as loaded: VirtualSize bytes, zero-extended.
	Data []byte
}

// UKI is an opened unified kernel image.
type UKI struct {
	// PE is the image as firmware sees it.
	PE *pe.File
	// Stub is the stub that the image begins with.
	Stub Stub

	sections map[string][]byte
}

// magicPattern is what .sdmagic holds in every systemd-stub, then zeros.
var magicPattern = regexp.MustCompile(`^#### LoaderInfo: systemd-stub ([0-9]{1,4}[^ #\x00]{0,64}) ####\x00*$`)

// Open reads the image of the given size in bytes. It fails if a stub version
// or a section is unknown, if a section occurs twice, and for an image with
// profiles: their rules are not modelled.
func Open(r io.ReaderAt, size int64) (*UKI, error) {
	if size > MaxSize {
		return nil, fmt.Errorf("open UKI: %d bytes, want at most %d", size, MaxSize)
	}
	f, err := pe.Parse(r, size)
	if err != nil {
		return nil, fmt.Errorf("open UKI: %w", err)
	}
	u := &UKI{PE: f, sections: map[string][]byte{}}
	if err := u.load(); err != nil {
		return nil, fmt.Errorf("open UKI: %w", err)
	}
	if _, ok := u.sections[".linux"]; !ok {
		return nil, errors.New("open UKI: no .linux section; this is a PE image but not a unified kernel image")
	}
	return u, nil
}

// load checks every section against the rules of the stub's version and reads
// those that are known by name.
func (u *UKI) load() error {
	if err := u.readStub(); err != nil {
		return err
	}
	budget, unread := int64(MaxSize), int64(maxZeros)
	for _, s := range u.PE.Sections {
		if err := u.Stub.check(s.Name); err != nil {
			return fmt.Errorf("section %s: %w", s.Name, err)
		}
		if _, twice := u.sections[s.Name]; twice {
			return fmt.Errorf("section %s: occurs twice", s.Name)
		}
		if budget -= int64(s.VirtualSize); budget < 0 {
			return fmt.Errorf("section %s: the sections are longer than %d bytes together", s.Name, MaxSize)
		}
		if unread -= int64(s.VirtualSize) - int64(min(s.RawSize, s.VirtualSize)); unread < 0 {
			return fmt.Errorf("section %s: the sections are more than %d bytes longer in memory than in the file", s.Name, maxZeros)
		}
		data := make([]byte, s.VirtualSize)
		if _, err := io.ReadFull(u.PE.Data(s), data); err != nil {
			return fmt.Errorf("section %s: %w", s.Name, err)
		}
		u.sections[s.Name] = data
	}
	return nil
}

// readStub finds the stub's version and the rules for it.
func (u *UKI) readStub() error {
	s, ok := u.PE.Section(".sdmagic")
	if !ok || s.VirtualSize > 4096 {
		return errors.New("no .sdmagic section of a usual size: the stub is not systemd-stub")
	}
	magic, err := io.ReadAll(u.PE.Data(s))
	if err != nil {
		return fmt.Errorf("section .sdmagic: %w", err)
	}
	match := magicPattern.FindSubmatch(magic)
	if match == nil {
		return fmt.Errorf("section .sdmagic: %.80q does not name a systemd-stub", magic)
	}
	u.Stub, err = StubOf(string(match[1]))
	return err
}

// Section returns the content of the section of that name, zero-extended to
// its VirtualSize. The caller must not change it.
func (u *UKI) Section(name string) ([]byte, bool) {
	data, ok := u.sections[name]
	return data, ok
}

// Measured returns the sections that the stub extends into PCR 11, in that
// order; it skips empty ones. For each the stub makes two events: the hash of the name with a NUL
// byte, then the hash of the data.
func (u *UKI) Measured() []Section {
	var out []Section
	for _, name := range u.Stub.measured {
		if data := u.sections[name]; len(data) > 0 {
			out = append(out, Section{Name: name, Data: data})
		}
	}
	return out
}

// Build appends the sections to the stub. The result does not depend on their
// order: they are laid out in the order of measurement with .linux last, since
// a kernel started in place may use the memory after its section. It fails for
// a section that the stub's version does not know and for one that the stub
// brings itself.
func Build(stub []byte, sections []Section) ([]byte, error) {
	added := make([]pe.NewSection, 0, len(sections))
	for _, s := range sections {
		added = append(added, pe.NewSection{Name: s.Name, Data: s.Data, Flags: flags(s.Name)})
	}
	slices.SortStableFunc(added, func(a, b pe.NewSection) int { return place(a.Name) - place(b.Name) })
	image, err := pe.Append(stub, added)
	if err != nil {
		return nil, fmt.Errorf("build UKI: %w", err)
	}
	if err := matchKernel(image, sections); err != nil {
		return nil, fmt.Errorf("build UKI: %w", err)
	}
	if _, err := Open(bytes.NewReader(image), int64(len(image))); err != nil {
		return nil, fmt.Errorf("build UKI: check the result: %w", err)
	}
	return image, nil
}

// matchKernel makes the image claim NX_COMPAT only if the kernel does, because
// firmware that enforces the flag would apply it to the kernel too.
func matchKernel(image []byte, sections []Section) error {
	i := slices.IndexFunc(sections, func(s Section) bool { return s.Name == ".linux" })
	if i < 0 {
		return errors.New("no .linux section given")
	}
	kernel, err := pe.Parse(bytes.NewReader(sections[i].Data), int64(len(sections[i].Data)))
	if err != nil {
		return fmt.Errorf("section .linux: the kernel must be an EFI executable: %w", err)
	}
	if kernel.NXCompat() {
		return nil
	}
	return pe.ClearNXCompat(image)
}

func flags(name string) uint32 {
	if name == ".linux" {
		return pe.FlagCode | pe.FlagRead
	}
	return pe.FlagInitializedData | pe.FlagRead
}
