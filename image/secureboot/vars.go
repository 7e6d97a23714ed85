package secureboot

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/hullmark/hullmark/image/efi"
)

// The flash of OVMF's 4 MiB builds that holds variables, in bytes
// (OvmfPkg/Include/Fdf/OvmfPkgDefines.fdf.inc): the store with its volume's
// header, a block that is not used, the block that replaces others without
// loss, and its spare.
const (
	flashSize    = 0x84000
	flashBlock   = 0x1000
	volumeHeader = 0x48
	storeEnd     = 0x40000
	workingBlock = 0x41000
)

// Store returns the file of variables with which OVMF's 4 MiB builds start:
// Debian's OVMF_VARS_4M.fd with these variables in it. With PK, KEK and db it
// makes Secure Boot be on from the first start.
func Store(variables ...Variable) ([]byte, error) {
	flash := bytes.Repeat([]byte{0xff}, flashSize) // erased
	header := copy(flash, volume())
	header += copy(flash[header:], storeHeader())
	at := header
	for _, v := range variables {
		b := v.encode()
		if at+len(b) > storeEnd {
			return nil, fmt.Errorf("variable store: %s of %d bytes does not fit", v.Name, len(b))
		}
		copy(flash[at:], b)
		at += (len(b) + 3) &^ 3
	}
	copy(flash[workingBlock:], working())
	return flash, nil
}

// volume is the header of the firmware volume (UEFI PI 1.8 vol. 3 §3.2.1), with the sum that makes all its words zero.
func volume() []byte {
	b := append(make([]byte, 16), efi.NVData[:]...)
	b = binary.LittleEndian.AppendUint64(b, flashSize)
	b = append(b, "_FVH"...)
	b = binary.LittleEndian.AppendUint32(b, 0x0004_feff)
	b = binary.LittleEndian.AppendUint16(b, volumeHeader)
	b = append(b, 0, 0, 0, 0, 0, 2) // checksum, no extended header, revision
	for _, n := range []uint32{flashSize / flashBlock, flashBlock, 0, 0} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	var sum uint16
	for i := 0; i < len(b); i += 2 {
		sum += binary.LittleEndian.Uint16(b[i:])
	}
	binary.LittleEndian.PutUint16(b[50:], -sum)
	return b
}

// storeHeader is that of a formatted, healthy store of authenticated variables (MdeModulePkg/Include/Guid/VariableFormat.h).
func storeHeader() []byte {
	b := binary.LittleEndian.AppendUint32(bytes.Clone(efi.AuthVariables[:]), storeEnd-volumeHeader)
	return append(b, 0x5a, 0xfe, 0, 0, 0, 0, 0, 0)
}

// working is the header of an empty working block (MdeModulePkg/Include/Guid/SystemNvDataGuid.h), with its CRC-32.
func working() []byte {
	b := append(bytes.Clone(guidWorkingBlock[:]), 0x2c, 0xaf, 0x2c, 0x64, 0xfe, 0xff, 0xff, 0xff)
	return binary.LittleEndian.AppendUint64(b, flashBlock-32)
}

// encode is the variable as it lies in the store: AUTHENTICATED_VARIABLE_HEADER, added and valid, then name and data.
func (v Variable) encode() []byte {
	le, vendor, name := binary.LittleEndian, v.vendor(), append(efi.UTF16(v.Name), 0, 0)
	b := []byte{0xaa, 0x55, 0x3f, 0}
	b = le.AppendUint32(b, variableAttributes)
	b = append(b, make([]byte, 8)...) // monotonic count
	b = append(b, efiTime(v.Time)...)
	b = append(b, make([]byte, 4)...) // index of a public key
	b = le.AppendUint32(b, uint32(len(name)))
	b = le.AppendUint32(b, uint32(len(v.Data)))
	return bytes.Join([][]byte{b, vendor[:], name, v.Data}, nil)
}
