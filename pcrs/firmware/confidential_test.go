package firmware_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/internal/romtest"
	"github.com/hullmark/hullmark/pcrs/firmware"
)

func TestConfidential(t *testing.T) {
	image := romtest.Good().Image()
	sev, err := firmware.OpenSEV(image)
	if err != nil || len(sev.Sections) != 5 || sev.Hashes != 0x80fc00 || sev.Reset != 0x80b004 || sev.Sections[4].Kind != firmware.SEVKernelHashes {
		t.Fatalf("%+v, %v", sev, err)
	}
	tdx, err := firmware.OpenTDX(image)
	if err != nil || len(tdx) != 5 || !tdx[0].Measured || len(tdx[0].Content) != 0x6000 || tdx[3].Kind != firmware.TDXHandOff || !tdx[4].Augmented {
		t.Fatalf("%+v, %v", tdx, err)
	}
	svsm, err := firmware.OpenSEV(romtest.SVSM(0x100).Image())
	if err != nil || svsm.Reset != 0x100 {
		t.Fatalf("%+v, %v", svsm, err)
	}
}

func TestConfidentialImagesThatAreRefused(t *testing.T) {
	for want, change := range map[string]func(r *romtest.ROM){
		"not built for SEV-SNP": func(r *romtest.ROM) { r.SEV = nil },
		"type 0x7":              func(r *romtest.ROM) { r.SEV[0].Kind = 7 },
		"section 1 overlaps":    func(r *romtest.ROM) { r.SEV[1].Address = r.SEV[0].Address + 0x8000 },
		"want whole pages":      func(r *romtest.ROM) { r.SEV[0].Size++ },
		"0x0 bytes":             func(r *romtest.ROM) { r.SEV[3].Size = 0 },
		"too much, or too high": func(r *romtest.ROM) { r.SEV[0] = romtest.SEVSection{Address: 0, Size: 0xfffff000, Kind: 1} },
		"65 sections":           func(r *romtest.ROM) { r.SEV = make([]romtest.SEVSection, 65) },
	} {
		r := romtest.Good()
		change(&r)
		if _, err := firmware.OpenSEV(r.Image()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("SEV, %s: %v", want, err)
		}
	}
	for want, change := range map[string]func(r *romtest.ROM){
		"not built for TDX":       func(r *romtest.ROM) { r.TDX = nil },
		"type 9 is not":           func(r *romtest.ROM) { r.TDX[0].Kind = 9 },
		"attributes 0x4":          func(r *romtest.ROM) { r.TDX[0].Attributes = 4 },
		"measured, and not added": func(r *romtest.ROM) { r.TDX[0].Attributes = 3 },
		"outside of the file":     func(r *romtest.ROM) { r.TDX[0].Offset = 0x3000 },
		"bytes of the file in":    func(r *romtest.ROM) { r.TDX[0].Raw = 0x1000 },
		"with 0 bytes":            func(r *romtest.ROM) { r.TDX[1].Raw = 0 },
		"has no content":          func(r *romtest.ROM) { r.TDX[2].Attributes = 1 },
		"overlaps":                func(r *romtest.ROM) { r.TDX[3].Address = r.TDX[2].Address },
		"too high":                func(r *romtest.ROM) { r.TDX[2].Address = 0xfffffffffffff000 },
	} {
		r := romtest.Good()
		change(&r)
		if _, err := firmware.OpenTDX(r.Image()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("TDX, %s: %v", want, err)
		}
	}
}

// TestTableOfGUIDs breaks the table itself.
func TestTableOfGUIDs(t *testing.T) {
	image := romtest.Good().Image()
	foot := len(image) - 32 - 18
	for want, change := range map[string]func([]byte) []byte{
		"whole pages":       func(b []byte) []byte { return b[1:] },
		"at most":           func(b []byte) []byte { return append(make([]byte, firmware.MaxFile), b...) },
		"no table":          func(b []byte) []byte { b[foot+2] ^= 1; return b },
		"GUIDs: 17 bytes":   func(b []byte) []byte { binary.LittleEndian.PutUint16(b[foot:], 17); return b },
		"GUIDs: 40000":      func(b []byte) []byte { binary.LittleEndian.PutUint16(b[foot:], 40000); return b },
		"an entry of 60000": func(b []byte) []byte { binary.LittleEndian.PutUint16(b[foot-18:], 60000); return b },
		"before its first": func(b []byte) []byte {
			binary.LittleEndian.PutUint16(b[foot:], 18+21)
			binary.LittleEndian.PutUint16(b[foot-18:], 18)
			return b
		},
		"twice": func(b []byte) []byte { copy(b[foot-22-16:foot-22], b[foot-16:foot]); return b },
	} {
		if _, err := firmware.OpenSEV(change(append([]byte{}, image...))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
