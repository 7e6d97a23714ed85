package statedisk

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/firstboot/luks2"
)

// The example of docs/state-disk.md; testdata holds its records for other implementations.
var (
	exampleKey = hullmark.NewSecret([]byte("0123456789abcdef0123456789abcdef"))
	exampleID  = Identity{
		UUID: hullmark.UUID{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}, Generation: 1,
		Owner: hullmark.EKID(bytes.Repeat([]byte{0xe1}, 32)),
	}
	exampleReady = Ready{Identity: exampleID, Geometry: Geometry{
		ProvidedSectors: 2040800, JournalSectors: 15872, InterleaveSectors: 32768, TagSize: 32, BlockSize: 4096,
	}}
	exampleArea = bytes.Repeat([]byte{0x5a}, luks2.AreaSize)
)

func exampleKeys(t testing.TB) Keys {
	t.Helper()
	keys, err := DeriveKeys(exampleKey)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func vector(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestVectors(t *testing.T) {
	keys := exampleKeys(t)
	a, b := EncodeA(exampleID, keys.Header), EncodeB(exampleReady, exampleArea, keys.Header)
	if want := vector(t, "record-a.hex"); !bytes.Equal(a, want) {
		t.Errorf("record A = %x, want %x", a, want)
	}
	if want := vector(t, "record-b.hex"); !bytes.Equal(b, want) {
		t.Errorf("record B = %x, want %x", b, want)
	}
	if want := vector(t, "luks-key.hex"); !bytes.Equal(keys.LUKS.Expose(), want) {
		t.Errorf("LUKS key = %x, want %x", keys.LUKS.Expose(), want)
	}
	if id, err := DecodeA(a); err != nil || id != exampleID {
		t.Errorf("DecodeA = %+v, %v", id, err)
	}
	if r, err := DecodeB(b); err != nil || r != exampleReady {
		t.Errorf("DecodeB = %+v, %v", r, err)
	}
	if err := errors.Join(VerifyA(a, keys.Header), VerifyB(b, exampleArea, keys.Header)); err != nil {
		t.Error(err)
	}
}

// Whatever bit of a record or of the LUKS area changes, and under another key, it does not verify.
func TestEveryBitIsAuthenticated(t *testing.T) {
	keys := exampleKeys(t)
	a, b := EncodeA(exampleID, keys.Header), EncodeB(exampleReady, exampleArea, keys.Header)
	for i := range RecordSize * 8 {
		for name, try := range map[string]func([]byte) error{
			"A": func(r []byte) error { return VerifyA(r, keys.Header) },
			"B": func(r []byte) error { return VerifyB(r, exampleArea[:luks2.AreaSize], keys.Header) },
		} {
			if i%64 != 0 && name == "B" {
				continue // each check of B hashes the whole area
			}
			r := bytes.Clone(map[string][]byte{"A": a, "B": b}[name])
			r[i/8] ^= 1 << (i % 8)
			if err := try(r); !errors.Is(err, ErrMAC) {
				t.Fatalf("record %s with bit %d changed: %v", name, i, err)
			}
		}
	}
	area := bytes.Clone(exampleArea)
	area[luks2.AreaSize-1] ^= 1
	if err := VerifyB(b, area, keys.Header); !errors.Is(err, ErrMAC) {
		t.Errorf("changed LUKS area: %v", err)
	}
	if err := VerifyB(b, exampleArea, keys.LUKS); !errors.Is(err, ErrMAC) {
		t.Errorf("another key: %v", err)
	}
}

func TestDecodeIsStrict(t *testing.T) {
	keys := exampleKeys(t)
	for name, edit := range map[string]func([]byte) []byte{
		"short":      func(b []byte) []byte { return b[:RecordSize-1] },
		"magic":      func(b []byte) []byte { b[0]++; return b },
		"version":    func(b []byte) []byte { b[offVersion+3]++; return b },
		"generation": func(b []byte) []byte { clear(b[offGeneration:offUUID]); return b },
		"uuid":       func(b []byte) []byte { clear(b[offUUID:offOwner]); return b },
		"owner":      func(b []byte) []byte { clear(b[offOwner:offProvided]); return b },
		"more":       func(b []byte) []byte { b[offMAC-1]++; return b },
	} {
		if _, err := DecodeA(edit(EncodeA(exampleID, keys.Header))); err == nil {
			t.Errorf("record A, %s: accepted", name)
		}
		if _, err := DecodeB(edit(EncodeB(exampleReady, exampleArea, keys.Header))); err == nil {
			t.Errorf("record B, %s: accepted", name)
		}
	}
	if _, err := DecodeA(EncodeB(exampleReady, exampleArea, keys.Header)); err == nil {
		t.Error("record B was read as A")
	}
}

// disk is a disk of MinSize that is zero but for pieces.
type disk map[int64][]byte

func (d disk) ReadAt(b []byte, offset int64) (int, error) {
	clear(b)
	for at, piece := range d {
		if end := at + int64(len(piece)); at >= offset && end <= offset+int64(len(b)) {
			copy(b[at-offset:], piece)
		}
	}
	return len(b), nil
}

func TestProbe(t *testing.T) {
	keys := exampleKeys(t)
	a, b := EncodeA(exampleID, keys.Header), EncodeB(exampleReady, exampleArea, keys.Header)
	ready := hullmark.DiskClaim{State: hullmark.DiskReady, UUID: exampleID.UUID, Generation: 1, Owner: exampleID.Owner}
	formatting := hullmark.DiskClaim{State: hullmark.DiskFormatting, UUID: exampleID.UUID}
	blank := hullmark.DiskClaim{State: hullmark.DiskBlank}
	foreign := hullmark.DiskClaim{State: hullmark.DiskForeign}
	for name, tc := range map[string]struct {
		disk disk
		want hullmark.DiskClaim
	}{
		"zeros":                     {disk{}, blank},
		"data in the middle":        {disk{EdgeSize: {1}}, blank},
		"ready":                     {disk{0: exampleArea, OffsetA: a, OffsetB: b}, ready},
		"formatting":                {disk{OffsetA: a}, formatting},
		"formatting, header stored": {disk{0: exampleArea, OffsetA: a}, formatting},
		"torn A":                    {disk{OffsetA: a[:30]}, blank},
		"torn A and data":           {disk{OffsetA: a[:30], 0: {1}}, foreign},
		"torn B":                    {disk{OffsetA: a, OffsetB: b[:30]}, formatting},
		"first byte":                {disk{0: {1}}, foreign},
		"last byte of first edge":   {disk{EdgeSize - 1: {1}}, foreign},
		"last byte":                 {disk{MinSize - 1: {1}}, foreign},
		"ext4":                      {disk{1080: {0x53, 0xef}}, foreign},
	} {
		if got, err := Probe(tc.disk, MinSize); err != nil || got != tc.want {
			t.Errorf("%s: Probe = %+v, %v; want %+v", name, got, err, tc.want)
		}
	}
	if _, err := Probe(disk{}, MinSize-1); err == nil {
		t.Error("a disk that is too small was accepted")
	}
}

func TestOnlyBegun(t *testing.T) {
	a := EncodeA(exampleID, exampleKeys(t).Header)
	for name, tc := range map[string]struct {
		disk disk
		want bool
	}{"torn": {disk{OffsetA: a[:100]}, true}, "more": {disk{OffsetA: a[:100], EdgeSize - 1: {1}}, false}} {
		if got, err := OnlyBegun(tc.disk, MinSize); err != nil || got != tc.want {
			t.Errorf("%s: OnlyBegun = %t, %v; want %t", name, got, err, tc.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	keys := exampleKeys(f)
	f.Add(EncodeA(exampleID, keys.Header))
	f.Add(EncodeB(exampleReady, exampleArea, keys.Header))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := DecodeA(b); err == nil && !bytes.Equal(EncodeA(id, keys.Header)[:offMAC], b[:offMAC]) {
			t.Errorf("record A %x does not encode to itself", b)
		}
		if r, err := DecodeB(b); err == nil && !bytes.Equal(EncodeB(r, exampleArea, keys.Header)[:offMAC], b[:offMAC]) {
			t.Errorf("record B %x does not encode to itself", b)
		}
	})
}
