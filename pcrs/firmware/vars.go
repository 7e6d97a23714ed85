package firmware

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/hullmark/hullmark/image/efi"
)

// MaxVars is the largest variable file that is read, in bytes.
const MaxVars = 4 << 20

// Sizes of the headers in a variable file, in bytes
// (MdeModulePkg/Include/Guid/VariableFormat.h; UEFI PI 1.8 vol. 3 §3.2.1).
const (
	volumeHeaderSize   = 56 // without the block map
	storeHeaderSize    = 28
	variableHeaderSize = 60
)

// States of a variable: each step of its life clears a bit.
const (
	variableHeaderOnly = 0x7f
	variableAdded      = 0x3f
	variableReplacing  = 0x3e // a newer copy is being written
	variableDeletedA   = 0x3d
	variableDeletedB   = 0x3c
)

// Variable names a variable.
type Variable struct {
	Vendor efi.GUID
	Name   string // UTF-16LE with its NUL
}

// Vars are the variables that a firmware keeps in a file.
type Vars struct {
	// SHA256 is the digest of the file.
	SHA256    [sha256.Size]byte
	variables map[Variable][]byte
}

// OpenVars reads an OVMF variable file: a firmware volume that starts with an
// authenticated variable store. It fails for any other format, for a store that
// is damaged, and for a variable that occurs twice.
func OpenVars(file []byte) (Vars, error) {
	if len(file) > MaxVars {
		return Vars{}, fmt.Errorf("open variables: %d bytes, want at most %d", len(file), MaxVars)
	}
	store, err := findStore(file)
	if err != nil {
		return Vars{}, fmt.Errorf("open variables: %w", err)
	}
	v := Vars{SHA256: sha256.Sum256(file), variables: map[Variable][]byte{}}
	if err := v.read(store); err != nil {
		return Vars{}, fmt.Errorf("open variables: %w", err)
	}
	return v, nil
}

// findStore checks both headers and returns the bytes of the store after its header.
func findStore(file []byte) ([]byte, error) {
	if len(file) < volumeHeaderSize || !bytes.Equal(file[16:32], efi.NVData[:]) || string(file[40:44]) != "_FVH" {
		return nil, errors.New("no volume of variables; this is not an OVMF variable file")
	}
	volume := binary.LittleEndian.Uint64(file[32:])
	header := int(binary.LittleEndian.Uint16(file[48:]))
	if volume > uint64(len(file)) || header < volumeHeaderSize || header%2 != 0 || header+storeHeaderSize > len(file) {
		return nil, fmt.Errorf("volume of %d bytes with a header of %d does not fit the file of %d; it is truncated", volume, header, len(file))
	}
	if sum := sum16(file[:header]); sum != 0 {
		return nil, fmt.Errorf("volume header: checksum is off by %#04x", sum)
	}
	store := file[header:volume]
	if len(store) < storeHeaderSize || !bytes.Equal(store[:16], efi.AuthVariables[:]) {
		return nil, errors.New("the store is not one of authenticated variables")
	}
	size := int64(binary.LittleEndian.Uint32(store[16:]))
	if size < storeHeaderSize || size > int64(len(store)) {
		return nil, fmt.Errorf("store of %d bytes, its volume leaves %d", size, len(store))
	}
	if store[20] != 0x5a || store[21] != 0xfe {
		return nil, fmt.Errorf("store is not formatted and healthy: format %#x, state %#x", store[20], store[21])
	}
	return store[storeHeaderSize:size], nil
}

func sum16(b []byte) uint16 {
	var sum uint16
	for i := 0; i < len(b); i += 2 {
		sum += binary.LittleEndian.Uint16(b[i:])
	}
	return sum
}

// read walks the variables: each header is aligned to 4 bytes from the start of the store, the data follows the name without a gap.
func (v Vars) read(store []byte) error {
	replaced := map[Variable][]byte{}
	at := 0
	for at+variableHeaderSize <= len(store) && store[at] == 0xaa && store[at+1] == 0x55 {
		key, data, next, err := readVariable(store, at)
		if err != nil {
			return fmt.Errorf("variable at %d: %w", at, err)
		}
		if err := v.keep(replaced, store[at+2], key, data); err != nil {
			return fmt.Errorf("variable at %d: %w", at, err)
		}
		at = next
	}
	for key, data := range replaced {
		if _, ok := v.variables[key]; !ok {
			v.variables[key] = data
		}
	}
	if rest := bytes.Trim(store[min(at, len(store)):], "\xff"); len(rest) != 0 {
		return fmt.Errorf("free space from %d is not erased", at)
	}
	return nil
}

func readVariable(store []byte, at int) (Variable, []byte, int, error) {
	header := store[at : at+variableHeaderSize]
	nameSize := int64(binary.LittleEndian.Uint32(header[36:]))
	dataSize := int64(binary.LittleEndian.Uint32(header[40:]))
	name := int64(at) + variableHeaderSize
	data := name + nameSize
	end := data + dataSize
	if nameSize < 2 || nameSize%2 != 0 || end > int64(len(store)) {
		return Variable{}, nil, 0, fmt.Errorf("name of %d and data of %d bytes do not fit the store", nameSize, dataSize)
	}
	key := Variable{Vendor: efi.GUID(header[44:60]), Name: string(store[name : name+nameSize])}
	return key, store[data:end], int(align4(end)), nil
}

func (v Vars) keep(replaced map[Variable][]byte, state byte, key Variable, data []byte) error {
	kept := v.variables
	switch state {
	case variableHeaderOnly, variableDeletedA, variableDeletedB:
		return nil
	case variableReplacing:
		kept = replaced
	case variableAdded:
	default:
		return fmt.Errorf("state %#x is unknown", state)
	}
	if _, twice := kept[key]; twice {
		return errors.New("occurs twice")
	}
	kept[key] = data
	return nil
}

func align4(n int64) int64 { return (n + 3) &^ 3 }

// Lookup returns a variable's data; an absent variable has none.
func (v Vars) Lookup(vendor efi.GUID, name string) ([]byte, bool) {
	data, ok := v.variables[variable(vendor, name)]
	return data, ok
}

// All returns every variable, in no order.
func (v Vars) All() iter.Seq2[Variable, []byte] { return maps.All(v.variables) }

// With returns the variables with another value of one of them. It is no file's any more, so its SHA256 is zero.
func (v Vars) With(vendor efi.GUID, name string, data []byte) Vars {
	changed := maps.Clone(v.variables)
	if changed == nil {
		changed = map[Variable][]byte{}
	}
	changed[variable(vendor, name)] = data
	return Vars{variables: changed}
}

func variable(vendor efi.GUID, name string) Variable {
	return Variable{Vendor: vendor, Name: string(append(efi.UTF16(name), 0, 0))}
}
