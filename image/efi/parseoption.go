package efi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

// MaxLoadOption is the largest load option that is read, in bytes.
const MaxLoadOption = 64 << 10

// OptionCategory masks the attributes that say what an option is for; 0 is booting.
const OptionCategory = 0x1f00

// Types of the nodes of a device path, with their subtypes in the lower byte (UEFI 2.10 §10.3).
const (
	NodeMemoryMapped = 0x0103
	NodeACPI         = 0x0201
	NodeUSB          = 0x0305
	NodeMAC          = 0x030b
	NodeSATA         = 0x0312
	NodeNVMe         = 0x0317
	NodeHardDrive    = 0x0401
	NodeFile         = 0x0404
	NodeVolumeFile   = 0x0406
	NodeVolume       = 0x0407
	nodeEnd          = 0x7fff
)

// Node is one of a device path.
type Node struct {
	// Kind is type and subtype.
	Kind uint16
	// Raw is all of it, with its head of four bytes.
	Raw []byte
}

// Option is a load option that was read.
type Option struct {
	Attributes  uint32
	Description string
	// Path is the first device path, as bytes with its end, and Nodes what it consists of without that.
	Path  []byte
	Nodes []Node
	// Optional is handed to the program.
	Optional []byte
}

// ParseLoadOption reads the content of a variable Boot####, as EDK2 does (MdeModulePkg, BmValidateOption).
func ParseLoadOption(b []byte) (o Option, err error) {
	if len(b) > MaxLoadOption {
		return o, fmt.Errorf("load option: %d bytes, want at most %d", len(b), MaxLoadOption)
	}
	if len(b) <= 6 {
		return o, fmt.Errorf("load option: %d bytes, want more than 6", len(b))
	}
	o.Attributes = binary.LittleEndian.Uint32(b)
	length := int(binary.LittleEndian.Uint16(b[4:]))
	text, size, ok := terminated(b[6:])
	if !ok {
		return o, errors.New("load option: its description does not end")
	}
	rest := b[6+size:]
	if length == 0 || length > len(rest) {
		return o, fmt.Errorf("load option: a device path of %d bytes, where %d are left", length, len(rest))
	}
	o.Description, o.Path, o.Optional = text, rest[:length], rest[length:]
	if o.Nodes, err = parsePath(o.Path); err != nil {
		return o, fmt.Errorf("load option: %w", err)
	}
	return o, nil
}

// terminated reads UTF-16LE up to its NUL, and says how many bytes it has with that.
func terminated(b []byte) (text string, size int, ok bool) {
	var units []uint16
	for ; len(b) >= 2; b = b[2:] {
		unit := binary.LittleEndian.Uint16(b)
		size += 2
		if unit == 0 {
			return string(utf16.Decode(units)), size, true
		}
		units = append(units, unit)
	}
	return "", 0, false
}

// parsePath reads the nodes of a device path up to its end, which has to be the last of its bytes.
func parsePath(b []byte) (nodes []Node, err error) {
	for len(b) >= 4 {
		kind, length := binary.BigEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if length < 4 || length > len(b) {
			return nil, fmt.Errorf("device path: a node of %d bytes, where %d are left", length, len(b))
		}
		if kind == nodeEnd {
			if length != len(b) || length != 4 {
				return nil, errors.New("device path: there is something after its end")
			}
			return nodes, nil
		}
		nodes, b = append(nodes, Node{Kind: kind, Raw: b[:length]}), b[length:]
	}
	return nil, errors.New("device path: it does not end")
}

// Partition returns what a node of a hard drive names; false if it is no partition of a GUID partition table.
func (n Node) Partition() (p Partition, ok bool) {
	const size, table, signature = 42, 2, 2
	if n.Kind != NodeHardDrive || len(n.Raw) != size || n.Raw[40] != table || n.Raw[41] != signature {
		return p, false
	}
	le := binary.LittleEndian
	return Partition{Number: le.Uint32(n.Raw[4:]), First: le.Uint64(n.Raw[8:]), Sectors: le.Uint64(n.Raw[16:]), GUID: GUID(n.Raw[24:40])}, true
}

// File returns the file that nodes name from one on, with slashes and none at the beginning; false if they name anything else.
func File(nodes []Node) (string, bool) {
	var parts []string
	for _, n := range nodes {
		text, size, ok := terminated(n.Raw[4:])
		if n.Kind != NodeFile || !ok || size != len(n.Raw)-4 {
			return "", false
		}
		parts = append(parts, strings.Trim(strings.ReplaceAll(text, `\`, "/"), "/"))
	}
	return strings.Join(parts, "/"), len(parts) > 0
}
