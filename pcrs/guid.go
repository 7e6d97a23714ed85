package pcrs

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf16"
)

// guid holds the 16 bytes as EFI stores them: the first three fields little-endian.
type guid [16]byte

var (
	guidGlobalVariable   = mustGUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
	guidImageSecurity    = mustGUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
	guidSecureBootEnable = mustGUID("f0a30bc7-af08-4556-99c4-001009c93a44")
	guidX509             = mustGUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
	guidNVData           = mustGUID("fff12b8d-7696-4c8b-a985-2747075b4f50")
	guidAuthVariables    = mustGUID("aaf32c78-947b-439a-a180-2e144ec37792")
	guidLZMASection      = mustGUID("ee4e5898-3914-4259-9d6e-dc7bd79403cf")
	guidTcg2Dxe          = mustGUID("fdff263d-5f68-4591-87ba-b768f445a9af")
	guidTcg2Pei          = mustGUID("a0c98b77-cba5-4bb8-993b-4af6ce33ece4")
	guidUiApp            = mustGUID("462caa21-7614-4503-836e-8ab6f4662331")
	guidShell            = mustGUID("7c04a583-9e3e-4f1c-ad65-e05268d0b4d1")
	guidAutoCreatedEntry = mustGUID("8108ac4e-9f11-4d59-850e-e21a522c59b2")
	guidSecureBootDxe    = mustGUID("f0e6a44f-7195-41c3-ac64-54f202cd0a21")
)

func mustGUID(s string) guid {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		panic("bad GUID constant " + s)
	}
	var g guid
	binary.LittleEndian.PutUint32(g[0:], binary.BigEndian.Uint32(b[0:]))
	binary.LittleEndian.PutUint16(g[4:], binary.BigEndian.Uint16(b[4:]))
	binary.LittleEndian.PutUint16(g[6:], binary.BigEndian.Uint16(b[6:]))
	copy(g[8:], b[8:])
	return g
}

func (g guid) String() string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(g[0:]),
		binary.LittleEndian.Uint16(g[4:]), binary.LittleEndian.Uint16(g[6:]), g[8:10], g[10:])
}

// utf16Bytes returns s as UTF-16LE without a terminator.
func utf16Bytes(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = binary.LittleEndian.AppendUint16(out, u)
	}
	return out
}
