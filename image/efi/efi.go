// Package efi holds what several formats of UEFI firmware share: GUIDs and text, in the form in which it stores them.
package efi

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"unicode/utf16"
)

// GUID holds the 16 bytes as EFI stores them: the first three fields little-endian.
type GUID [16]byte

// GUIDs of Secure Boot's variables, and of the flash that holds variables.
var (
	// GlobalVariable is the vendor of PK, KEK and the boot entries (UEFI 2.10 §3.3).
	GlobalVariable = MustGUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
	// ImageSecurity is the vendor of db and dbx (UEFI 2.10 §32.6.1).
	ImageSecurity = MustGUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
	// CertX509 is the type of a signature list of X.509 certificates (UEFI 2.10 §32.4.1).
	CertX509 = MustGUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
	// NVData is the file system of a volume with variables (MdeModulePkg/Include/Guid/SystemNvDataGuid.h).
	NVData = MustGUID("fff12b8d-7696-4c8b-a985-2747075b4f50")
	// AuthVariables is a store of authenticated variables (MdeModulePkg/Include/Guid/VariableFormat.h).
	AuthVariables = MustGUID("aaf32c78-947b-439a-a180-2e144ec37792")
)

// MustGUID reads the 8-4-4-4-12 string form of a constant.
func MustGUID(s string) GUID {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		panic("bad GUID constant " + s)
	}
	var g GUID
	binary.LittleEndian.PutUint32(g[0:], binary.BigEndian.Uint32(b[0:]))
	binary.LittleEndian.PutUint16(g[4:], binary.BigEndian.Uint16(b[4:]))
	binary.LittleEndian.PutUint16(g[6:], binary.BigEndian.Uint16(b[6:]))
	copy(g[8:], b[8:])
	return g
}

// UTF16 returns s as UTF-16LE without a terminator.
func UTF16(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = binary.LittleEndian.AppendUint16(out, u)
	}
	return out
}
