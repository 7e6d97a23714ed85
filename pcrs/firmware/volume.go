package firmware

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"

	"github.com/hullmark/hullmark/image/efi"
)

// Headers of firmware volumes, files and sections, in bytes (UEFI PI 1.8 vol. 3 §3.2).
const (
	fileHeaderSize      = 24
	largeFileHeaderSize = 32
	sectionHeaderSize   = 4
	largeSectionSize    = 8
)

// Types of sections, and the attribute of a file whose length needs more than 24 bits.
const (
	sectionPE       = 0x10
	sectionTE       = 0x12
	sectionVolume   = 0x17
	attributeLarge  = 0x01
	size24Extended  = 0xffffff
	maxVolumeFiles  = 4096
	maxFileSections = 256
)

// volume is a firmware volume as it lies in memory.
type volume struct {
	bytes []byte
	// name is the GUID in its extended header, by which device paths name it.
	name  efi.GUID
	files map[efi.GUID][]byte
}

// section is a part of a file, without its header.
type section struct {
	kind byte
	data []byte
}

// readSections splits a run of sections, each aligned to 4 bytes. It stops at the first of length zero, which fills up the run.
func readSections(b []byte) ([]section, error) {
	var out []section
	for at := 0; at+sectionHeaderSize <= len(b); {
		size, header := int64(binary.LittleEndian.Uint32(b[at:])&size24Extended), sectionHeaderSize
		if size == size24Extended && at+largeSectionSize <= len(b) {
			size, header = int64(binary.LittleEndian.Uint32(b[at+sectionHeaderSize:])), largeSectionSize
		}
		if size == 0 {
			break
		}
		if size < int64(header) || size > int64(len(b)-at) || len(out) == maxFileSections {
			return nil, fmt.Errorf("section at %d: %d bytes do not fit", at, size)
		}
		out = append(out, section{kind: b[at+3], data: b[at+header : at+int(size)]})
		at = int(align4(int64(at) + size))
	}
	return out, nil
}

// readVolumes returns the volumes among the sections of an unpacked firmware file, in their order.
func readVolumes(unpacked []byte) ([]volume, error) {
	sections, err := readSections(unpacked)
	if err != nil {
		return nil, err
	}
	var out []volume
	for _, s := range sections {
		if s.kind != sectionVolume {
			continue
		}
		v, err := readVolume(s.data)
		if err != nil {
			return nil, fmt.Errorf("volume %d: %w", len(out)+1, err)
		}
		out = append(out, v)
	}
	return out, nil
}

// readVolume reads the header of a volume, its name and its files.
func readVolume(b []byte) (volume, error) {
	if len(b) < volumeHeaderSize || string(b[40:44]) != "_FVH" {
		return volume{}, errors.New("no volume header")
	}
	size, header := binary.LittleEndian.Uint64(b[32:]), int(binary.LittleEndian.Uint16(b[48:]))
	extended := int(binary.LittleEndian.Uint16(b[52:]))
	if size > uint64(len(b)) || header < volumeHeaderSize || uint64(header) > size || uint64(extended)+16 > size {
		return volume{}, fmt.Errorf("%d bytes with a header of %d and another at %d do not fit", size, header, extended)
	}
	v := volume{bytes: b[:size], files: map[efi.GUID][]byte{}}
	if extended != 0 {
		v.name = efi.GUID(b[extended : extended+16])
	}
	return v, v.readFiles(header)
}

// readFiles walks the files, each aligned to 8 bytes, up to the volume's free space.
func (v volume) readFiles(at int) error {
	for at = align8(at); at+fileHeaderSize <= len(v.bytes); {
		b := v.bytes[at:]
		if len(bytes.Trim(b[:fileHeaderSize], "\xff")) == 0 {
			return nil // erased: no file begins here any more
		}
		size, header := int64(binary.LittleEndian.Uint32(b[20:])&size24Extended), fileHeaderSize
		if b[19]&attributeLarge != 0 && len(b) >= largeFileHeaderSize {
			size, header = int64(min(binary.LittleEndian.Uint64(b[24:]), 1<<40)), largeFileHeaderSize
		}
		if size < int64(header) || size > int64(len(b)) || len(v.files) == maxVolumeFiles {
			return fmt.Errorf("file at %d: %d bytes do not fit", at, size)
		}
		v.files[efi.GUID(b[:16])] = b[header:size]
		at = align8(at + int(size))
	}
	return nil
}

func align8(n int) int { return (n + 7) &^ 7 }

// wideString is text of four or more printable characters in UTF-16LE with its NUL.
var wideString = regexp.MustCompile(`(?:[\x20-\x7e]\x00){4,}\x00\x00`)

// versionOf returns the only text in the program of a file, with its NUL, or a NUL alone if there is none.
func versionOf(file []byte) ([]byte, error) {
	sections, err := readSections(file)
	if err != nil {
		return nil, err
	}
	var found [][]byte
	for _, s := range sections {
		if s.kind == sectionPE || s.kind == sectionTE {
			found = append(found, wideString.FindAll(s.data, 2)...)
		}
	}
	switch len(found) {
	case 0:
		return []byte{0, 0}, nil
	case 1:
		return found[0], nil
	}
	return nil, errors.New("more than one text could be the version")
}
