package uki

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hullmark/hullmark/image/pe"
)

// MaxAddon is the largest addon in bytes that OpenAddon accepts.
const MaxAddon = 64 << 20

// Addon is a PE image that lies on the ESP beside a unified kernel image and
// adds to it: a command line, an initrd, microcode (systemd-stub(7)).
type Addon struct {
	// PE is the image as firmware sees it, which loads it for the stub.
	PE *pe.File

	sections map[string][]byte
}

// OpenAddon reads an addon. It fails for a section that occurs twice and for
// one that no known stub or addon has: versions differ in which of two sections
// they take and in how much of a name they compare.
func OpenAddon(image []byte) (*Addon, error) {
	if len(image) > MaxAddon {
		return nil, fmt.Errorf("open addon: %d bytes, want at most %d", len(image), MaxAddon)
	}
	f, err := pe.Parse(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		return nil, fmt.Errorf("open addon: %w", err)
	}
	a := &Addon{PE: f, sections: map[string][]byte{}}
	unread := int64(maxZeros)
	for _, s := range f.Sections {
		if unread -= int64(s.VirtualSize) - int64(min(s.RawSize, s.VirtualSize)); unread < 0 {
			return nil, fmt.Errorf("open addon: section %s: the sections are more than %d bytes longer in memory than in the file", s.Name, maxZeros)
		}
		if err := a.read(s); err != nil {
			return nil, fmt.Errorf("open addon: section %s: %w", s.Name, err)
		}
	}
	return a, nil
}

func (a *Addon) read(s pe.Section) error {
	known := slices.Concat(sections256, unmeasured, refused)
	if !slices.Contains(known, s.Name) {
		return errors.New("no known addon has it, so what the stub makes of it is unknown")
	}
	if _, twice := a.sections[s.Name]; twice {
		return errors.New("occurs twice")
	}
	data := make([]byte, s.VirtualSize)
	_, err := io.ReadFull(a.PE.Data(s), data)
	a.sections[s.Name] = data
	return err
}

// Section returns the content of the section of that name, as it is loaded. An
// empty section counts as none, as in the stub. The caller must not change it.
func (a *Addon) Section(name string) ([]byte, bool) {
	data := a.sections[name]
	return data, len(data) > 0
}
